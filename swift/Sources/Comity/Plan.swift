import CComity

#if canImport(Darwin)
    import Darwin
#elseif canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#endif

/// A call whose arguments are complete but for its buffers.
@usableFromInline
struct Plan {
    var call: comity_call
    /// Elements that are read and written.
    @usableFromInline var sent: Int
    @usableFromInline var received: Int
    /// Elements of each rank's part where they differ; else empty.
    var counts: [Int64] = []
    var receiveCounts: [Int64] = []
    @usableFromInline let type: ElementType

    init(_ operation: comity_op, _ type: ElementType, count: Int, sent: Int, received: Int) {
        call = comity_call()
        call.size = MemoryLayout<comity_call>.size
        call.op = operation
        call.dtype = type.c
        call.count = Int64(count)
        self.sent = sent
        self.received = received
        self.type = type
    }

    /// Limits the call; `nil` leaves it to the group.
    @usableFromInline
    func limited(_ timeout: Duration?) -> Plan {
        guard let timeout else { return self }
        var plan = self
        let seconds = timeout.inSeconds
        // 0 would mean the group's limit. What is no time is refused by libcomity, with a sentence.
        plan.call.timeout = seconds == 0 ? -0x1p-1074 : seconds
        return plan
    }

    /// Makes the call of libcomity over these buffers, with the counts that it points to.
    func withCall<R>(
        _ source: UnsafeRawPointer?, _ destination: UnsafeMutableRawPointer?, _ body: (UnsafePointer<comity_call>) -> R
    ) -> R {
        var call = call
        call.src = source
        call.dst = destination
        if counts.isEmpty {
            return body(&call)
        }
        return counts.withUnsafeBufferPointer { counts in
            call.counts = counts.baseAddress
            return receiveCounts.withUnsafeBufferPointer { receiveCounts in
                call.recv_counts = receiveCounts.isEmpty ? nil : receiveCounts.baseAddress
                return body(&call)
            }
        }
    }
}

extension Group {
    /// Makes a call and waits for its end.
    @usableFromInline
    func run(_ plan: Plan, _ source: UnsafeRawPointer?, _ destination: UnsafeMutableRawPointer?) -> comity_status {
        withExtendedLifetime(self) {
            plan.withCall(source, destination) { comity_run(handle.pointer, $0) }
        }
    }

    /// Makes a call over one array, which it reads and writes.
    @inlinable
    func run<T: CollectiveElement>(_ plan: Plan, inPlace values: inout [T]) throws(ComityError) {
        try check(values.withUnsafeMutableBufferPointer { run(plan, $0.baseAddress, $0.baseAddress) })
    }

    /// Makes a call in memory that holds a part for each rank, of which this rank's is the source or the destination.
    @usableFromInline
    func run(_ plan: Plan, inParts memory: UnsafeMutableRawPointer?) -> comity_status {
        let part = min(plan.sent, plan.received) * plan.type.size
        let own = memory.map { $0 + rank * part }
        return plan.sent < plan.received ? run(plan, own, memory) : run(plan, memory, own)
    }

    /// Makes a call that reads one array and makes another.
    @inlinable
    func run<T: CollectiveElement>(_ plan: Plan, from values: [T]) throws(ComityError) -> [T] {
        try plan.checkMemory()
        var status = COMITY_OK
        let made = [T](unsafeUninitializedCapacity: plan.received) { buffer, count in
            status = values.withUnsafeBufferPointer { run(plan, $0.baseAddress, buffer.baseAddress) }
            // After a failure nobody sees the elements.
            count = status == COMITY_OK ? plan.received : 0
        }
        try check(status)
        return made
    }

    /// Makes a call over two buffers of the caller's, which must have as many elements as the plan says.
    @inlinable
    func run<T: CollectiveElement>(
        _ plan: Plan, _ source: UnsafeBufferPointer<T>, _ destination: UnsafeMutableBufferPointer<T>
    ) throws(ComityError) {
        try plan.checkCounts(sent: source.count, received: destination.count)
        try check(run(plan, source.baseAddress, destination.baseAddress))
    }
}

extension Plan {
    /// Throws unless the buffers have as many elements as the call reads and writes.
    @usableFromInline
    func checkCounts(sent: Int, received: Int) throws(ComityError) {
        for (name, given, needed) in [("source", sent, self.sent), ("destination", received, self.received)] where given != needed {
            throw .misuse("the \(name) has \(given) elements, and must have \(needed)")
        }
    }
}

extension Plan {
    /// Throws where memory for the result cannot be had: an allocation that fails would end the process. Only large ones are tried.
    @usableFromInline
    func checkMemory() throws(ComityError) {
        let bytes = received * type.size
        guard bytes > 1 << 30 else { return }
        guard let probe = malloc(bytes) else {
            throw .misuse("the result would have \(received) elements of \(type), and there is no memory for \(bytes) bytes")
        }
        free(probe)
    }
}

/// Plans of all operations. Each checks what can be checked without its buffers.
extension Group {
    @inlinable
    func plan<T: CollectiveElement>(_ type: T.Type) throws(ComityError) -> ElementType {
        let known = T.elementType
        if MemoryLayout<T>.stride != known.size {
            throw ComityError.wrongSize(of: "\(T.self)", MemoryLayout<T>.stride, known)
        }
        return known
    }

    @usableFromInline
    func allReducePlan(_ type: ElementType, _ count: Int, _ reduction: Reduction) -> Plan {
        var plan = Plan(COMITY_OP_ALL_REDUCE, type, count: count, sent: count, received: count)
        plan.call.reduce = reduction.c
        return plan
    }

    @usableFromInline
    func reducePlan(_ type: ElementType, _ count: Int, _ reduction: Reduction, _ root: Int) throws(ComityError) -> Plan {
        var plan = Plan(COMITY_OP_REDUCE, type, count: count, sent: count, received: rank == root ? count : 0)
        plan.call.reduce = reduction.c
        plan.call.rank = try rankNumber(root, "the root")
        return plan
    }

    @usableFromInline
    func broadcastPlan(_ type: ElementType, _ count: Int, _ root: Int) throws(ComityError) -> Plan {
        var plan = Plan(COMITY_OP_BROADCAST, type, count: count, sent: 0, received: count)
        plan.call.rank = try rankNumber(root, "the root")
        return plan
    }

    @usableFromInline
    func allGatherPlan(_ type: ElementType, _ count: Int) throws(ComityError) -> Plan {
        Plan(COMITY_OP_ALL_GATHER, type, count: count, sent: count, received: try times(count))
    }

    /// The plan where the source is this rank's part of so many elements.
    @usableFromInline
    func allGatherPlan(_ type: ElementType, inPlace count: Int) throws(ComityError) -> Plan {
        try allGatherPlan(type, try share(count))
    }

    @usableFromInline
    func allGatherPlan(_ type: ElementType, _ count: Int, counts: [Int]) throws(ComityError) -> Plan {
        let total = try sum(counts, "counts")
        var plan = Plan(COMITY_OP_ALL_GATHER, type, count: count, sent: counts[rank], received: total)
        plan.counts = counts.map { Int64($0) }
        try plan.checkCounts(sent: count, received: total)
        return plan
    }

    @usableFromInline
    func reduceScatterPlan(_ type: ElementType, _ count: Int, _ reduction: Reduction) throws(ComityError) -> Plan {
        let part = try share(count)
        var plan = Plan(COMITY_OP_REDUCE_SCATTER, type, count: part, sent: count, received: part)
        plan.call.reduce = reduction.c
        return plan
    }

    @usableFromInline
    func reduceScatterPlan(
        _ type: ElementType, _ count: Int, _ reduction: Reduction, counts: [Int]
    ) throws(ComityError) -> Plan {
        let total = try sum(counts, "counts")
        var plan = Plan(COMITY_OP_REDUCE_SCATTER, type, count: counts[rank], sent: total, received: counts[rank])
        plan.call.reduce = reduction.c
        plan.counts = counts.map { Int64($0) }
        try plan.checkCounts(sent: count, received: counts[rank])
        return plan
    }

    @usableFromInline
    func gatherPlan(_ type: ElementType, _ count: Int, _ root: Int) throws(ComityError) -> Plan {
        var plan = Plan(COMITY_OP_GATHER, type, count: count, sent: count, received: rank == root ? try times(count) : 0)
        plan.call.rank = try rankNumber(root, "the root")
        return plan
    }

    @usableFromInline
    func scatterPlan(_ type: ElementType, _ count: Int, _ root: Int) throws(ComityError) -> Plan {
        let part = try nonnegative(count, "the count")
        var plan = Plan(COMITY_OP_SCATTER, type, count: part, sent: rank == root ? try times(part) : 0, received: part)
        plan.call.rank = try rankNumber(root, "the root")
        return plan
    }

    @usableFromInline
    func allToAllPlan(_ type: ElementType, _ count: Int) throws(ComityError) -> Plan {
        Plan(COMITY_OP_ALL_TO_ALL, type, count: try share(count), sent: count, received: count)
    }

    @usableFromInline
    func allToAllPlan(
        _ type: ElementType, _ count: Int, sendCounts: [Int], receiveCounts: [Int]
    ) throws(ComityError) -> Plan {
        let (sent, received) = (try sum(sendCounts, "sendCounts"), try sum(receiveCounts, "receiveCounts"))
        var plan = Plan(COMITY_OP_ALL_TO_ALL, type, count: 0, sent: sent, received: received)
        plan.counts = sendCounts.map { Int64($0) }
        plan.receiveCounts = receiveCounts.map { Int64($0) }
        try plan.checkCounts(sent: count, received: received)
        return plan
    }

    @usableFromInline
    func sendPlan(_ type: ElementType, _ count: Int, _ destination: Int, _ tag: Int) throws(ComityError) -> Plan {
        var plan = Plan(COMITY_OP_SEND, type, count: count, sent: count, received: 0)
        plan.call.rank = try rankNumber(destination, "the destination")
        plan.call.tag = try tagNumber(tag)
        return plan
    }

    @usableFromInline
    func receivePlan(_ type: ElementType, _ count: Int, _ source: Int, _ tag: Int) throws(ComityError) -> Plan {
        let count = try nonnegative(count, "the count")
        var plan = Plan(COMITY_OP_RECV, type, count: count, sent: 0, received: count)
        plan.call.rank = try rankNumber(source, "the source")
        plan.call.tag = try tagNumber(tag)
        return plan
    }

    @usableFromInline
    func exchangePlan(
        _ type: ElementType, _ count: Int, _ destination: Int, _ receiveCount: Int, _ source: Int, _ tag: Int
    ) throws(ComityError) -> Plan {
        let received = try nonnegative(receiveCount, "the count to receive")
        var plan = Plan(COMITY_OP_SENDRECV, type, count: count, sent: count, received: received)
        plan.call.rank = try rankNumber(destination, "the destination")
        plan.call.source = try rankNumber(source, "the source")
        plan.call.recv_count = Int64(received)
        plan.call.tag = try tagNumber(tag)
        return plan
    }

    var barrierPlan: Plan {
        Plan(COMITY_OP_BARRIER, .uint8, count: 0, sent: 0, received: 0)
    }
}

extension ComityError {
    @usableFromInline
    static func wrongSize(of name: String, _ size: Int, _ type: ElementType) -> ComityError {
        .misuse("\(name) takes \(size) bytes, and \(type), which it says that it is, takes \(type.size)")
    }
}

/// Arguments, checked.
extension Group {
    private func rankNumber(_ rank: Int, _ name: String) throws(ComityError) -> Int32 {
        guard let number = Int32(exactly: rank), (0..<size).contains(rank) else {
            throw .misuse("\(name) is \(rank), and must be a rank of the group, from 0 to \(size - 1)")
        }
        return number
    }

    private func tagNumber(_ tag: Int) throws(ComityError) -> UInt32 {
        guard (0...0x7fff_ffff).contains(tag) else {
            throw .misuse("the tag is \(tag), and must be from 0 to \(0x7fff_ffff)")
        }
        return UInt32(tag)
    }

    private func nonnegative(_ count: Int, _ name: String) throws(ComityError) -> Int {
        guard count >= 0 else { throw .misuse("\(name) is \(count), and must be 0 or more") }
        return count
    }

    /// Elements of a part for each rank.
    private func times(_ count: Int) throws(ComityError) -> Int {
        let (total, overflow) = count.multipliedReportingOverflow(by: size)
        // An array of so many elements would be larger than memory can be.
        guard !overflow, total < 1 << 48 else {
            throw .misuse("\(count) elements from each of \(size) ranks are more than memory can hold")
        }
        return total
    }

    /// Elements of one rank's part.
    private func share(_ count: Int) throws(ComityError) -> Int {
        guard count % size == 0 else {
            throw .misuse("\(count) elements cannot be cut into \(size) equal parts; give the number of each rank's elements")
        }
        return count / size
    }

    private func sum(_ counts: [Int], _ name: String) throws(ComityError) -> Int {
        guard counts.count == size else {
            throw .misuse("\(name) has \(counts.count) numbers, and must have one for each of the \(size) ranks")
        }
        var total = 0
        for count in counts {
            let (sum, overflow) = total.addingReportingOverflow(try nonnegative(count, "an entry of \(name)"))
            guard !overflow, sum < 1 << 48 else { throw .misuse("\(name) are more elements than memory can hold") }
            total = sum
        }
        return total
    }
}
