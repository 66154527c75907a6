import Foundation
import XCTest

/// Cases of `ComityMLXTestRank`, each on jobs of 1 to 4 processes under `comity launch`.
final class JobTests: XCTestCase {
    func testEveryOperationOnEveryType() throws { try all("operations") }
    func testGradientsOfOperations() throws { try all("gradients") }
    func testShardedLayersMatchTheWholeLayer() throws { try all("layers") }
    func testQuantizedShardedLayersMatchTheWholeLayer() throws { try all("quantized") }
    func testModulesAreCutInPlace() throws { try all("in-place") }
    func testShardedLayersAreModules() throws { try all("modules") }
    func testAveragesAndClipping() throws { try all("averages") }
    func testFullyShardedModulesLearnAsWholeOnes() throws { try all("fully-sharded") }
    func testMisuseThrowsAndHarmsNothing() throws { try all("misuse") }

    func testALostRankIsNamed() throws {
        let (output, code) = try run("lost", ranks: 3)
        XCTAssertNotEqual(code, 0, "a rank was killed")
        for rank in 0..<2 {
            XCTAssert(output.contains("lost on rank \(rank) of 3: 1 checks"), output)
        }
    }

    /// Runs a case on 1 to 4 ranks.
    private func all(_ name: String) throws {
        for ranks in 1...4 {
            let (output, code) = try run(name, ranks: ranks)
            XCTAssertEqual(code, 0, output)
            let lines = output.split(separator: "\n").filter { $0.contains("\(name) on rank ") && $0.hasSuffix(" checks") }
            XCTAssertEqual(lines.count, ranks, output)
            print("\(name) on \(ranks): \(lines.first ?? "nothing")")
        }
    }

    private func run(_ name: String, ranks: Int) throws -> (output: String, code: Int32) {
        #if os(Linux)
            let tests = URL(fileURLWithPath: try FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/exe"))
        #else
            let tests = Bundle(for: JobTests.self).bundleURL
        #endif
        let process = Process()
        process.executableURL = URL(fileURLWithPath: "/usr/bin/env")
        process.arguments = [
            "comity", "launch", "-n", "\(ranks)", "--timeout", "300", "--",
            tests.deletingLastPathComponent().appendingPathComponent("ComityMLXTestRank").path, name,
        ]
        let output = Pipe()
        (process.standardOutput, process.standardError) = (output, output)
        try process.run()
        let text = String(decoding: output.fileHandleForReading.readDataToEndOfFile(), as: UTF8.self)
        process.waitUntilExit()
        return (text, process.terminationStatus)
    }
}
