import ComityMLX
import MLX
import MLXNN

/// Gradients of each operation, by the convention that the computation after it is the same on every rank.
func gradients(_ checks: Checks) throws {
    let (group, rank, size) = (checks.group, checks.rank, checks.size)
    let x = MLXArray([1, 2, 3, 4, 5, 6] as [Float], [3, 2]) + Float(rank)
    let weights = MLXArray(0..<6, [3, 2]).asType(.float32)

    func gradient(_ f: @escaping (MLXArray) throws -> MLXArray) throws -> MLXArray {
        try MLXDistributed.withErrors {
            let made = grad { (x: MLXArray) -> MLXArray in
                do { return try f(x) } catch { fatalError("\(error)") }
            }(x)
            eval(made)
            return made
        }
    }

    try checks.close(try gradient { (try group.allSum($0) * weights).sum() }, weights, "the gradient of allSum")
    // A sum of squares: the gradient is that of the sum, of which each rank is a part.
    let total = try group.allSum(x)
    try checks.close(try gradient { try group.allSum($0).square().sum() }, 2 * total, "the gradient of a square of allSum")
    // Rank N - 1 has the largest elements, and rank 0 the smallest.
    let (isLast, isFirst) = (Float(rank == size - 1 ? 1 : 0), Float(rank == 0 ? 1 : 0))
    try checks.close(try gradient { (try group.allMax($0) * weights).sum() }, weights * isLast, "the gradient of allMax")
    try checks.close(try gradient { (try group.allMin($0) * weights).sum() }, weights * isFirst, "the gradient of allMin")
    let same = MLXArray.ones([3, 2])
    try checks.close(
        try gradient { (try group.allMax($0 * 0 + same) * weights + $0 * 0).sum() }, weights * 0, "the gradient of allMax of a constant")

    let tall = MLXArray(0..<6 * size, [3 * size, 2]).asType(.float32)
    let own = 3 * rank..<3 * rank + 3
    try checks.close(try gradient { (try group.allGather($0) * tall).sum() }, tall[own], "the gradient of allGather")
    let rows = Array(repeating: 3, count: size)
    try checks.close(try gradient { (try group.allGather($0, rows: rows) * tall).sum() }, tall[own], "the gradient of allGather of rows")
    let scalar = try MLXDistributed.withErrors {
        grad { (y: MLXArray) -> MLXArray in
            Failed.unless { (try group.allGather(y) * MLXArray((1...Int32(size)).map { Float($0) })).sum() }
        }(MLXArray(Float(1)))
    }
    try checks.close(scalar, MLXArray(Float(rank + 1)), "the gradient of allGather of a number")

    let wide = concatenated(Array(repeating: x, count: size))
    let scattered = try MLXDistributed.withErrors {
        grad { (y: MLXArray) -> MLXArray in Failed.unless { (try group.sumScatter(y) * weights * Float(rank + 1)).sum() } }(wide)
    }
    let gathered = concatenated((0..<size).map { weights * Float($0 + 1) })
    try checks.close(scattered, gathered, "the gradient of sumScatter")
    let averaged = try MLXDistributed.withErrors {
        grad { (y: MLXArray) -> MLXArray in
            Failed.unless { (try group.reduceScatter(y, .average) * weights * Float(rank + 1)).sum() }
        }(wide)
    }
    try checks.close(averaged, gathered / size, "the gradient of an average")
    let exchanged = try MLXDistributed.withErrors {
        grad { (y: MLXArray) -> MLXArray in Failed.unless { (try group.allToAll(y) * Float(rank + 1)).sum() } }(wide)
    }
    let ofEach = concatenated((0..<size).map { MLXArray.ones([3, 2]) * Float($0 + 1) })
    try checks.close(exchanged, ofEach, "the gradient of allToAll")
    try checks.close(
        try gradient { (try group.broadcast($0, from: size - 1) * weights).sum() }, weights * isLast, "the gradient of broadcast")

    let summed = sumGradients(group: group)
    try checks.close(summed(x), x, "sumGradients")
    let parts = Float(size * (size + 1) / 2)
    try checks.close(try gradient { (summed($0) * weights * Float(rank + 1)).sum() }, weights * parts, "the gradient of sumGradients")

    // Several calls, whose gradients communicate as well, in the same order on every rank.
    let deep = try gradient { x in
        var y = x
        for _ in 0..<5 { y = try group.allMax(try group.allSum(summed(y)) / Float(size)) }
        return (y * weights).sum()
    }
    // Each round divides twice by the number of ranks, and adds up once.
    let factor = (0..<5).reduce(Float(1)) { product, _ in product / Float(size) }
    try checks.close(deep, weights * factor, "the gradient of many calls")
    // No array stays behind: neither of a call nor of its gradient.
    func rounds(_ count: Int) throws -> Int {
        for _ in 0..<count {
            eval(try gradient { (try group.allMax(try group.allGather(summed($0))[0..<3]) * weights).sum() })
        }
        return Memory.activeMemory
    }
    let before = try rounds(3)
    try checks.equal(try rounds(50), before, "the memory of MLX after 50 gradients")

    if size > 1 {
        let error = try checks.failure {
            _ = try MLXDistributed.withErrors {
                eval(grad { (y: MLXArray) -> MLXArray in Failed.unless { try group.reduceScatter(y, .max).sum() } }(wide))
            }
        }
        try checks.that("\(error)".contains("has no gradient"), "\(error)")
    }
}

extension Failed {
    /// Array of a call that goes well.
    static func unless(_ call: () throws -> MLXArray) -> MLXArray {
        do { return try call() } catch { fatalError("\(error)") }
    }
}
