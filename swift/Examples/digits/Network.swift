import Foundation

/// Two layers: 64 pixels, 128 hidden units, 10 digits.
struct Network {
    private static let layers = [Layer(inputs: Digits.pixels, outputs: 128, start: 0), Layer(inputs: 128, outputs: 10, start: 65 * 128)]
    /// Weights and biases of all layers, one after the other: what is averaged in one call.
    private var parameters: [Float] = []

    /// A layer's place in the parameters: the weights in rows of outputs, then the biases.
    private struct Layer {
        let inputs: Int
        let outputs: Int
        let start: Int
        var biases: Int { start + inputs * outputs }
    }

    /// Random weights; the same numbers give the same network.
    init(_ random: inout SplitMix64) {
        for layer in Self.layers {
            let scale = (3 / Float(layer.inputs)).squareRoot()
            parameters += (0..<layer.inputs * layer.outputs).map { _ in random.uniform() * scale }
            parameters += [Float](repeating: 0, count: layer.outputs)
        }
    }

    mutating func step(_ gradients: [Float], _ rate: Float) {
        for i in parameters.indices {
            parameters[i] -= rate * gradients[i]
        }
    }

    /// Part of the held-out samples that the network knows.
    func accuracy(_ digits: Digits) -> Double {
        let right = digits.heldOut.filter { sample in
            let scores = forward(digits, sample).scores
            return scores.firstIndex(of: scores.max() ?? 0) == digits.labels[sample]
        }
        return Double(right.count) / Double(digits.heldOut.count)
    }

    /// Sum of the losses of some samples, and the gradients of that sum times a scale.
    func gradients(_ digits: Digits, _ samples: [Int], scale: Float) -> (loss: Double, gradients: [Float]) {
        var gradients = [Float](repeating: 0, count: parameters.count)
        var loss = 0.0
        for sample in samples {
            let (hidden, scores) = forward(digits, sample)
            let largest = scores.max() ?? 0
            let exponentials = scores.map { exp($0 - largest) }
            let sum = exponentials.reduce(0, +)
            let label = digits.labels[sample]
            loss -= Double(scores[label] - largest - log(sum))
            var error = exponentials.map { scale * $0 / sum }
            error[label] -= scale
            let back = add(Self.layers[1], hidden, error, &gradients)
            let hiddenError = zip(back, hidden).map { $1 > 0 ? $0 : 0 }
            let image = Array(digits.images[sample * Digits.pixels..<(sample + 1) * Digits.pixels])
            _ = add(Self.layers[0], image, hiddenError, &gradients)
        }
        return (loss, gradients)
    }

    /// Values of the hidden units, and a score for each digit.
    private func forward(_ digits: Digits, _ sample: Int) -> (hidden: [Float], scores: [Float]) {
        let image = digits.images[sample * Digits.pixels..<(sample + 1) * Digits.pixels]
        let hidden = apply(Self.layers[0], image).map { max($0, 0) }
        return (hidden, apply(Self.layers[1], hidden[...]))
    }

    private func apply(_ layer: Layer, _ x: ArraySlice<Float>) -> [Float] {
        var y = Array(parameters[layer.biases..<layer.biases + layer.outputs])
        for (row, value) in x.enumerated() where value != 0 {
            let weights = layer.start + row * layer.outputs
            for column in y.indices {
                y[column] += value * parameters[weights + column]
            }
        }
        return y
    }

    /// Adds a layer's gradients for one sample; returns those of its input.
    private func add(_ layer: Layer, _ x: [Float], _ error: [Float], _ gradients: inout [Float]) -> [Float] {
        var back = [Float](repeating: 0, count: layer.inputs)
        for (row, value) in x.enumerated() {
            let weights = layer.start + row * layer.outputs
            for column in error.indices {
                gradients[weights + column] += value * error[column]
                back[row] += parameters[weights + column] * error[column]
            }
        }
        for column in error.indices {
            gradients[layer.biases + column] += error[column]
        }
        return back
    }
}
