import Comity
import ComitySharding
import MLX
import MLXNN

/// Rule for the parameters of a module: from a parameter's path and content to the axis that is cut and its segments, or `nil` for one that
/// stays whole.
public typealias ShardingPredicate = (_ path: String, _ parameter: MLXArray) -> (axis: Int, segments: Segments)?

/// Name of `Sharding` in mlx-swift's port.
public typealias ShardingType = Sharding

/// Cut of parameters for one rank.
struct Cut {
    let shard: Shard
    let division: Division

    init(_ group: Group, _ division: Division) throws(ShardingError) {
        shard = try Shard(rank: group.rank, of: group.size)
        self.division = division
    }

    /// This rank's part of a parameter.
    ///
    /// - Parameters:
    ///   - x: The whole parameter.
    ///   - path: Its name, in errors.
    ///   - axis: Dimension that is cut; counted from the end where it is below 0.
    ///   - segments: Parts that are cut each by itself.
    ///   - quantized: The quantized layer whose weight, scales or biases these are.
    func part(
        _ x: MLXArray, _ path: String, axis: Int, _ segments: Segments, quantized: (any Quantized)? = nil
    ) throws(ShardingError) -> MLXArray {
        guard x.ndim > 0 else { throw .scalarParameter(path) }
        let place = axis < 0 ? axis + x.ndim : axis
        guard (0..<x.ndim).contains(place) else {
            throw .invalidShape(reason: "axis \(axis) is none of \(path), whose shape is \(x.shape)")
        }
        let ranges: [Range<Int>]
        if let quantized, place == x.ndim - 1, let inputs = quantized.inputs {
            // Several inputs in one element, or one element for several.
            ranges = try shard.ranges(
                of: inputs, packed: x.dim(place), groupSize: quantized.groupSize, segments: segments, division: division)
        } else {
            ranges = try shard.ranges(of: x.dim(place), segments: segments, name: "axis \(place) of \(path)", division: division)
        }
        let parts = ranges.map { x.slice($0, axis: place) }
        return contiguous(parts.count == 1 ? parts[0] : concatenated(parts, axis: place))
    }
}

extension Quantized {
    /// Inputs of the layer, before they were packed.
    fileprivate var inputs: Int? {
        guard case .value(.parameters(let scales)) = items()["scales"] else { return nil }
        return scales.dim(-1) * groupSize
    }
}

extension Sharding {
    /// The rule as a function.
    func predicate(_ segments: Segments) -> ShardingPredicate {
        { path, x in axis(of: path, dimensions: x.ndim).map { ($0, segments) } }
    }
}

/// Leave this rank's part of the parameters in a module, its inner modules included. Adds no communication.
///
/// `.allToSharded` cuts the outputs: rows of the weights, and the bias. `.shardedToAll` cuts the inputs: columns of the weights. It keeps the
/// bias whole: a module that adds its bias before the sum over ranks would add it once for each rank.
///
/// - Parameters:
///   - module: The module, the same on all ranks.
///   - sharding: Which parameters are cut, and how.
///   - segments: Parts that are cut each by itself.
///   - division: Whether all ranks get as much.
///   - group: The ranks; `nil`: those of the job.
public func shardInPlace(
    _ module: Module, sharding: Sharding, segments: Segments = .whole, division: Division = .equal, group: Group? = nil
) throws {
    try shardInPlace(module, predicate: sharding.predicate(segments), division: division, group: group)
}

/// Leave this rank's part of the parameters in a module, as a function of path and parameter says.
///
/// ```swift
/// try shardInPlace(experts, predicate: { path, _ in path.hasSuffix("router.weight") ? nil : (0, .whole) })
/// ```
public func shardInPlace(
    _ module: Module, predicate: ShardingPredicate, division: Division = .equal, group: Group? = nil
) throws {
    let cut = try Cut(try MLXDistributed.of(group), division)
    let modules = Dictionary(module.namedModules(), uniquingKeysWith: { first, _ in first })
    var parts: [(String, MLXArray)] = []
    for (path, x) in module.parameters().flattened() {
        guard let (axis, segments) = predicate(path, x) else { continue }
        let (owner, name) = split(path)
        let packed = ["weight", "scales", "biases"].contains(name) ? modules[owner] as? any Quantized : nil
        parts.append((path, try cut.part(x, path, axis: axis, segments, quantized: packed)))
    }
    guard !parts.isEmpty else { return }
    try module.update(parameters: .unflattened(parts), verify: .none)
}

/// Path of the module that has a parameter, and the parameter's name.
private func split(_ path: String) -> (owner: String, name: String) {
    guard let dot = path.lastIndex(of: ".") else { return ("", path) }
    return (String(path[..<dot]), String(path[path.index(after: dot)...]))
}

/// A layer that does the same as a `Linear` or `QuantizedLinear` with this rank's part of its parameters.
///
/// ```swift
/// block.up = try shardLinear(block.up, sharding: .allToSharded)
/// block.down = try shardLinear(block.down, sharding: .shardedToAll)
/// ```
///
/// A layer with sharded outputs, only element-wise work or work of single heads, and a layer with sharded inputs need one sum over all ranks
/// together.
///
/// - Parameters:
///   - layer: The whole layer, the same on all ranks.
///   - sharding: Whether its outputs or its inputs are cut.
///   - segments: For fused layers: parts that are cut each by itself.
///   - division: Whether all ranks get as much.
///   - group: The ranks; `nil`: those of the job.
public func shardLinear(
    _ layer: Linear, sharding: Sharding, segments: Segments = .whole, division: Division = .equal, group: Group? = nil
) throws -> Linear {
    // A quantized layer is a Linear as well.
    switch (sharding, layer as? QuantizedLinear) {
    case (.allToSharded, let quantized?):
        try QuantizedAllToShardedLinear(quantized, segments: segments, division: division, group: group)
    case (.shardedToAll, let quantized?):
        try QuantizedShardedToAllLinear(quantized, segments: segments, division: division, group: group)
    case (.allToSharded, nil):
        try AllToShardedLinear(layer, segments: segments, division: division, group: group)
    case (.shardedToAll, nil):
        try ShardedToAllLinear(layer, segments: segments, division: division, group: group)
    }
}
