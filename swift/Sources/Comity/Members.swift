import CComity

/// Process that belongs to a group.
public struct Member: Sendable, Hashable {
    /// Its rank in the group.
    public var rank: Int
    /// Its process; `nil` where that is not known.
    public var processID: Int?
    /// Name of its host; `nil` where that is not known.
    public var host: String?
    /// Kind of link to it, such as `shm` or `tcp`; `nil` for this rank.
    public var link: String?
}

/// Counters of a group on this rank.
public struct Statistics: Sendable, Hashable {
    /// Calls that succeeded.
    public var calls: Int
    /// Calls that failed.
    public var errors: Int
    /// Payload bytes sent to other ranks.
    public var bytesSent: Int
    /// How often a member was silent for a fifth of the detection limit.
    public var suspicions: Int
    /// Time asleep, waiting for other ranks.
    public var parked: Duration
    /// Longest time for which nothing was heard from one member.
    public var longestSilence: Duration
}

extension Group {
    /// All members, by rank.
    public var members: [Member] {
        get throws(ComityError) {
            var all: [Member] = []
            for rank in 0..<size {
                var member = comity_member()
                member.size = MemoryLayout<comity_member>.size
                try check(comity_group_member(handle.pointer, Int32(rank), &member))
                let pid = member.pid == 0 ? nil : Int(member.pid)
                all.append(Member(rank: rank, processID: pid, host: text(member.host), link: text(member.link)))
            }
            return all
        }
    }

    /// Counters of the group on this rank so far.
    public var statistics: Statistics {
        get throws(ComityError) {
            var stats = comity_stats()
            stats.size = MemoryLayout<comity_stats>.size
            try check(comity_group_stats(handle.pointer, &stats))
            return Statistics(
                calls: Int(clamping: stats.calls), errors: Int(clamping: stats.errors), bytesSent: Int(clamping: stats.bytes_sent),
                suspicions: Int(clamping: stats.suspicions), parked: .seconds(stats.parked),
                longestSilence: .seconds(stats.longest_silence))
        }
    }

    /// How long a call may take that has no limit of its own; at first 5 minutes, or `COMITY_TIMEOUT`.
    ///
    /// A call that runs out of time ends the group.
    public var timeout: Duration {
        .seconds(max(0, comity_group_timeout(handle.pointer)))
    }

    /// Let calls that are made from now on take so long.
    ///
    /// - Parameters:
    ///   - timeout: More than zero.
    public func setTimeout(_ timeout: Duration) throws(ComityError) {
        try check(comity_group_set_timeout(handle.pointer, timeout.inSeconds))
    }
}

/// Groups out of groups.
extension Group {
    /// Split into groups of equal color, where some ranks may be in none: every rank calls this.
    ///
    /// - Parameters:
    ///   - color: 0 or more; `nil` to be in none of the groups.
    ///   - key: Orders the ranks of a color.
    /// - Returns: The group of this rank's color; `nil` without a color.
    public func split(color: Int?, key: Int = 0) throws(ComityError) -> Group? {
        if let color, !(0...Int(Int32.max)).contains(color) {
            throw .misuse("the color is \(color), and must be from 0 to \(Int32.max)")
        }
        guard let key = Int32(exactly: key) else {
            throw .misuse("the key is \(key), and must be from \(Int32.min) to \(Int32.max)")
        }
        var made: OpaquePointer?
        try check(comity_group_split(handle.pointer, color.map { Int32($0) } ?? -1, key, &made))
        return made.map { Group(owning: $0) }
    }

    /// Split into groups of equal color: every rank calls this. Ranks of one color form a group, by key and then by rank.
    ///
    /// ```swift
    /// let half = try group.split(color: group.rank % 2)
    /// ```
    ///
    /// - Parameters:
    ///   - color: 0 or more. A rank that is to be in none of the groups gives `nil`.
    ///   - key: Orders the ranks of a color.
    public func split(color: Int, key: Int = 0) throws(ComityError) -> Group {
        guard let made = try split(color: Optional(color), key: key) else {
            throw .defect(ComityError.Details(message: "libcomity made no group of color \(color)"))
        }
        return made
    }

    /// The group of some members; only they call this, all with the same list and label. Calls of this group may run meanwhile.
    ///
    /// - Parameters:
    ///   - members: Ranks of this group in their new order, this one among them.
    ///   - label: Tells apart groups of the same members.
    public func subgroup(_ members: [Int], label: UInt64 = 0) throws(ComityError) -> Group {
        for member in members where !(0..<size).contains(member) {
            throw .misuse("rank \(member) is not in a group of \(size)")
        }
        var made: OpaquePointer?
        try check(comity_group_subgroup(handle.pointer, members.map { Int32($0) }, Int32(clamping: members.count), label, &made))
        return Group(owning: made)
    }
}
