import ComityMLX
import Foundation
import MLX
import MLXNN

/// Calls that cannot be: they throw, and the group goes on.
func misuse(_ checks: Checks) throws {
    let (group, rank, size) = (checks.group, checks.rank, checks.size)
    let x = MLXArray.ones([size + 1, 2])
    if size > 1 { try checks.misuse("rows cannot be cut into \(size) equal parts") { _ = try group.sumScatter(x) } }
    if size > 1 { try checks.misuse("rows cannot be cut into \(size) equal parts") { _ = try group.allToAll(x) } }
    try checks.misuse("a number has no first axis") { _ = try group.sumScatter(MLXArray(Float(1))) }
    try checks.misuse("must have a number of rows for each") { _ = try group.allGather(x, rows: [1, 2, 3, 4, 5]) }
    try checks.misuse("must have a number of rows for each") {
        _ = try group.allGather(x, rows: [-1] + Array(repeating: 0, count: size - 1))
    }
    try checks.misuse("rows, and must have") { _ = try group.allGather(x, rows: Array(repeating: size + 2, count: size)) }
    try checks.misuse("the array has \(size + 1) rows") { _ = try group.reduceScatter(x, rows: Array(repeating: 7, count: size)) }
    try checks.misuse("receiveRows has 0 numbers") {
        _ = try group.allToAll(MLXArray.ones([size, 2]), receiveRows: [])
    }
    for root in [-1, size] {
        try checks.misuse("the root is \(root)") { _ = try group.broadcast(x, from: root) }
        try checks.misuse("the destination is \(root)") { try group.send(x, to: root) }
        try checks.misuse("the source is \(root)") { _ = try group.recv([1], dtype: .float32, from: root) }
    }
    try checks.misuse("rank \(rank)") { try group.send(x, to: rank) }
    try checks.misuse("rank \(rank)") { _ = try group.recvLike(x, from: rank) }
    try checks.misuse("is the shape of no array") { _ = try group.recv([2, -1], dtype: .float32, from: 0) }
    try checks.misuse("is the shape of no array") { _ = try group.recv([1 << 40], dtype: .float32, from: 0) }
    // An array that MLX cannot compute, and a function that is compiled.
    let broken = try checks.failure { _ = try MLXDistributed.withErrors { matmul(MLXArray.ones([2, 3]), MLXArray.ones([2, 3])) } }
    try checks.that(broken is MLXError, "\(broken)")
    if size > 1 {
        var caught: (any Error)?
        let compiled = compile { (x: MLXArray) -> MLXArray in
            do { return try group.allSum(x) } catch {
                caught = error
                return x
            }
        }
        _ = compiled(x)
        guard case .library(let details)? = caught as? ComityError else { throw Failed("\(String(describing: caught))") }
        try checks.that(details.message.contains("compiled"), details.message)
    }
    // All of that has not harmed the group.
    try checks.equal(try group.allSum(MLXArray(Int32(rank))).item(Int32.self), Int32(size * (size - 1) / 2), "a sum after misuse")

    if size > 1 { try mismatch(checks) }
    let other = try group.split(color: 0)
    let layer = try ShardedToAllLinear(12, 3, group: other)
    try other.close()
    guard size > 1 else { return }
    let error = try checks.failure { _ = try other.allSum(x) }
    guard case .closed? = error as? ComityError else { throw Failed("\(error), and not a closed group") }
    // A layer cannot throw; the block around it does.
    let inLayer = try checks.failure { _ = try MLXDistributed.withErrors { layer(MLXArray.ones([1, 12 / size])) } }
    guard case .closed? = inLayer as? ComityError else { throw Failed("\(inLayer), and not a closed group") }
    let ofMLX = try checks.failure { _ = try withError { layer(MLXArray.ones([1, 12 / size])) } }
    try checks.that(ofMLX is MLXError, "\(ofMLX)")
}

/// Ranks that call different operations all learn it.
private func mismatch(_ checks: Checks) throws {
    let group = try checks.group.split(color: 0)
    let x = MLXArray.ones([4])
    let error = try checks.failure {
        _ = checks.rank == 0 ? try group.allSum(x) : try group.allMax(x)
    }
    guard case .mismatch? = error as? ComityError else { throw Failed("\(error), and not a mismatch") }
    let typed = try checks.group.split(color: 0)
    let ofType = try checks.failure { _ = try typed.allSum(x.asType(checks.rank == 0 ? .int32 : .float32)) }
    guard case .mismatch(let details)? = ofType as? ComityError, details.difference == "dtype" else { throw Failed("\(ofType)") }
}

/// The last rank ends during a step; the others learn which.
func lost(_ checks: Checks) throws {
    let layer = try AllToShardedLinear(4, 12)
    if checks.rank == checks.size - 1 {
        kill(getpid(), SIGKILL)
    }
    let error = try checks.failure {
        _ = try MLXDistributed.withErrors { eval(grad { (x: MLXArray) in layer(x).sum() }(MLXArray.ones([1, 4]))) }
    }
    guard case .peerLost(let details)? = error as? ComityError, details.rank == checks.size - 1 else { throw Failed("\(error)") }
}
