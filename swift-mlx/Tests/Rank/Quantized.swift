import ComityMLX
import MLX
import MLXNN

/// Quantized layers of parts beside the whole layer.
func quantizedLayers(_ checks: Checks) throws {
    for (groupSize, bits, mode) in [(32, 4, QuantizationMode.affine), (64, 8, .affine), (32, 3, .affine), (32, 4, .mxfp4), (32, 8, .mxfp8)]
    {
        // As many quantization groups as 1 to 4 ranks divide; and 5, which they do not.
        for (groups, division) in [(12, Division.equal), (5, .uneven())] {
            for bias in [true, false] {
                let whole = QuantizedLinear(groups * groupSize, 24, bias: bias, groupSize: groupSize, bits: bits, mode: mode)
                try compare(checks, whole, .whole, division)
            }
        }
        let fused = QuantizedLinear(12 * groupSize, 36, groupSize: groupSize, bits: bits, mode: mode)
        try compare(checks, fused, .count(checks.size == 4 ? 1 : 2), .equal)
    }
    try beginnings(checks)
    try packing(checks)
    try again(checks)
    try refusals(checks)
}

private func compare(_ checks: Checks, _ whole: QuantizedLinear, _ segments: Segments, _ division: Division) throws {
    let (outputs, inputs) = whole.shape
    let what = "of a layer of \(whole.bits) bits, \(whole.mode), \(inputs) inputs, \(segments), \(division)"
    if let bias = whole.bias { whole.update(parameters: .unflattened([("bias", MLXRandom.normal(bias.shape))])) }
    let x = MLXRandom.normal([3, inputs])
    let wanted = whole(x)
    let ofWhole = try inputGradient(whole, x, outputs)

    let part = try shardLinear(whole, sharding: .allToSharded, segments: segments, division: division)
    guard let columns = part as? QuantizedAllToShardedLinear else { throw Failed("\(part)") }
    let own = try places(checks, outputs, segments, division)
    try checks.close(columns(x), wanted.take(own, axis: -1), "the output \(what)", tolerance: 1e-4)
    try checks.close(try inputGradient(columns, x, outputs, own), ofWhole, "the input's gradient \(what)", tolerance: 1e-4)
    try checks.equal(columns.trainableParameters().flattened().count, 0, "parameters that are trained \(what)")

    // Cut where quantization groups end.
    let cut = try shardLinear(whole, sharding: .shardedToAll, segments: segments, division: division)
    guard let rows = cut as? QuantizedShardedToAllLinear else { throw Failed("\(cut)") }
    let groups = try places(checks, inputs / whole.groupSize, segments, division)
    let mine = (groups.reshaped([-1, 1]) * whole.groupSize + MLXArray(0..<Int32(whole.groupSize))).flattened()
    let input = x.take(mine, axis: -1)
    try checks.close(rows(input), wanted, "the output \(what), sharded inputs", tolerance: 1e-4)
    try checks.close(
        try inputGradient(rows, input, outputs), ofWhole.take(mine, axis: -1), "the input's gradient \(what), sharded inputs",
        tolerance: 1e-4)
    try checks.equal(rows.shape.1, mine.size, "the inputs \(what)")
}

/// Gradient of a loss that weighs each output differently.
private func inputGradient(_ layer: Linear, _ x: MLXArray, _ outputs: Int, _ own: MLXArray? = nil) throws -> MLXArray {
    let weights = sin(MLXArray(0..<outputs).asType(.float32))
    let mine = own.map { weights[$0] } ?? weights
    return try MLXDistributed.withErrors {
        let made = grad { (x: MLXArray) in (layer(x).square() * mine).sum() }(x)
        eval(made)
        return made
    }
}

private func beginnings(_ checks: Checks) throws {
    let size = checks.size
    let columns = try QuantizedAllToShardedLinear(64, 24, bits: 8)
    try checks.equal(columns.weight.shape, [24 / size, 16], "the packed weight of a new layer")
    try checks.close(columns.bias ?? MLXArray(1), zeros([24 / size]), "its bias")
    try checks.that("\(columns)".contains("inputDimensions=64, outputDimensions=24, bias=true, groupSize=64, bits=8"), "\(columns)")
    let rows = try QuantizedShardedToAllLinear(384, 8, bias: false, groupSize: 32)
    try checks.equal(rows.scales.shape, [8, 12 / size], "the scales of a new layer")
    try checks.that(rows.bias == nil && rows.inputDimensions == 384, "a new layer with sharded inputs")
    // Frozen parameters stay so.
    rows.unfreeze()
    try checks.equal(rows.trainableParameters().flattened().count, 0, "parameters that are trained after unfreeze")
}

/// Weights of every width, and segments whose ends lie at places that a product of floating point would miss.
private func packing(_ checks: Checks) throws {
    for bits in [2, 3, 4, 5, 6, 8] {
        let whole = QuantizedLinear(1536, 96, groupSize: 64, bits: bits)
        let columns = try QuantizedAllToShardedLinear(whole, group: checks.group)
        try checks.equal(columns.weight.shape, [96 / checks.size, whole.weight.dim(1)], "a packed weight of \(bits) bits")
        let rows = try QuantizedShardedToAllLinear(whole, group: checks.group)
        try checks.equal(rows.weight.shape, [96, whole.weight.dim(1) / checks.size], "a packed weight of \(bits) bits")
        try checks.equal(rows.weight.dim(1) * 32 / bits, rows.scales.dim(1) * 64, "the inputs of a part of \(bits) bits")
    }
    let wide = QuantizedLinear(11264, 8)
    let x = MLXRandom.normal([2, 11264])
    let division = checks.size == 3 ? Division.uneven(unit: 64) : .equal
    let part = try QuantizedShardedToAllLinear(wide, segments: .indices([7680]), division: division, group: checks.group)
    let own = try places(checks, 11264, .indices([7680]), division)
    try checks.close(part(x.take(own, axis: -1)), wide(x), "a layer of two segments", tolerance: 1e-4)
    try checks.shardingError("272 inputs in quantization groups of 64") {
        _ = try QuantizedShardedToAllLinear(wide, segments: .indices([272]), group: checks.group)
    }
}

/// A sharded layer that is quantized stays sharded.
private func again(_ checks: Checks) throws {
    let (up, down) = (Linear(64, 128 * checks.size), Linear(128 * checks.size, 32))
    let whole = Pair(up, down)
    let parts = Pair(try AllToShardedLinear(up), try ShardedToAllLinear(down))
    quantize(model: whole, groupSize: 64, bits: 8)
    quantize(model: parts, groupSize: 64, bits: 8, apply: quantizeSharded(layer:groupSize:bits:mode:))
    try checks.that(parts.up is QuantizedAllToShardedLinear && parts.down is QuantizedShardedToAllLinear, "\(parts)")
    let x = MLXRandom.normal([2, 64])
    try checks.close(parts(x), whole(x), "two layers that were sharded and then quantized", tolerance: 1e-4)
}

private func refusals(_ checks: Checks) throws {
    try checks.shardingError("quantization groups of 64 cannot be cut into 1 parts") {
        _ = try QuantizedAllToShardedLinear(100, 24)
    }
    try checks.shardingError("is quantized") { _ = try AllToShardedLinear(QuantizedLinear(64, 24)) }
    try checks.shardingError("is quantized") { _ = try ShardedToAllLinear(QuantizedLinear(64, 24)) }
    guard checks.size > 1 else { return }
    try checks.shardingError("64 inputs in quantization groups of 64 cannot be cut into \(checks.size) parts of whole groups") {
        _ = try shardLinear(QuantizedLinear(64, 24), sharding: .shardedToAll)
    }
    try checks.shardingError("has 1 units of 64, and each of the \(checks.size) ranks needs one") {
        _ = try shardLinear(QuantizedLinear(64, 24), sharding: .shardedToAll, division: .uneven())
    }
}
