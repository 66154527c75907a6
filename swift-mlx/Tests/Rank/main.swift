// One rank of a job that the tests start under comity launch: CASE.

import ComityMLX
import Foundation
import MLX

guard CommandLine.arguments.count == 2, let check = cases[CommandLine.arguments[1]] else {
    print("usage: ComityMLXTestRank \(cases.keys.sorted().joined(separator: "|"))")
    exit(2)
}

do {
    // MLX's default device is the GPU also where there is none, and the form of this call for a block asks for that one first.
    Device.setDefault(device: .cpu)
    // The same random numbers on all ranks.
    MLXRandom.seed(7)
    let checks = Checks(try MLXDistributed.initialize(strict: true))
    try check(checks)
    print("\(CommandLine.arguments[1]) on rank \(checks.rank) of \(checks.size): \(checks.count) checks")
} catch {
    print("FAILED: \(error)")
    exit(1)
}
