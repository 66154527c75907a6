import CComity

/// Place of a process in a job, and how it meets the others.
///
/// ```swift
/// var configuration = Configuration(rank: 0, size: 2)
/// configuration.meeting = .rendezvous("10.0.0.1:29500")
/// configuration.secret = .keyFile("/home/me/job.key")
/// configuration.timeout = .seconds(60)
/// let group = try Group(configuration)
/// ```
///
/// Settings that are `nil` have their defaults. Under a launcher begin with ``environment`` and change what you want.
public struct Configuration: Sendable {
    /// Where the ranks meet.
    public enum Meeting: Sendable {
        /// A store that runs elsewhere, such as that of `comity launch`: "host:port".
        case store(String)
        /// A store that rank 0 runs at this "host:port", which every rank can reach.
        case rendezvous(String)
        /// The first address of rank 0 in a hostfile of MLX's form.
        case hostfile(String)
        /// A store that rank 0 runs at a free port, which it tells the others by this function, over whatever channel the program has.
        /// Without a secret rank 0 makes one and tells that too: whoever can read the channel can join.
        case exchange(Exchange)
    }

    /// Function by which rank 0 tells the others a short text. All ranks are called equally often.
    ///
    /// It gets the text on rank 0, and `nil` elsewhere, and the time that is left. It returns the text.
    public typealias Exchange = @Sendable (_ text: String?, _ limit: Duration) throws -> String

    /// Proof that a process belongs to the job.
    public enum Secret: Sendable {
        /// 32 bytes that every rank holds.
        case key([UInt8])
        /// A file with the key, which only its owner can read.
        case keyFile(String)
        /// None: whoever reaches a port and knows the job's name can join. Addresses that the internet may reach are refused unless
        /// they are allowed.
        case insecure(publicAddresses: Bool)
    }

    /// The backend that carries out the calls.
    public enum Backend: UInt32, Sendable, Hashable {
        /// Comity's own plans over its own links.
        case any = 0
        /// An MPI library, in a job that its launcher started.
        case mpi = 1
        /// The same as ``any``, and NCCL for CUDA memory.
        case nccl = 2
        /// The same as ``any``, with RDMA before all other links.
        case jaccl = 3
    }

    /// Rank and size; `nil`: what the environment says.
    let place: (rank: Int, size: Int)?
    /// Whether the process waits until a job that runs takes it in.
    let joins: Bool
    /// Where the ranks meet. More than one rank needs it.
    public var meeting: Meeting?
    /// Proof that a process belongs to the job. More than one rank needs it.
    public var secret: Secret?
    /// Name of the job, the same on all ranks. Ranks of different jobs refuse one another.
    public var job: String?
    /// Whether everything that goes over TCP is encrypted. All ranks must say the same.
    public var encryptsData: Bool?
    /// How long a call may take; by default 5 minutes.
    public var timeout: Duration?
    /// How long to wait until all ranks have met; by default a minute.
    public var joinTimeout: Duration?
    /// How long a rank may be silent before the others give it up; by default 5 s. Zero: for ever.
    public var detectionLimit: Duration?
    /// Kinds of link that may be used, such as `shm` and `tcp`.
    public var links: [String]?
    /// The backend that carries out the calls.
    public var backend: Backend?
    /// RDMA devices that lead from each rank to each other: JSON in MLX's form, or a path to such a file.
    public var devices: String?
    /// This rank's own addresses to listen on.
    public var addresses: [String]?
    /// TCP connections for each pair of addresses.
    public var connections: Int?
    /// Name of this host. Ranks whose hosts have equal names use shared memory.
    public var hostName: String?
    /// Directory for the last calls of a group that fails, for `comity report`.
    public var logDirectory: String?

    /// Rank `rank` of `size`, with every other setting at its default.
    public init(rank: Int, size: Int) {
        self.init(place: (rank, size))
    }

    private init(place: (rank: Int, size: Int)?, joins: Bool = false) {
        (self.place, self.joins) = (place, joins)
    }

    /// The settings of the environment, under any launcher that `Group(strict:)` understands.
    public static var environment: Configuration {
        Configuration(place: nil)
    }

    /// A process that a job takes in while it runs. It waits until the job's ranks form their group again (`reform`), and is one of
    /// the last ranks of the group that follows.
    ///
    /// Give the store at which the job met (``Meeting/store(_:)``), the job's name and its key. The wait has no limit, and ends with an
    /// error when the store ends. A launcher that sets `COMITY_JOIN=1` makes a joiner of a program that uses ``environment``.
    public static var joiner: Configuration {
        Configuration(place: (0, 1), joins: true)
    }
}

extension Group {
    /// Meet the other ranks and make the group of all of them. Every rank of the job calls this.
    ///
    /// - Throws: ``ComityError/join(_:)`` at the join limit, which names the ranks that are missing.
    public convenience init(_ configuration: Configuration) throws(ComityError) {
        try Library.found.check()
        self.init(owning: try configuration.connect())
    }
}

extension Configuration {
    /// The group's handle.
    func connect() throws(ComityError) -> OpaquePointer? {
        var made: OpaquePointer?
        if let place {
            guard let rank = Int32(exactly: place.rank), let size = Int32(exactly: place.size) else {
                throw .misuse("rank \(place.rank) of \(place.size) is no place in a job")
            }
            try check(comity_config_new(rank, size, &made))
        } else {
            try check(comity_config_from_env(&made))
        }
        defer { comity_config_free(made) }
        try apply(to: made)
        guard case .exchange(let exchange) = meeting else {
            return try Self.connected(made)
        }
        // The function is never called after the group is made, or is not made.
        let told = ExchangeContext(exchange)
        return try withExtendedLifetime(told) { () throws(ComityError) in
            try check(comity_config_set_exchange(made, ExchangeContext.call, Unmanaged.passUnretained(told).toOpaque()))
            return try Self.connected(made)
        }
    }

    private static func connected(_ configuration: OpaquePointer?) throws(ComityError) -> OpaquePointer? {
        var group: OpaquePointer?
        try check(comity_config_connect(configuration, &group))
        return group
    }

    private func apply(to c: OpaquePointer?) throws(ComityError) {
        switch meeting {
        case .store(let at): try check(comity_config_set_store(c, at))
        case .rendezvous(let at): try check(comity_config_set_rendezvous(c, at))
        case .hostfile(let path): try check(comity_config_set_hostfile(c, path))
        case .exchange, nil: break
        }
        switch secret {
        case .key(let bytes): try check(comity_config_set_key(c, bytes, bytes.count))
        case .keyFile(let path): try check(comity_config_set(c, "COMITY_KEY_FILE", path))
        case .insecure(let publicAddresses): try check(comity_config_set(c, "COMITY_INSECURE", publicAddresses ? "public" : "1"))
        case nil: break
        }
        if joins { try check(comity_config_set(c, "COMITY_JOIN", "1")) }
        if let job { try check(comity_config_set(c, "COMITY_JOB", job)) }
        if let encryptsData { try check(comity_config_set(c, "COMITY_SECURE", encryptsData ? "data" : "handshake")) }
        if let timeout { try check(comity_config_set_timeout(c, timeout.inSeconds)) }
        if let joinTimeout { try check(comity_config_set_join_timeout(c, joinTimeout.inSeconds)) }
        if let detectionLimit { try check(comity_config_set_detection(c, detectionLimit == .zero ? .infinity : detectionLimit.inSeconds)) }
        if let links { try check(comity_config_set(c, "COMITY_LINKS", links.joined(separator: ","))) }
        if let backend { try check(comity_config_set(c, "COMITY_BACKEND", "\(backend)")) }
        if let devices { try check(comity_config_set(c, "COMITY_DEVICES", devices)) }
        if let addresses { try check(comity_config_set(c, "COMITY_ADDRS", addresses.joined(separator: ","))) }
        if let connections { try check(comity_config_set(c, "COMITY_CONNECTIONS", "\(connections)")) }
        if let hostName { try check(comity_config_set(c, "COMITY_HOST", hostName)) }
        if let logDirectory { try check(comity_config_set(c, "COMITY_LOG_DIR", logDirectory)) }
    }
}

/// A function of the program's, as libcomity calls it.
private final class ExchangeContext: Sendable {
    private let exchange: Configuration.Exchange

    init(_ exchange: @escaping Configuration.Exchange) {
        self.exchange = exchange
    }

    static let call: comity_exchange_fn = { context, rank, _, mine, seconds, out, room in
        guard let context else { return 1 }
        let exchange = Unmanaged<ExchangeContext>.fromOpaque(context).takeUnretainedValue().exchange
        guard let said = try? exchange(text(mine), .seconds(seconds)) else { return 1 }
        if rank == 0 { return 0 }
        let bytes = Array(said.utf8CString)
        guard let out, bytes.count <= room else { return 1 }
        bytes.withUnsafeBufferPointer { bytes in
            if let first = bytes.baseAddress {
                out.update(from: first, count: bytes.count)
            }
        }
        return 0
    }
}
