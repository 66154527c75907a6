import Comity
import ComitySharding
import MLX
import MLXNN

/// A function that returns its argument, and whose gradient is summed over all ranks.
///
/// Put it in front of the place where ranks go on with different parts.
public func sumGradients(group: Group) -> (MLXArray) -> MLXArray {
    guard group.size > 1 else { return { $0 } }
    return { x in
        CustomFunction {
            Forward { $0 }
            VJP { _, cotangents in
                cotangents.map { cotangent in
                    Failure.reported(cotangent.shape, cotangent.dtype) { try group.combined(cotangent, .sum, .default) }
                }
            }
        }([x])[0]
    }
}

/// Average of each gradient over all ranks, which must have the same tree of them.
///
/// ```swift
/// let (loss, gradients) = try MLXDistributed.withErrors { lossAndGradients(model, x, y) }
/// optimizer.update(model: model, gradients: try averageGradients(gradients))
/// ```
///
/// Small gradients travel together: arrays of one type are joined until they reach `allReduceSize` bytes.
///
/// - Parameters:
///   - gradients: A tree of arrays.
///   - group: The ranks; `nil`: those of the job.
///   - allReduceSize: Bytes that travel together; 0: each array travels alone.
///   - communicationType: Type to send, such as `.bfloat16`: half the bytes, and less precise. `nil`: each array's own.
///   - stream: Where arrays are joined.
public func averageGradients(
    _ gradients: ModuleParameters, group: Group? = nil, allReduceSize: Int = 32 << 20, communicationType: DType? = nil,
    stream: StreamOrDevice = .default
) throws(ComityError) -> ModuleParameters {
    let group = try MLXDistributed.of(group)
    var flat = gradients.flattened()
    guard group.size > 1, !flat.isEmpty else { return gradients }
    let sent = flat.map { _, x in communicationType.map { x.asType($0, stream: stream) } ?? x }
    for batch in batches(of: sent, limit: allReduceSize) {
        let joined = concatenated(batch.map { sent[$0].reshaped([-1], stream: stream) }, stream: stream)
        let averaged = try group.combined(joined, .average, stream)
        var start = 0
        for index in batch {
            let (path, x) = flat[index]
            let part = averaged[start..<start + x.size]
            flat[index] = (path, part.reshaped(x.shape).asType(x.dtype))
            start += x.size
        }
    }
    return .unflattened(flat)
}

/// Gradients of which each rank has a part, clipped by the norm of all parts together.
///
/// - Returns: The clipped gradients, and the norm.
public func clipGradNormSharded(
    gradients: ModuleParameters, maxNorm: Float, group: Group? = nil, stream: StreamOrDevice = .default
) throws(ComityError) -> (gradients: ModuleParameters, norm: MLXArray) {
    let group = try MLXDistributed.of(group)
    var squares = MLXArray(Float(0))
    for x in gradients.flattenedValues() {
        squares = squares + x.asType(.float32).square().sum()
    }
    let norm = sqrt(group.size > 1 ? try group.combined(squares, .sum, stream) : squares)
    let factor = minimum(MLXArray(maxNorm) / (norm + 1e-6), 1)
    return (gradients.mapValues { ($0 * factor).asType($0.dtype) }, norm)
}

/// Places of the arrays that travel together: of one type each, closed when they reach the limit.
func batches(of arrays: [MLXArray], limit: Int) -> [[Int]] {
    var ofType: [(type: DType, places: [Int])] = []
    for (place, x) in arrays.enumerated() {
        if let known = ofType.firstIndex(where: { $0.type == x.dtype }) {
            ofType[known].places.append(place)
        } else {
            ofType.append((x.dtype, [place]))
        }
    }
    return ofType.flatMap { type, places in
        Gradients.buckets(of: places.map { arrays[$0].nbytes }, limit: limit).map { Array(places[$0]) }
    }
}
