import ComitySharding
import XCTest

final class ShardingTests: XCTestCase {
    func testSegmentsOfEachKind() throws {
        XCTAssertEqual(try Segments.count(3).ranges(of: 12), [0..<4, 4..<8, 8..<12])
        XCTAssertEqual(try Segments.indices([8, 10]).ranges(of: 12), [0..<8, 8..<10, 10..<12])
        XCTAssertEqual(try Segments.fractions([0.5, 0.75]).ranges(of: 9), [0..<4, 4..<6, 6..<9])
        XCTAssertEqual(try Segments.whole.ranges(of: 0), [0..<0])
        XCTAssertEqual(try Segments.indices([128, 192]).ranges(of: 256, packed: 32), [0..<16, 16..<24, 24..<32])
    }

    func testSegmentsThatNoDimensionHas() {
        assertThrows("12 elements, which cannot be cut into 5 equal parts; 10 or 15 would work") { () throws(ShardingError) in
            _ = try Segments.count(5).ranges(of: 12)
        }
        assertThrows("0 segments are none") { () throws(ShardingError) in _ = try Segments.count(0).ranges(of: 12) }
        for indices in [[8, 8], [9, 3], [12], [0], [-1]] {
            assertThrows("each must end after the one before") { () throws(ShardingError) in
                _ = try Segments.indices(indices).ranges(of: 12)
            }
        }
        for fraction in [0, 1, -0.5, .nan, .infinity] {
            assertThrows("must end between 0 and 1") { () throws(ShardingError) in
                _ = try Segments.fractions([fraction]).ranges(of: 12)
            }
        }
        assertThrows("does not lie between elements") { () throws(ShardingError) in
            _ = try Segments.indices([3]).ranges(of: 256, packed: 32)
        }
        assertThrows("does not lie between elements") { () throws(ShardingError) in
            _ = try Segments.count(1).ranges(of: 1 << 40, packed: .max)
        }
    }

    func testPartsCoverADimensionOnce() throws {
        for size in 1...4 {
            let shards = try (0..<size).map { try Shard(rank: $0, of: size) }
            XCTAssertEqual(try shards.flatMap { Array(try $0.range(of: 12)) }, Array(0..<12))
            for length in 0...9 {
                XCTAssertEqual(try shards.flatMap { Array(try $0.unevenRange(of: length)) }, Array(0..<length))
                let counts = try shards[0].unevenCounts(of: length)
                XCTAssertLessThanOrEqual((counts.max() ?? 0) - (counts.min() ?? 0), 1)
            }
            let parts = try shards.flatMap { try $0.ranges(of: 36, segments: .indices([12, 24])).flatMap(Array.init) }
            XCTAssertEqual(parts.sorted(), Array(0..<36))
        }
        assertThrows("axis has 10 elements, which cannot be cut into 3 equal parts; 9 or 12 would work") { () throws(ShardingError) in
            _ = try Shard(rank: 0, of: 3).range(of: 10, name: "axis")
        }
        assertThrows("rank 3 of 3 is no place") { () throws(ShardingError) in _ = try Shard(rank: 3, of: 3) }
        assertThrows("rank 0 of 0 is no place") { () throws(ShardingError) in _ = try Shard(rank: 0, of: 0) }
    }

    func testQuantizedPartsHaveWholeGroups() throws {
        // 256 inputs of 4 bits in words of 32, and a scale for each 32 of them.
        let shard = try Shard(rank: 1, of: 2)
        XCTAssertEqual(try shard.ranges(of: 256, packed: 32, groupSize: 32), [16..<32])
        XCTAssertEqual(try shard.ranges(of: 256, packed: 8, groupSize: 32, segments: .count(2)), [2..<4, 6..<8])
        assertThrows("96 inputs in quantization groups of 32 cannot be cut into 2 parts of whole groups; 64 or 128 would work") {
            () throws(ShardingError) in _ = try shard.ranges(of: 96, packed: 12, groupSize: 32)
        }
        assertThrows("quantization groups of") { () throws(ShardingError) in
            _ = try shard.ranges(of: 96, packed: 12, groupSize: .max)
        }
    }

    func testUnevenPartsHaveWholeUnits() throws {
        let shards = try (0..<3).map { try Shard(rank: $0, of: 3) }
        XCTAssertEqual(try shards.map { try $0.range(of: 10, division: .uneven()) }, [0..<4, 4..<7, 7..<10])
        XCTAssertEqual(try shards.map { try $0.range(of: 320, division: .uneven(unit: 64)) }, [0..<128, 128..<256, 256..<320])
        let segments = try shards.flatMap { try $0.ranges(of: 26, segments: .indices([10, 18]), division: .uneven(unit: 2)) }
        XCTAssertEqual(segments.flatMap(Array.init).sorted(), Array(0..<26))
        XCTAssertEqual(try shards[2].slice(Array(0..<20), shape: [2, 10], axis: 1, division: .uneven()), [7, 8, 9, 17, 18, 19])
        // 5 quantization groups of 64: 4-bit words, and scales. Units of 96 and groups of 64 are whole in 192.
        XCTAssertEqual(
            try shards.map { try $0.ranges(of: 320, packed: 40, groupSize: 64, division: .uneven()) }, [[0..<16], [16..<32], [32..<40]])
        XCTAssertEqual(try shards[2].ranges(of: 320, packed: 5, groupSize: 64, division: .uneven()), [4..<5])
        XCTAssertEqual(try shards[2].ranges(of: 768, packed: 12, groupSize: 64, division: .uneven(unit: 96)), [9..<12])

        assertThrows("heads has 10 elements, which are no whole units of 4; 8 or 12 would work") { () throws(ShardingError) in
            _ = try shards[0].range(of: 10, name: "heads", division: .uneven(unit: 4))
        }
        assertThrows("has 2 units of 4, and each of the 3 ranks needs one; 12 elements or more would work") {
            () throws(ShardingError) in _ = try shards[0].range(of: 8, division: .uneven(unit: 4))
        }
        assertThrows("a unit has 0 elements") { () throws(ShardingError) in
            _ = try shards[0].range(of: 8, division: .uneven(unit: 0))
        }
        for unit in [Int.max, 0, -3] {
            XCTAssertThrowsError(try shards[0].ranges(of: 320, packed: 5, groupSize: 64, division: .uneven(unit: unit)))
        }
    }

    func testSlicesOfAnyAxisJoinToTheWhole() throws {
        let values = Array(0..<2 * 6 * 3)
        let shards = try (0..<3).map { try Shard(rank: $0, of: 3) }
        XCTAssertEqual(try shards[1].slice(values, shape: [6, 6], axis: 0), Array(12..<24))
        XCTAssertEqual(try shards[2].slice(Array(0..<12), shape: [2, 6], axis: 1), [4, 5, 10, 11])
        XCTAssertEqual(try shards[0].slice(Array(0..<12), shape: [12], axis: 0, segments: .count(2)), [0, 1, 6, 7])
        for axis in 1...2 {
            let all = try shards.flatMap { try $0.slice(values, shape: [2, 6, 3], axis: axis) }
            XCTAssertEqual(all.sorted(), values)
        }
        assertThrows("axis 2 is none") { () throws(ShardingError) in _ = try shards[0].slice([1], shape: [1, 1], axis: 2) }
        assertThrows("cannot have the shape [2, 3]") { () throws(ShardingError) in
            _ = try shards[0].slice([1], shape: [2, 3], axis: 1)
        }
        assertThrows("is the shape of no array") { () throws(ShardingError) in
            _ = try shards[0].slice([1], shape: [.max, 3], axis: 1)
        }
        assertThrows("is the shape of no array") { () throws(ShardingError) in _ = try shards[0].slice([1], shape: [-1], axis: 0) }
    }

    func testRulesCutTheParametersOfALayer() {
        XCTAssertEqual(Sharding.allToSharded.axis(of: "q.weight", dimensions: 2), 0)
        XCTAssertEqual(Sharding.allToSharded.axis(of: "experts.weight", dimensions: 3), 1)
        XCTAssertEqual(Sharding.allToSharded.axis(of: "q.bias", dimensions: 1), 0)
        XCTAssertEqual(Sharding.allToSharded.axis(of: "experts.bias", dimensions: 2), 1)
        XCTAssertEqual(Sharding.shardedToAll.axis(of: "o.weight", dimensions: 2), 1)
        XCTAssertNil(Sharding.shardedToAll.axis(of: "o.bias", dimensions: 1))
        XCTAssertNil(Sharding.allToSharded.axis(of: "scale", dimensions: 0))
    }

    func testBucketsAndClipping() {
        XCTAssertEqual(Gradients.buckets(of: Array(repeating: 40, count: 10), limit: 32 << 20), [0..<10])
        XCTAssertEqual(Gradients.buckets(of: Array(repeating: 40, count: 10), limit: 200), [0..<5, 5..<10])
        XCTAssertEqual(Gradients.buckets(of: Array(repeating: 40, count: 10), limit: 0).count, 10)
        XCTAssertEqual(Gradients.buckets(of: [.max, .max, 1], limit: .max), [0..<1, 1..<2, 2..<3])
        XCTAssertEqual(Gradients.buckets(of: [], limit: 1), [])
        XCTAssertEqual(Gradients.clippingFactor(sumOfSquares: 25, maximum: 10), 1)
        XCTAssertEqual(Gradients.clippingFactor(sumOfSquares: 25, maximum: 1), 0.2, accuracy: 1e-6)
    }

    private func assertThrows(
        _ words: String, file: StaticString = #filePath, line: UInt = #line, _ body: () throws(ShardingError) -> Void
    ) {
        do throws(ShardingError) {
            try body()
            XCTFail("it went well", file: file, line: line)
        } catch {
            XCTAssert(error.description.contains(words), error.description, file: file, line: line)
        }
    }
}
