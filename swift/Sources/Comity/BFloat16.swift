/// Upper half of a `Float`: its sign, its exponent, and 7 bits of its fraction.
///
/// ```swift
/// let x = BFloat16(1.5)
/// print(Float(x))  // 1.5
/// ```
public struct BFloat16: CollectiveElement, Hashable, CustomStringConvertible, ExpressibleByFloatLiteral {
    /// The 16 bits.
    public var bitPattern: UInt16

    /// A value with these bits.
    public init(bitPattern: UInt16) {
        self.bitPattern = bitPattern
    }

    /// The nearest value; between two, the one with an even fraction.
    public init(_ value: Float) {
        let bits = value.bitPattern
        if value.isNaN {
            // A fraction of only low bits would become that of infinity.
            bitPattern = UInt16(truncatingIfNeeded: bits >> 16) | 0x40
            return
        }
        let odd = (bits >> 16) & 1
        bitPattern = UInt16(truncatingIfNeeded: (bits &+ 0x7fff &+ odd) >> 16)
    }

    public init(floatLiteral value: Float) {
        self.init(value)
    }

    public static var elementType: ElementType { .bfloat16 }

    public static func == (a: BFloat16, b: BFloat16) -> Bool {
        Float(a) == Float(b)
    }

    public func hash(into hasher: inout Hasher) {
        hasher.combine(Float(self))
    }

    public var description: String {
        Float(self).description
    }
}

extension Float {
    /// The same value: each `BFloat16` is a `Float`.
    public init(_ value: BFloat16) {
        self.init(bitPattern: UInt32(value.bitPattern) << 16)
    }
}

/// Complex number of two floats: first the real part, then the imaginary part.
public struct Complex64: CollectiveElement, Hashable, CustomStringConvertible {
    public var real: Float
    public var imaginary: Float

    public init(_ real: Float, _ imaginary: Float = 0) {
        self.real = real
        self.imaginary = imaginary
    }

    public static var elementType: ElementType { .complex64 }

    public var description: String {
        "(\(real), \(imaginary))"
    }
}
