import ComityMLX
import MLX
import MLXNN
import MLXOptimizers

/// Averages of gradients, in calls that are counted, and clipping.
func averages(_ checks: Checks) throws {
    let (group, rank, size) = (checks.group, checks.rank, checks.size)
    // Ten arrays of ten floats.
    let names = (0..<10).map { "layers.\($0).weight" }
    func tree(_ types: [DType] = [.float32]) -> ModuleParameters {
        .unflattened(
            names.enumerated().map { i, name in
                (name, (MLXArray(0..<10, [2, 5]).asType(.float32) * Float(i) + Float(rank)).asType(types[i % types.count]))
            })
    }
    let mean = Float(size - 1) / 2
    for (limit, type, types, calls) in [
        (32 << 20, nil, [.float32], 1), (200, nil, [.float32], 2), (0, nil, [.float32], 10), (-1, nil, [.float32], 10),
        (32 << 20, nil, [.float32, .float16], 2), (32 << 20, .float32, [.float32, .float16], 1), (32 << 20, .bfloat16, [.float32], 1),
        (100, .bfloat16, [.float32], 2),
    ] as [(Int, DType?, [DType], Int)] {
        let what = "an average with the limit \(limit), \(types) sent as \(type.map { "\($0)" } ?? "they are")"
        let before = try group.statistics.calls
        let made = try averageGradients(tree(types), group: group, allReduceSize: limit, communicationType: type)
        if size > 1 { try checks.equal(try group.statistics.calls - before, calls, "the calls of \(what)") }
        try checks.equal(made.flattened().map { $0.0 }, names, "the tree of \(what)")
        for (i, (_, x)) in made.flattened().enumerated() {
            let wanted = MLXArray(0..<10, [2, 5]).asType(.float32) * Float(i) + mean
            try checks.close(x, wanted.asType(types[i % types.count]), what, tolerance: type == nil && types.count == 1 ? 1e-5 : 1e-2)
        }
    }
    try checks.equal(try averageGradients(ModuleParameters()).flattened().count, 0, "an average of nothing")

    // Each rank has a part of gradients whose norm is 5.
    let whole = MLXArray([3] + [Float](repeating: 0, count: 4 * size - 2) + [4], [4 * size])
    let part = whole[4 * rank..<4 * rank + 4]
    for (limit, factor) in [(Float(1), Float(0.2)), (10, 1)] {
        let (clipped, norm) = try clipGradNormSharded(gradients: .unflattened([("a", part)]), maxNorm: limit)
        try checks.close(norm, MLXArray(Float(5)), "the norm of parts")
        try checks.close(clipped.flattenedValues()[0], part * factor, "parts that are clipped to \(limit)")
    }
    try dataParallel(checks)
}

/// Training on parts of a batch learns as training on the whole batch.
private func dataParallel(_ checks: Checks) throws {
    let x = MLXRandom.normal([12, 6])
    let y = sin(x.sum(axis: -1, keepDims: true))
    let rows = 12 / checks.size * checks.rank..<12 / checks.size * (checks.rank + 1)
    func trained(_ x: MLXArray, _ y: MLXArray, _ average: Bool) throws -> ModuleParameters {
        MLXRandom.seed(5)
        let model = Pair(Linear(6, 10), Linear(10, 1))
        let optimizer = SGD(learningRate: 0.1)
        let step = valueAndGrad(model: model) { (model: Pair, x: MLXArray, y: MLXArray) in mseLoss(predictions: model(x), targets: y) }
        for _ in 0..<5 {
            let (_, gradients) = step(model, x, y)
            optimizer.update(model: model, gradients: average ? try averageGradients(gradients) : gradients)
            eval(model, optimizer)
        }
        return model.parameters()
    }
    let alone = try trained(x, y, false)
    let together = try trained(x[rows], y[rows], true)
    for ((path, a), (_, b)) in zip(together.flattened(), alone.flattened()) {
        try checks.close(a, b, "\(path) after five steps on parts of a batch", tolerance: 1e-4)
    }
}

/// Modules whose parameters are spread over the ranks.
func fullySharded(_ checks: Checks) throws {
    try learning(checks, nil)
    try learning(checks, .bfloat16)
    let (rank, size) = (checks.rank, checks.size)
    // The same paths on any number of ranks, and parts that may differ by a row.
    let layer = try fullyShard(Linear(6, 7))
    let rows = try Shard(rank: rank, of: size).unevenCounts(of: 7)[rank]
    try checks.equal(layer.parameters().flattened().map { $0.0 }, ["module.bias", "module.weight"], "the paths")
    try checks.equal(layer.module.weight.shape, [rows, 6], "a part")
    try checks.equal(layer(MLXArray.ones([2, 6])).shape, [2, 7], "the output")
    try checks.equal(layer.module.weight.shape, [rows, 6], "a part after a call")

    MLXRandom.seed(9)
    let whole = Embedding(embeddingCount: 10, dimensions: 6)
    MLXRandom.seed(9)
    let embedding = try fullyShard(Embedding(embeddingCount: 10, dimensions: 6), group: checks.group)
    let tokens = MLXArray([3, 9, 0] as [Int32])
    try checks.close(embedding(tokens), whole(tokens), "an embedding")
    try checks.close(embedding.asLinear(whole(tokens)), whole.asLinear(whole(tokens)), "an embedding as the last layer")
    try checks.close(embedding { $0(tokens) * 2 }, whole(tokens) * 2, "a function of the module")

    // A function that throws, a module without parameters, and one that is sharded already.
    _ = try checks.failure { try layer { _ in throw Failed("from inside") } }
    try checks.equal(layer.module.weight.shape, [rows, 6], "a part after a call that throws")
    let x = MLXRandom.normal([2, 3])
    try checks.close(try fullyShard(Identity())(x), x, "a module without parameters")
    try checks.that(fullyShard(layer) === layer, "a module that is sharded twice")
    let half = try fullyShard(Linear(6, 8), computeDType: .float16)
    try half { whole in try checks.equal(whole.weight.dtype, .float16, "the type of a gathered weight") }
    try checks.equal(half.module.weight.dtype, .float32, "the type of a part")

    try checks.shardingError("scale is a scalar") { _ = try fullyShard(Scaled()) }
    if size > 1 {
        try checks.shardingError("axis 0 of bias has 1 units of 1, and each of the \(size) ranks needs one") {
            _ = try fullyShard(Linear(4, 1))
        }
    }
}

/// Module with a parameter that has no rows.
private final class Scaled: Module {
    let scale = MLXArray(Float(1))
}

/// Two modules, each of which gathers its own parameters.
private final class Nested: Module {
    @ModuleInfo var inner: FullyShardedModule<Linear>
    @ModuleInfo var outer: Linear

    init(_ inner: Linear, _ outer: Linear) throws {
        super.init()
        self._inner.wrappedValue = try fullyShard(inner)
        self._outer.wrappedValue = outer
    }
}

/// Training with spread parameters and a spread optimizer learns as training on the whole batch.
private func learning(_ checks: Checks, _ type: DType?) throws {
    let x = MLXRandom.normal([12, 6])
    let y = sin(x.sum(axis: -1, keepDims: true)) * MLXArray.ones([12, 5])
    let rows = 12 / checks.size * checks.rank..<12 / checks.size * (checks.rank + 1)
    MLXRandom.seed(5)
    let whole = Pair(Linear(6, 10), Linear(10, 5))
    MLXRandom.seed(5)
    let parts = try fullyShard(try Nested(Linear(6, 10), Linear(10, 5)), computeDType: type)
    let mine = checks.size == 1 ? 10 : try Shard(rank: checks.rank, of: checks.size).unevenCounts(of: 10)[checks.rank]
    try checks.equal(parts.module.inner.module.weight.shape, [mine, 6], "the part of an inner module")

    let ofWhole = valueAndGrad(model: whole) { (model: Pair, x: MLXArray, y: MLXArray) in mseLoss(predictions: model(x), targets: y) }
    let ofParts = valueAndGrad(model: parts) { (model: FullyShardedModule<Nested>, x: MLXArray, y: MLXArray) in
        mseLoss(predictions: model { $0.outer(maximum($0.inner(x), 0)) }.asType(.float32), targets: y)
    }
    let (optimizer, spread) = (Adam(learningRate: 0.01), Adam(learningRate: 0.01))
    var losses: [Float] = []
    for _ in 0..<5 {
        let (wanted, gradients) = ofWhole(whole, x, y)
        optimizer.update(model: whole, gradients: gradients)
        let (loss, own) = try MLXDistributed.withErrors {
            let made = ofParts(parts, x[rows], y[rows])
            eval(made.0, made.1)
            return made
        }
        try checks.equal(own.flattened().map { $0.0 }, parts.parameters().flattened().map { $0.0 }, "the tree of gradients")
        spread.update(model: parts, gradients: own)
        eval(whole, optimizer, parts, spread)
        losses.append(wanted.item(Float.self))
        let mean = try checks.group.allSum(loss) / checks.size
        let what = "the loss with spread parameters, \(type ?? .float32)"
        try checks.close(mean, wanted, what, tolerance: type == nil ? 1e-4 : 0.05)
    }
    try checks.that(losses[4] < losses[0], "a loss that falls: \(losses)")
    guard type == nil else { return }
    let own = try places(checks, 10, .whole, .uneven())
    try checks.close(parts.module.inner.module.weight, whole.up.weight[own], "a part after five steps", tolerance: 1e-3)
}
