import Comity
import XCTest

/// Types of elements.
final class ElementTests: XCTestCase {
    func testBFloat16RoundsToTheNearest() {
        let cases: [(Float, UInt16)] = [
            (0, 0), (-0.0, 0x8000), (1, 0x3f80), (-2.5, 0xc020), (.infinity, 0x7f80), (-.infinity, 0xff80),
            // Halfway: to the even one.
            (Float(bitPattern: 0x3f80_8000), 0x3f80), (Float(bitPattern: 0x3f81_8000), 0x3f82),
            (Float(bitPattern: 0x3f80_8001), 0x3f81), (.greatestFiniteMagnitude, 0x7f80), (.leastNonzeroMagnitude, 0),
        ]
        for (value, bits) in cases {
            XCTAssertEqual(BFloat16(value).bitPattern, bits, "\(value)")
        }
        for bits: UInt32 in [0x7fc0_0000, 0x7f80_0001, 0xffff_ffff] {
            XCTAssert(Float(BFloat16(Float(bitPattern: bits))).isNaN)
        }
        for bits in UInt16.min...UInt16.max {
            let value = BFloat16(bitPattern: bits)
            if !Float(value).isNaN {
                XCTAssertEqual(BFloat16(Float(value)).bitPattern, bits)
            }
        }
    }

    func testTypesHaveTheSizesOfTheirElements() {
        XCTAssertEqual(ElementType.allCases.map(\.size), [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8])
        XCTAssertEqual(
            ElementType.allCases.map(\.description).joined(separator: " "),
            "bool u8 u16 u32 u64 i8 i16 i32 i64 f16 bf16 f32 f64 c64")
        XCTAssertEqual(Reduction.allCases.map(\.description).joined(separator: " "), "sum product min max avg and or xor")
        XCTAssertEqual(MemoryLayout<Complex64>.stride, 8)
        XCTAssertEqual(MemoryLayout<BFloat16>.stride, 2)
        XCTAssertFalse(ElementType.bool.supports(.average))
        XCTAssertFalse(ElementType.float32.supports(.bitwiseXor))
    }
}
