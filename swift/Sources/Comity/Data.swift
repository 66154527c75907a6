import CComity

#if canImport(FoundationEssentials)
    import FoundationEssentials
#else
    import Foundation
#endif

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

    /// Combine elements in place at the root. Elsewhere they stay.
    public func reduce(
        _ data: inout Data, as type: ElementType, _ reduction: Reduction = .sum, to root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try reducePlan(type, try type.elements(in: data.count), reduction, root).limited(timeout)
        if rank == root {
            try run(plan, inPlace: &data)
        } else {
            try check(data.withUnsafeBytes { run(plan, $0.baseAddress, nil) })
        }
    }

    /// Combine elements in place. This rank's equal part of the data gets the result, and the others stay.
    public func reduceScatter(
        _ data: inout Data, as type: ElementType, _ reduction: Reduction = .sum, timeout: Duration? = nil
    ) throws(ComityError) {
        let plan = try reduceScatterPlan(type, try type.elements(in: data.count), reduction).limited(timeout)
        try check(data.withUnsafeMutableBytes { run(plan, inParts: $0.baseAddress) })
    }

    /// Combine elements, and give each rank its part of the result.
    ///
    /// - Parameters:
    ///   - data: Whole elements.
    ///   - type: Type of the elements.
    ///   - reduction: How elements are combined.
    ///   - counts: Elements of each rank's part; `nil`: as many for each rank.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    public func reduceScatter(
        _ data: Data, as type: ElementType, _ reduction: Reduction = .sum, counts: [Int]? = nil, timeout: Duration? = nil
    ) throws(ComityError) -> Data {
        let count = try type.elements(in: data.count)
        let plan =
            if let counts {
                try reduceScatterPlan(type, count, reduction, counts: counts)
            } else {
                try reduceScatterPlan(type, count, reduction)
            }
        return try run(plan.limited(timeout), from: data)
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

    /// Join the parts of all ranks in place, in as many bytes for each rank.
    public func allGather(_ data: inout Data, timeout: Duration? = nil) throws(ComityError) {
        let plan = try allGatherPlan(.uint8, inPlace: data.count).limited(timeout)
        try check(data.withUnsafeMutableBytes { run(plan, inParts: $0.baseAddress) })
    }

    /// Join the data of all ranks, by rank.
    ///
    /// - Parameters:
    ///   - data: This rank's bytes.
    ///   - counts: Bytes that each rank gives; `nil`: as many on every rank.
    ///   - timeout: How long the call may take; `nil`: as long as the group allows.
    public func allGather(_ data: Data, counts: [Int]? = nil, timeout: Duration? = nil) throws(ComityError) -> Data {
        let plan =
            if let counts { try allGatherPlan(.uint8, data.count, counts: counts) } else { try allGatherPlan(.uint8, data.count) }
        return try run(plan.limited(timeout), from: data)
    }

    /// Join the data of all ranks, as many bytes of each, at the root. Elsewhere the result is `nil`.
    public func gather(_ data: Data, to root: Int, timeout: Duration? = nil) throws(ComityError) -> Data? {
        let made = try run(try gatherPlan(.uint8, data.count, root).limited(timeout), from: data)
        return rank == root ? made : nil
    }

    /// Give each rank `count` bytes of the root's data, by rank.
    public func scatter(_ data: Data, count: Int, from root: Int, timeout: Duration? = nil) throws(ComityError) -> Data {
        let plan = try scatterPlan(.uint8, count, root).limited(timeout)
        if rank == root {
            try plan.checkCounts(sent: data.count, received: plan.received)
        }
        return try run(plan, from: data)
    }

    /// Give each rank an equal part of the data, by rank, and get a part from each in its place.
    public func allToAll(_ data: inout Data, timeout: Duration? = nil) throws(ComityError) {
        try run(try allToAllPlan(.uint8, data.count).limited(timeout), inPlace: &data)
    }

    /// Give each rank its part of the data, and get a part from each, where parts have different numbers of bytes.
    public func allToAll(
        _ data: Data, sendCounts: [Int], receiveCounts: [Int], timeout: Duration? = nil
    ) throws(ComityError) -> Data {
        let plan = try allToAllPlan(.uint8, data.count, sendCounts: sendCounts, receiveCounts: receiveCounts)
        return try run(plan.limited(timeout), from: data)
    }

    /// Send data to one rank and receive `count` bytes from one, which may be the same, at once.
    public func exchange(
        _ data: Data, to destination: Int, receiving count: Int, from source: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) -> Data {
        try run(try exchangePlan(.uint8, data.count, destination, count, source, tag).limited(timeout), from: data)
    }

    private func run(_ plan: Plan, inPlace data: inout Data) throws(ComityError) {
        try check(data.withUnsafeMutableBytes { run(plan, $0.baseAddress, $0.baseAddress) })
    }

    private func run(_ plan: Plan, from data: Data) throws(ComityError) -> Data {
        try plan.checkMemory()
        var made = Data(count: plan.received * plan.type.size)
        try check(data.withUnsafeBytes { source in made.withUnsafeMutableBytes { run(plan, source.baseAddress, $0.baseAddress) } })
        return made
    }
}
