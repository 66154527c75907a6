import CComity

/// Operations on bytes whose type is known at run time only.
extension Group {
    /// Combine elements in place: every rank gets the result.
    ///
    /// - Parameters:
    ///   - bytes: Whole elements. They need no alignment.
    ///   - type: Type of the elements.
    ///   - reduction: How elements are combined.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    public func allReduce(
        _ bytes: UnsafeMutableRawBufferPointer, as type: ElementType, _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) {
        try check(allReduce(bytes.baseAddress, try type.elements(in: bytes.count), type, reduction, timeout))
    }

    /// Combine elements of one buffer into another, which it must not overlap unless it is the same.
    public func allReduce(
        _ source: UnsafeRawBufferPointer, into destination: UnsafeMutableRawBufferPointer, as type: ElementType,
        _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) {
        try run(allReducePlan(type, try type.elements(in: source.count), reduction).limited(timeout), source, destination)
    }

    /// Combine elements in place at the root. Elsewhere they stay.
    ///
    /// - Parameters:
    ///   - bytes: Whole elements.
    ///   - type: Type of the elements.
    ///   - reduction: How elements are combined.
    ///   - root: The rank that gets the result.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    public func reduce(
        _ bytes: UnsafeMutableRawBufferPointer, as type: ElementType, _ reduction: Reduction = .sum, to root: Int,
        timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try reducePlan(type, try type.elements(in: bytes.count), reduction, root)
        try check(run(plan.limited(timeout), bytes.baseAddress, rank == root ? bytes.baseAddress : nil))
    }

    /// Combine elements of one buffer into another at the root. Elsewhere the other is empty.
    public func reduce(
        _ source: UnsafeRawBufferPointer, into destination: UnsafeMutableRawBufferPointer, as type: ElementType,
        _ reduction: Reduction = .sum, to root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try reducePlan(type, try type.elements(in: source.count), reduction, root)
        try run(plan.limited(timeout), source, destination)
    }

    /// Combine elements in place. This rank's equal part of the bytes gets the result, and the others stay.
    public func reduceScatter(
        _ bytes: UnsafeMutableRawBufferPointer, as type: ElementType, _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try reduceScatterPlan(type, try type.elements(in: bytes.count), reduction)
        try check(run(plan.limited(timeout), inParts: bytes.baseAddress))
    }

    /// Combine elements, and write this rank's part of the result into another buffer.
    ///
    /// - Parameters:
    ///   - source: Whole elements.
    ///   - destination: This rank's part.
    ///   - type: Type of the elements.
    ///   - reduction: How elements are combined.
    ///   - counts: Elements of each rank's part; `nil`: as many for each rank.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    public func reduceScatter(
        _ source: UnsafeRawBufferPointer, into destination: UnsafeMutableRawBufferPointer, as type: ElementType,
        _ reduction: Reduction = .sum, counts: [Int]? = nil, timeout: Duration? = nil
    ) throws(ComityError) {
        let count = try type.elements(in: source.count)
        let plan =
            if let counts {
                try reduceScatterPlan(type, count, reduction, counts: counts)
            } else {
                try reduceScatterPlan(type, count, reduction)
            }
        try run(plan.limited(timeout), source, destination)
    }

    /// Join the parts of all ranks in place, in as many elements for each rank.
    public func allGather(
        _ bytes: UnsafeMutableRawBufferPointer, as type: ElementType, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try allGatherPlan(type, inPlace: try type.elements(in: bytes.count))
        try check(run(plan.limited(timeout), inParts: bytes.baseAddress))
    }

    /// Join the elements of all ranks, by rank.
    ///
    /// - Parameters:
    ///   - source: Whole elements.
    ///   - destination: Room for those of all ranks.
    ///   - type: Type of the elements.
    ///   - counts: Elements that each rank gives; `nil`: as many on every rank.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    public func allGather(
        _ source: UnsafeRawBufferPointer, into destination: UnsafeMutableRawBufferPointer, as type: ElementType,
        counts: [Int]? = nil, timeout: Duration? = nil
    ) throws(ComityError) {
        let count = try type.elements(in: source.count)
        let plan = if let counts { try allGatherPlan(type, count, counts: counts) } else { try allGatherPlan(type, count) }
        try run(plan.limited(timeout), source, destination)
    }

    /// Join the elements of all ranks, by rank, at the root. Elsewhere the destination is empty.
    public func gather(
        _ source: UnsafeRawBufferPointer, into destination: UnsafeMutableRawBufferPointer, as type: ElementType = .uint8,
        to root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try gatherPlan(type, try type.elements(in: source.count), root).limited(timeout), source, destination)
    }

    /// Give each rank an equal part of the root's elements, by rank. Elsewhere the source is empty.
    public func scatter(
        _ source: UnsafeRawBufferPointer, into destination: UnsafeMutableRawBufferPointer, as type: ElementType = .uint8,
        from root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try scatterPlan(type, try type.elements(in: destination.count), root).limited(timeout), source, destination)
    }

    /// Give each rank an equal part of the elements, by rank, and get a part from each in its place.
    public func allToAll(
        _ bytes: UnsafeMutableRawBufferPointer, as type: ElementType, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try allToAllPlan(type, try type.elements(in: bytes.count))
        try check(run(plan.limited(timeout), bytes.baseAddress, bytes.baseAddress))
    }

    /// Give each rank an equal part of the elements, by rank, and get a part from each.
    public func allToAll(
        _ source: UnsafeRawBufferPointer, into destination: UnsafeMutableRawBufferPointer, as type: ElementType,
        timeout: Duration? = nil
    ) throws(ComityError) {
        try run(try allToAllPlan(type, try type.elements(in: source.count)).limited(timeout), source, destination)
    }

    /// Give each rank its part of the elements, and get a part from each, where parts have different numbers of elements.
    public func allToAll(
        _ source: UnsafeRawBufferPointer, into destination: UnsafeMutableRawBufferPointer, as type: ElementType, sendCounts: [Int],
        receiveCounts: [Int], timeout: Duration? = nil
    ) throws(ComityError) {
        let count = try type.elements(in: source.count)
        let plan = try allToAllPlan(type, count, sendCounts: sendCounts, receiveCounts: receiveCounts)
        try run(plan.limited(timeout), source, destination)
    }

    /// Copy the root's elements to every rank.
    public func broadcast(
        _ bytes: UnsafeMutableRawBufferPointer, as type: ElementType = .uint8, from root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try broadcastPlan(type, try type.elements(in: bytes.count), root)
        try check(run(plan.limited(timeout), nil, bytes.baseAddress))
    }

    /// Send elements to a rank, which receives as many of this type with the same tag.
    public func send(
        _ bytes: UnsafeRawBufferPointer, as type: ElementType = .uint8, to destination: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try sendPlan(type, try type.elements(in: bytes.count), destination, tag)
        try check(run(plan.limited(timeout), bytes.baseAddress, nil))
    }

    /// Receive elements from a rank.
    public func receive(
        into bytes: UnsafeMutableRawBufferPointer, as type: ElementType = .uint8, from source: Int, tag: Int = 0,
        timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try receivePlan(type, try type.elements(in: bytes.count), source, tag)
        try check(run(plan.limited(timeout), nil, bytes.baseAddress))
    }

    /// Send elements to one rank and receive elements from one, which may be the same, at once. The buffers must not overlap.
    public func exchange(
        _ bytes: UnsafeRawBufferPointer, to destination: Int, into received: UnsafeMutableRawBufferPointer, from source: Int,
        as type: ElementType = .uint8, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) {
        let (sent, room) = (try type.elements(in: bytes.count), try type.elements(in: received.count))
        try run(try exchangePlan(type, sent, destination, room, source, tag).limited(timeout), bytes, received)
    }

    /// Makes a call over two buffers, which must have as many elements as the plan says.
    private func run(
        _ plan: Plan, _ source: UnsafeRawBufferPointer, _ destination: UnsafeMutableRawBufferPointer
    ) throws(ComityError) {
        try plan.checkCounts(sent: source.count / plan.type.size, received: try plan.type.elements(in: destination.count))
        try check(run(plan, source.baseAddress, destination.baseAddress))
    }
}

extension ElementType {
    /// Number of elements in so many bytes.
    func elements(in bytes: Int) throws(ComityError) -> Int {
        guard bytes % size == 0 else {
            throw .misuse("\(bytes) bytes are no whole number of elements of \(self), which take \(size)")
        }
        return bytes / size
    }
}
