// What one all-reduce of 8 bytes costs from Swift, beside the same call from C, and how often it allocates:
//
//     swift build -c release --product ComityTestSpeed
//     comity launch -n 2 -- .build/release/ComityTestSpeed

import CAllocations
import CComity
import Comity
import Foundation

/// The function itself: that of the module is the package's, which calls it.
typealias AllReduce = @convention(c) (
    OpaquePointer?, UnsafeRawPointer?, UnsafeMutableRawPointer?, Int64, comity_dtype, comity_reduce_op
) -> comity_status
guard let library = dlopen("libcomity.so.0", RTLD_NOW), let address = dlsym(library, "comity_all_reduce") else {
    fatalError(String(cString: dlerror()))
}
let allReduceInC = unsafeBitCast(address, to: AllReduce.self)

/// Nanoseconds of a call in a round, and its allocations.
func round(_ calls: Int, _ call: () throws -> Void) rethrows -> (nanoseconds: Double, allocations: Int64) {
    let (before, start) = (allocations(), ContinuousClock.now)
    for _ in 0..<calls {
        try call()
    }
    let took = (ContinuousClock.now - start).components
    return ((Double(took.seconds) * 1e9 + Double(took.attoseconds) * 1e-9) / Double(calls), allocations() - before)
}

func measure(_ group: Group, _ inC: OpaquePointer?) throws {
    // Calls of a round, and rounds of each way, which take turns.
    let (calls, rounds) = (200, 501)
    let inMemory = UnsafeMutablePointer<Double>.allocate(capacity: 1)
    inMemory.initialize(to: 1)
    defer { inMemory.deallocate() }
    var number = 1.0
    var array = [1.0]
    var times = [[Double]](repeating: [], count: 3)
    var allocated = [Int64](repeating: 0, count: 3)
    for turn in 0...rounds {
        let took = [
            round(calls) {
                if allReduceInC(inC, inMemory, inMemory, 1, COMITY_F64, COMITY_MAX) != COMITY_OK {
                    fatalError("the call from C failed")
                }
            },
            try round(calls) { try group.allReduce(&number, .max) },
            try round(calls) { try group.allReduce(&array, .max) },
        ]
        // The first round makes what is kept.
        for (way, (nanoseconds, count)) in took.enumerated() where turn > 0 {
            times[way].append(nanoseconds)
            allocated[way] += count
        }
    }
    for (way, name) in ["C", "a number", "an array"].enumerated() where group.rank == 0 {
        let median = times[way].sorted()[rounds / 2].rounded()
        print("\(name): \(median) ns, \(allocated[way]) allocations in \(calls * rounds) calls")
    }
}

let group = try Group(strict: true)
var inC: OpaquePointer?
guard comity_init_strict(&inC) == COMITY_OK else {
    fatalError("there is no second group")
}
try measure(group, inC)
comity_group_free(inC)
try group.close()
