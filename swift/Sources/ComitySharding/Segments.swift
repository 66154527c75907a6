/// Parts of a dimension that are sharded each by itself, such as the queries, keys and values of a fused projection.
///
/// ```swift
/// try Segments.count(3).ranges(of: 12)          // 0..<4, 4..<8, 8..<12
/// try Segments.indices([8, 10]).ranges(of: 12)  // 0..<8, 8..<10, 10..<12
/// ```
public enum Segments: Sendable, Hashable {
    /// So many equal parts.
    case count(Int)
    /// Places where one part ends and the next begins, in ascending order.
    case indices([Int])
    /// The same as fractions of the dimension, between 0 and 1. Products are cut off to whole numbers.
    case fractions([Double])

    /// The whole dimension as one part.
    public static let whole = Segments.count(1)

    /// Parts of a dimension of this length.
    public func ranges(of length: Int) throws(ShardingError) -> [Range<Int>] {
        guard length >= 0 else { throw .invalidShape(reason: "a dimension has \(length) elements, and must have 0 or more") }
        let inner: [Int]
        switch self {
        case .count(let count):
            guard count > 0 else { throw .invalidSegments(reason: "\(count) segments are none; give 1 or more") }
            guard length % count == 0 else { throw .indivisible(dimension: "the dimension", of: length, across: count) }
            inner = (1..<count).map { $0 * (length / count) }
        case .indices(let indices):
            inner = indices
        case .fractions(let fractions):
            for fraction in fractions where !(fraction > 0 && fraction < 1) {
                throw .invalidSegments(reason: "a segment ends at the fraction \(fraction), and must end between 0 and 1")
            }
            inner = fractions.map { Int($0 * Double(length)) }
        }
        let bounds = [0] + inner + [length]
        var ranges: [Range<Int>] = []
        for (start, end) in zip(bounds, bounds.dropFirst()) {
            guard start < end || (length == 0 && start == end) else {
                throw .invalidSegments(
                    reason: "segments end at \(inner) in a dimension of \(length): each must end after the one before, and before the end")
            }
            ranges.append(start..<end)
        }
        return ranges
    }

    /// The same segments in a dimension of another length, in which each element stands for several: that of a packed weight or of its
    /// scales. All arithmetic is in whole numbers.
    public func ranges(of length: Int, packed: Int) throws(ShardingError) -> [Range<Int>] {
        var scaled: [Range<Int>] = []
        for range in try ranges(of: length) {
            scaled.append(try Self.scaled(range, of: length, packed: packed))
        }
        return scaled
    }

    /// The same range of a dimension of another length.
    static func scaled(_ range: Range<Int>, of length: Int, packed: Int) throws(ShardingError) -> Range<Int> {
        let (lower, upper) = (range.lowerBound.multipliedFullWidth(by: packed), range.upperBound.multipliedFullWidth(by: packed))
        guard length > 0, lower.high == 0, upper.high == 0, lower.low % UInt(length) == 0, upper.low % UInt(length) == 0 else {
            throw .invalidSegments(
                reason: "the segment \(range) of \(length) elements does not lie between elements of the \(packed) packed ones")
        }
        return Int(lower.low / UInt(length))..<Int(upper.low / UInt(length))
    }
}

/// Rule for which parameters of a layer are cut, and along which axis.
public enum Sharding: Sendable, Hashable {
    /// The output is cut: rows of the weight, and the bias. The input is whole.
    case allToSharded
    /// The input is cut: columns of the weight. The bias stays whole, and the outputs are summed.
    case shardedToAll

    /// Axis along which a parameter is cut, or `nil` for one that stays whole.
    ///
    /// - Parameters:
    ///   - path: The parameter's name, such as `layers.0.weight`.
    ///   - dimensions: Number of its dimensions. Scalars stay whole.
    public func axis(of path: String, dimensions: Int) -> Int? {
        guard dimensions > 0 else { return nil }
        let isBias = path.hasSuffix("bias")
        switch self {
        case .allToSharded: return isBias ? dimensions - 1 : max(dimensions - 2, 0)
        case .shardedToAll: return isBias ? nil : dimensions - 1
        }
    }
}
