import CComity

/// Operations in the background. Each takes its turn among the group's calls when it is started, so the order of calls is that of the
/// program, and several may be under way.
///
/// Forms with arrays own copies. Forms with buffers copy nothing: the buffer must stay, and nobody else may touch it, until the request
/// has ended, also if nobody waits for it.
extension Group {
    /// Start to combine the values of all ranks.
    ///
    /// ```swift
    /// let requests = try layers.map { try group.startAllReduce($0, .average) }
    /// for request in requests {
    ///     print(try await request.value)
    /// }
    /// ```
    @inlinable
    public func startAllReduce<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        try start(allReducePlan(try plan(T.self), values.count, reduction).limited(timeout), values, inPlace: true)
    }

    /// Start to combine the values of a buffer in place.
    @inlinable
    public func startAllReduce<T: CollectiveElement>(
        _ buffer: UnsafeMutableBufferPointer<T>, _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) -> Request<Void> {
        let plan = allReducePlan(try plan(T.self), buffer.count, reduction).limited(timeout)
        return try start(plan, buffer.baseAddress, buffer.baseAddress)
    }

    /// Start to combine the values of all ranks at one of them. Elsewhere the result is `nil`.
    @inlinable
    public func startReduce<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, to root: Int, timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]?> {
        let plan = try reducePlan(try plan(T.self), values.count, reduction, root).limited(timeout)
        let isRoot = rank == root
        return try start(plan, values) { isRoot ? $0.values(T.self) : nil }
    }

    /// Start to combine the values of all ranks, of which each gets an equal part.
    @inlinable
    public func startReduceScatter<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        try start(try reduceScatterPlan(try plan(T.self), values.count, reduction).limited(timeout), values)
    }

    /// Start to combine the values of all ranks, of which each gets its part.
    @inlinable
    public func startReduceScatter<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, counts: [Int], timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        try start(try reduceScatterPlan(try plan(T.self), values.count, reduction, counts: counts).limited(timeout), values)
    }

    /// Start to copy the values of one rank to every rank.
    @inlinable
    public func startBroadcast<T: CollectiveElement>(
        _ values: [T], from root: Int, timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        var plan = try broadcastPlan(try plan(T.self), values.count, root).limited(timeout)
        plan.sent = values.count
        return try start(plan, values, inPlace: true)
    }

    /// Start to copy the buffer of one rank to every rank.
    @inlinable
    public func startBroadcast<T: CollectiveElement>(
        _ buffer: UnsafeMutableBufferPointer<T>, from root: Int, timeout: Duration? = nil
    ) throws(ComityError) -> Request<Void> {
        try start(try broadcastPlan(try plan(T.self), buffer.count, root).limited(timeout), nil, buffer.baseAddress)
    }

    /// Start to join the values of all ranks.
    @inlinable
    public func startAllGather<T: CollectiveElement>(
        _ values: [T], timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        try start(try allGatherPlan(try plan(T.self), values.count).limited(timeout), values)
    }

    /// Start to join the values of all ranks, which give different numbers of them.
    @inlinable
    public func startAllGather<T: CollectiveElement>(
        _ values: [T], counts: [Int], timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        try start(try allGatherPlan(try plan(T.self), values.count, counts: counts).limited(timeout), values)
    }

    /// Start to join the values of all ranks at one of them. Elsewhere the result is `nil`.
    @inlinable
    public func startGather<T: CollectiveElement>(
        _ values: [T], to root: Int, timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]?> {
        let plan = try gatherPlan(try plan(T.self), values.count, root).limited(timeout)
        let isRoot = rank == root
        return try start(plan, values) { isRoot ? $0.values(T.self) : nil }
    }

    /// Start to give each rank an equal part of the root's values.
    @inlinable
    public func startScatter<T: CollectiveElement>(
        _ values: [T], count: Int, from root: Int, timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        let plan = try scatterPlan(try plan(T.self), count, root).limited(timeout)
        if rank == root {
            try plan.checkCounts(sent: values.count, received: plan.received)
        }
        return try start(plan, values)
    }

    /// Start to give each rank an equal part of the values, and to get a part from each.
    @inlinable
    public func startAllToAll<T: CollectiveElement>(
        _ values: [T], timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        try start(try allToAllPlan(try plan(T.self), values.count).limited(timeout), values)
    }

    /// Start to give each rank its part of the values, and to get a part from each.
    @inlinable
    public func startAllToAll<T: CollectiveElement>(
        _ values: [T], sendCounts: [Int], receiveCounts: [Int], timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        let plan = try allToAllPlan(try plan(T.self), values.count, sendCounts: sendCounts, receiveCounts: receiveCounts)
        return try start(plan.limited(timeout), values)
    }

    /// Start to send values to a rank.
    @inlinable
    public func startSend<T: CollectiveElement>(
        _ values: [T], to destination: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) -> Request<Void> {
        try start(try sendPlan(try plan(T.self), values.count, destination, tag).limited(timeout), values) { _ in }
    }

    /// Start to receive values from a rank.
    @inlinable
    public func startReceive<T: CollectiveElement>(
        _ type: T.Type, count: Int, from source: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        try start(try receivePlan(try plan(T.self), count, source, tag).limited(timeout), [T]())
    }

    /// Start to send values to one rank and to receive values from one.
    @inlinable
    public func startExchange<T: CollectiveElement>(
        _ values: [T], to destination: Int, receiving count: Int, from source: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) -> Request<[T]> {
        let plan = try exchangePlan(try plan(T.self), values.count, destination, count, source, tag)
        return try start(plan.limited(timeout), values)
    }

    /// Start to wait for every rank.
    public func startBarrier(timeout: Duration? = nil) throws(ComityError) -> Request<Void> {
        try start(barrierPlan.limited(timeout), nil, nil)
    }
}
