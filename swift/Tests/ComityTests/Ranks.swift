import Comity
import XCTest

/// Run a body on ranks that are threads of this process, and throw the first error.
func onRanks(_ size: Int, _ body: @escaping @Sendable (Group) throws -> Void) throws {
    let groups = try Group.local(ranks: size)
    let ended = DispatchGroup()
    let errors = Errors()
    for group in groups {
        ended.enter()
        Thread.detachNewThread {
            do { try body(group) } catch { errors.add(error) }
            ended.leave()
        }
    }
    XCTAssertEqual(ended.wait(timeout: .now() + 60), .success, "ranks did not end")
    if let first = errors.first {
        throw first
    }
}

private final class Errors: @unchecked Sendable {
    private let lock = NSLock()
    private var all: [any Error] = []

    func add(_ error: any Error) {
        lock.withLock { all.append(error) }
    }

    var first: (any Error)? {
        lock.withLock { all.first }
    }
}

/// Asserts that a call is refused with these words, and that the group goes on.
func assertMisuse(
    _ words: String, file: StaticString = #filePath, line: UInt = #line, _ body: () throws(ComityError) -> Void
) {
    do throws(ComityError) {
        try body()
        XCTFail("the call went well", file: file, line: line)
    } catch {
        guard case .misuse(let details) = error else { return XCTFail("not .misuse: \(error)", file: file, line: line) }
        XCTAssert(details.message.contains(words), details.message, file: file, line: line)
        XCTAssertFalse(details.isFatal, file: file, line: line)
    }
}
