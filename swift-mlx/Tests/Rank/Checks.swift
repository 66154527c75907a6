import ComityMLX
import MLX
import MLXNN

/// Cases by name.
let cases: [String: @Sendable (Checks) throws -> Void] = [
    "operations": operations, "gradients": gradients, "layers": layers, "quantized": quantizedLayers, "in-place": inPlace,
    "modules": modules, "averages": averages, "fully-sharded": fullySharded, "misuse": misuse, "lost": lost,
]

/// A check that does not hold.
struct Failed: Error, CustomStringConvertible {
    let description: String

    init(_ description: String) {
        self.description = description
    }
}

/// Comparisons on one rank, counted.
final class Checks {
    let group: MLXDistributed.Group
    let rank: Int
    let size: Int
    private(set) var count = 0

    init(_ group: MLXDistributed.Group) {
        (self.group, rank, size) = (group, group.rank, group.size)
    }

    func that(_ holds: Bool, _ what: @autoclosure () -> String) throws {
        count += 1
        if !holds { throw Failed("\(what()) on rank \(rank) of \(size)") }
    }

    func equal<T: Equatable>(_ a: T, _ b: T, _ what: String) throws {
        try that(a == b, "\(what): \(a), and not \(b)")
    }

    /// Whether two arrays have the same shape, type and elements, up to rounding.
    func close(_ a: MLXArray, _ b: MLXArray, _ what: String, tolerance: Double = 1e-5) throws {
        try equal(a.shape, b.shape, "the shape of \(what)")
        try equal(a.dtype, b.dtype, "the type of \(what)")
        guard a.size > 0 else { return }
        let holds = allClose(a, b, rtol: tolerance, atol: tolerance).item(Bool.self)
        try that(holds, "\(what): \(a), and not \(b)")
    }

    /// Error of a call that must fail.
    func failure(_ body: () throws -> Void) throws -> any Error {
        do {
            try body()
        } catch {
            count += 1
            return error
        }
        throw Failed("a call went well that had to fail, on rank \(rank) of \(size)")
    }

    func misuse(_ words: String, _ body: () throws -> Void) throws {
        let error = try failure(body)
        guard case .misuse(let details)? = error as? ComityError, details.message.contains(words) else {
            throw Failed("\(error), and not a misuse with `\(words)`, on rank \(rank) of \(size)")
        }
    }

    func shardingError(_ words: String, _ body: () throws -> Void) throws {
        let error = try failure(body)
        guard let error = error as? ShardingError, error.description.contains(words) else {
            throw Failed("\(error), and not an error of sharding with `\(words)`, on rank \(rank) of \(size)")
        }
    }
}

/// Places of this rank's part in the segments of a dimension, for comparison.
func places(_ checks: Checks, _ length: Int, _ segments: Segments = .whole, _ division: Division = .equal) throws -> MLXArray {
    let shard = try Shard(rank: checks.rank, of: checks.size)
    return MLXArray(try shard.ranges(of: length, segments: segments, division: division).flatMap { $0.map { Int32($0) } })
}
