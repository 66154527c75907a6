import ComityMLX
import MLX
import MLXNN

/// Layers of parts beside the whole layer: outputs, and gradients of inputs and parameters.
func layers(_ checks: Checks) throws {
    // Dimensions that 1 to 4 ranks divide, and some that only uneven parts do.
    for division in [Division.equal, .uneven(), .uneven(unit: 3)] {
        let (inputs, outputs) = division == .equal ? (24, 36) : division == .uneven() ? (22, 29) : (21, 30)
        for bias in [true, false] {
            try allToSharded(checks, Linear(inputs, outputs, bias: bias), .whole, division)
            try shardedToAll(checks, Linear(inputs, outputs, bias: bias), .whole, division)
        }
    }
    for segments in [Segments.count(3), .indices([12, 24]), .fractions([1.0 / 3])] {
        try allToSharded(checks, Linear(24, 36), segments, .equal)
        try shardedToAll(checks, Linear(36, 24), segments, .equal)
    }
    try allToSharded(checks, Linear(8, 26), .indices([12, 19]), .uneven())
    try pair(checks, .equal)
    try pair(checks, .uneven(unit: 4))
    try beginnings(checks)
}

/// A loss that weighs each output differently, so that no gradient is like another.
private func weighed(_ y: MLXArray, _ places: MLXArray? = nil) -> MLXArray {
    let weights = sin(MLXArray(0..<(places.map { Int($0.max().item(Int32.self)) + 1 } ?? y.dim(-1))).asType(.float32))
    return (y.square() * (places.map { weights[$0] } ?? weights)).sum()
}

/// Gradients of the input and of the parameters.
private func gradients(
    _ layer: Linear, _ x: MLXArray, _ loss: @escaping (MLXArray) -> MLXArray
) throws -> (x: MLXArray, parameters: ModuleParameters) {
    try MLXDistributed.withErrors {
        let ofInput = grad { (x: MLXArray) in loss(layer(x)) }(x)
        let ofParameters = valueAndGrad(model: layer) { (layer: Linear, x: MLXArray, _: MLXArray) in loss(layer(x)) }
        let made = (ofInput, ofParameters(layer, x, x).1)
        eval(made.0, made.1.flattenedValues())
        return made
    }
}

private func inputs(_ dimensions: Int) -> [MLXArray] {
    [MLXRandom.normal([1, dimensions]), MLXRandom.normal([4, dimensions]), MLXRandom.normal([2, 3, dimensions])]
}

private func allToSharded(_ checks: Checks, _ whole: Linear, _ segments: Segments, _ division: Division) throws {
    let what = "of a layer with sharded outputs, \(whole.shape) \(segments) \(division)"
    let part = try shardLinear(whole, sharding: .allToSharded, segments: segments, division: division)
    guard let layer = part as? AllToShardedLinear else { throw Failed("\(part)") }
    let own = try places(checks, whole.shape.0, segments, division)
    try checks.close(layer.weight, whole.weight[own], "the weight \(what)")
    for x in inputs(whole.shape.1) {
        let wanted = whole(x)
        try checks.close(layer(x), wanted.take(own, axis: -1), "the output \(what)")
        let ofWhole = try gradients(whole, x) { weighed($0) }
        // Each rank's loss is that of its outputs; together they are the whole loss.
        let ofPart = try gradients(layer, x) { weighed($0, own) }
        try checks.close(ofPart.x, ofWhole.x, "the input's gradient \(what)", tolerance: 1e-4)
        for (path, gradient) in ofPart.parameters.flattened() {
            let same = ofWhole.parameters.flattened().first { $0.0 == path }?.1[own]
            try checks.close(gradient, same ?? MLXArray(0), "the gradient of \(path) \(what)", tolerance: 1e-4)
        }
    }
}

private func shardedToAll(_ checks: Checks, _ whole: Linear, _ segments: Segments, _ division: Division) throws {
    let what = "of a layer with sharded inputs, \(whole.shape) \(segments) \(division)"
    let part = try shardLinear(whole, sharding: .shardedToAll, segments: segments, division: division)
    guard let layer = part as? ShardedToAllLinear else { throw Failed("\(part)") }
    let own = try places(checks, whole.shape.1, segments, division)
    try checks.close(layer.weight, whole.weight.take(own, axis: 1), "the weight \(what)")
    for x in inputs(whole.shape.1) {
        let mine = x.take(own, axis: -1)
        try checks.close(layer(mine), whole(x), "the output \(what)", tolerance: 1e-4)
        let ofWhole = try gradients(whole, x) { weighed($0) }
        let ofPart = try gradients(layer, mine) { weighed($0) }
        try checks.close(ofPart.x, ofWhole.x.take(own, axis: -1), "the input's gradient \(what)", tolerance: 1e-4)
        for (path, gradient) in ofPart.parameters.flattened() {
            let same = ofWhole.parameters.flattened().first { $0.0 == path }?.1
            try checks.close(
                gradient, (path == "bias" ? same : same?.take(own, axis: 1)) ?? MLXArray(0), "the gradient of \(path) \(what)",
                tolerance: 1e-4)
        }
    }
}

/// Two layers with work between them: one sum forwards and one backwards.
final class Pair: Module, UnaryLayer {
    @ModuleInfo var up: Linear
    @ModuleInfo var down: Linear

    init(_ up: Linear, _ down: Linear) {
        super.init()
        self._up.wrappedValue = up
        self._down.wrappedValue = down
    }

    func callAsFunction(_ x: MLXArray) -> MLXArray {
        down(maximum(up(x), 0))
    }
}

private func pair(_ checks: Checks, _ division: Division) throws {
    let (up, down) = (Linear(16, division == .equal ? 24 : 20), Linear(division == .equal ? 24 : 20, 8))
    let whole = Pair(up, down)
    let parts = Pair(
        try AllToShardedLinear(up, division: division, group: checks.group),
        try ShardedToAllLinear(down, division: division, group: checks.group))
    let x = MLXRandom.normal([5, 16])
    func lossAndGradients(_ model: Pair) throws -> (MLXArray, [String: MLXArray]) {
        let f = valueAndGrad(model: model) { (model: Pair, x: MLXArray, _: MLXArray) in weighed(model(x)) }
        let calls = try checks.group.statistics.calls
        let (loss, gradients) = try MLXDistributed.withErrors {
            let made = f(model, x, x)
            eval(made.0, made.1)
            return made
        }
        if model === parts, checks.size > 1 {
            // The sum of the outputs. Nobody asks for the gradient of the input, so the backward sum is not made.
            try checks.equal(try checks.group.statistics.calls - calls, 1, "the calls of a step of two layers")
        }
        return (loss, Dictionary(uniqueKeysWithValues: gradients.flattened()))
    }
    let (wanted, ofWhole) = try lossAndGradients(whole)
    let (loss, ofParts) = try lossAndGradients(parts)
    try checks.close(loss, wanted, "the loss of two layers, \(division)", tolerance: 1e-4)
    let own = try places(checks, up.shape.0, .whole, division)
    for (path, cut) in [
        ("up.weight", { $0[own] }), ("up.bias", { $0[own] }), ("down.weight", { $0.take(own, axis: 1) }), ("down.bias", { $0 }),
    ] as [(String, (MLXArray) -> MLXArray)] {
        guard let a = ofParts[path], let b = ofWhole[path] else { throw Failed("no gradient of \(path)") }
        try checks.close(a, cut(b), "the gradient of \(path) of two layers", tolerance: 1e-4)
    }
}

/// New layers begin as parts of one that a single process would make.
private func beginnings(_ checks: Checks) throws {
    let (rank, size) = (checks.rank, checks.size)
    MLXRandom.seed(3)
    let whole = Linear(12, 24)
    MLXRandom.seed(3)
    let columns = try AllToShardedLinear(12, 24)
    let own = 24 / size * rank..<24 / size * (rank + 1)
    try checks.close(columns.weight, whole.weight[own], "the weight of a new layer with sharded outputs")
    try checks.close(columns.bias ?? MLXArray(0), whole.bias?[own] ?? MLXArray(1), "its bias")
    MLXRandom.seed(3)
    let rows = try ShardedToAllLinear(12, 24, bias: false)
    let part = 12 / size * rank..<12 / size * (rank + 1)
    try checks.close(rows.weight, whole.weight[0..., part], "the weight of a new layer with sharded inputs")
    try checks.that(rows.bias == nil, "no bias")
    try checks.that("\(columns)".contains("inputDimensions=12, outputDimensions=24, bias=true, ranks=\(size)"), "\(columns)")
    try checks.that("\(rows)".contains("inputDimensions=12, outputDimensions=24, bias=false, ranks=\(size)"), "\(rows)")
    // A layer whose parts have another size on each rank.
    let uneven = try AllToShardedLinear(4, 13, division: .uneven(), group: checks.group)
    let counts = try Shard(rank: rank, of: size).unevenCounts(of: 13)
    try checks.equal(uneven.shape.0, counts[rank], "the outputs of an uneven layer")
    let joined = try checks.group.allGather(uneven(MLXArray.ones([1, 4])).T, rows: counts)
    try checks.equal(joined.shape, [13, 1], "the joined outputs of an uneven layer")
}
