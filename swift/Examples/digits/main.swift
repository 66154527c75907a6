// A small network learns handwritten digits, on any number of ranks:
//
//     swift build -c release --product digits
//     comity launch -n 4 -- .build/release/digits data/digits.csv
//
// Every rank holds the whole network. Of each batch, rank `r` of `n` takes samples `r`, `r + n`, `r + 2n`, ...; the gradients are
// averaged over the ranks before each step, so the result is that of one rank up to rounding. Samples, first weights and order are those
// of the example in Rust, so the loss is the same too.

import Comity
import Foundation

let words = CommandLine.arguments
guard words.count > 1 else {
    print("digits FILE [EPOCHS]: train on samples of 64 pixels and a digit a line, such as data/digits.csv")
    exit(2)
}
let epochs = words.count > 2 ? Int(words[2]) ?? 30 : 30
let batch = 128
let rate: Float = 0.4

let digits = try Digits(file: words[1])
let group = try Group()
var random = SplitMix64(seed: 1)
var network = Network(&random)
var order = digits.training
let clock = ContinuousClock()
let start = clock.now

for epoch in 1...max(epochs, 1) {
    random.shuffle(&order)
    var total = 0.0
    for first in stride(from: 0, through: order.count - batch, by: batch) {
        let mine = stride(from: first + group.rank, to: first + batch, by: group.size).map { order[$0] }
        // Shares may differ by one sample: weigh each by its size, so that the average over ranks is the batch's.
        var (loss, gradients) = network.gradients(digits, mine, scale: Float(group.size) / Float(batch))
        try group.allReduce(&gradients, .average)
        network.step(gradients, rate)
        total += loss
    }
    try group.allReduce(&total)
    if group.rank == 0 && (epoch % 5 == 0 || epoch == 1 || epoch == epochs) {
        let seconds = Double((clock.now - start).components.seconds) + 1e-18 * Double((clock.now - start).components.attoseconds)
        let seen = order.count / batch * batch
        let loss = rounded(total / Double(seen), digits: 4)
        let accuracy = rounded(network.accuracy(digits), digits: 4)
        print("epoch \(epoch)  loss \(loss)  accuracy \(accuracy)  \(Int(Double(epoch * seen) / seconds)) samples/s")
    }
}
try group.close()

/// A decimal number with so many digits after the point.
func rounded(_ value: Double, digits: Int) -> Double {
    let scale = (0..<digits).reduce(1.0) { power, _ in power * 10 }
    return (value * scale).rounded() / scale
}
