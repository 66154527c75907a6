import CComity

/// Operations that move elements between all ranks.
extension Group {
    /// Return once every rank has called this.
    public func barrier(timeout: Duration? = nil) throws(ComityError) {
        try check(run(barrierPlan.limited(timeout), nil, nil))
    }

    // MARK: broadcast

    /// Copy the values of one rank to every rank.
    ///
    /// ```swift
    /// var weights = [Float](repeating: Float(group.rank), count: 100)
    /// try group.broadcast(&weights, from: 0)
    /// ```
    ///
    /// - Parameters:
    ///   - values: As many elements on every rank.
    ///   - root: The rank whose values all get.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    @inlinable
    public func broadcast<T: CollectiveElement>(
        _ values: inout [T], from root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try broadcastPlan(try plan(T.self), values.count, root).limited(timeout), inPlace: &values)
    }

    /// Copy the buffer of one rank to every rank.
    @inlinable
    public func broadcast<T: CollectiveElement>(
        _ buffer: UnsafeMutableBufferPointer<T>, from root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        try check(run(try broadcastPlan(try plan(T.self), buffer.count, root).limited(timeout), nil, buffer.baseAddress))
    }

    // MARK: all-gather

    /// Join the values of all ranks, by rank: every rank gets the result.
    ///
    /// - Parameters:
    ///   - values: As many elements on every rank.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    @inlinable
    public func allGather<T: CollectiveElement>(_ values: [T], timeout: Duration? = nil) throws(ComityError) -> [T] {
        try run(try allGatherPlan(try plan(T.self), values.count).limited(timeout), from: values)
    }

    /// Join the values of all ranks, by rank, where ranks give different numbers of them.
    ///
    /// ```swift
    /// let counts = (0..<group.size).map { $0 + 1 }
    /// let mine = [Int32](repeating: 7, count: counts[group.rank])
    /// let all = try group.allGather(mine, counts: counts)
    /// ```
    ///
    /// - Parameters:
    ///   - values: This rank's elements.
    ///   - counts: Elements that each rank gives, the same numbers on every rank.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    @inlinable
    public func allGather<T: CollectiveElement>(
        _ values: [T], counts: [Int], timeout: Duration? = nil
    ) throws(ComityError) -> [T] {
        try run(try allGatherPlan(try plan(T.self), values.count, counts: counts).limited(timeout), from: values)
    }

    /// Join the values of all ranks in place: at first this rank's are in its part of the array, as many elements for each rank by
    /// rank, and then those of all.
    ///
    /// ```swift
    /// var all = [Float](repeating: 0, count: 4 * group.size)
    /// all[4 * group.rank] = 1
    /// try group.allGather(&all)
    /// ```
    @inlinable
    public func allGather<T: CollectiveElement>(_ values: inout [T], timeout: Duration? = nil) throws(ComityError) {
        let plan = try allGatherPlan(try plan(T.self), inPlace: values.count).limited(timeout)
        try check(values.withUnsafeMutableBytes { run(plan, inParts: $0.baseAddress) })
    }

    /// Join the parts of all ranks in place, in a buffer of as many elements for each rank.
    @inlinable
    public func allGather<T: CollectiveElement>(
        _ buffer: UnsafeMutableBufferPointer<T>, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try allGatherPlan(try plan(T.self), inPlace: buffer.count).limited(timeout)
        try check(run(plan, inParts: buffer.baseAddress))
    }

    /// Join the buffers of all ranks in a buffer of as many elements for each rank. The source may be this rank's part of it; else the
    /// two must not overlap.
    @inlinable
    public func allGather<T: CollectiveElement>(
        _ source: UnsafeBufferPointer<T>, into destination: UnsafeMutableBufferPointer<T>, timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try allGatherPlan(try plan(T.self), source.count).limited(timeout), source, destination)
    }

    /// Join the buffers of all ranks, where ranks give different numbers of elements. The source and the destination must not
    /// overlap.
    @inlinable
    public func allGather<T: CollectiveElement>(
        _ source: UnsafeBufferPointer<T>, into destination: UnsafeMutableBufferPointer<T>, counts: [Int], timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try allGatherPlan(try plan(T.self), source.count, counts: counts).limited(timeout), source, destination)
    }

    // MARK: gather and scatter

    /// Join the values of all ranks, by rank, at one of them.
    ///
    /// - Parameters:
    ///   - values: As many elements on every rank.
    ///   - root: The rank that gets the result.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    /// - Returns: The result at the root, `nil` elsewhere.
    @inlinable
    public func gather<T: CollectiveElement>(
        _ values: [T], to root: Int, timeout: Duration? = nil
    ) throws(ComityError) -> [T]? {
        let made = try run(try gatherPlan(try plan(T.self), values.count, root).limited(timeout), from: values)
        return rank == root ? made : nil
    }

    /// Join the buffers of all ranks at the root. Elsewhere the destination is empty.
    @inlinable
    public func gather<T: CollectiveElement>(
        _ source: UnsafeBufferPointer<T>, into destination: UnsafeMutableBufferPointer<T>, to root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try gatherPlan(try plan(T.self), source.count, root).limited(timeout), source, destination)
    }

    /// Give each rank an equal part of the root's values, by rank.
    ///
    /// ```swift
    /// let all: [Float] = group.rank == 0 ? (0..<4 * group.size).map { Float($0) } : []
    /// let mine = try group.scatter(all, count: 4, from: 0)
    /// ```
    ///
    /// - Parameters:
    ///   - values: At the root `count` elements for each rank; elsewhere not used.
    ///   - count: Elements of a part.
    ///   - root: The rank whose values are given out.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    /// - Returns: This rank's part.
    @inlinable
    public func scatter<T: CollectiveElement>(
        _ values: [T], count: Int, from root: Int, timeout: Duration? = nil
    ) throws(ComityError) -> [T] {
        let plan = try scatterPlan(try plan(T.self), count, root).limited(timeout)
        if rank == root {
            try plan.checkCounts(sent: values.count, received: plan.received)
        }
        return try run(plan, from: values)
    }

    /// Give each rank an equal part of the root's buffer. Elsewhere the source is empty.
    @inlinable
    public func scatter<T: CollectiveElement>(
        _ source: UnsafeBufferPointer<T>, into destination: UnsafeMutableBufferPointer<T>, from root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try scatterPlan(try plan(T.self), destination.count, root).limited(timeout), source, destination)
    }

    // MARK: all-to-all

    /// Give each rank an equal part of the values, by rank, and get a part from each.
    ///
    /// - Parameters:
    ///   - values: As many elements for each rank.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    /// - Returns: A part from each rank, by rank.
    @inlinable
    public func allToAll<T: CollectiveElement>(_ values: [T], timeout: Duration? = nil) throws(ComityError) -> [T] {
        try run(try allToAllPlan(try plan(T.self), values.count).limited(timeout), from: values)
    }

    /// Give each rank an equal part of the values, by rank, and get a part from each, in place.
    @inlinable
    public func allToAll<T: CollectiveElement>(_ values: inout [T], timeout: Duration? = nil) throws(ComityError) {
        try run(try allToAllPlan(try plan(T.self), values.count).limited(timeout), inPlace: &values)
    }

    /// Give each rank its part of the values, and get a part from each, where parts have different numbers of elements.
    ///
    /// - Parameters:
    ///   - values: This rank's elements.
    ///   - sendCounts: Elements that go to each rank.
    ///   - receiveCounts: Elements that come from each rank.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    @inlinable
    public func allToAll<T: CollectiveElement>(
        _ values: [T], sendCounts: [Int], receiveCounts: [Int], timeout: Duration? = nil
    ) throws(ComityError) -> [T] {
        let plan = try allToAllPlan(try plan(T.self), values.count, sendCounts: sendCounts, receiveCounts: receiveCounts)
        return try run(plan.limited(timeout), from: values)
    }

    /// Give each rank an equal part of the source, and get a part from each in the destination, which must not overlap it unless it is
    /// the same.
    @inlinable
    public func allToAll<T: CollectiveElement>(
        _ source: UnsafeBufferPointer<T>, into destination: UnsafeMutableBufferPointer<T>, timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try allToAllPlan(try plan(T.self), source.count).limited(timeout), source, destination)
    }

    /// Give each rank its part of the source, and get a part from each in the destination, where parts have different numbers of
    /// elements. The two must not overlap.
    @inlinable
    public func allToAll<T: CollectiveElement>(
        _ source: UnsafeBufferPointer<T>, into destination: UnsafeMutableBufferPointer<T>, sendCounts: [Int], receiveCounts: [Int],
        timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try allToAllPlan(try plan(T.self), source.count, sendCounts: sendCounts, receiveCounts: receiveCounts)
        try run(plan.limited(timeout), source, destination)
    }

    /// Give each rank an equal part of the buffer, and get a part from each in its place.
    @inlinable
    public func allToAll<T: CollectiveElement>(
        _ buffer: UnsafeMutableBufferPointer<T>, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try allToAllPlan(try plan(T.self), buffer.count).limited(timeout)
        try check(run(plan, buffer.baseAddress, buffer.baseAddress))
    }
}
