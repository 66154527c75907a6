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
        .target(
            name: "CComity", path: "swift/Sources/CComity", linkerSettings: [.linkedLibrary("dl", .when(platforms: [.linux]))]),
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

// Every user of Comity would fetch mlx-swift, so ComityMLX is a product of this package only where COMITY_MLX is 1.
if Context.environment["COMITY_MLX"] == "1" {
    package.platforms = [.macOS(.v14)]
    package.products.append(.library(name: "ComityMLX", targets: ["ComityMLX"]))
    package.dependencies.append(.package(url: "https://github.com/ml-explore/mlx-swift", from: "0.31.4"))
    package.targets += [
        .target(name: "CComityMLX", path: "swift-mlx/Sources/CComityMLX"),
        .target(
            name: "ComityMLX",
            dependencies: [
                "Comity", "ComitySharding", "CComityMLX", .product(name: "MLX", package: "mlx-swift"),
                .product(name: "MLXNN", package: "mlx-swift"),
            ], path: "swift-mlx/Sources/ComityMLX"),
    ]
}
