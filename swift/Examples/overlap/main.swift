// Layers are summed over the ranks while the next ones are computed:
//
//     swift build --product overlap
//     comity launch -n 2 -- .build/debug/overlap

import Comity

let layers = 8
let group = try Group()
var total: Float = 0
var current = gradient(ofLayer: 0, on: group.rank)
for layer in 0..<layers {
    // One call at a time is under way, so the order is the same on all ranks.
    async let sum = group.allReduce(current)
    let next = gradient(ofLayer: layer + 1, on: group.rank)
    total += try await sum[0]
    current = next
}
print("rank \(group.rank): \(layers) layers summed over \(group.size) ranks, in all \(total)")
try group.close()

/// Gradient that stands for a computation.
func gradient(ofLayer layer: Int, on rank: Int) -> [Float] {
    (0..<1000).map { Float(layer + rank) + Float($0) / 1000 }
}
