import Foundation
import PackagePlugin

/// Sources of a target for compilers before Swift 6: without types of errors, and without protocols that these compilers lack.
@main
struct UntypedThrows: BuildToolPlugin {
    func createBuildCommands(context: PluginContext, target: Target) throws -> [Command] {
        let error = target.name == "Comity" ? "ComityError" : "ShardingError"
        let rules = [
            "s/throws(\(error))/throws/g", "s/throw \\./throw \(error)./g", "s/catch \\./catch \(error)./g",
            "s/, \(error)>/, any Error>/g", "s/: BitwiseCopyable, /: /g",
        ]
        let folder = context.package.directory.appending(["swift", "Sources", target.name])
        let names = try FileManager.default.contentsOfDirectory(atPath: folder.string)
        return names.filter { $0.hasSuffix(".swift") }.sorted().map { name in
            let source = folder.appending(name)
            let output = context.pluginWorkDirectory.appending(name)
            return .buildCommand(
                displayName: "Untyped throws in \(name)", executable: Path("/usr/bin/sed"),
                arguments: ["-n"] + (rules + ["w \(output)"]).flatMap { ["-e", $0] } + [source.string],
                inputFiles: [source], outputFiles: [output])
        }
    }
}
