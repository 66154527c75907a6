/// Arithmetic of gradients.
public enum Gradients {
    /// Buckets of arrays that are reduced in one call each: a bucket is full when it has `limit` or more.
    ///
    /// ```swift
    /// Gradients.buckets(of: [40, 40, 40, 40, 40], limit: 100)  // 0..<3, 3..<5
    /// ```
    ///
    /// - Parameters:
    ///   - sizes: Bytes of each array, in the order in which they are reduced.
    ///   - limit: Bytes; with 0 or less every array is a bucket of its own.
    public static func buckets(of sizes: [Int], limit: Int) -> [Range<Int>] {
        var buckets: [Range<Int>] = []
        var (start, total) = (0, 0)
        for (index, size) in sizes.enumerated() {
            total = total.addingReportingOverflow(size).overflow ? Int.max : total + size
            if total >= limit {
                buckets.append(start..<index + 1)
                (start, total) = (index + 1, 0)
            }
        }
        if start < sizes.count {
            buckets.append(start..<sizes.count)
        }
        return buckets
    }

    /// Factor that brings gradients of this norm to at most `maximum`: 1 for those that are below it.
    ///
    /// - Parameters:
    ///   - sumOfSquares: That of the shards of all ranks, added up.
    ///   - maximum: Largest norm.
    public static func clippingFactor(sumOfSquares: Double, maximum: Double) -> Double {
        min(maximum / (sumOfSquares.squareRoot() + 1e-6), 1)
    }
}
