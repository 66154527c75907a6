import CComity

/// Operations that suspend the task and keep no thread waiting.
///
/// A task that was cancelled before makes no call: it throws ``ComityError/cancelled(_:)``, and the group is unharmed. Cancellation
/// during a call ends the group on all ranks, as ``Request/value`` says.
///
/// Calls of one group must come in the same order on all ranks. Tasks that run at once, such as two of `async let`, have no order: let
/// at most one task at a time use a group, or start the calls in order by the functions that begin with `start`.
extension Group {
    /// Combine the values of all ranks, element by element, in place: every rank gets the result. After an error the values are as
    /// they were.
    @inlinable
    public func allReduce<T: CollectiveElement>(
        _ values: inout [T], _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) async throws(ComityError) {
        try checkCancellation()
        values = try await startAllReduce(values, reduction, timeout: timeout).value
    }

    /// Combine the values of all ranks, element by element: every rank gets the result.
    @inlinable
    public func allReduce<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) async throws(ComityError) -> [T] {
        try checkCancellation()
        return try await startAllReduce(values, reduction, timeout: timeout).value
    }

    /// Combine the values of all ranks, element by element. The result is at the root, and `nil` elsewhere.
    @inlinable
    public func reduce<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, to root: Int, timeout: Duration? = nil
    ) async throws(ComityError) -> [T]? {
        try checkCancellation()
        return try await startReduce(values, reduction, to: root, timeout: timeout).value
    }

    /// Combine the values of all ranks, element by element, and give each rank an equal part of the result.
    @inlinable
    public func reduceScatter<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) async throws(ComityError) -> [T] {
        try checkCancellation()
        return try await startReduceScatter(values, reduction, timeout: timeout).value
    }

    /// Combine the values of all ranks, element by element, and give each rank its part of the result.
    @inlinable
    public func reduceScatter<T: CollectiveElement>(
        _ values: [T], _ reduction: Reduction = .sum, counts: [Int], timeout: Duration? = nil
    ) async throws(ComityError) -> [T] {
        try checkCancellation()
        return try await startReduceScatter(values, reduction, counts: counts, timeout: timeout).value
    }

    /// Copy the values of one rank to every rank. After an error the values are as they were.
    @inlinable
    public func broadcast<T: CollectiveElement>(
        _ values: inout [T], from root: Int, timeout: Duration? = nil
    ) async throws(ComityError) {
        try checkCancellation()
        values = try await startBroadcast(values, from: root, timeout: timeout).value
    }

    /// Join the values of all ranks, by rank: every rank gets the result.
    @inlinable
    public func allGather<T: CollectiveElement>(
        _ values: [T], timeout: Duration? = nil
    ) async throws(ComityError) -> [T] {
        try checkCancellation()
        return try await startAllGather(values, timeout: timeout).value
    }

    /// Join the values of all ranks, by rank, where ranks give different numbers of them.
    @inlinable
    public func allGather<T: CollectiveElement>(
        _ values: [T], counts: [Int], timeout: Duration? = nil
    ) async throws(ComityError) -> [T] {
        try checkCancellation()
        return try await startAllGather(values, counts: counts, timeout: timeout).value
    }

    /// Join the values of all ranks, by rank. The result is at the root, and `nil` elsewhere.
    @inlinable
    public func gather<T: CollectiveElement>(
        _ values: [T], to root: Int, timeout: Duration? = nil
    ) async throws(ComityError) -> [T]? {
        try checkCancellation()
        return try await startGather(values, to: root, timeout: timeout).value
    }

    /// Give each rank an equal part of the root's values, by rank.
    @inlinable
    public func scatter<T: CollectiveElement>(
        _ values: [T], count: Int, from root: Int, timeout: Duration? = nil
    ) async throws(ComityError) -> [T] {
        try checkCancellation()
        return try await startScatter(values, count: count, from: root, timeout: timeout).value
    }

    /// Give each rank an equal part of the values, by rank, and get a part from each.
    @inlinable
    public func allToAll<T: CollectiveElement>(
        _ values: [T], timeout: Duration? = nil
    ) async throws(ComityError) -> [T] {
        try checkCancellation()
        return try await startAllToAll(values, timeout: timeout).value
    }

    /// Give each rank its part of the values, and get a part from each, where parts have different numbers of elements.
    @inlinable
    public func allToAll<T: CollectiveElement>(
        _ values: [T], sendCounts: [Int], receiveCounts: [Int], timeout: Duration? = nil
    ) async throws(ComityError) -> [T] {
        try checkCancellation()
        return try await startAllToAll(values, sendCounts: sendCounts, receiveCounts: receiveCounts, timeout: timeout).value
    }

    /// Send values to a rank, which receives them with the same tag, type and count.
    @inlinable
    public func send<T: CollectiveElement>(
        _ values: [T], to destination: Int, tag: Int = 0, timeout: Duration? = nil
    ) async throws(ComityError) {
        try checkCancellation()
        try await startSend(values, to: destination, tag: tag, timeout: timeout).value
    }

    /// Receive values from a rank.
    @inlinable
    public func receive<T: CollectiveElement>(
        _ type: T.Type, count: Int, from source: Int, tag: Int = 0, timeout: Duration? = nil
    ) async throws(ComityError) -> [T] {
        try checkCancellation()
        return try await startReceive(type, count: count, from: source, tag: tag, timeout: timeout).value
    }

    /// Send values to one rank and receive values from one, which may be the same, at once.
    @inlinable
    public func exchange<T: CollectiveElement>(
        _ values: [T], to destination: Int, receiving count: Int, from source: Int, tag: Int = 0, timeout: Duration? = nil
    ) async throws(ComityError) -> [T] {
        try checkCancellation()
        let request = try startExchange(values, to: destination, receiving: count, from: source, tag: tag, timeout: timeout)
        return try await request.value
    }

    /// Return once every rank has called this.
    public func barrier(timeout: Duration? = nil) async throws(ComityError) {
        try checkCancellation()
        try await startBarrier(timeout: timeout).value
    }

    @usableFromInline
    func checkCancellation() throws(ComityError) {
        if Task.isCancelled {
            throw .cancelled(ComityError.Details(message: "the task was cancelled before its call was made; the group is unharmed"))
        }
    }
}
