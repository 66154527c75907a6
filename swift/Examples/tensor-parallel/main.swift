// Two linear layers whose weights are cut among the ranks: the first by its outputs, the second by its inputs, so that one sum joins
// them.
//
//     swift build --product tensor-parallel
//     comity launch -n 4 -- .build/debug/tensor-parallel

import Comity
import ComitySharding

let (inputs, hidden, outputs) = (16, 32, 8)
let group = try Group()
let shard = try Shard(rank: group.rank, of: group.size)

// The same weights on all ranks, in rows of inputs; a real program reads its part of a file.
let first = (0..<hidden * inputs).map { Float($0 * 7 % 13 - 6) }
let second = (0..<outputs * hidden).map { Float($0 * 5 % 11 - 5) }
let x = (0..<inputs).map { Float($0 % 5) }

let myFirst = try shard.slice(first, shape: [hidden, inputs], axis: 0)
let mySecond = try shard.slice(second, shape: [outputs, hidden], axis: 1)
let y = try group.allReduce(linear(mySecond, rectified(linear(myFirst, x))))

let whole = linear(second, rectified(linear(first, x)))
let difference = zip(y, whole).map { abs($0 - $1) }.max() ?? 0
print("rank \(group.rank) of \(group.size): \(myFirst.count + mySecond.count) weights, differs from one rank by \(difference)")
try group.close()

/// Product of a matrix, in rows, and a vector.
func linear(_ weight: [Float], _ x: [Float]) -> [Float] {
    stride(from: 0, to: weight.count, by: x.count).map { row in
        x.indices.reduce(0) { $0 + weight[row + $1] * x[$1] }
    }
}

func rectified(_ x: [Float]) -> [Float] {
    x.map { max($0, 0) }
}
