import Comity
import Foundation
import MLX

extension DType {
    /// The same type as Comity names it.
    var elementType: ElementType {
        switch self {
        case .bool: .bool
        case .uint8: .uint8
        case .uint16: .uint16
        case .uint32: .uint32
        case .uint64: .uint64
        case .int8: .int8
        case .int16: .int16
        case .int32: .int32
        case .int64: .int64
        case .float16: .float16
        case .bfloat16: .bfloat16
        case .float32: .float32
        case .float64: .float64
        case .complex64: .complex64
        }
    }
}

extension MLXArray {
    /// Elements of the array in row-major order, where they lie: they are copied only if they lie otherwise.
    func withElements<R>(
        _ stream: StreamOrDevice, _ body: (UnsafeRawBufferPointer) throws(ComityError) -> R
    ) throws(ComityError) -> R {
        let whole = try evaluated { self.contiguous(stream: stream) }
        guard whole.size > 0 else { return try body(UnsafeRawBufferPointer(start: nil, count: 0)) }
        let data = whole.asData(access: .noCopyIfContiguous).data
        let result = withExtendedLifetime(whole) {
            data.withUnsafeBytes { bytes in Result { () throws(ComityError) in try body(bytes) } }
        }
        return try result.get()
    }

    /// A new array, whose elements this function writes.
    static func made(
        _ shape: [Int], _ type: DType, _ body: (UnsafeMutableRawBufferPointer) throws(ComityError) -> Void
    ) throws(ComityError) -> MLXArray {
        var count = 1
        for length in shape {
            let (product, overflow) = count.multipliedReportingOverflow(by: length)
            guard Int32(exactly: length) != nil, length >= 0, !overflow, product < 1 << 48 else {
                throw .misuse(.init(message: "\(shape) is the shape of no array"))
            }
            count = product
        }
        // A few bytes are no memory of MLX's in `Data`, but a copy.
        if count * type.size < 64 {
            var data = Data(count: count * type.size)
            let result = data.withUnsafeMutableBytes { bytes in Result { () throws(ComityError) in try body(bytes) } }
            try result.get()
            return MLXArray(data, shape, dtype: type)
        }
        // Memory of MLX's own, so that nobody copies it. Nobody else has this array yet, so its elements may be written.
        let array = try evaluated { zeros(shape, dtype: type, stream: .cpu) }
        let data = array.asData(access: .noCopy).data
        let result = withExtendedLifetime(array) {
            data.withUnsafeBytes { bytes in
                Result { () throws(ComityError) in try body(UnsafeMutableRawBufferPointer(mutating: bytes)) }
            }
        }
        try result.get()
        return array
    }

    /// Part of the array along an axis.
    func slice(_ range: Range<Int>, axis: Int) -> MLXArray {
        self[[any MLXArrayIndex](repeating: 0..., count: axis) + [range]]
    }

    /// The same array as another object, which stays as it is when a module replaces the first one's content.
    var copyOfHandle: MLXArray {
        reshaped(shape)
    }
}

/// An array, computed. MLX computes late, and Comity needs the elements now.
func evaluated(_ make: () -> MLXArray) throws(ComityError) -> MLXArray {
    do {
        return try withError {
            let array = make()
            eval(array)
            return array
        }
    } catch {
        let words = "MLX cannot compute an array that a call needs: \(error.localizedDescription). A call communicates when it is made, "
        throw .library(.init(message: words + "so it can stand in no function that is compiled or mapped by vmap"))
    }
}

extension Array where Element == Int {
    /// Elements of an array of this shape.
    var product: Int { reduce(1, *) }
}
