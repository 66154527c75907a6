import Comity
import XCTest

/// Nothing is left behind.
final class LifetimeTests: XCTestCase {
    func testGroupsAndRequestsAreFreed() async throws {
        weak var group: Group?
        weak var request: Request<[Double]>?
        do {
            let made = try Group.local(ranks: 1)[0]
            let started = try made.startAllReduce([1.0])
            (group, request) = (made, started)
            let sum = try await started.value
            XCTAssertEqual(sum, [1.0])
        }
        XCTAssertNil(group)
        XCTAssertNil(request)
    }

    func testAThousandGroupsLeaveNothingOpen() throws {
        func openAndClose(_ times: Int) throws {
            for i in 0..<times {
                let groups = try Group.local(ranks: 2)
                let requests = try groups.map { try $0.startAllReduce([i]) }
                XCTAssertEqual(try requests[0].wait(), [2 * i])
                for group in groups { try group.close() }
            }
        }
        try openAndClose(10)
        let before = try open()
        try openAndClose(1000)
        let after = try open()
        // The runtime's own threads come and go; one for each group would be a thousand.
        XCTAssertLessThan(after.descriptors, before.descriptors + 20)
        XCTAssertLessThan(after.threads, before.threads + 20)
        // Without a leak a few pages come and go: a kilobyte a group would be a thousand.
        XCTAssertLessThan(after.kibibytes, before.kibibytes + 1000)
    }

    func testRequestsLeaveNoMemory() async throws {
        let groups = try Group.local(ranks: 2)
        func start(_ times: Int) async throws {
            for i in 0..<times {
                let requests = try groups.map { try $0.startAllReduce([Float](repeating: 1, count: 200)) }
                // Waited for, awaited, or given up.
                if i % 3 == 0 { _ = try await requests[0].value }
                if i % 3 == 1 { _ = try await Task { try await requests[1].value }.value }
                _ = try? groups[0].startAllReduce([true], .average)
            }
            let ends = try groups.map { try $0.startBarrier() }
            for end in ends { _ = try await end.value }
        }
        try await start(200)
        let before = try open()
        try await start(4000)
        let after = try open()
        // The values alone of the requests are 6,400 KiB.
        XCTAssertLessThan(after.kibibytes, before.kibibytes + 2000)
    }

    func testWithoutALauncherOneRankIsAGroupUnlessItMustBeThere() async throws {
        let group = try await Group()
        XCTAssertEqual([group.rank, group.size], [0, 1])
        let half = try await group.split(color: 0)
        XCTAssertEqual(half.size, 1)
        let none = try await group.split(color: nil)
        XCTAssertNil(none)
        do throws(ComityError) {
            _ = try await Group(strict: true)
            XCTFail("there is no launcher")
        } catch {
            guard case .configuration = error else { return XCTFail("not .configuration: \(error)") }
        }
    }

    func testMembersAndStatisticsAreKnown() throws {
        try onRanks(2) { group in
            _ = try group.allReduce([1.0])
            let members = try group.members
            XCTAssertEqual(members.map(\.rank), [0, 1])
            XCTAssertNil(members[group.rank].link)
            XCTAssertEqual(try group.statistics.calls, 1)
            XCTAssertEqual(try group.statistics.errors, 0)
            try group.setTimeout(.seconds(7))
            XCTAssertEqual(group.timeout, .seconds(7))
        }
    }

    /// The open descriptors of this process.
    private func open() throws -> (descriptors: Int, threads: Int, kibibytes: Int) {
        #if os(Linux)
            let descriptors = try FileManager.default.contentsOfDirectory(atPath: "/proc/self/fd").count
            let status = try String(contentsOfFile: "/proc/self/status", encoding: .utf8)
            func number(_ name: String) -> Int {
                let line = status.split(separator: "\n").first { $0.hasPrefix(name) } ?? ""
                return line.split(whereSeparator: { !$0.isNumber }).first.flatMap { Int($0) } ?? 0
            }
            return (descriptors, number("Threads:"), number("VmRSS:"))
        #else
            throw XCTSkip("what a process has open is read from /proc")
        #endif
    }
}
