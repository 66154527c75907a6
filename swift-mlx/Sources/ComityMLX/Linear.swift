import Comity
import ComitySharding
import MLX
import MLXNN

/// Linear layer that takes the whole input on every rank and gives each rank its part of the outputs.
///
/// With the same seed on all ranks it begins as the part of the layer that one process would make.
open class AllToShardedLinear: Linear {
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
    ///   - division: Whether all ranks get as many outputs.
    ///   - group: The ranks; `nil`: those of the job.
    /// - Throws: `ShardingError` where the outputs cannot be cut so, with numbers that could.
    public convenience init(
        _ inputDimensions: Int, _ outputDimensions: Int, bias: Bool = true, division: Division = .equal, group: Group? = nil
    ) throws {
        let group = try MLXDistributed.of(group)
        _ = try Cut(group, division).shard.range(of: outputDimensions, name: "the output", division: division)
        try self.init(Linear(inputDimensions, outputDimensions, bias: bias), division: division, group: group)
    }

    /// This rank's part of a layer that every rank has whole.
    ///
    /// - Parameters:
    ///   - linear: The whole layer, not quantized.
    ///   - segments: For fused layers: parts that are cut each by itself.
    ///   - division: Whether all ranks get as many outputs.
    ///   - group: The ranks; `nil`: those of the job.
    public convenience init(
        _ linear: Linear, segments: Segments = .whole, division: Division = .equal, group: Group? = nil
    ) throws {
        guard !(linear is any Quantized) else { throw ShardingError.quantizedLayer }
        let group = try MLXDistributed.of(group)
        let cut = try Cut(group, division)
        self.init(
            weight: try cut.part(linear.weight, "weight", axis: 0, segments),
            bias: try linear.bias.map { try cut.part($0, "bias", axis: -1, segments) }, outputDimensions: linear.weight.dim(0), group: group
        )
    }

    /// A layer of this rank's parameters.
    public init(weight: MLXArray, bias: MLXArray?, outputDimensions: Int, group: Group) {
        (self.outputDimensions, self.group) = (outputDimensions, group)
        summed = sumGradients(group: group)
        super.init(weight: weight, bias: bias)
    }

    open override func callAsFunction(_ x: MLXArray) -> MLXArray {
        super.callAsFunction(summed(x))
    }

    open override func describeExtra(_ indent: Int) -> String {
        "(inputDimensions=\(shape.1), outputDimensions=\(outputDimensions), bias=\(bias != nil), ranks=\(group.size))"
    }
}

/// Linear layer that takes each rank's part of the input and gives every rank the whole output.
///
/// A new one begins with a bias of zeros, which is the same on all ranks whatever their seeds are.
open class ShardedToAllLinear: Linear {
    /// Inputs of all ranks together.
    public let inputDimensions: Int
    public let group: Group

    /// A new layer.
    ///
    /// - Parameters:
    ///   - inputDimensions: Number of inputs of all ranks together.
    ///   - outputDimensions: Number of outputs.
    ///   - bias: Whether the layer has a bias.
    ///   - division: Whether all ranks get as many inputs.
    ///   - group: The ranks; `nil`: those of the job.
    /// - Throws: `ShardingError` where the inputs cannot be cut so, with numbers that could.
    public convenience init(
        _ inputDimensions: Int, _ outputDimensions: Int, bias: Bool = true, division: Division = .equal, group: Group? = nil
    ) throws {
        let group = try MLXDistributed.of(group)
        _ = try Cut(group, division).shard.range(of: inputDimensions, name: "the input", division: division)
        let drawn = Linear(inputDimensions, outputDimensions, bias: false)
        // Every rank adds the whole bias, so it must be the same one where seeds differ.
        let whole = Linear(weight: drawn.weight, bias: bias ? zeros([outputDimensions]) : nil)
        try self.init(whole, division: division, group: group)
    }

    /// This rank's part of a layer that every rank has whole.
    ///
    /// - Parameters:
    ///   - linear: The whole layer, not quantized.
    ///   - segments: For fused layers: parts that are cut each by itself.
    ///   - division: Whether all ranks get as many inputs.
    ///   - group: The ranks; `nil`: those of the job.
    public convenience init(
        _ linear: Linear, segments: Segments = .whole, division: Division = .equal, group: Group? = nil
    ) throws {
        guard !(linear is any Quantized) else { throw ShardingError.quantizedLayer }
        let group = try MLXDistributed.of(group)
        let cut = try Cut(group, division)
        self.init(
            weight: try cut.part(linear.weight, "weight", axis: -1, segments), bias: linear.bias?.copyOfHandle,
            inputDimensions: linear.weight.dim(-1), group: group)
    }

    /// A layer of this rank's weight, and the whole bias.
    public init(weight: MLXArray, bias: MLXArray?, inputDimensions: Int, group: Group) {
        (self.inputDimensions, self.group) = (inputDimensions, group)
        super.init(weight: weight, bias: bias)
    }

    open override func callAsFunction(_ x: MLXArray) -> MLXArray {
        summed(matmul(x, weight.T), bias, group)
    }

    open override func describeExtra(_ indent: Int) -> String {
        "(inputDimensions=\(inputDimensions), outputDimensions=\(shape.0), bias=\(bias != nil), ranks=\(group.size))"
    }
}

/// Sum over the ranks, and the bias, which is added once.
func summed(_ y: MLXArray, _ bias: MLXArray?, _ group: Group) -> MLXArray {
    let sum = Failure.reported(y.shape, y.dtype) { try group.allSum(y) }
    return bias.map { sum + $0 } ?? sum
}
