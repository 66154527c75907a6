import Comity
import XCTest

/// Tasks, cancellation, requests.
final class TaskTests: XCTestCase {
    func testTasksSuspendAndSum() async throws {
        let groups = try Group.local(ranks: 4)
        let sums = try await withThrowingTaskGroup(of: [Int].self) { tasks in
            for group in groups {
                tasks.addTask {
                    var values = [group.rank]
                    try await group.allReduce(&values)
                    let all = try await group.allGather(values)
                    try await group.barrier()
                    return try await group.allToAll(all)
                }
            }
            return try await tasks.reduce(into: []) { $0.append($1) }
        }
        XCTAssertEqual(sums, Array(repeating: [6, 6, 6, 6], count: 4))
    }

    func testATaskThatWasCancelledBeforeMakesNoCall() async throws {
        let group = try Group.local(ranks: 1)[0]
        let task = Task { () async -> ComityError? in
            while !Task.isCancelled { await Task.yield() }
            do throws(ComityError) {
                _ = try await group.allReduce([1.0])
                return nil
            } catch {
                return error
            }
        }
        task.cancel()
        guard case .cancelled(let details)? = await task.value else { return XCTFail("the call was made") }
        XCTAssertFalse(details.isFatal)
        let sum = try await group.allReduce([1.0])
        XCTAssertEqual(sum, [1.0])
    }

    func testCancellationDuringACallEndsTheGroup() async throws {
        let groups = try Group.local(ranks: 2)
        let request = try groups[0].startAllReduce([1.0])
        let task = Task { () async -> ComityError? in
            do throws(ComityError) {
                _ = try await request.value
                return nil
            } catch {
                return error
            }
        }
        task.cancel()
        guard case .cancelled(let details)? = await task.value else { return XCTFail("no .cancelled") }
        XCTAssert(details.isFatal, details.message)
        do throws(ComityError) {
            _ = try await groups[1].allReduce([1.0])
            XCTFail("the group goes on")
        } catch {
            guard case .aborted(let details) = error else { return XCTFail("not .aborted: \(error)") }
            XCTAssertEqual(details.rank, 0)
        }
    }

    func testRequestsKeepTheOrderOfTheirStart() async throws {
        let groups = try Group.local(ranks: 2)
        let requests = try groups.map { group in try (0..<20).map { try group.startAllReduce([$0, group.rank]) } }
        for (i, pair) in zip(requests[0], requests[1]).enumerated() {
            let (a, b) = (try await pair.0.value, try await pair.1.value)
            XCTAssertEqual(a, [2 * i, 1])
            XCTAssertEqual(b, a)
        }
        XCTAssert(requests[0].allSatisfy { $0.isFinished })
    }

    func testARequestThatNobodyWaitsForGoesOn() throws {
        try onRanks(2) { group in
            for i in 0..<10 {
                _ = try group.startAllReduce([Double](repeating: Double(i), count: 1000))
            }
            XCTAssertEqual(try group.allReduce([1.0]), [2.0])
        }
    }

    func testAWaitWithALimitHarmsNothing() throws {
        let groups = try Group.local(ranks: 2)
        let request = try groups[0].startAllReduce([1])
        XCTAssertNil(try request.wait(atMost: .zero))
        XCTAssertFalse(request.isFinished)
        let other = try groups[1].startAllReduce([2])
        XCTAssertEqual(try request.wait(), [3])
        XCTAssertEqual(try other.wait(atMost: .seconds(60)), [3])
        // As often as it is asked.
        XCTAssertEqual(try request.wait(), [3])
    }

    func testAGroupThatIsClosedByAnotherTaskEndsItsCalls() async throws {
        let groups = try Group.local(ranks: 2)
        let request = try groups[0].startAllReduce([1.0])
        async let closed: Void = groups[0].close()
        do throws(ComityError) {
            _ = try await request.value
            XCTFail("a call of a closed group went well")
        } catch {
            guard case .closed = error else { return XCTFail("not .closed: \(error)") }
        }
        try? await closed
    }
}
