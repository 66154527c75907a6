/// Part of one rank in what is cut among all.
///
/// ```swift
/// let shard = try Shard(rank: 1, of: 3)
/// try shard.range(of: 12)        // 4..<8
/// try shard.unevenRange(of: 11)  // 4..<8
/// ```
public struct Shard: Sendable, Hashable {
    public let rank: Int
    public let size: Int

    /// The part of rank `rank` of `size`.
    public init(rank: Int, of size: Int) throws(ShardingError) {
        guard size > 0, (0..<size).contains(rank) else { throw .invalidRank(rank: rank, size: size) }
        (self.rank, self.size) = (rank, size)
    }

    /// This rank's part of a dimension.
    ///
    /// - Parameters:
    ///   - length: Elements of the dimension.
    ///   - name: Name of the dimension in errors.
    ///   - division: Whether all parts have the same size.
    public func range(
        of length: Int, name: String = "the dimension", division: Division = .equal
    ) throws(ShardingError) -> Range<Int> {
        try division.range(of: length, self, name)
    }

    /// Number of elements of each rank's part where parts may differ by one: the first ranks have one more.
    public func unevenCounts(of length: Int) throws(ShardingError) -> [Int] {
        guard length >= 0 else { throw .invalidShape(reason: "a dimension has \(length) elements, and must have 0 or more") }
        return (0..<size).map { length / size + ($0 < length % size ? 1 : 0) }
    }

    /// This rank's part of a dimension where parts may differ by one.
    public func unevenRange(of length: Int) throws(ShardingError) -> Range<Int> {
        let counts = try unevenCounts(of: length)
        let start = counts[..<rank].reduce(0, +)
        return start..<start + counts[rank]
    }

    /// This rank's part of each segment. Mistakes show also where there is one rank.
    public func ranges(
        of length: Int, segments: Segments, name: String = "the dimension", division: Division = .equal
    ) throws(ShardingError) -> [Range<Int>] {
        var parts: [Range<Int>] = []
        for segment in try segments.ranges(of: length) {
            let part = try range(of: segment.count, name: name, division: division)
            parts.append(segment.lowerBound + part.lowerBound..<segment.lowerBound + part.upperBound)
        }
        return parts
    }

    /// This rank's part of each segment of a packed dimension, where parts have whole quantization groups.
    ///
    /// - Parameters:
    ///   - length: Number of inputs before they were packed.
    ///   - packed: Elements of the packed weight, of its scales or of its biases.
    ///   - groupSize: Inputs that share a scale.
    ///   - segments: Parts that are cut each by itself.
    ///   - division: Whether all parts have the same size.
    public func ranges(
        of length: Int, packed: Int, groupSize: Int, segments: Segments = .whole, division: Division = .equal
    ) throws(ShardingError) -> [Range<Int>] {
        guard groupSize > 0 else { throw .invalidShape(reason: "the size of quantization groups is \(groupSize)") }
        let (step, overflow) = groupSize.multipliedReportingOverflow(by: size)
        if division == .equal {
            for range in try segments.ranges(of: length) where overflow || range.count % step != 0 {
                throw .quantizationGroup(inputDimensions: range.count, groupSize: groupSize, across: size)
            }
        }
        // Parts are cut before they are packed: only there are units whole.
        var parts: [Range<Int>] = []
        for part in try ranges(of: length, segments: segments, name: "a segment", division: division.grouped(by: groupSize)) {
            parts.append(try Segments.scaled(part, of: length, packed: packed))
        }
        return parts
    }

    /// This rank's part of an array of any number of dimensions, its segments joined.
    ///
    /// - Parameters:
    ///   - values: Elements in row-major order.
    ///   - shape: Elements of each dimension.
    ///   - axis: Dimension that is cut.
    ///   - segments: Parts that are cut each by itself.
    ///   - division: Whether all parts have the same size.
    public func slice<T>(
        _ values: [T], shape: [Int], axis: Int, segments: Segments = .whole, division: Division = .equal
    ) throws(ShardingError) -> [T] {
        guard shape.indices.contains(axis) else {
            throw .invalidShape(reason: "axis \(axis) is none of an array of \(shape.count) dimensions")
        }
        var count = 1
        for length in shape {
            let (product, overflow) = count.multipliedReportingOverflow(by: length)
            guard length >= 0, !overflow else { throw .invalidShape(reason: "\(shape) is the shape of no array") }
            count = product
        }
        guard count == values.count else {
            throw .invalidShape(reason: "\(values.count) elements cannot have the shape \(shape), which has \(count)")
        }
        let parts = try ranges(of: shape[axis], segments: segments, name: "axis \(axis)", division: division)
        let outer = shape[..<axis].reduce(1, *)
        let inner = shape[(axis + 1)...].reduce(1, *)
        var slice: [T] = []
        slice.reserveCapacity(count / size)
        for row in 0..<outer {
            for part in parts {
                let start = row * shape[axis] * inner
                slice += values[start + part.lowerBound * inner..<start + part.upperBound * inner]
            }
        }
        return slice
    }
}
