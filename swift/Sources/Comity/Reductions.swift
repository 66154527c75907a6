import CComity

/// Operations that combine elements.
extension Group {
    // MARK: all-reduce

    /// Combine the values of all ranks, element by element, in place: every rank gets the result.
    ///
    /// ```swift
    /// var gradients: [Float] = [1, 2, 3]
    /// try group.allReduce(&gradients, .average)
    /// ```
    ///
    /// - Parameters:
    ///   - values: This rank's values, and then the result. All ranks give as many. After an error their content is undefined.
    ///   - reduction: How elements are combined.
    ///   - timeout: How long the call may take; `nil`: the group's ``timeout``.
    @inlinable
    public func allReduce<T: CollectiveElement>(
        _ values: inout [T], _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) {
        let type = try plan(T.self)
        try check(values.withUnsafeMutableBufferPointer { allReduce($0.baseAddress, $0.count, type, reduction, timeout) })
    }

    /// Combine one value of each rank in place.
    @inlinable
    public func allReduce<T: CollectiveElement>(
        _ value: inout T, _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) {
        let type = try plan(T.self)
        try check(withUnsafeMutablePointer(to: &value) { allReduce($0, 1, type, reduction, timeout) })
    }

    /// Combine the values of a buffer in place.
    @inlinable
    public func allReduce<T: CollectiveElement>(
        _ buffer: UnsafeMutableBufferPointer<T>, _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) {
        try check(allReduce(buffer.baseAddress, buffer.count, try plan(T.self), reduction, timeout))
    }

    /// Combine the values of one buffer into another, which it must not overlap unless it is the same.
    @inlinable
    public func allReduce<T: CollectiveElement>(
        _ source: UnsafeBufferPointer<T>, into destination: UnsafeMutableBufferPointer<T>, _ reduction: Reduction = .sum,
        timeout: Duration? = nil
    ) throws(ComityError) {
        try run(allReducePlan(try plan(T.self), source.count, reduction).limited(timeout), source, destination)
    }

    /// Combine the values of all ranks, element by element: every rank gets the result.
    ///
    /// ```swift
    /// let sum = try group.allReduce([1.0, 2.0])
    /// ```
    @inlinable
    public func allReduce<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) -> [T] {
        try run(allReducePlan(try plan(T.self), values.count, reduction).limited(timeout), from: values)
    }

    /// Shortest way to libcomity, for small calls are made often.
    @usableFromInline
    func allReduce(
        _ address: UnsafeMutableRawPointer?, _ count: Int, _ type: ElementType, _ reduction: Reduction, _ timeout: Duration?
    ) -> comity_status {
        if timeout == nil {
            return withExtendedLifetime(self) {
                comity_all_reduce(handle.pointer, address, address, Int64(count), type.c, reduction.c)
            }
        }
        return run(allReducePlan(type, count, reduction).limited(timeout), address, address)
    }

    // MARK: reduce

    /// Combine the values of all ranks, element by element, in place at one of them. Elsewhere the values stay.
    ///
    /// - Parameters:
    ///   - values: This rank's elements.
    ///   - reduction: How elements are combined.
    ///   - root: The rank that gets the result.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    @inlinable
    public func reduce<T: CollectiveElement>(
        _ values: inout [T], _ reduction: Reduction = .sum, to root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try reducePlan(try plan(T.self), values.count, reduction, root).limited(timeout)
        if rank == root {
            try run(plan, inPlace: &values)
        } else {
            try check(values.withUnsafeBufferPointer { run(plan, $0.baseAddress, nil) })
        }
    }

    /// Combine the values of all ranks, element by element.
    ///
    /// - Parameters:
    ///   - values: This rank's elements.
    ///   - reduction: How elements are combined.
    ///   - root: The rank that gets the result.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    /// - Returns: The result at the root, `nil` elsewhere.
    @inlinable
    public func reduce<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, to root: Int, timeout: Duration? = nil
    ) throws(ComityError) -> [T]? {
        let made = try run(try reducePlan(try plan(T.self), values.count, reduction, root).limited(timeout), from: values)
        return rank == root ? made : nil
    }

    /// Combine the values of a buffer in place at the root. Elsewhere they stay.
    @inlinable
    public func reduce<T: CollectiveElement>(
        _ buffer: UnsafeMutableBufferPointer<T>, _ reduction: Reduction = .sum, to root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try reducePlan(try plan(T.self), buffer.count, reduction, root).limited(timeout)
        try check(run(plan, buffer.baseAddress, rank == root ? buffer.baseAddress : nil))
    }

    /// Combine the values of a buffer into another at the root. Elsewhere the other is empty.
    @inlinable
    public func reduce<T: CollectiveElement>(
        _ source: UnsafeBufferPointer<T>, into destination: UnsafeMutableBufferPointer<T>, _ reduction: Reduction = .sum, to root: Int,
        timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try reducePlan(try plan(T.self), source.count, reduction, root).limited(timeout), source, destination)
    }

    // MARK: reduce-scatter

    /// Combine the values of all ranks, element by element, and give each rank an equal part of the result, by rank.
    ///
    /// ```swift
    /// let part = try group.reduceScatter([Float](repeating: 1, count: 4 * group.size))  // 4 elements
    /// ```
    ///
    /// - Parameters:
    ///   - values: As many elements for each rank.
    ///   - reduction: How elements are combined.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    /// - Returns: This rank's part.
    @inlinable
    public func reduceScatter<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) -> [T] {
        try run(try reduceScatterPlan(try plan(T.self), values.count, reduction).limited(timeout), from: values)
    }

    /// Combine the values of all ranks, element by element, and give each rank its part of the result.
    ///
    /// - Parameters:
    ///   - values: This rank's elements.
    ///   - reduction: How elements are combined.
    ///   - counts: Elements of each rank's part, the same numbers on every rank.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    @inlinable
    public func reduceScatter<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, counts: [Int], timeout: Duration? = nil
    ) throws(ComityError) -> [T] {
        try run(try reduceScatterPlan(try plan(T.self), values.count, reduction, counts: counts).limited(timeout), from: values)
    }

    /// Combine the values of all ranks, element by element. This rank's equal part of the array gets the result, and the others stay.
    @inlinable
    public func reduceScatter<T: CollectiveElement>(
        _ values: inout [T], _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try reduceScatterPlan(try plan(T.self), values.count, reduction).limited(timeout)
        try check(values.withUnsafeMutableBytes { run(plan, inParts: $0.baseAddress) })
    }

    /// Combine the values of a buffer in place. This rank's equal part of it gets the result, and the others stay.
    @inlinable
    public func reduceScatter<T: CollectiveElement>(
        _ buffer: UnsafeMutableBufferPointer<T>, _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try reduceScatterPlan(try plan(T.self), buffer.count, reduction).limited(timeout)
        try check(run(plan, inParts: buffer.baseAddress))
    }

    /// Combine the values of a buffer, and write this rank's equal part of the result into another. That may be this rank's part of
    /// the source; else the two must not overlap.
    @inlinable
    public func reduceScatter<T: CollectiveElement>(
        _ source: UnsafeBufferPointer<T>, into destination: UnsafeMutableBufferPointer<T>, _ reduction: Reduction = .sum,
        timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try reduceScatterPlan(try plan(T.self), source.count, reduction).limited(timeout), source, destination)
    }

    /// Combine the values of a buffer, and write this rank's part of the result into another, where parts differ. The two must not
    /// overlap.
    @inlinable
    public func reduceScatter<T: CollectiveElement>(
        _ source: UnsafeBufferPointer<T>, into destination: UnsafeMutableBufferPointer<T>, _ reduction: Reduction = .sum,
        counts: [Int], timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try reduceScatterPlan(try plan(T.self), source.count, reduction, counts: counts)
        try run(plan.limited(timeout), source, destination)
    }
}
