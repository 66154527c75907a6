// Groups, requests, callbacks and errors, made and given up in every way, for a leak checker: see the tests' README.

import Comity
import Dispatch

struct Failed: Error {
    let what: String
}

// Not an asynchronous program: there the first thread ends, which valgrind cannot follow.
let ended = DispatchSemaphore(value: 0)
Task.detached {
    do {
        try await all()
        print("all went well")
    } catch {
        print("FAILED: \(error)")
    }
    ended.signal()
}
ended.wait()

func all() async throws {
    for round in 0..<20 {
        let groups = try Group.local(ranks: 2)
        // Waited for, awaited, given up before their end, and asked for too early.
        let requests = try (0..<4).map { _ in try groups[0].startAllReduce([Float](repeating: 1, count: 100), .max) }
        try waited(requests[0], groups[1])
        let others = try (0..<3).map { _ in try groups[1].startAllReduce([Float](repeating: 2, count: 100), .max) }
        _ = try await requests[2].value
        _ = try await others[2].value
        _ = try? groups[0].startSend([1], to: 5)
        _ = try? await groups[1].allReduce([true], .average)
        // A group of both, and a part that one of them closes while the other calls.
        let split = Task.detached { [groups] in try await groups[1].split(color: 0) }
        let part = try await groups[0].split(color: 0)
        let other = try await split.value
        let waiting = Task { try await other.allReduce([Double](repeating: 1, count: 10)) }
        if round % 2 == 0 {
            waiting.cancel()
        } else {
            try part.abort("enough")
        }
        _ = await waiting.result
        for group in groups { try? group.close() }
        // A configuration whose function throws, and one that meets nobody.
        var configuration = Configuration(rank: 1, size: 2)
        configuration.meeting = .exchange { _, _ in throw Failed(what: "no channel") }
        configuration.joinTimeout = .milliseconds(20)
        _ = try? Group(configuration)
    }
}

/// Waits on this thread for a request, at first without the other rank's call.
private func waited(_ request: Request<[Float]>, _ other: Group) throws {
    guard try request.wait(atMost: .zero) == nil else { throw Failed(what: "a maximum without the other rank") }
    let theirs = try other.startAllReduce([Float](repeating: 2, count: 100), .max)
    guard try request.wait() == theirs.wait() else { throw Failed(what: "two maxima") }
}
