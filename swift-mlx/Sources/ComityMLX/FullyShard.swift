import Comity
import ComitySharding
import MLX
import MLXNN

/// Spread a module's parameters over the ranks, along their first axes. They are gathered for each call of it.
///
/// ```swift
/// let model = try fullyShard(Network())
/// let y = model(x)
/// ```
///
/// The gradients come averaged over all ranks, and each rank gets those of its part, so that the optimizer's state is spread as well. Wrap
/// inner modules first: each gathers its own. Parts may differ by one row. One rank wraps too, so that paths of parameters are the same.
///
/// - Parameters:
///   - module: The module, the same on all ranks.
///   - group: The ranks; `nil`: those of the job.
///   - computeDType: Type to gather and compute in; the parts keep their own.
/// - Throws: `ShardingError` for a scalar, and for a parameter with fewer rows than ranks.
public func fullyShard<M: Module>(
    _ module: M, group: Group? = nil, computeDType: DType? = nil
) throws -> FullyShardedModule<M> {
    try FullyShardedModule(module, group: try MLXDistributed.of(group), computeDType)
}

/// A module that is fully sharded already is returned as it is.
public func fullyShard<M: Module>(
    _ module: FullyShardedModule<M>, group: Group? = nil, computeDType: DType? = nil
) -> FullyShardedModule<M> {
    module
}

/// Module whose parameters are spread over the ranks; see `fullyShard`.
public final class FullyShardedModule<M: Module>: Module, FullySharded {
    /// The module inside, with this rank's parts of its parameters.
    @ModuleInfo public var module: M
    public let group: Group
    private let gathering: Gathering

    init(_ module: M, group: Group, _ computeDType: DType?) throws {
        self.group = group
        let shard = try Shard(rank: group.rank, of: group.size)
        var parts: [(String, MLXArray)] = []
        var rows: [[Int]] = []
        for (path, x) in ownParameters(module) {
            guard x.ndim > 0 else { throw ShardingError.scalarParameter(path) }
            let part = try shard.range(of: x.dim(0), name: "axis 0 of \(path)", division: .uneven())
            parts.append((path, contiguous(x.slice(part, axis: 0))))
            rows.append(try shard.unevenCounts(of: x.dim(0)))
        }
        gathering = Gathering(group: group, rows: rows, computeDType: computeDType)
        if !parts.isEmpty {
            try module.update(parameters: .unflattened(parts), verify: .none)
        }
        super.init()
        self._module.wrappedValue = module
    }

    /// Result of a function of the module with all of its parameters.
    ///
    /// ```swift
    /// let y = model { $0(tokens, cache: cache) }
    /// ```
    public func callAsFunction<R>(_ body: (M) throws -> R) rethrows -> R {
        // The module's own arrays take another content in a moment.
        let parts = ownParameters(module).map { ($0, $1.copyOfHandle) }
        guard !parts.isEmpty else { return try body(module) }
        let whole = gathering.whole(parts.map { $1 })
        module.update(parameters: .unflattened(Array(zip(parts.map { $0.0 }, whole))))
        defer { module.update(parameters: .unflattened(parts)) }
        return try body(module)
    }

    public override func describeExtra(_ indent: Int) -> String {
        "(ranks=\(group.size))"
    }
}

extension FullyShardedModule: UnaryLayer where M: UnaryLayer {
    public func callAsFunction(_ x: MLXArray) -> MLXArray {
        self { $0(x) }
    }
}

extension FullyShardedModule where M: Embedding {
    /// The embedding as the last layer.
    public func asLinear(_ x: MLXArray) -> MLXArray {
        self { $0.asLinear(x) }
    }
}

/// Module that gathers its own parameters.
protocol FullySharded: Module {}

/// Parameters of a module but for those of fully sharded modules in it.
private func ownParameters(_ module: Module) -> [(String, MLXArray)] {
    let inner = module.namedModules().filter { !$0.0.isEmpty && $0.1 is any FullySharded }.map { $0.0 + "." }
    return module.parameters().flattened().filter { path, _ in !inner.contains { path.hasPrefix($0) } }
}

/// The way from the parts of parameters to the whole ones, and back for gradients.
private struct Gathering {
    let group: Group
    /// Rows of each parameter on each rank.
    let rows: [[Int]]
    let computeDType: DType?

    /// Parts of all ranks, put together. Backwards: each rank's part of the average.
    func whole(_ parts: [MLXArray]) -> [MLXArray] {
        do {
            let made = try gathered(parts.map(cast))
            return CustomFunction {
                Forward { _ in made }
                VJP { parts, cotangents in gradients(parts, cotangents) }
            }(parts)
        } catch {
            Failure.report(error)
            return zip(parts, rows).map { x, rows in zeros([rows.reduce(0, +)] + x.shape.dropFirst(), dtype: x.dtype) }
        }
    }

    private func cast(_ x: MLXArray) -> MLXArray {
        guard let computeDType, x.dtype.isFloatingPoint else { return x }
        return x.asType(computeDType)
    }

    private func gathered(_ parts: [MLXArray]) throws(ComityError) -> [MLXArray] {
        var whole = parts
        guard group.size > 1 else { return whole }
        for batch in batches(of: parts, limit: .max) {
            let sizes = (0..<group.size).map { rank in batch.map { rows[$0][rank] * parts[$0].rowSize } }
            let joined = concatenated(batch.map { parts[$0].reshaped([-1]) })
            let all = try group.gathered(joined, sizes.map { $0.reduce(0, +) }, .default)
            // Rank by rank, and in each the parameters of the batch.
            var pieces = batch.map { _ in [MLXArray]() }
            var start = 0
            for ofRank in sizes {
                for (place, size) in ofRank.enumerated() {
                    pieces[place].append(all[start..<start + size])
                    start += size
                }
            }
            for (place, index) in batch.enumerated() {
                whole[index] = concatenated(pieces[place]).reshaped([rows[index].reduce(0, +)] + parts[index].shape.dropFirst())
            }
        }
        return whole
    }

    private func gradients(_ parts: [MLXArray], _ cotangents: [MLXArray]) -> [MLXArray] {
        do {
            return try averaged(parts, cotangents)
        } catch {
            Failure.report(error)
            return parts.map { zeros(like: $0) }
        }
    }

    private func averaged(_ parts: [MLXArray], _ cotangents: [MLXArray]) throws(ComityError) -> [MLXArray] {
        var own = cotangents
        for batch in group.size > 1 ? batches(of: cotangents, limit: .max) : [] {
            var pieces: [MLXArray] = []
            var sizes: [Int] = []
            for rank in 0..<group.size {
                let ofRank = batch.map { index in
                    let start = rows[index][..<rank].reduce(0, +)
                    return cotangents[index].slice(start..<start + rows[index][rank], axis: 0).reshaped([-1])
                }
                pieces += ofRank
                sizes.append(ofRank.map(\.size).reduce(0, +))
            }
            let mine = try group.scattered(concatenated(pieces), .average, sizes, .default)
            var start = 0
            for index in batch {
                own[index] = mine[start..<start + parts[index].size].reshaped(parts[index].shape)
                start += parts[index].size
            }
        }
        return zip(own, parts).map { $0.asType($1.dtype) }
    }
}
