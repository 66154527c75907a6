/// Shape that cannot be cut among ranks, and the sizes that could.
public enum ShardingError: Error, Sendable, Hashable {
    /// A dimension is no multiple of the number of ranks.
    case indivisible(dimension: String, of: Int, across: Int)
    /// A dimension has no whole units for parts that may differ, or fewer than one for each rank.
    case units(dimension: String, of: Int, unit: Int, across: Int)
    /// A shard would have a part of a quantization group.
    case quantizationGroup(inputDimensions: Int, groupSize: Int, across: Int)
    /// Segments that no dimension of this size has.
    case invalidSegments(reason: String)
    /// The layer is quantized, and the operation is for others.
    case quantizedLayer
    /// The layer lacks a parameter.
    case missingParameter(String)
    /// A scalar has no dimension to cut.
    case scalarParameter(String)
    /// An axis or a shape that the values do not have.
    case invalidShape(reason: String)
    /// A place that no group has.
    case invalidRank(rank: Int, size: Int)
}

extension ShardingError: CustomStringConvertible {
    public var description: String {
        switch self {
        case .indivisible(let name, let dimension, let size):
            return "\(name) has \(dimension) elements, which cannot be cut into \(size) equal parts; "
                + multiples(of: size, near: dimension)
        case .units(let name, let dimension, let unit, let size):
            if dimension % unit != 0 {
                return "\(name) has \(dimension) elements, which are no whole units of \(unit); " + multiples(of: unit, near: dimension)
            }
            let (least, overflow) = unit.multipliedReportingOverflow(by: size)
            return "\(name) has \(dimension / unit) units of \(unit), and each of the \(size) ranks needs one; "
                + (overflow ? "no size would work" : "\(least) elements or more would work")
        case .quantizationGroup(let dimension, let groupSize, let size):
            return "\(dimension) inputs in quantization groups of \(groupSize) cannot be cut into \(size) parts of whole groups; "
                + multiples(of: groupSize, times: size, near: dimension)
        case .invalidSegments(let reason), .invalidShape(let reason): return reason
        case .quantizedLayer: return "the layer is quantized; use shardLinear or the quantized form of this layer"
        case .missingParameter(let name): return "the layer has no parameter \(name)"
        case .scalarParameter(let name): return "\(name) is a scalar and has no dimension to cut; leave it whole"
        case .invalidRank(let rank, let size): return "rank \(rank) of \(size) is no place in a group"
        }
    }

    /// Sizes next to this one that would work.
    private func multiples(of unit: Int, times count: Int = 1, near value: Int) -> String {
        let (step, isTooLarge) = unit.multipliedReportingOverflow(by: count)
        guard step > 0, !isTooLarge else { return "no size would work" }
        let below = value / step * step
        let (above, overflow) = below.addingReportingOverflow(step)
        switch (below > 0, overflow) {
        case (true, false): return "\(below) or \(above) would work"
        case (true, true): return "\(below) would work"
        default: return "\(above) would work"
        }
    }
}
