import CComity

#if canImport(FoundationEssentials)
    import FoundationEssentials
#else
    import Foundation
#endif

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

    /// Makes a call over two buffers, which must have as many elements as the plan says.
    private func run(
        _ plan: Plan, _ source: UnsafeRawBufferPointer, _ destination: UnsafeMutableRawBufferPointer
    ) throws(ComityError) {
        try plan.checkCounts(sent: source.count / plan.type.size, received: try plan.type.elements(in: destination.count))
        try check(run(plan, source.baseAddress, destination.baseAddress))
    }
}

/// Operations on data.
extension Group {
    /// Combine elements in place: every rank gets the result.
    ///
    /// - Parameters:
    ///   - data: Whole elements.
    ///   - type: Type of the elements.
    ///   - reduction: How elements are combined.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    public func allReduce(
        _ data: inout Data, as type: ElementType, _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) {
        let count = try type.elements(in: data.count)
        try check(data.withUnsafeMutableBytes { allReduce($0.baseAddress, count, type, reduction, timeout) })
    }

    /// Copy the root's data to every rank, which gives as many bytes.
    public func broadcast(_ data: inout Data, from root: Int, timeout: Duration? = nil) throws(ComityError) {
        let plan = try broadcastPlan(.uint8, data.count, root).limited(timeout)
        try check(data.withUnsafeMutableBytes { run(plan, nil, $0.baseAddress) })
    }

    /// Send data to a rank, which receives as many bytes with the same tag.
    public func send(_ data: Data, to destination: Int, tag: Int = 0, timeout: Duration? = nil) throws(ComityError) {
        let plan = try sendPlan(.uint8, data.count, destination, tag).limited(timeout)
        try check(data.withUnsafeBytes { run(plan, $0.baseAddress, nil) })
    }

    /// Receive data from a rank into all bytes of some.
    public func receive(into data: inout Data, from source: Int, tag: Int = 0, timeout: Duration? = nil) throws(ComityError) {
        let plan = try receivePlan(.uint8, data.count, source, tag).limited(timeout)
        try check(data.withUnsafeMutableBytes { run(plan, nil, $0.baseAddress) })
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
