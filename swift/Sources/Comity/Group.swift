import CComity

/// Ranks that call collectives together.
///
/// ```swift
/// import Comity
///
/// let group = try Group()
/// let sum = try group.allReduce([Float(group.rank)])
/// print("rank \(group.rank) of \(group.size): the sum is \(sum[0])")
/// try group.close()
/// ```
///
/// Any thread and any task may use a group. Its calls run one at a time, in the order in which they are made, and that order must be
/// the same on all ranks: make them from one task, or by the functions that begin with `start`.
///
/// A group that is not closed closes itself when nothing refers to it any more, and then keeps what it finds to itself.
public final class Group: Sendable {
    /// Handle of libcomity, which any thread may use, also after it was closed.
    @usableFromInline
    struct Handle: @unchecked Sendable {
        let pointer: OpaquePointer?
    }

    let handle: Handle
    /// Place of this process in the group, from 0.
    public let rank: Int
    /// Number of ranks.
    public let size: Int

    init(owning pointer: OpaquePointer?) {
        handle = Handle(pointer: pointer)
        rank = Int(comity_group_rank(pointer))
        size = Int(comity_group_size(pointer))
    }

    deinit {
        comity_group_free(handle.pointer)
    }

    /// The group of this process's job, found in the environment: the variables of `comity launch`, MLX, torchrun, Open MPI, MPICH and
    /// Slurm are understood.
    ///
    /// - Parameters:
    ///   - strict: Whether the variables of a launcher must be there. If not, a process without them is a group of one.
    /// - Throws: ``ComityError/configuration(_:)`` for broken variables, ``ComityError/join(_:)`` when the ranks do not come together
    ///   within the join limit.
    public convenience init(strict: Bool = false) throws(ComityError) {
        try Library.found.check()
        var made: OpaquePointer?
        try check(strict ? comity_init_strict(&made) : comity_init(&made))
        self.init(owning: made)
    }

    /// Groups for threads of this process, which talk through memory: for tests, and for programs without processes.
    ///
    /// ```swift
    /// let groups = try Group.local(ranks: 2)
    /// async let other = groups[1].allReduce([2.0])
    /// let sum = try await groups[0].allReduce([1.0])  // [3.0]
    /// _ = try await other
    /// ```
    ///
    /// - Returns: A group for each rank, in their order.
    public static func local(ranks: Int) throws(ComityError) -> [Group] {
        try Library.found.check()
        // Each pair of ranks has memory, and more of them would end the process.
        guard (1...1024).contains(ranks) else {
            throw .misuse("the number of ranks is \(ranks), and must be from 1 to 1024")
        }
        var made = [OpaquePointer?](repeating: nil, count: ranks)
        try check(comity_init_local(Int32(ranks), &made))
        return made.map { Group(owning: $0) }
    }

    /// Leave the group in good order. Calls under way in other tasks and later ones throw ``ComityError/closed(_:)``; ranks that still
    /// need this one get an error that names it.
    ///
    /// - Throws: ``ComityError/mismatch(_:)`` if the ranks made different calls and no call has shown it. The group is closed all the
    ///   same.
    public func close() throws(ComityError) {
        try check(comity_group_close(handle.pointer))
    }

    /// Give the group up on every rank: calls under way and later ones throw ``ComityError/aborted(_:)``, which carries the reason.
    ///
    /// This is also how a call is cancelled. Nothing less than the group can be: other ranks count on the call.
    public func abort(_ reason: String) throws(ComityError) {
        try check(comity_group_abort(handle.pointer, reason))
    }
}
