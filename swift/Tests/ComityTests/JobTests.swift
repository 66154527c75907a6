import XCTest

/// Jobs of real processes: every operation, and what ranks are told when another one fails.
final class JobTests: XCTestCase {
    func testEveryOperationOnEveryTypeConforms() throws {
        for (ranks, links) in [(1, "shm"), (2, "tcp"), (3, "shm"), (4, "tcp")] {
            let job = try Job.run("conformance", ranks: ranks, links: links)
            job.assertWell("conformance over \(links)")
            let said = job.output[0].first { $0.hasPrefix("conformance: ") } ?? ""
            let checks = Int(said.split(separator: " ").dropFirst().first ?? "") ?? 0
            XCTAssertGreaterThan(checks, 600, "\(ranks) ranks over \(links) checked too little: \(said)")
        }
    }

    func testEveryRankIsToldOfAKilledOne() throws {
        for ranks in [2, 3] {
            let job = try Job.run("killed", ranks: ranks, links: "shm")
            XCTAssertEqual(job.ranks { "rank \($0) was told" }, Array(0..<ranks - 1), "\(job.output)")
            XCTAssertEqual(job.codes, Array(repeating: 0, count: ranks - 1) + [-9], "\(job.output)")
        }
    }

    func testOthersGoOnWithoutAKilledRank() throws {
        for (ranks, links) in [(2, "shm"), (3, "tcp")] {
            let job = try Job.run("reform", ranks: ranks, links: links)
            let left = ranks - 1
            XCTAssertEqual(job.ranks { "rank \($0) of \(left) goes on" }, Array(0..<left), "\(job.output)")
            XCTAssertEqual(job.codes, Array(repeating: 0, count: left) + [-9], "\(job.output)")
        }
    }

    func testEveryRankIsToldOfAMismatch() throws {
        try assertAllTold("mismatch", links: "shm")
        try assertAllTold("mismatch", links: "tcp")
    }

    func testEveryRankIsToldOfATimeout() throws {
        try assertAllTold("timeout", links: "shm")
    }

    func testEveryRankIsToldOfAnAbort() throws {
        try assertAllTold("abort", links: "tcp")
    }

    func testCancellationOfATaskEndsTheGroupOnAllRanks() throws {
        try assertAllTold("cancelled", links: "shm")
    }

    func testTwoGroupsWorkAtOnce() throws {
        try Job.run("two-groups", ranks: 3, links: "shm").assertWell("two groups")
    }

    private func assertAllTold(_ name: String, links: String, line: UInt = #line) throws {
        let job = try Job.run(name, ranks: 3, links: links)
        XCTAssertEqual(job.ranks { "rank \($0) was told" }, [0, 1, 2], "\(name): \(job.output)", line: line)
        job.assertWell(name, line: line)
    }
}
