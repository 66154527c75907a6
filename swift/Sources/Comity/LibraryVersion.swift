import CComity

/// Version of libcomity, and the one that this package was written for.
public struct LibraryVersion: Sendable, Hashable, CustomStringConvertible {
    public var major: Int
    public var minor: Int
    public var patch: Int

    /// Version of this package.
    public static let package = LibraryVersion(major: 0, minor: 1, patch: 0)

    /// Version of the libcomity that this process has loaded, which it does now unless it did before.
    ///
    /// - Throws: ``ComityError/unavailable(_:)`` where there is none.
    public static var loaded: LibraryVersion {
        get throws(ComityError) { try Library.found.version }
    }

    public var description: String {
        "\(major).\(minor).\(patch)"
    }

    /// Whether this package can use such a library. Below 1.0 a minor version may change what an earlier one promised.
    var fits: Bool {
        let own = LibraryVersion.package
        return major == own.major && (major > 0 ? minor >= own.minor : minor == own.minor)
    }
}

extension LibraryVersion {
    /// Version that libcomity writes as one number.
    init(_ number: UInt32) {
        let number = Int(number)
        self.init(major: number / 10_000, minor: number / 100 % 100, patch: number % 100)
    }
}

/// The libcomity of this process. Nothing else of it may be called before it was checked.
struct Library: Sendable {
    /// The loader's words where there is none.
    var absence: String?
    var number: UInt32
    /// A function that it lacks.
    var missing: String?

    static let found: Library = {
        let library = comity_load()
        return Library(absence: text(library.absence), number: library.version, missing: text(library.missing))
    }()

    var version: LibraryVersion {
        get throws(ComityError) {
            if let absence {
                throw .unavailable(
                    Self.details(
                        "libcomity cannot be loaded: \(absence); install it as docs/start/swift.md says, and let "
                            + "\(Self.path) name its folder"))
            }
            return LibraryVersion(number)
        }
    }

    /// Throws unless the package can use it.
    func check() throws(ComityError) {
        let (version, package) = (try version, LibraryVersion.package)
        let remedy = "install libcomity \(package)"
        if !version.fits {
            throw .incompatibleLibrary(
                Self.details("libcomity is of version \(version), and this package is for \(package); \(remedy)"))
        }
        if let missing {
            throw .incompatibleLibrary(Self.details("libcomity \(version) has no function \(missing); \(remedy)"))
        }
    }

    private static func details(_ message: String) -> ComityError.Details {
        var details = ComityError.Details(message: message)
        details.isFatal = true
        return details
    }

    #if canImport(Darwin)
        private static let path = "DYLD_LIBRARY_PATH"
    #else
        private static let path = "LD_LIBRARY_PATH"
    #endif
}
