import CComity

/// Group that follows another one, and what became of the other's ranks.
public struct ReformOutcome: Sendable {
    /// The group. Ranks stand in their former order.
    public var group: Group
    /// Ranks of the former group that are not in it.
    public var left: [Departure]
    /// Processes that were taken in: the group's last ranks.
    public var joined: [Member]
}

/// Rank of a former group that is not in the one that follows.
public struct Departure: Sendable, Hashable {
    /// Its rank in the former group.
    public var rank: Int
    /// Its process; `nil` where that is not known.
    public var processID: Int?
    /// Name of its host; `nil` where that is not known.
    public var host: String?
    /// Reason, as the rest of the sentence "rank 3 ...".
    public var reason: String
}

/// Tensor in memory of the caller's, of which `sync` takes several.
public struct SyncBuffer {
    @usableFromInline let memory: UnsafeMutableRawPointer?
    @usableFromInline let count: Int
    @usableFromInline let type: ElementType

    /// The elements of a buffer, which must live until the call has ended.
    public init<T: CollectiveElement>(_ buffer: UnsafeMutableBufferPointer<T>) {
        self.init(buffer.baseAddress, buffer.count, T.elementType)
    }

    @usableFromInline
    init(_ memory: UnsafeMutableRawPointer?, _ count: Int, _ type: ElementType) {
        (self.memory, self.count, self.type) = (memory, count, type)
    }
}

/// Groups that go on without ranks, and take in processes.
extension Group {
    /// Form the group again of the ranks that are left: after a failure, or where all ranks of a healthy group call this.
    ///
    /// ```swift
    /// do {
    ///     try group.allReduce(&gradients, .average)
    /// } catch .peerLost {
    ///     let made = try group.reform()
    ///     for rank in made.left { print("rank \(rank.rank) \(rank.reason)") }
    ///     try made.group.allReduce(&gradients, .average)
    /// }
    /// ```
    ///
    /// The others that live call it too, each when a call of it has failed. They get new numbers without gaps, in the former order.
    /// Processes that wait to be taken in become the last ranks. All get the same group, or an error. This group stays failed, and one
    /// that had not failed is closed. Groups that were split from it are not formed again: split the new one.
    ///
    /// - Parameters:
    ///   - fewest: Fewest ranks of the former group. All ranks give the same.
    ///   - storeDecides: Whether the side goes on that can ask the job's store, however small; else the one with more than half of the
    ///     ranks. All ranks give the same.
    ///   - timeout: How long to wait for the other ranks; `nil`: the group's ``timeout``.
    /// - Throws: ``ComityError/join(_:)`` where no group follows. Unless the others went on without this rank, it may call this again.
    public func reform(fewest: Int = 1, storeDecides: Bool = false, timeout: Duration? = nil) throws(ComityError) -> ReformOutcome {
        // To libcomity 0 is the usual number.
        guard let fewest = Int32(exactly: fewest), fewest > 0 else {
            throw .misuse("fewest is \(fewest), and must be from 1 to \(size)")
        }
        var options = comity_reform_options()
        options.size = MemoryLayout<comity_reform_options>.size
        options.fewest = fewest
        options.store_decides = storeDecides ? 1 : 0
        // 0 would mean the group's limit. What is no time is refused by libcomity, with a sentence.
        options.timeout = timeout.map { $0 == .zero ? -0x1p-1074 : $0.inSeconds } ?? 0
        var made: OpaquePointer?
        try check(comity_group_reform(handle.pointer, &options, &made))
        let group = Group(owning: made)
        var left: [Departure] = []
        for index in 0..<max(0, comity_group_left(made)) {
            var who = comity_departure()
            who.size = MemoryLayout<comity_departure>.size
            try check(comity_group_departure(made, index, &who))
            left.append(
                Departure(
                    rank: Int(who.rank), processID: who.pid == 0 ? nil : Int(who.pid), host: text(who.host),
                    reason: text(who.why) ?? ""))
        }
        let joined = try group.members.suffix(Int(max(0, comity_group_joined(made))))
        return ReformOutcome(group: group, left: left, joined: Array(joined))
    }

    /// Number of processes that wait to be taken in; the next `reform` takes them in.
    ///
    /// This asks nobody, so ask at each step. Ranks may learn of a process at different moments: have them agree before they act on it.
    public var joiners: Int {
        Int(max(0, comity_group_joiners(handle.pointer)))
    }

    /// Give all ranks the values of those that hold them, with the same bits on all. Values that are the same already are not sent.
    ///
    /// ```swift
    /// let step: Int64 = 7
    /// var weights: [Float] = [0.5]
    /// var furthest = [step]
    /// try group.allReduce(&furthest, .max)
    /// try group.sync(&weights, holds: furthest == [step])
    /// ```
    ///
    /// - Parameters:
    ///   - values: As many elements on every rank.
    ///   - holds: Whether this rank's are right: on ranks that went on, and not on those that have just joined. The lowest rank that
    ///     holds them decides.
    @inlinable
    public func sync<T: CollectiveElement>(_ values: inout [T], holds: Bool) throws(ComityError) {
        let type = try plan(T.self)
        try check(values.withUnsafeMutableBufferPointer { sync($0.baseAddress, $0.count, type, holds) })
    }

    /// Give all ranks the value of those that hold it.
    @inlinable
    public func sync<T: CollectiveElement>(_ value: inout T, holds: Bool) throws(ComityError) {
        let type = try plan(T.self)
        try check(withUnsafeMutablePointer(to: &value) { sync($0, 1, type, holds) })
    }

    /// Give all ranks the tensors of those that hold them, each where it differs, from several ranks at once.
    ///
    /// - Parameters:
    ///   - tensors: Buffers of the same types and lengths in the same order on every rank. They must not overlap.
    ///   - holds: Whether this rank's are right.
    public func sync(_ tensors: [SyncBuffer], holds: Bool) throws(ComityError) {
        guard let count = Int32(exactly: tensors.count) else { throw .misuse("there are \(tensors.count) tensors") }
        let buffers = tensors.map { comity_buffer(data: $0.memory, count: Int64($0.count), dtype: $0.type.c, reserved: 0) }
        try check(withExtendedLifetime(self) { comity_sync(handle.pointer, buffers, count, holds ? 1 : 0) })
    }

    @usableFromInline
    func sync(_ memory: UnsafeMutableRawPointer?, _ count: Int, _ type: ElementType, _ holds: Bool) -> comity_status {
        var buffer = comity_buffer(data: memory, count: Int64(count), dtype: type.c, reserved: 0)
        return withExtendedLifetime(self) { comity_sync(handle.pointer, &buffer, 1, holds ? 1 : 0) }
    }
}
