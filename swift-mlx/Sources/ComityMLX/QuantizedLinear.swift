import Comity
import ComitySharding
import MLX
import MLXNN

/// Form of ``AllToShardedLinear`` with a quantized weight, which is not trained.
open class QuantizedAllToShardedLinear: QuantizedLinear {
    /// Outputs of all ranks together.
    public let outputDimensions: Int
    public let group: Group
    private let summed: (MLXArray) -> MLXArray

    /// A new layer.
    ///
    /// - Parameters:
    ///   - inputDimensions: Number of inputs.
    ///   - outputDimensions: Number of outputs of all ranks together.
    ///   - bias: Whether the layer has a bias.
    ///   - groupSize: Inputs that share a scale.
    ///   - bits: Bits of a weight.
    ///   - mode: Kind of quantization.
    ///   - division: Whether all ranks get as many outputs.
    ///   - group: The ranks; `nil`: those of the job.
    public convenience init(
        _ inputDimensions: Int, _ outputDimensions: Int, bias: Bool = true, groupSize: Int = 64, bits: Int = 4,
        mode: QuantizationMode = .affine, division: Division = .equal, group: Group? = nil
    ) throws {
        let group = try MLXDistributed.of(group)
        _ = try Cut(group, division).shard.range(of: outputDimensions, name: "the output", division: division)
        let whole = try quantizedLinear(inputDimensions, outputDimensions, bias, groupSize, bits, mode)
        try self.init(whole, division: division, group: group)
    }

    /// This rank's part of a layer that every rank has whole.
    ///
    /// - Parameters:
    ///   - whole: The whole layer.
    ///   - segments: For fused layers: parts that are cut each by itself.
    ///   - division: Whether all ranks get as many outputs.
    ///   - group: The ranks; `nil`: those of the job.
    public convenience init(
        _ whole: QuantizedLinear, segments: Segments = .whole, division: Division = .equal, group: Group? = nil
    ) throws {
        let group = try MLXDistributed.of(group)
        let cut = try Cut(group, division)
        func rows(_ x: MLXArray, _ name: String) throws -> MLXArray { try cut.part(x, name, axis: 0, segments) }
        self.init(
            weight: try rows(whole.weight, "weight"), bias: try whole.bias.map { try rows($0, "bias") },
            scales: try rows(whole.scales, "scales"), biases: try whole.biases.map { try rows($0, "biases") }, groupSize: whole.groupSize,
            bits: whole.bits, mode: whole.mode,
            outputDimensions: whole.weight.dim(0), group: group)
    }

    /// A layer of this rank's parameters.
    public init(
        weight: MLXArray, bias: MLXArray?, scales: MLXArray, biases: MLXArray?, groupSize: Int, bits: Int, mode: QuantizationMode,
        outputDimensions: Int, group: Group
    ) {
        (self.outputDimensions, self.group) = (outputDimensions, group)
        summed = sumGradients(group: group)
        super.init(weight: weight, bias: bias, scales: scales, biases: biases, groupSize: groupSize, bits: bits, mode: mode)
        freeze()
    }

    open override func callAsFunction(_ x: MLXArray) -> MLXArray {
        super.callAsFunction(summed(x))
    }

    open override func describeExtra(_ indent: Int) -> String {
        "(inputDimensions=\(shape.1), outputDimensions=\(outputDimensions), bias=\(bias != nil), groupSize=\(groupSize), bits=\(bits), "
            + "mode=\(mode), ranks=\(group.size))"
    }
}

/// Form of ``ShardedToAllLinear`` with a quantized weight, which is not trained. Each rank's part of the inputs has whole quantization
/// groups.
open class QuantizedShardedToAllLinear: QuantizedLinear {
    /// Inputs of all ranks together.
    public let inputDimensions: Int
    public let group: Group

    /// A new layer.
    ///
    /// - Parameters:
    ///   - inputDimensions: Number of inputs of all ranks together.
    ///   - outputDimensions: Number of outputs.
    ///   - bias: Whether the layer has a bias.
    ///   - groupSize: Inputs that share a scale.
    ///   - bits: Bits of a weight.
    ///   - mode: Kind of quantization.
    ///   - division: Whether all ranks get as many inputs.
    ///   - group: The ranks; `nil`: those of the job.
    public convenience init(
        _ inputDimensions: Int, _ outputDimensions: Int, bias: Bool = true, groupSize: Int = 64, bits: Int = 4,
        mode: QuantizationMode = .affine, division: Division = .equal, group: Group? = nil
    ) throws {
        let whole = try quantizedLinear(inputDimensions, outputDimensions, bias, groupSize, bits, mode)
        try self.init(whole, division: division, group: group)
    }

    /// This rank's part of a layer that every rank has whole.
    ///
    /// - Parameters:
    ///   - whole: The whole layer.
    ///   - segments: For fused layers: parts that are cut each by itself.
    ///   - division: Whether all ranks get as many inputs.
    ///   - group: The ranks; `nil`: those of the job.
    public convenience init(
        _ whole: QuantizedLinear, segments: Segments = .whole, division: Division = .equal, group: Group? = nil
    ) throws {
        let group = try MLXDistributed.of(group)
        let cut = try Cut(group, division)
        func columns(_ x: MLXArray, _ name: String) throws -> MLXArray {
            try cut.part(x, name, axis: -1, segments, quantized: whole)
        }
        self.init(
            weight: try columns(whole.weight, "weight"), bias: whole.bias?.copyOfHandle, scales: try columns(whole.scales, "scales"),
            biases: try whole.biases.map { try columns($0, "biases") }, groupSize: whole.groupSize, bits: whole.bits, mode: whole.mode,
            inputDimensions: whole.scales.dim(-1) * whole.groupSize, group: group)
    }

    /// A layer of this rank's weight, and the whole bias.
    public init(
        weight: MLXArray, bias: MLXArray?, scales: MLXArray, biases: MLXArray?, groupSize: Int, bits: Int, mode: QuantizationMode,
        inputDimensions: Int, group: Group
    ) {
        (self.inputDimensions, self.group) = (inputDimensions, group)
        super.init(weight: weight, bias: bias, scales: scales, biases: biases, groupSize: groupSize, bits: bits, mode: mode)
        freeze()
    }

    open override func callAsFunction(_ x: MLXArray) -> MLXArray {
        let part = quantizedMM(
            x, weight, scales: scales, biases: biases, transpose: true, groupSize: groupSize, bits: bits, mode: mode)
        return summed(part, bias, group)
    }

    open override func describeExtra(_ indent: Int) -> String {
        "(inputDimensions=\(inputDimensions), outputDimensions=\(shape.0), bias=\(bias != nil), groupSize=\(groupSize), bits=\(bits), "
            + "mode=\(mode), ranks=\(group.size))"
    }
}

/// A new quantized layer. MLX ends the process where groups are not whole.
private func quantizedLinear(
    _ inputs: Int, _ outputs: Int, _ bias: Bool, _ groupSize: Int, _ bits: Int, _ mode: QuantizationMode
) throws -> QuantizedLinear {
    guard groupSize > 0, inputs > 0, inputs % groupSize == 0 else {
        throw ShardingError.quantizationGroup(inputDimensions: inputs, groupSize: groupSize, across: 1)
    }
    return try withError { QuantizedLinear(inputs, outputs, bias: bias, groupSize: groupSize, bits: bits, mode: mode) }
}

/// A quantized form of a layer that stays sharded, for `quantize(model:apply:)`.
///
/// ```swift
/// quantize(model: model, apply: quantizeSharded(layer:groupSize:bits:mode:))
/// ```
///
/// mlx-swift's own function, which is the default of `apply`, makes a plain layer of a sharded one: then each rank goes on with its own part,
/// and no sum is made. Shard after you quantize, or give this function.
///
/// - Returns: `nil` for a layer that cannot be quantized, or is.
public func quantizeSharded(layer: Module, groupSize: Int, bits: Int, mode: QuantizationMode) -> Module? {
    switch layer {
    case let layer as AllToShardedLinear:
        let part = QuantizedLinear(layer, groupSize: groupSize, bits: bits, mode: mode)
        return QuantizedAllToShardedLinear(
            weight: part.weight, bias: part.bias, scales: part.scales, biases: part.biases, groupSize: groupSize, bits: bits, mode: mode,
            outputDimensions: layer.outputDimensions, group: layer.group)
    case let layer as ShardedToAllLinear:
        let part = QuantizedLinear(layer, groupSize: groupSize, bits: bits, mode: mode)
        return QuantizedShardedToAllLinear(
            weight: part.weight, bias: part.bias, scales: part.scales, biases: part.biases, groupSize: groupSize, bits: bits, mode: mode,
            inputDimensions: layer.inputDimensions, group: layer.group)
    default:
        return quantizeSingle(layer: layer, groupSize: groupSize, bits: bits, mode: mode)
    }
}
