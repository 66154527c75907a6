import Comity
import Foundation

/// Error of a call that must fail.
func failure(_ body: () throws -> Void) throws -> ComityError {
    do {
        try body()
    } catch let error as ComityError {
        return error
    }
    throw Failed("a call went well that had to fail")
}

func holds(_ condition: Bool, _ error: ComityError) throws {
    if !condition {
        throw Failed("the error is another: \(error) \(error.details)")
    }
}

/// The group stays as the error left it, and says why again.
private func staysFailed(_ group: Group, _ first: ComityError) throws {
    let again = try failure { try group.barrier() }
    try holds(again.details.isEarlier && again.isFatal, again)
    try holds(again.details.ranks == first.details.ranks, again)
    say("rank \(group.rank) was told")
}

/// The last rank is killed, when the others wait for it in no call.
private func killLast(_ group: Group) throws {
    let last = group.size - 1
    if group.rank == last {
        for other in 0..<last {
            _ = try group.receive(Double.self, count: 1, from: other)
        }
        kill(getpid(), SIGKILL)
    }
    try group.send([1.0], to: last)
}

func killed(_ group: Group) throws {
    try group.barrier()
    try killLast(group)
    var values = [Float](repeating: 1, count: 8)
    let error = try failure { try group.allReduce(&values) }
    guard case .peerLost(let details) = error else { throw Failed("not .peerLost: \(error)") }
    try holds(details.rank == group.size - 1 && details.isFatal && !details.isEarlier, error)
    try holds(details.host != nil && details.processID != nil && details.call?.contains("all_reduce") == true, error)
    try staysFailed(group, error)
}

/// The last rank is killed. The others form the group again, and give one another what they lack.
func reform(_ group: Group) async throws {
    let all = group.size
    let healthy = try await group.reform(fewest: all)
    guard healthy.left.isEmpty, healthy.joined.isEmpty, healthy.group.size == all else { throw Failed("\(healthy)") }
    let closed = try failure { try group.barrier() }
    guard case .closed = closed else { throw Failed("not .closed: \(closed)") }
    let group = healthy.group
    let last = try group.members[all - 1]
    try await group.barrier()
    try killLast(group)
    let lost = try failure { _ = try group.allReduce([1.0]) }
    guard case .peerLost = lost else { throw Failed("not .peerLost: \(lost)") }
    let few = try failure { _ = try group.reform(fewest: all) }
    guard case .join(let details) = few, details.ranks == [all - 1] else { throw Failed("not .join: \(few) \(few.details)") }
    let made = try await group.reform(timeout: .seconds(20))
    guard made.left.map(\.rank) == [all - 1], made.left[0].processID == last.processID, made.left[0].reason.contains("died"),
        made.left[0].host == last.host, made.joined.isEmpty, made.group.joiners == 0
    else { throw Failed("\(made)") }
    let holds = made.group.rank == made.group.size - 1
    var (weights, step) = ([Float](repeating: holds ? 2.5 : 0, count: 1000), holds ? 7 : 0)
    try made.group.sync(&weights, holds: holds)
    try made.group.sync(&step, holds: holds)
    guard weights == [Float](repeating: 2.5, count: 1000), step == 7 else { throw Failed("\(weights[0]) at step \(step)") }
    var (a, b) = ([holds ? 1.0 : 0, 2], [UInt8](repeating: holds ? 3 : 0, count: 3))
    try a.withUnsafeMutableBufferPointer { a in
        try b.withUnsafeMutableBufferPointer { b in
            try made.group.sync([SyncBuffer(a), SyncBuffer(b)], holds: holds)
        }
    }
    guard a == [1, 2], b == [3, 3, 3] else { throw Failed("\(a) and \(b)") }
    let nobody = try failure { try made.group.sync(&step, holds: false) }
    guard case .configuration = nobody else { throw Failed("not .configuration: \(nobody)") }
    say("rank \(group.rank) of \(try await made.group.allReduce([1])[0]) goes on")
}

func mismatch(_ group: Group) throws {
    // All are in a group before it fails: one that still opens it would fail there.
    try group.split(color: 0).barrier()
    let odd = group.rank == group.size - 1
    let error = try failure { _ = try group.allReduce([Float](repeating: 1, count: odd ? 7 : 8)) }
    guard case .mismatch(let details) = error else { throw Failed("not .mismatch: \(error)") }
    try holds(details.difference == "count" && details.isFatal && details.rank != nil, error)
    try holds(details.call?.contains("f32[") == true && details.peerCall?.contains("f32[") == true, error)
    try staysFailed(group, error)
}

/// The last rank comes too late. That the others are told already it learns over a group beside. What they had sent may do for one call.
func timeout(_ group: Group) throws {
    let beside = try group.split(color: 0)
    let late = group.rank == group.size - 1
    if late {
        try beside.barrier()
    }
    let limit = Duration.seconds(2)
    let error = try failure {
        try group.barrier(timeout: limit)
        try group.barrier(timeout: limit)
    }
    if late {
        guard case .aborted(let details) = error else { throw Failed("not .aborted: \(error)") }
        try holds(details.rank.map { $0 < group.rank } == true && details.message.contains("timed out"), error)
    } else {
        guard case .timeout(let details) = error else { throw Failed("not .timeout: \(error)") }
        try holds(details.rank == group.size - 1 && details.limit == limit, error)
        try beside.barrier()
    }
    try staysFailed(group, error)
}

/// Rank 0 gives the group up while the others wait in a call.
func abort(_ group: Group) throws {
    let beside = try group.split(color: 0)
    let error: ComityError
    if group.rank == 0 {
        try beside.barrier()
        try group.abort("the loss is not a number")
        error = try failure { try group.barrier() }
    } else {
        let request = try group.startBarrier()
        try beside.barrier()
        error = try failure { try request.wait() }
    }
    guard case .aborted(let details) = error else { throw Failed("not .aborted: \(error)") }
    try holds(details.rank == 0 && details.message.contains("the loss is not a number"), error)
    try staysFailed(group, error)
}

/// Rank 0 cancels a task that waits for a call. The others, which make it later, are told.
func cancelled(_ group: Group) async throws {
    let beside = try await group.split(color: 0)
    // All have left the split before the group fails.
    try await beside.barrier()
    let error: ComityError
    if group.rank == 0 {
        let request = try group.startAllReduce([1.0])
        let waiting = Task { () async -> ComityError? in
            do throws(ComityError) {
                _ = try await request.value
                return nil
            } catch {
                return error
            }
        }
        waiting.cancel()
        guard let told = await waiting.value else { throw Failed("a cancelled task got its sum") }
        guard case .cancelled(let details) = told, details.isFatal else { throw Failed("not .cancelled: \(told)") }
        error = told
        try await beside.barrier()
    } else {
        try await beside.barrier()
        do throws(ComityError) {
            // What rank 0 had sent may do for one.
            _ = try await group.allReduce([1.0])
            _ = try await group.allReduce([1.0])
            throw ComityError.defect(.init(message: "the call went well"))
        } catch let told {
            error = told
        }
        guard case .aborted(let details) = error else { throw Failed("not .aborted: \(error)") }
        try holds(details.rank == 0 && details.message.contains("cancelled"), error)
    }
    say("rank \(group.rank) was told")
}

/// Two groups of the same ranks at once, each in a task of its own.
func twoGroups(_ group: Group) async throws {
    let other = try await group.split(color: 0, key: -group.rank)
    guard other.rank == group.size - 1 - group.rank else { throw Failed("the key orders nothing") }
    async let sums = many(group)
    async let others = many(other)
    let (a, b) = try await (sums, others)
    guard a == b else { throw Failed("\(a) and \(b)") }
    let pair = try await group.subgroup(group.rank < 2 ? [0, 1] : Array(2..<group.size))
    let sum = try await pair.allReduce([Int32(1)])
    guard sum == [Int32(pair.size)] else { throw Failed("\(sum) in a group of \(pair.size)") }
}

private func many(_ group: Group) async throws -> Int {
    var total = 0
    for i in 0..<50 {
        total += try await group.allReduce([i])[0]
    }
    return total
}
