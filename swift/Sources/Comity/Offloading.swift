import CComity
import Dispatch

/// Work that waits for other ranks outside of calls. It runs on a thread of Dispatch's, and the task is suspended.
extension Group {
    /// The group of this process's job, found in the environment.
    public convenience init(strict: Bool = false) async throws(ComityError) {
        self.init(
            owning: try await Self.made { () throws(ComityError) in
                try Library.found.check()
                var made: OpaquePointer?
                try check(strict ? comity_init_strict(&made) : comity_init(&made))
                return Handle(pointer: made)
            }.pointer)
    }

    /// Meet the other ranks and make the group of all of them.
    public convenience init(_ configuration: Configuration) async throws(ComityError) {
        self.init(
            owning: try await Self.made { () throws(ComityError) in
                try Library.found.check()
                return Handle(pointer: try configuration.connect())
            }.pointer)
    }

    /// Split into groups of equal color, where some ranks may be in none: every rank calls this.
    public func split(color: Int?, key: Int = 0) async throws(ComityError) -> Group? {
        try await Self.made { () throws(ComityError) in try self.split(color: color, key: key) }
    }

    /// Split into groups of equal color: every rank calls this.
    public func split(color: Int, key: Int = 0) async throws(ComityError) -> Group {
        try await Self.made { () throws(ComityError) in try self.split(color: color, key: key) }
    }

    /// The group of some members; only they call this, all with the same list and label.
    public func subgroup(_ members: [Int], label: UInt64 = 0) async throws(ComityError) -> Group {
        try await Self.made { () throws(ComityError) in try self.subgroup(members, label: label) }
    }

    /// Form the group again of the ranks that are left: after a failure, or where all ranks of a healthy group call this.
    public func reform(
        fewest: Int = 1, storeDecides: Bool = false, timeout: Duration? = nil
    ) async throws(ComityError) -> ReformOutcome {
        try await Self.made { () throws(ComityError) in
            try self.reform(fewest: fewest, storeDecides: storeDecides, timeout: timeout)
        }
    }

    private static func made<R: Sendable>(_ work: @escaping @Sendable () throws(ComityError) -> R) async throws(ComityError) -> R {
        let result: Result<R, ComityError> = await withCheckedContinuation { continuation in
            DispatchQueue.global().async {
                continuation.resume(returning: Result(catching: work))
            }
        }
        return try result.get()
    }
}
