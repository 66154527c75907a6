import CComityMLX
import Comity
import Foundation
import MLX

extension MLXDistributed {
    /// Throw at the end of a block what its layers, gradients and MLX could not: none of their functions can throw.
    ///
    /// ```swift
    /// let (loss, gradients) = try MLXDistributed.withErrors { lossAndGradients(model, x, y) }
    /// ```
    ///
    /// Without it such an error goes the way of MLX's own: to the `withError` or `withErrorHandler` around it, or else the process ends.
    ///
    /// - Throws: What the block throws; the first `ComityError` in it; an `MLXError`.
    public static func withErrors<R>(_ body: () throws -> R) throws -> R {
        let first = FirstError()
        let result = Result { try Failure.$first.withValue(first) { try withError(body) } }
        if let error = first.error {
            throw error
        }
        return try result.get()
    }
}

/// Errors of code that cannot throw.
enum Failure {
    @TaskLocal static var first: FirstError?

    /// Array of a call, or one of NaN after a report to MLX's handler of errors. Nobody sees that array, unless the handler goes on.
    static func reported(_ shape: [Int], _ type: DType, _ call: () throws -> MLXArray) -> MLXArray {
        do {
            return try call()
        } catch {
            report(error)
            return MLXArray.full(shape, values: MLXArray(type.isFloatingPoint ? Float.nan : 0), dtype: type)
        }
    }

    static func report(_ error: any Error) {
        first?.keep(error)
        comity_mlx_raise("\(error)")
    }
}

/// First of several errors, which any thread may keep.
final class FirstError: @unchecked Sendable {
    private let lock = NSLock()
    private var kept: (any Error)?

    func keep(_ error: any Error) {
        lock.withLock { kept = kept ?? error }
    }

    var error: (any Error)? {
        lock.withLock { kept }
    }
}
