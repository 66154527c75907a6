import ComityMLX
import MLX

/// Every operation on every type and on arrays of all kinds.
func operations(_ checks: Checks) throws {
    for type in DType.allCases {
        try reductions(checks, type)
        try moves(checks, type)
    }
    try shapes(checks)
    try uneven(checks)
    try groups(checks)
    try donation(checks)
}

/// Small numbers that every type has, from 1 to 3, or of 0 and 1.
private func numbers(_ checks: Checks, _ rank: Int, _ shape: [Int], _ type: DType) -> MLXArray {
    let count = shape.reduce(1, *)
    let values = (0..<count).map { i -> Int32 in
        let place = i + rank
        return Int32(type == .bool ? place % 2 : 1 + place % 3)
    }
    return MLXArray(values, shape).asType(type)
}

private func reductions(_ checks: Checks, _ type: DType) throws {
    let group = checks.group
    for shape in [[], [5], [2, 3, 4]] {
        let all = (0..<checks.size).map { numbers(checks, $0, shape, type).asType(.int32) }
        let mine = numbers(checks, checks.rank, shape, type)
        let (sum, most, least) = (
            all.dropFirst().reduce(all[0], +), all.dropFirst().reduce(all[0]) { maximum($0, $1) },
            all.dropFirst().reduce(all[0]) { minimum($0, $1) }
        )
        try checks.close(try group.allSum(mine), sum.asType(type), "allSum of \(type) \(shape)")
        try checks.close(try group.allMax(mine), most.asType(type), "allMax of \(type) \(shape)")
        try checks.close(try MLXDistributed.allMin(mine), least.asType(type), "allMin of \(type) \(shape)")
    }
    let whole = numbers(checks, checks.rank, [2 * checks.size, 3], type)
    let all = (0..<checks.size).map { numbers(checks, $0, [2 * checks.size, 3], type).asType(.int32) }
    let sum = all.dropFirst().reduce(all[0], +).asType(type)
    let own = 2 * checks.rank..<2 * checks.rank + 2
    try checks.close(try group.sumScatter(whole), sum[own], "sumScatter of \(type)")
    let most = all.dropFirst().reduce(all[0]) { maximum($0, $1) }.asType(type)
    try checks.close(try group.reduceScatter(whole, .max), most[own], "reduceScatter of \(type)")
}

private func moves(_ checks: Checks, _ type: DType) throws {
    let (group, rank, size) = (checks.group, checks.rank, checks.size)
    let mine = numbers(checks, rank, [2, 3], type)
    let all = (0..<size).map { numbers(checks, $0, [2, 3], type) }
    try checks.close(try group.allGather(mine), concatenated(all), "allGather of \(type)")
    try checks.close(try group.broadcast(mine, from: size - 1), all[size - 1], "broadcast of \(type)")
    // Part r of rank s is s + 10 r rows turned, so each part is another.
    func part(_ from: Int, _ to: Int) -> MLXArray { numbers(checks, from + 5 * to, [1, 4], type) }
    let sent = concatenated((0..<size).map { part(rank, $0) })
    try checks.close(try group.allToAll(sent), concatenated((0..<size).map { part($0, rank) }), "allToAll of \(type)")
    // To every other rank, not to neighbours only.
    for distance in 1..<max(size, 2) where size > 1 {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size)
        try checks.close(try group.send(mine, to: to), mine, "send of \(type)")
        let received =
            distance % 2 == 0 ? try group.recvLike(mine, from: from) : try group.recv([2, 3], dtype: type, from: from)
        try checks.close(received, all[from], "recv of \(type)")
    }
}

/// Arrays whose elements do not lie one after the other, and arrays without elements.
private func shapes(_ checks: Checks) throws {
    let (group, size) = (checks.group, checks.size)
    let whole = MLXArray(0..<24, [4, 6]).asType(.float32)
    let views: [(String, MLXArray)] = [
        ("transposed", whole.T), ("sliced", whole[1..<3]), ("cut columns", whole[0..., 1..<4]),
        ("every other", whole[.stride(by: 2)]), ("reversed", whole[.stride(by: -1)]),
        ("spread", broadcast(MLXArray(Float(2)), to: [3, 5])), ("empty", zeros([0, 3])), ("without columns", zeros([3, 0])),
        ("high", MLXArray(0..<64, [2, 2, 2, 2, 2, 2]).asType(.float32)), ("late", (whole * 2 + 1).sum(axis: 0)),
    ]
    for (name, x) in views {
        try checks.close(try group.allSum(x), x * size, "allSum of an array that is \(name)")
        try checks.close(try group.allGather(x), concatenated(Array(repeating: x, count: size)), "allGather, \(name)")
        try checks.close(try group.broadcast(x, from: 0), x, "broadcast, \(name)")
        if size > 1 {
            try group.send(x, to: (checks.rank + 1) % size)
            try checks.close(try group.recvLike(x, from: (checks.rank + size - 1) % size), x, "recvLike, \(name)")
        }
    }
    let ranks = try group.allGather(MLXArray(Int32(checks.rank)))
    try checks.equal(ranks.asArray(Int32.self), (0..<Int32(size)).map { $0 }, "allGather of numbers")
    // More than fits into one message.
    let large = MLXArray.full([1 << 20], values: MLXArray(Float(checks.rank + 1)), dtype: .float32)
    let sum = Float(size * (size + 1) / 2)
    try checks.close(try group.allSum(large), MLXArray.full([1 << 20], values: MLXArray(sum), dtype: .float32), "allSum of 4 MiB")
    // The array itself stays as it is.
    try checks.that((large .== Float(checks.rank + 1)).all().item(Bool.self), "the array of a sum")
}

/// Ranks with different numbers of rows.
private func uneven(_ checks: Checks) throws {
    let (group, rank, size) = (checks.group, checks.rank, checks.size)
    let rows = (0..<size).map { 2 * $0 + (size == 1 ? 2 : 0) }
    let each = rows.enumerated().map { rank, rows in MLXArray.full([rows, 3], values: MLXArray(Float(rank)), dtype: .float32) }
    try checks.close(try group.allGather(each[rank], rows: rows), concatenated(each), "allGather of rows")
    let whole = concatenated(each)
    try checks.close(try group.reduceScatter(whole, .average, rows: rows), each[rank], "reduceScatter of rows")
    // Rank s gives r + 1 rows to rank r.
    let sent = (0..<size).map { $0 + 1 }
    let received = try group.allToAll(
        MLXArray.full([sent.reduce(0, +), 2], values: MLXArray(Int32(rank)), dtype: .int32), sendRows: sent,
        receiveRows: Array(repeating: rank + 1, count: size))
    let wanted = (0..<size).flatMap { [Int32](repeating: Int32($0), count: 2 * (rank + 1)) }
    try checks.equal(received.asArray(Int32.self), wanted, "allToAll of rows")
}

/// Groups out of groups, and the job's group.
private func groups(_ checks: Checks) throws {
    let (rank, size) = (checks.rank, checks.size)
    try checks.that(try MLXDistributed.initialize() === checks.group, "the job's group")
    let half = try checks.group.split(color: rank % 2)
    let members = (0..<size).filter { $0 % 2 == rank % 2 }
    let sum = try MLXDistributed.allSum(MLXArray(Int32(rank)), group: half)
    try checks.equal(sum.item(Int32.self), Int32(members.reduce(0, +)), "allSum of half the ranks")
    // Sums in pairs, gathered across the pairs.
    let pair = try checks.group.split(color: rank / 2)
    let gathered = try half.allGather(try pair.allSum(MLXArray.ones([1, 2]) * rank))
    let sums = members.map { first in (0..<size).filter { $0 / 2 == first / 2 }.reduce(0, +) }
    try checks.equal(gathered[0..., 0].asArray(Float.self), sums.map { Float($0) }, "sums of pairs, gathered")
    // Streams of the only device there is here.
    for stream in [StreamOrDevice.default, .cpu, .device(.cpu)] {
        let x = MLXArray(Float(1))
        try checks.close(try MLXDistributed.allSum(x, stream: stream), x * size, "allSum on \(stream)")
        try checks.equal(try MLXDistributed.allGather(x, stream: stream).size, size, "allGather on \(stream)")
    }
    let turned = try checks.group.split(color: 0, key: -rank)
    try checks.equal(turned.rank, size - 1 - rank, "the rank in a group in reverse order")
}

/// A sum needs its own memory and no other. A product takes that of the sum that it is made of, unless somebody still has the sum.
private func donation(_ checks: Checks) throws {
    let group = checks.group
    guard group.size > 1 else { return }
    let (x, factor) = (MLXRandom.normal([1 << 16]), MLXArray(Float(2)))
    eval(x, factor)
    // Most memory at once, in arrays of this size. Numbers, which take a few bytes, do not count.
    func peak(_ make: () throws -> MLXArray) rethrows -> Int {
        Memory.peakMemory = 0
        eval(try make())
        return Memory.peakMemory / x.nbytes
    }
    try checks.equal(try peak { try group.allSum(x) }, 2, "the memory of an array and its sum")
    try checks.equal(try peak { try group.allSum(x) * factor }, 2, "the memory of an array and a product of its sum")
    let kept = try group.allSum(x)
    try checks.equal(peak { kept * factor }, 3, "the memory of an array, its sum that is kept, and a product")
}
