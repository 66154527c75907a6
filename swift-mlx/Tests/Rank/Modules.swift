import ComityMLX
import MLX
import MLXNN

/// Modules that are cut in place.
func inPlace(_ checks: Checks) throws {
    let (rank, size) = (checks.rank, checks.size)
    // A stack of convolutions by a rule of its own: the outputs of the first, the inputs of the second.
    func stack() -> Sequential {
        Sequential {
            Conv2d(inputChannels: 3, outputChannels: 24, kernelSize: 3)
            Conv2d(inputChannels: 24, outputChannels: 5, kernelSize: 1)
        }
    }
    let (whole, parts) = (stack(), stack())
    parts.update(parameters: whole.parameters().mapValues { $0 * 1 })
    try shardInPlace(parts) { path, _ in
        path.contains("layers.0.") ? (0, .whole) : path.hasSuffix("weight") ? (-1, .whole) : nil
    }
    let x = MLXRandom.normal([2, 6, 6, 3])
    let bias = whole.parameters().flattened().first { $0.0 == "layers.1.bias" }?.1 ?? MLXArray(0)
    let joined = try checks.group.allSum(parts(x) - bias) + bias
    try checks.close(joined, whole(x), "convolutions that are cut in place", tolerance: 1e-4)

    for (sharding, shapes) in [
        (Sharding.allToSharded, ["bias": [24 / size], "weight": [24 / size, 12]]),
        (.shardedToAll, ["bias": [24], "weight": [24, 12 / size]]),
    ] {
        let layer = Linear(12, 24)
        let before = layer.weight * 1
        try shardInPlace(layer, sharding: sharding, group: checks.group)
        for (path, x) in layer.parameters().flattened() { try checks.equal(x.shape, shapes[path] ?? [], "\(sharding) \(path)") }
        let isRows = sharding == .allToSharded
        let own = try Shard(rank: rank, of: size).range(of: isRows ? 24 : 12)
        let part = isRows ? before[own] : before[0..., own]
        try checks.close(layer.weight, part, "a weight that is cut in place, \(sharding)")
    }
    // Packed weights are cut where their quantization groups end.
    let quantized = Pair(QuantizedLinear(64, 24), QuantizedLinear(12 * 32, 8, groupSize: 32))
    try shardInPlace(quantized) { path, _ in path.hasPrefix("down") && !path.hasSuffix("bias") ? (-1, .count(1)) : nil }
    let shapes = Dictionary(uniqueKeysWithValues: quantized.parameters().flattened().map { ($0, $1.shape) })
    try checks.equal(shapes["up.weight"], [24, 8], "a weight that stays whole")
    try checks.equal(shapes["down.weight"], [8, 48 / size], "a packed weight that is cut in place")
    try checks.equal(shapes["down.scales"], [8, 12 / size], "scales that are cut in place")
    let grouped = QuantizedLinear(5 * 32, 8, groupSize: 32)
    try shardInPlace(grouped, sharding: .shardedToAll, division: .uneven(), group: checks.group)
    let groups = try Shard(rank: rank, of: size).unevenCounts(of: 5)[rank]
    try checks.equal(grouped.weight.shape, [8, 4 * groups], "a packed weight of whole groups")
    try checks.equal(grouped.scales.shape, [8, groups], "the scales of whole groups")
    // Segments and units.
    let fused = Linear(4, 30)
    try shardInPlace(fused, sharding: .allToSharded, segments: .indices([20]), division: .uneven(), group: checks.group)
    try checks.equal(fused.weight.dim(0), try places(checks, 30, .indices([20]), .uneven()).size, "segments in place")

    try checks.shardingError("axis 3 is none of bias") { try shardInPlace(Linear(4, 24)) { _, _ in (3, .whole) } }
    if size > 1 {
        try checks.shardingError("of bias has \(24 * size + 1) elements, which cannot be cut into \(size) equal parts") {
            try shardInPlace(Linear(4, 24 * size + 1), sharding: .allToSharded)
        }
    }
}

/// Sharded layers as modules: parameters, freezing, updates, errors of their making.
func modules(_ checks: Checks) throws {
    let size = checks.size
    for bias in [true, false] {
        let all: [Linear] = [
            try AllToShardedLinear(64 * 12, 24, bias: bias),
            try ShardedToAllLinear(64 * 12, 24, bias: bias),
            try QuantizedAllToShardedLinear(64 * 12, 24, bias: bias),
            try QuantizedShardedToAllLinear(64 * 12, 24, bias: bias),
        ]
        for layer in all {
            let isQuantized = layer is any Quantized
            let names = (bias ? ["bias"] : []) + (isQuantized ? ["biases", "scales"] : []) + ["weight"]
            try checks.equal(layer.parameters().flattened().map { $0.0 }, names, "the parameters of \(layer)")
            let trained = isQuantized ? [] : names
            try checks.equal(layer.trainableParameters().flattened().map { $0.0 }, trained, "those that are trained, of \(layer)")
            layer.freeze()
            try checks.equal(layer.trainableParameters().flattened().count, 0, "those that are trained of a frozen \(layer)")
            layer.unfreeze()
            try checks.equal(layer.trainableParameters().flattened().map { $0.0 }, trained, "those that are trained again, of \(layer)")
            layer.update(parameters: .unflattened([("weight", zeros(like: layer.weight))]))
            try checks.that((layer.weight .== 0).all().item(Bool.self), "an updated weight of \(layer)")
            try checks.equal(layer.children().flattened().count, 0, "modules in \(layer)")
            try checks.equal(layer.noGrad().isEmpty, !isQuantized, "what is frozen in \(layer)")
        }
    }
    // Sharded layers take the place of those that a model declares, quantized or not.
    for isQuantized in [false, true] {
        let model = Pair(Linear(64, 768), Linear(768, 64))
        if isQuantized { quantize(model: model) }
        let x = MLXRandom.normal([4, 64])
        let wanted = model(x)
        eval(wanted)
        let parts: [(String, Module)] = [
            ("up", try shardLinear(model.up, sharding: .allToSharded)), ("down", try shardLinear(model.down, sharding: .shardedToAll)),
        ]
        try model.update(modules: .unflattened(parts), verify: .all)
        try checks.close(model(x), wanted, "a model whose layers were replaced", tolerance: 1e-4)
    }
    // Ranks whose seeds differ have the same bias.
    MLXRandom.seed(UInt64(checks.rank + 1))
    let bias = try ShardedToAllLinear(8 * size, 4).bias ?? MLXArray(0)
    try checks.close(try checks.group.broadcast(bias, from: 0), bias, "a bias that every rank adds")
    try checks.shardingError("the dimension has \(8 * size) elements, which cannot be cut into 7 equal parts") {
        _ = try shardLinear(Linear(8 * size, 8), sharding: .shardedToAll, segments: .count(7))
    }
    guard size > 1 else {
        // Mistakes show on one rank as well.
        try checks.shardingError("each must end after the one before") {
            _ = try shardLinear(Linear(4, 8), sharding: .allToSharded, segments: .indices([9]))
        }
        return
    }
    let (below, above) = (12 / size * size, 12 / size * size + size)
    try checks.shardingError("the output has 13 elements, which cannot be cut into \(size) equal parts; \(below) or \(above) would work") {
        _ = try AllToShardedLinear(4, 13)
    }
    try checks.shardingError("the input has 13 elements") { _ = try ShardedToAllLinear(13, 4) }
    try checks.shardingError("has 1 units of 24, and each of the \(size) ranks needs one") {
        _ = try shardLinear(Linear(4, 24), sharding: .allToSharded, division: .uneven(unit: 24))
    }
}
