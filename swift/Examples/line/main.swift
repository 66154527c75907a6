// Ranks fit a line together, each to samples of its own:
//
//     swift build --product line
//     comity launch -n 4 -- .build/debug/line

import Comity

let group = try Group()
// This rank's samples of the line y = 3 x + 1.
let share = 32
let samples = (0..<share).map { i in
    let x = Float(group.rank * share + i) / Float(group.size * share)
    return (x: x, y: 3 * x + 1)
}

// The weights of rank 0, on every rank.
var weights = [Float.random(in: 0..<1), Float.random(in: 0..<1)]
try group.broadcast(&weights, from: 0)
for _ in 1...300 {
    // The gradient of the mean squared error of this rank's samples.
    var gradients: [Float] = [0, 0]
    for (x, y) in samples {
        let error = weights[0] * x + weights[1] - y
        gradients[0] += 2 * error * x / Float(share)
        gradients[1] += 2 * error / Float(share)
    }
    try group.allReduce(&gradients, .average)
    for i in weights.indices { weights[i] -= 0.5 * gradients[i] }
}
let rounded = weights.map { ($0 * 100).rounded() / 100 }
print("rank \(group.rank) of \(group.size): y = \(rounded[0]) x + \(rounded[1])")
try group.close()
