import CComity

/// Operations between two ranks.
extension Group {
    /// Send values to a rank, which receives them with the same tag, type and count.
    ///
    /// Returns when the values are on their way, which may be before they are received. Two ranks that both send much before they
    /// receive wait for each other: use `exchange`.
    ///
    /// ```swift
    /// if group.rank == 0 {
    ///     try group.send([1.0, 2.0], to: 1)
    /// } else if group.rank == 1 {
    ///     let values = try group.receive(Double.self, count: 2, from: 0)
    ///     print(values)
    /// }
    /// ```
    ///
    /// - Parameters:
    ///   - values: This rank's elements.
    ///   - destination: The rank that receives.
    ///   - tag: 0 to 0x7fffffff.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    @inlinable
    public func send<T: CollectiveElement>(
        _ values: [T], to destination: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try sendPlan(try plan(T.self), values.count, destination, tag).limited(timeout)
        try check(values.withUnsafeBufferPointer { run(plan, $0.baseAddress, nil) })
    }

    /// Send a buffer to a rank.
    @inlinable
    public func send<T: CollectiveElement>(
        _ buffer: UnsafeBufferPointer<T>, to destination: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try sendPlan(try plan(T.self), buffer.count, destination, tag).limited(timeout)
        try check(run(plan, buffer.baseAddress, nil))
    }

    /// Receive values from a rank.
    ///
    /// - Parameters:
    ///   - type: Type of the elements.
    ///   - count: Number of elements, which the other rank knows too.
    ///   - source: The rank that sends.
    ///   - tag: The sender's.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    /// - Throws: ``ComityError/mismatch(_:)`` when the rank sends another type or number of elements.
    @inlinable
    public func receive<T: CollectiveElement>(
        _ type: T.Type, count: Int, from source: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) -> [T] {
        try run(try receivePlan(try plan(T.self), count, source, tag).limited(timeout), from: [T]())
    }

    /// Receive values from a rank into all elements of an array.
    @inlinable
    public func receive<T: CollectiveElement>(
        into values: inout [T], from source: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try receivePlan(try plan(T.self), values.count, source, tag).limited(timeout)
        try check(values.withUnsafeMutableBufferPointer { run(plan, nil, $0.baseAddress) })
    }

    /// Receive values from a rank into all elements of a buffer.
    @inlinable
    public func receive<T: CollectiveElement>(
        into buffer: UnsafeMutableBufferPointer<T>, from source: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) {
        try check(run(try receivePlan(try plan(T.self), buffer.count, source, tag).limited(timeout), nil, buffer.baseAddress))
    }

    /// Send values to one rank and receive values from one, which may be the same, at once.
    ///
    /// ```swift
    /// let right = (group.rank + 1) % group.size
    /// let left = (group.rank + group.size - 1) % group.size
    /// let fromLeft = try group.exchange([Float(group.rank)], to: right, receiving: 1, from: left)
    /// ```
    ///
    /// - Parameters:
    ///   - values: This rank's elements.
    ///   - destination: The rank that receives.
    ///   - count: Number of elements to receive.
    ///   - source: The rank that sends.
    ///   - tag: A number that both ranks give, from 0 to 0x7fffffff.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    @inlinable
    public func exchange<T: CollectiveElement>(
        _ values: [T], to destination: Int, receiving count: Int, from source: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) -> [T] {
        let plan = try exchangePlan(try plan(T.self), values.count, destination, count, source, tag)
        return try run(plan.limited(timeout), from: values)
    }

    /// Send one buffer and receive another, which it must not overlap, at once.
    @inlinable
    public func exchange<T: CollectiveElement>(
        _ buffer: UnsafeBufferPointer<T>, to destination: Int, into received: UnsafeMutableBufferPointer<T>, from source: Int,
        tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try exchangePlan(try plan(T.self), buffer.count, destination, received.count, source, tag)
        try run(plan.limited(timeout), buffer, received)
    }
}
