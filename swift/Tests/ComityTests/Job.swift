import Foundation
import XCTest

/// Ranks that are processes of their own, and what became of them.
struct Job {
    /// Lines that each rank wrote.
    var output: [[String]]
    /// Exit code of each rank; that of a signal is negative.
    var codes: [Int32]

    /// How long a job may take.
    private static let limit: TimeInterval = 120

    /// Program of a rank, which is built beside the tests.
    private static func program() throws -> URL {
        #if os(Linux)
            let tests = URL(fileURLWithPath: try FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/exe"))
        #else
            let tests = Bundle(for: Marker.self).bundleURL
        #endif
        return tests.deletingLastPathComponent().appendingPathComponent("ComityTestRank")
    }

    /// Run a case on so many ranks to the end.
    static func run(_ name: String, ranks: Int, links: String) throws -> Job {
        signal(SIGPIPE, SIG_IGN)
        let processes = try (0..<ranks).map { rank in
            let process = Process()
            process.executableURL = try program()
            process.arguments = ["\(rank)", "\(ranks)", links, name]
            process.standardInput = Pipe()
            process.standardOutput = Pipe()
            return process
        }
        let output = Output(ranks: ranks)
        let ended = DispatchGroup()
        for process in processes {
            try process.run()
        }
        for (rank, process) in processes.enumerated() {
            guard let pipe = process.standardOutput as? Pipe else { continue }
            let others = processes.dropFirst().compactMap { ($0.standardInput as? Pipe)?.fileHandleForWriting }
            let reading = pipe.fileHandleForReading
            ended.enter()
            Thread.detachNewThread {
                follow(reading) { line in
                    output.add(line, rank)
                    if rank == 0, line.hasPrefix("share ") {
                        let text = Data((line.dropFirst("share ".count) + "\n").utf8)
                        for other in others { try? other.write(contentsOf: text) }
                    }
                }
                ended.leave()
            }
        }
        let inTime = ended.wait(timeout: .now() + limit) == .success
        if !inTime {
            for process in processes { kill(process.processIdentifier, SIGKILL) }
        }
        for process in processes { process.waitUntilExit() }
        let lines = output.lines
        XCTAssert(inTime, "\(name) on \(ranks) ranks did not end: \(lines)")
        return Job(
            output: lines,
            codes: processes.map { $0.terminationReason == .exit ? $0.terminationStatus : -$0.terminationStatus })
    }

    /// Whether every rank ended well, in words where not.
    func assertWell(_ what: String, file: StaticString = #filePath, line: UInt = #line) {
        for (rank, code) in codes.enumerated() where code != 0 {
            XCTFail("\(what): rank \(rank) of \(codes.count) ended with \(code): \(output)", file: file, line: line)
        }
    }

    /// Ranks that wrote this line.
    func ranks(saying line: (Int) -> String) -> [Int] {
        output.indices.filter { output[$0].contains(line($0)) }
    }
}

#if !os(Linux)
    private final class Marker {}
#endif

/// Lines of all ranks, which several threads add to.
private final class Output: @unchecked Sendable {
    private let lock = NSLock()
    private var all: [[String]]

    init(ranks: Int) {
        all = Array(repeating: [], count: ranks)
    }

    func add(_ line: String, _ rank: Int) {
        lock.withLock { all[rank].append(line) }
    }

    var lines: [[String]] {
        lock.withLock { all }
    }
}

/// Each line of a stream until its end.
private func follow(_ stream: FileHandle, _ body: (String) -> Void) {
    var rest = Data()
    while true {
        let more = stream.availableData
        if more.isEmpty { return }
        rest += more
        while let end = rest.firstIndex(of: UInt8(ascii: "\n")) {
            body(String(decoding: rest[rest.startIndex..<end], as: UTF8.self))
            rest.removeSubrange(rest.startIndex...end)
        }
    }
}
