import CComity

/// Type of the elements of a buffer, as libcomity numbers it.
public enum ElementType: UInt32, Sendable, Hashable, CaseIterable, CustomStringConvertible {
    case bool = 0
    case uint8 = 1
    case uint16 = 2
    case uint32 = 3
    case uint64 = 4
    case int8 = 5
    case int16 = 6
    case int32 = 7
    case int64 = 8
    case float16 = 9
    case bfloat16 = 10
    case float32 = 11
    case float64 = 12
    case complex64 = 13

    /// Bytes of one element.
    @inlinable
    public var size: Int {
        switch self {
        case .bool, .uint8, .int8: 1
        case .uint16, .int16, .float16, .bfloat16: 2
        case .uint32, .int32, .float32: 4
        case .uint64, .int64, .float64, .complex64: 8
        }
    }

    /// Whether ranks can combine elements of this type so.
    ///
    /// ```swift
    /// ElementType.float32.supports(.sum)       // true
    /// ElementType.float32.supports(.bitwiseAnd) // false
    /// ```
    public func supports(_ reduction: Reduction) -> Bool {
        switch reduction {
        case .sum, .product, .min, .max: true
        case .average: self != .bool
        case .bitwiseAnd, .bitwiseOr, .bitwiseXor: rawValue < Self.float16.rawValue
        }
    }

    /// Short name, as errors write it: `f32`.
    public var description: String {
        switch self {
        case .bool: "bool"
        case .uint8: "u8"
        case .uint16: "u16"
        case .uint32: "u32"
        case .uint64: "u64"
        case .int8: "i8"
        case .int16: "i16"
        case .int32: "i32"
        case .int64: "i64"
        case .float16: "f16"
        case .bfloat16: "bf16"
        case .float32: "f32"
        case .float64: "f64"
        case .complex64: "c64"
        }
    }

    @usableFromInline var c: comity_dtype {
        comity_dtype(rawValue: rawValue)
    }
}

/// Combination of the elements of different ranks. Every rank gets the same bits.
public enum Reduction: UInt32, Sendable, Hashable, CaseIterable, CustomStringConvertible {
    /// Sum. Integers wrap.
    case sum = 0
    /// Product. Integers wrap.
    case product = 1
    /// Smallest element.
    case min = 2
    /// Largest element.
    case max = 3
    /// Sum, divided by the number of ranks. Not defined on `Bool`.
    case average = 4
    /// Bits that all ranks have set. Integers and `Bool` only.
    case bitwiseAnd = 5
    /// Bits that a rank has set. Integers and `Bool` only.
    case bitwiseOr = 6
    /// Bits that an odd number of ranks has set. Integers and `Bool` only.
    case bitwiseXor = 7

    /// Short name, as errors write it: `sum`.
    public var description: String {
        switch self {
        case .sum: "sum"
        case .product: "product"
        case .min: "min"
        case .max: "max"
        case .average: "avg"
        case .bitwiseAnd: "and"
        case .bitwiseOr: "or"
        case .bitwiseXor: "xor"
        }
    }

    @usableFromInline var c: comity_reduce_op {
        comity_reduce_op(rawValue: rawValue)
    }
}

/// Value that ranks can send and combine.
///
/// All integers of the standard library, `Bool`, `Float16` where there is one, ``BFloat16``, `Float`, `Double` and ``Complex64``
/// conform. A type of yours may, if its memory is that of ``elementType``: one of another size is refused when it is used.
public protocol CollectiveElement: BitwiseCopyable, Sendable {
    /// Type of a value in libcomity.
    static var elementType: ElementType { get }
}

extension Bool: CollectiveElement {
    public static var elementType: ElementType { .bool }
}

extension UInt8: CollectiveElement {
    public static var elementType: ElementType { .uint8 }
}

extension UInt16: CollectiveElement {
    public static var elementType: ElementType { .uint16 }
}

extension UInt32: CollectiveElement {
    public static var elementType: ElementType { .uint32 }
}

extension UInt64: CollectiveElement {
    public static var elementType: ElementType { .uint64 }
}

extension UInt: CollectiveElement {
    public static var elementType: ElementType { MemoryLayout<UInt>.size == 8 ? .uint64 : .uint32 }
}

extension Int8: CollectiveElement {
    public static var elementType: ElementType { .int8 }
}

extension Int16: CollectiveElement {
    public static var elementType: ElementType { .int16 }
}

extension Int32: CollectiveElement {
    public static var elementType: ElementType { .int32 }
}

extension Int64: CollectiveElement {
    public static var elementType: ElementType { .int64 }
}

extension Int: CollectiveElement {
    public static var elementType: ElementType { MemoryLayout<Int>.size == 8 ? .int64 : .int32 }
}

#if !((os(macOS) || targetEnvironment(macCatalyst)) && arch(x86_64))
    extension Float16: CollectiveElement {
        public static var elementType: ElementType { .float16 }
    }
#endif

extension Float: CollectiveElement {
    public static var elementType: ElementType { .float32 }
}

extension Double: CollectiveElement {
    public static var elementType: ElementType { .float64 }
}
