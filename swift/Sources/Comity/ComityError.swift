import CComity

/// Failure of a call, by kind. Each has ``Details``.
///
/// ```swift
/// do {
///     try group.allReduce(&gradients, .average)
/// } catch {
///     // `error` is a ComityError.
///     print(error.message)
///     if case .peerLost(let details) = error {
///         print("rank \(details.rank ?? -1) on \(details.host ?? "an unknown host") is gone")
///     }
/// }
/// ```
///
/// ``misuse(_:)``, ``order(_:)``, ``configuration(_:)`` and ``unavailable(_:)`` leave a group unharmed. Every other failure of a call is
/// final: the group has ended on every rank, and the content of the call's buffers is undefined. ``Details/isFatal`` says which.
public indirect enum ComityError: Error, Sendable, Hashable {
    /// The call breaks a rule that the caller could have checked. No byte moved.
    case misuse(Details)
    /// The configuration is incomplete or contradicts itself.
    case configuration(Details)
    /// A library, device or permission is missing.
    case unavailable(Details)
    /// Work waits for work of the same group that can only run after it.
    case order(Details)
    /// Not all ranks came together in time.
    case join(Details)
    /// Two ranks made different calls, or the same call with other arguments.
    case mismatch(Details)
    /// The call did not end in time.
    case timeout(Details)
    /// A member's process or link is gone.
    case peerLost(Details)
    /// A rank gave the group up.
    case aborted(Details)
    /// The task that waited for the call was cancelled. ``Details/isFatal`` says whether the call had begun, and so ended the group.
    case cancelled(Details)
    /// A library outside of Comity refused something.
    case library(Details)
    /// The system refused something that this process needs.
    case system(Details)
    /// This process closed the group.
    case closed(Details)
    /// The group belongs to the process that this one was forked from.
    case forked(Details)
    /// libcomity is of a version that this package does not fit. The message has both.
    case incompatibleLibrary(Details)
    /// A mistake in Comity. Please report it with its text.
    case defect(Details)

    /// All that is known of a failure.
    public struct Details: Sendable, Hashable {
        /// The event, the rank it happened to, and the next step, in one sentence.
        public var message: String
        /// First rank at fault; `nil` where none is, or none is known.
        public var rank: Int?
        /// All ranks at fault.
        public var ranks: [Int] = []
        /// Name of the host of the rank at fault.
        public var host: String?
        /// Process of the rank at fault.
        public var processID: Int?
        /// Call of this rank: `all_reduce #3 f32[8] sum`; of a mismatch, the call of the rank that found it. `nil` outside of a call.
        public var call: String?
        /// The other rank's call, of a mismatch.
        public var peerCall: String?
        /// The first difference of a mismatch, such as `dtype` or `count`.
        public var difference: String?
        /// The limit of the call that timed out.
        public var limit: Duration?
        /// Whether the group cannot be used any more, or was never made.
        public var isFatal = false
        /// Whether an earlier call failed, and this is that failure again.
        public var isEarlier = false

        /// Details that a program makes, for instance in a test.
        public init(message: String) {
            self.message = message
        }
    }

    /// All that is known of the failure.
    public var details: Details {
        switch self {
        case .misuse(let d), .configuration(let d), .unavailable(let d), .order(let d), .join(let d), .mismatch(let d),
            .timeout(let d), .peerLost(let d), .aborted(let d), .cancelled(let d), .library(let d), .system(let d), .closed(let d),
            .forked(let d), .incompatibleLibrary(let d), .defect(let d):
            return d
        }
    }

    /// The event, the rank it happened to, and the next step, in one sentence.
    public var message: String { details.message }

    /// First rank at fault; `nil` where none is, or none is known.
    public var rank: Int? { details.rank }

    /// Whether the group cannot be used any more, or was never made.
    public var isFatal: Bool { details.isFatal }

    /// The next step, by kind of failure. ``message`` may say it more exactly.
    public var remedy: String {
        switch self {
        case .misuse: return "Mend the call."
        case .configuration: return "Mend the variable, file or setting that the message names."
        case .unavailable: return "Install or allow what the message names."
        case .order: return "Wait outside of the work, or make the call inside of it."
        case .join: return "Start the ranks that the message names, and read their own messages."
        case .mismatch: return "Make the same calls in the same order on all ranks."
        case .timeout: return "Look at what the named ranks do. Raise the limit if they are only slow."
        case .peerLost: return "Read that rank's last output; restart the job, or call the group's reform."
        case .aborted: return "Do what the other rank's words say."
        case .cancelled: return "If the group has ended, make a new one on all ranks."
        case .library, .system: return "Do what the message says."
        case .closed: return "Make the call before the group is closed."
        case .forked: return "Make a group in the forked process itself."
        case .incompatibleLibrary: return "Install libcomity of the package's version."
        case .defect: return "Report it, with its text."
        }
    }
}

extension ComityError: CustomStringConvertible {
    public var description: String { message }
}

extension ComityError {
    static func misuse(_ message: String) -> ComityError {
        .misuse(Details(message: message))
    }

    /// The failure of the function of libcomity that this thread called last.
    @usableFromInline
    static func last(_ status: comity_status) -> ComityError {
        var error: OpaquePointer?
        var info = comity_error_info()
        info.size = MemoryLayout<comity_error_info>.size
        defer { comity_error_free(error) }
        guard comity_error_take(&error) == COMITY_OK, error != nil, comity_error_get(error, &info) == COMITY_OK else {
            return kind(status)(Details(message: "libcomity answered \(status.rawValue) and says nothing of it"))
        }
        return kind(info.status)(Details(info))
    }

    private static func kind(_ status: comity_status) -> (Details) -> ComityError {
        switch status {
        case COMITY_ERR_MISUSE: return ComityError.misuse(_:)
        case COMITY_ERR_CONFIG: return ComityError.configuration(_:)
        case COMITY_ERR_UNAVAILABLE: return ComityError.unavailable(_:)
        case COMITY_ERR_ORDER: return ComityError.order(_:)
        case COMITY_ERR_JOIN: return ComityError.join(_:)
        case COMITY_ERR_MISMATCH: return ComityError.mismatch(_:)
        case COMITY_ERR_TIMEOUT: return ComityError.timeout(_:)
        case COMITY_ERR_PEER_LOST: return ComityError.peerLost(_:)
        case COMITY_ERR_ABORTED: return ComityError.aborted(_:)
        case COMITY_ERR_LIBRARY: return ComityError.library(_:)
        case COMITY_ERR_OS: return ComityError.system(_:)
        case COMITY_ERR_CLOSED: return ComityError.closed(_:)
        case COMITY_ERR_FORKED: return ComityError.forked(_:)
        default: return ComityError.defect(_:)
        }
    }
}

extension ComityError.Details {
    init(_ info: comity_error_info) {
        message = text(info.text) ?? ""
        rank = info.rank < 0 ? nil : Int(info.rank)
        ranks = UnsafeBufferPointer(start: info.ranks, count: info.rank_count).map { Int($0) }
        host = text(info.host)
        processID = info.pid == 0 ? nil : Int(info.pid)
        call = text(info.call)
        peerCall = text(info.peer_call)
        difference = text(info.differs)
        limit = info.timeout > 0 ? .seconds(info.timeout) : nil
        isFatal = info.fatal != 0
        isEarlier = info.earlier != 0
    }
}

/// Copy of a text of libcomity's.
func text(_ pointer: UnsafePointer<CChar>?) -> String? {
    pointer.map { String(cString: $0) }
}

/// Throws unless the function of libcomity that this thread has just called went well.
@inlinable
func check(_ status: comity_status) throws(ComityError) {
    if status != COMITY_OK {
        throw ComityError.last(status)
    }
}

extension Duration {
    /// The same in seconds, as libcomity counts time.
    var inSeconds: Double {
        Double(components.seconds) + Double(components.attoseconds) * 1e-18
    }
}
