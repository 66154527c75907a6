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

    /// Copy the root's bytes to every rank.
    public func broadcast(
        _ bytes: UnsafeMutableRawBufferPointer, from root: Int, timeout: Duration? = nil
    ) throws(ComityError) {
        try check(run(try broadcastPlan(.uint8, bytes.count, root).limited(timeout), nil, bytes.baseAddress))
    }

    /// Send bytes to a rank, which receives as many with the same tag.
    public func send(
        _ bytes: UnsafeRawBufferPointer, to destination: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) {
        try check(run(try sendPlan(.uint8, bytes.count, destination, tag).limited(timeout), bytes.baseAddress, nil))
    }

    /// Receive bytes from a rank.
    public func receive(
        into bytes: UnsafeMutableRawBufferPointer, from source: Int, tag: Int = 0, timeout: Duration? = nil
    ) throws(ComityError) {
        try check(run(try receivePlan(.uint8, bytes.count, source, tag).limited(timeout), nil, bytes.baseAddress))
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
