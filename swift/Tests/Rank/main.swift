// One rank of a job that the tests start: RANK SIZE LINKS CASE. Ranks meet over the standard streams: rank 0 writes a line
// "share TEXT", and the test gives the text to the standard input of the others.

import Comity
import Foundation

signal(SIGPIPE, SIG_IGN)
let words = CommandLine.arguments
guard words.count == 5, let rank = Int(words[1]), let size = Int(words[2]) else {
    print("usage: ComityTestRank RANK SIZE LINKS CASE")
    exit(2)
}

var configuration = Configuration(rank: rank, size: size)
configuration.links = [words[3]]
configuration.joinTimeout = .seconds(30)
configuration.timeout = .seconds(30)
configuration.meeting = .exchange { text, _ in
    if let text {
        say("share \(text)")
        return text
    }
    guard let line = readLine() else { throw Failed("the test has closed the standard input") }
    return line
}

do {
    let group = try Group(configuration)
    switch words[4] {
    case "conformance": say("conformance: \(try conformance(group)) checks")
    case "killed": try killed(group)
    case "reform": try await reform(group)
    case "mismatch": try mismatch(group)
    case "timeout": try timeout(group)
    case "abort": try abort(group)
    case "cancelled": try await cancelled(group)
    case "two-groups": try await twoGroups(group)
    default: throw Failed("there is no case \(words[4])")
    }
    try? group.close()
    say("rank \(rank) ends well")
} catch {
    say("rank \(rank) FAILED: \(error)")
    exit(1)
}
