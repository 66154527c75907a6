// swift-tools-version: 6.0

import PackageDescription

let package = Package(
    name: "comity",
    platforms: [.macOS(.v13)],
    products: [
        .library(name: "Comity", targets: ["Comity"]),
        .library(name: "ComitySharding", targets: ["ComitySharding"]),
    ],
    targets: [
        .systemLibrary(name: "CComity", path: "swift/Sources/CComity", pkgConfig: "comity"),
        .target(name: "Comity", dependencies: ["CComity"], path: "swift/Sources/Comity"),
        .target(name: "ComitySharding", path: "swift/Sources/ComitySharding"),
        .executableTarget(name: "hello", dependencies: ["Comity"], path: "swift/Examples/hello"),
        .executableTarget(name: "line", dependencies: ["Comity"], path: "swift/Examples/line"),
        .executableTarget(name: "overlap", dependencies: ["Comity"], path: "swift/Examples/overlap"),
        .executableTarget(name: "digits", dependencies: ["Comity"], path: "swift/Examples/digits"),
        .executableTarget(
            name: "tensor-parallel", dependencies: ["Comity", "ComitySharding"], path: "swift/Examples/tensor-parallel"),
        .executableTarget(name: "ComityTestRank", dependencies: ["Comity"], path: "swift/Tests/Rank"),
        .executableTarget(name: "ComityTestLeaks", dependencies: ["Comity"], path: "swift/Tests/Leaks"),
        .target(name: "CAllocations", path: "swift/Tests/CAllocations"),
        .executableTarget(name: "ComityTestSpeed", dependencies: ["CAllocations", "CComity", "Comity"], path: "swift/Tests/Speed"),
        .testTarget(name: "ComityTests", dependencies: ["Comity", "ComityTestRank"], path: "swift/Tests/ComityTests"),
        .testTarget(
            name: "ComityShardingTests", dependencies: ["ComitySharding"], path: "swift/Tests/ComityShardingTests"),
    ],
    swiftLanguageModes: [.v6],
    cLanguageStandard: .gnu11
)
