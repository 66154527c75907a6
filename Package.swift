// swift-tools-version: 6.0

import PackageDescription

let package = Package(
    name: "comity",
    platforms: [.macOS(.v13), .iOS(.v16)],
    products: [
        .library(name: "Comity", targets: ["Comity"])
    ],
    targets: [
        .systemLibrary(name: "CComity", path: "swift/Sources/CComity", pkgConfig: "comity"),
        .target(name: "Comity", dependencies: ["CComity"], path: "swift/Sources/Comity"),
        .executableTarget(name: "hello", dependencies: ["Comity"], path: "swift/Examples/hello"),
        .executableTarget(name: "ComityTestRank", dependencies: ["Comity"], path: "swift/Tests/Rank"),
        .testTarget(name: "ComityTests", dependencies: ["Comity", "ComityTestRank"], path: "swift/Tests/ComityTests"),
    ],
    swiftLanguageModes: [.v6]
)
