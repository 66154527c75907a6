import CComity

/// Version of libcomity, and the one that this package was written for.
public struct LibraryVersion: Sendable, Hashable, CustomStringConvertible {
    public var major: Int
    public var minor: Int
    public var patch: Int

    /// Version of this package.
    public static let package = LibraryVersion(major: 0, minor: 1, patch: 0)

    /// Version of the libcomity that this process has loaded.
    public static var loaded: LibraryVersion {
        let number = Int(comity_version())
        return LibraryVersion(major: number / 10_000, minor: number / 100 % 100, patch: number % 100)
    }

    public var description: String {
        "\(major).\(minor).\(patch)"
    }

    /// Whether this package can use such a library. Below 1.0 a minor version may change what an earlier one promised.
    var fits: Bool {
        let own = LibraryVersion.package
        return major == own.major && (major > 0 ? minor >= own.minor : minor == own.minor)
    }

    static func check(_ loaded: LibraryVersion = .loaded) throws(ComityError) {
        if !loaded.fits {
            var details = ComityError.Details(
                message: "libcomity is of version \(loaded), and this package is for \(package); install libcomity \(package)")
            details.isFatal = true
            throw .incompatibleLibrary(details)
        }
    }
}
