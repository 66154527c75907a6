// swift-tools-version: 6.0

import PackageDescription

/// A folder with mlx-swift, for those who build it from a checkout of their own: on Linux its manifest needs two changes.
let mlx: Package.Dependency =
    if let folder = Context.environment["MLX_SWIFT_PATH"] {
        .package(name: "mlx-swift", path: folder)
    } else {
        .package(url: "https://github.com/ml-explore/mlx-swift", from: "0.31.4")
    }

let arrays: [Target.Dependency] = [.product(name: "MLX", package: "mlx-swift"), .product(name: "MLXNN", package: "mlx-swift")]
let comity: [Target.Dependency] = [
    .product(name: "Comity", package: "comity"), .product(name: "ComitySharding", package: "comity"),
]
let training = arrays + ["ComityMLX", .product(name: "MLXOptimizers", package: "mlx-swift")]

let package = Package(
    name: "comity-mlx",
    platforms: [.macOS(.v14)],
    products: [.library(name: "ComityMLX", targets: ["ComityMLX"])],
    dependencies: [.package(name: "comity", path: ".."), mlx],
    targets: [
        .target(name: "CComityMLX"),
        .target(name: "ComityMLX", dependencies: comity + arrays + ["CComityMLX"]),
        .executableTarget(name: "train", dependencies: training, path: "Examples/train"),
        .executableTarget(name: "ComityMLXTestRank", dependencies: training, path: "Tests/Rank"),
        .testTarget(name: "ComityMLXTests", dependencies: ["ComityMLXTestRank"]),
    ],
    swiftLanguageModes: [.v6]
)
