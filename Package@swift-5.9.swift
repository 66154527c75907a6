// swift-tools-version: 5.9

import PackageDescription

// The libraries for Swift 5.9 and 5.10, which know no typed throws: a plugin writes `throws` for `throws(ComityError)`.
let package = Package(
    name: "comity",
    platforms: [.macOS(.v13)],
    products: [
        .library(name: "Comity", targets: ["Comity"]),
        .library(name: "ComitySharding", targets: ["ComitySharding"]),
    ],
    targets: [
        .target(
            name: "CComity", path: "swift/Sources/CComity", linkerSettings: [.linkedLibrary("dl", .when(platforms: [.linux]))]),
        .target(name: "Comity", dependencies: ["CComity"], path: "swift/Swift5/Comity", plugins: ["UntypedThrows"]),
        .target(name: "ComitySharding", path: "swift/Swift5/ComitySharding", plugins: ["UntypedThrows"]),
        .plugin(name: "UntypedThrows", capability: .buildTool(), path: "swift/Swift5/UntypedThrows"),
    ],
    cLanguageStandard: .gnu11
)
