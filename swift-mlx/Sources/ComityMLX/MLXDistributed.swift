import Comity
import Foundation
import MLX

/// Functions on the group of this process's job, under the names of mlx-swift's port.
///
/// ```swift
/// let group = try MLXDistributed.initialize()
/// let sum = try MLXDistributed.allSum(MLXArray(Float(group.rank)))
/// ```
///
/// Each function takes the job's group where none is given, and makes it if need be.
public enum MLXDistributed {
    public typealias Group = Comity.Group
    public typealias Backend = Configuration.Backend

    /// The group of this process's job, which is made once.
    ///
    /// A job that does not come together is an error also without `strict`, never a group of one: only the absence of a launcher's variables
    /// makes one.
    ///
    /// - Parameters:
    ///   - backend: The backend that carries out the calls.
    ///   - strict: Whether the variables of a launcher must be there.
    public static func initialize(backend: Backend = .any, strict: Bool = false) throws(ComityError) -> Group {
        try world.group(strict, backend)
    }

    private static let world = World()

    /// The group that a call is for.
    static func of(_ group: Group?) throws(ComityError) -> Group {
        if let group { return group }
        return try initialize()
    }

    /// Sum of the arrays of all ranks. Its gradient passes unchanged.
    public static func allSum(
        _ x: MLXArray, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).allSum(x, stream: stream)
    }

    /// Largest elements of all ranks. The gradient goes to the ranks that have them, in equal parts.
    public static func allMax(
        _ x: MLXArray, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).allMax(x, stream: stream)
    }

    /// Smallest elements of all ranks. The gradient goes to the ranks that have them, in equal parts.
    public static func allMin(
        _ x: MLXArray, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).allMin(x, stream: stream)
    }

    /// Arrays of all ranks, joined by rank along the first axis. Numbers become a vector.
    public static func allGather(
        _ x: MLXArray, rows: [Int]? = nil, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).allGather(x, rows: rows, stream: stream)
    }

    /// This rank's rows of the sum over all ranks. Their gradients are gathered.
    public static func sumScatter(
        _ x: MLXArray, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).sumScatter(x, stream: stream)
    }

    /// This rank's rows of the arrays of all ranks, combined.
    public static func reduceScatter(
        _ x: MLXArray, _ reduction: Reduction = .sum, rows: [Int]? = nil, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).reduceScatter(x, reduction, rows: rows, stream: stream)
    }

    /// Part r of the array along its first axis to rank r, and a part from each rank. The gradients go the other way.
    public static func allToAll(
        _ x: MLXArray, sendRows: [Int]? = nil, receiveRows: [Int]? = nil, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).allToAll(x, sendRows: sendRows, receiveRows: receiveRows, stream: stream)
    }

    /// The root's array on every rank. Only the root's has a gradient.
    public static func broadcast(
        _ x: MLXArray, from root: Int, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).broadcast(x, from: root, stream: stream)
    }

    /// Send an array to a rank, which receives it with the same shape and type. It is sent now, whether or not the result is used.
    @discardableResult
    public static func send(
        _ x: MLXArray, to destination: Int, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).send(x, to: destination, stream: stream)
    }

    /// Receive an array from a rank.
    public static func recv(
        _ shape: [Int], dtype: DType, from source: Int, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).recv(shape, dtype: dtype, from: source, stream: stream)
    }

    /// Receive an array of the shape and type of another one from a rank.
    public static func recvLike(
        _ x: MLXArray, from source: Int, group: Group? = nil, stream: StreamOrDevice = .default
    ) throws(ComityError) -> MLXArray {
        try of(group).recvLike(x, from: source, stream: stream)
    }
}

extension Configuration.Backend {
    /// Comity's own links: MLX's name for them.
    public static let ring = Configuration.Backend.any
}

/// The job's group, which any thread may ask for.
private final class World: @unchecked Sendable {
    private let lock = NSLock()
    private var made: Group?

    func group(_ strict: Bool, _ backend: Configuration.Backend) throws(ComityError) -> Group {
        // A lock that is held while ranks meet: another thread that needs the group has to wait for them as well.
        lock.lock()
        defer { lock.unlock() }
        let group: Group
        if let made {
            group = made
        } else {
            var configuration = Configuration.environment
            configuration.backend = backend == .any ? nil : backend
            group = try Group(configuration)
        }
        if strict, group.size == 1 {
            // Throws where there is no launcher.
            _ = try Group(strict: true)
        }
        made = group
        return group
    }
}
