/// Rule for the sizes of the ranks' parts.
///
/// ```swift
/// let shard = try Shard(rank: 2, of: 3)
/// try shard.range(of: 12)                                      // 8..<12
/// try shard.range(of: 10, division: .uneven())                 // 7..<10
/// try shard.range(of: 320, division: .uneven(unit: 64))        // 256..<320: one of five heads
/// ```
public enum Division: Sendable, Hashable {
    /// All parts have the same size. Other dimensions are refused.
    case equal
    /// Each part has whole units, such as attention heads, and at least one. The first ranks may have one more.
    case uneven(unit: Int = 1)

    /// The part of a rank.
    func range(of length: Int, _ shard: Shard, _ name: String) throws(ShardingError) -> Range<Int> {
        guard length >= 0 else { throw .invalidShape(reason: "\(name) has \(length) elements, and must have 0 or more") }
        switch self {
        case .equal:
            guard length % shard.size == 0 else { throw .indivisible(dimension: name, of: length, across: shard.size) }
            let part = length / shard.size
            return shard.rank * part..<(shard.rank + 1) * part
        case .uneven(let unit):
            guard unit > 0 else { throw .invalidShape(reason: "a unit has \(unit) elements, and must have 1 or more") }
            guard length % unit == 0, length / unit >= shard.size else {
                throw .units(dimension: name, of: length, unit: unit, across: shard.size)
            }
            let units = try shard.unevenRange(of: length / unit)
            return units.lowerBound * unit..<units.upperBound * unit
        }
    }

    /// The same rule where parts must also have whole quantization groups.
    func grouped(by groupSize: Int) -> Division {
        guard case .uneven(let unit) = self, unit > 0 else { return self }
        let (common, overflow) = unit.multipliedReportingOverflow(by: groupSize / divisor(unit, groupSize))
        return .uneven(unit: overflow ? .max : common)
    }

    /// The greatest common divisor.
    private func divisor(_ a: Int, _ b: Int) -> Int {
        var (a, b) = (a, b)
        while b != 0 { (a, b) = (b, a % b) }
        return a
    }
}
