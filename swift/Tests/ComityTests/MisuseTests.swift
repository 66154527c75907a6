import XCTest

@testable import Comity

/// Arguments that no call can have: each is an error with a sentence, and nothing traps.
final class MisuseTests: XCTestCase {
    func testWrongArgumentsAreRefusedAndHarmNothing() throws {
        try onRanks(2) { group in
            assertMisuse("the root is 2, and must be a rank of the group, from 0 to 1") { () throws(ComityError) in
                _ = try group.reduce([1.0], to: 2)
            }
            assertMisuse("the root is -1") { () throws(ComityError) in _ = try group.gather([1.0], to: -1) }
            assertMisuse("the source is 9") { () throws(ComityError) in _ = try group.receive(Int.self, count: 1, from: 9) }
            assertMisuse("the count is -1") { () throws(ComityError) in _ = try group.receive(Int.self, count: -1, from: 0) }
            assertMisuse("the count is -3") { () throws(ComityError) in _ = try group.scatter([1.0], count: -3, from: 0) }
            assertMisuse("the tag is -1") { () throws(ComityError) in try group.send([1.0], to: 0, tag: -1) }
            assertMisuse("3 elements cannot be cut into 2 equal parts") { () throws(ComityError) in
                _ = try group.reduceScatter([1, 2, 3])
            }
            assertMisuse("counts has 1 numbers") { () throws(ComityError) in _ = try group.allGather([1], counts: [1]) }
            assertMisuse("an entry of counts is -1") { () throws(ComityError) in
                _ = try group.allGather([1], counts: [1, -1])
            }
            assertMisuse("the source has 1 elements, and must have 2") { () throws(ComityError) in
                _ = try group.allGather([1], counts: [2, 2])
            }
            assertMisuse("counts are more elements than memory can hold") { () throws(ComityError) in
                _ = try group.allGather([1], counts: [.max, .max])
            }
            assertMisuse("there is no memory for") { () throws(ComityError) in
                _ = try group.receive(Double.self, count: 1 << 47, from: 0)
            }
            assertMisuse("the timeout is") { () throws(ComityError) in _ = try group.allReduce([1.0], timeout: .zero) }
            assertMisuse("the timeout is -1 s") { () throws(ComityError) in try group.barrier(timeout: .seconds(-1)) }
            assertMisuse("the color is -1") { () throws(ComityError) in _ = try group.split(color: -1) }
            assertMisuse("the key is") { () throws(ComityError) in _ = try group.split(color: 0, key: .max) }
            assertMisuse("fewest is 0, and must be from 1 to 2") { () throws(ComityError) in _ = try group.reform(fewest: 0) }
            assertMisuse("the timeout is") { () throws(ComityError) in _ = try group.reform(timeout: .zero) }
            assertMisuse("rank 2 is not in a group of 2") { () throws(ComityError) in _ = try group.subgroup([0, 2]) }
            assertMisuse("3 bytes are no whole number of elements of f32") { () throws(ComityError) in
                var data = Data(count: 3)
                try group.allReduce(&data, as: .float32)
            }
            XCTAssertEqual(try group.allReduce([1]), [2])
        }
    }

    func testOverlappingBuffersAreRefused() throws {
        try onRanks(1) { group in
            var values = [Float](repeating: 1, count: 10)
            values.withUnsafeMutableBufferPointer { all in
                let source = UnsafeBufferPointer(rebasing: all[0..<5])
                let destination = UnsafeMutableBufferPointer(rebasing: all[2..<7])
                assertMisuse("overlap") { () throws(ComityError) in try group.allReduce(source, into: destination) }
                assertMisuse("the destination has 5 elements, and must have 10") { () throws(ComityError) in
                    try group.allReduce(UnsafeBufferPointer(all), into: destination)
                }
            }
        }
    }

    func testAJoinerNeedsAStoreThatAnswers() throws {
        var joiner = Configuration.joiner
        joiner.meeting = .store("127.0.0.1:1")
        joiner.secret = .key([UInt8](repeating: 7, count: 32))
        joiner.joinTimeout = .milliseconds(300)
        do throws(ComityError) {
            _ = try Group(joiner)
            XCTFail("nobody takes it in")
        } catch {
            guard case .join(let details) = error else { return XCTFail("not .join: \(error)") }
            XCTAssert(details.message.contains("the store at 127.0.0.1:1 did not answer"), details.message)
        }
    }

    func testATypeOfAnotherSizeIsRefused() throws {
        struct Wrong: CollectiveElement {
            var a: Float
            var b: Float
            static var elementType: ElementType { .float32 }
        }
        try onRanks(1) { group in
            assertMisuse("Wrong takes 8 bytes, and f32, which it says that it is, takes 4") { () throws(ComityError) in
                _ = try group.allReduce([Wrong(a: 1, b: 2)])
            }
        }
    }

    func testNoGroupOfNoRanks() {
        for ranks in [0, -1, 1 << 30, .max] {
            assertMisuse("the number of ranks is \(ranks)") { () throws(ComityError) in _ = try Group.local(ranks: ranks) }
        }
        XCTAssertThrowsError(try Group(Configuration(rank: 3, size: 2)))
        XCTAssertThrowsError(try Group(Configuration(rank: 0, size: 2)), "there is no place to meet")
    }

    func testAClosedGroupSaysSo() throws {
        let group = try Group.local(ranks: 1)[0]
        try group.close()
        do throws(ComityError) {
            _ = try group.allReduce([1.0])
            XCTFail("a call of a closed group went well")
        } catch {
            guard case .closed = error else { return XCTFail("not .closed: \(error)") }
            XCTAssertEqual(error.remedy, "Make the call before the group is closed.")
        }
    }

    func testALibraryThatDoesNotFitIsRefused() throws {
        try Library.found.check()
        XCTAssertEqual(try LibraryVersion.loaded, .package)
        let fitting = UInt32(LibraryVersion.package.minor * 100)
        let cases = [
            (Library(number: 902), "libcomity is of version 0.9.2, and this package is for 0.1.0; install libcomity 0.1.0"),
            (Library(number: 902, missing: "comity_run"), "libcomity is of version 0.9.2, and this package is for 0.1.0"),
            (Library(number: fitting, missing: "comity_run"), "libcomity 0.1.0 has no function comity_run; install libcomity 0.1.0"),
        ]
        for (library, message) in cases {
            do throws(ComityError) {
                try library.check()
                XCTFail("\(library) went well")
            } catch {
                guard case .incompatibleLibrary = error else { return XCTFail("not .incompatibleLibrary: \(error)") }
                XCTAssert(error.message.hasPrefix(message), error.message)
            }
        }
    }

    func testAnAbsentLibraryIsUnavailable() {
        let library = Library(absence: "libcomity.so.0: no such file", number: 0)
        for ask in [{ () throws(ComityError) in try library.check() }, { () throws(ComityError) in _ = try library.version }] {
            do throws(ComityError) {
                try ask()
                XCTFail("a library that is not there went well")
            } catch {
                guard case .unavailable = error else { return XCTFail("not .unavailable: \(error)") }
                XCTAssert(error.message.hasPrefix("libcomity cannot be loaded: libcomity.so.0: no such file; install it"), error.message)
            }
        }
    }
}
