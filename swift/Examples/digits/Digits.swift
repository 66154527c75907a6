import Foundation

/// Images of handwritten digits, 8 by 8 pixels.
struct Digits {
    static let pixels = 64
    /// Pixels of all samples, from 0 to 1.
    var images: [Float] = []
    var labels: [Int] = []
    /// Samples to learn from, and those to test with.
    let training: [Int]
    let heldOut: [Int]

    /// Lines of 64 pixels from 0 to 16, then the digit. Every fifth sample is held out.
    init(file: String) throws {
        for (index, line) in try String(contentsOfFile: file, encoding: .utf8).split(separator: "\n").enumerated() {
            let numbers = line.split(separator: ",").compactMap { Int($0) }
            guard numbers.count == Self.pixels + 1, let label = numbers.last, (0..<10).contains(label) else {
                throw BadLine(file: file, line: index + 1)
            }
            images += numbers.dropLast().map { Float($0) / 16 }
            labels.append(label)
        }
        training = labels.indices.filter { $0 % 5 != 4 }
        heldOut = labels.indices.filter { $0 % 5 == 4 }
    }

    struct BadLine: Error {
        var file: String
        var line: Int
    }
}

/// SplitMix64: the same numbers on every rank and machine.
struct SplitMix64 {
    private var state: UInt64

    init(seed: UInt64) {
        state = seed
    }

    private mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var z = (state ^ (state >> 30)) &* 0xbf58_476d_1ce4_e5b9
        z = (z ^ (z >> 27)) &* 0x94d0_49bb_1331_11eb
        return z ^ (z >> 31)
    }

    /// From -1 to 1.
    mutating func uniform() -> Float {
        Float(next() >> 40) / Float(1 << 23) - 1
    }

    mutating func shuffle(_ items: inout [Int]) {
        for i in stride(from: items.count - 1, to: 0, by: -1) {
            items.swapAt(i, Int(next() % UInt64(i + 1)))
        }
    }
}
