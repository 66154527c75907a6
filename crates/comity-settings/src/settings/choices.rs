//! Choices that a job is started with: by what its ranks know one another and meet, when they are given up, what carries their calls.

use super::{HostPort, bad, bad_value, common::seconds};
use crate::{Key, LinkKind, Result, exchange::Exchange, named};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

named! {
    /// Protection that the job key gives (`COMITY_SECURE`).
    ///
    /// ```
    /// use comity::{Config, Protection};
    ///
    /// assert_eq!((Protection::default(), Protection::Data.name()), (Protection::Handshake, "data"));
    /// let config = Config::new(0, 1).secure(Protection::Data); // encrypt everything that leaves the host
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Protection: "protection" {
        /// Proof of the key when a connection opens. Afterwards it is in the clear, with checksums against damage.
        #[default]
        Handshake => "handshake",
        /// The handshake, and everything that goes over TCP: AES-GCM hides it and shows changes. Shared memory never leaves the host and
        /// is as it was.
        Data => "data",
    }
}

/// The user's explicit choice to have no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Insecure {
    /// No: a key is needed.
    #[default]
    No,
    /// Yes, at addresses that the internet does not reach.
    Private,
    /// Yes, at any address.
    Public,
}

impl Insecure {
    /// An error for an address that the internet may reach, where the user did not ask for that too.
    pub fn check_listen(self, who: &str, at: SocketAddr) -> Result<()> {
        if self != Self::Private || !is_public(at.ip()) {
            return Ok(());
        }
        bad(format!(
            "{who} would listen at {at} without a key, and that address is public: anyone could join; give the ranks a key (COMITY_KEY_FILE), name a private address (COMITY_ADDRS, MASTER_ADDR or the hostfile), or say COMITY_INSECURE=public"
        ))
    }
}

/// Source of the key.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// This rank holds it.
    Held(&'a Key),
    /// Rank 0 makes one and tells it over the exchange, unless rank 0 holds one.
    Exchange,
    /// None was wanted.
    Nobody,
}

/// Returns true if hosts elsewhere on the internet may reach this address.
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            // 100.64.0.0/10 is shared by providers and overlay networks, and routed by neither.
            let shared = ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64;
            !(ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_unspecified() || shared)
        }
        IpAddr::V6(ip) => ip.segments()[0] & 0xe000 == 0x2000,
    }
}

/// Below this an ordinary pause of the system is taken for a death.
const SHORTEST: Duration = Duration::from_millis(100);
/// Above this `Off` is meant.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Detection limit: the longest silence before the others give a rank up for dead.
///
/// A rank that is killed is noticed at once, whatever you choose here. The choice is for ranks that fall silent: a rank that is stopped, or
/// whose host lost its network or its power. Each rank sends ten beats within the limit, and at least two a second, whatever its program
/// does. A job survives a pause that is shorter than the limit by the time between two beats. The same holds for a cable that is
/// unplugged: the others ask a silent rank over new connections.
///
/// The ranks agree on the most patient of their choices when they join.
///
/// ```
/// use comity::{Config, Detection};
/// use std::time::Duration;
///
/// assert_eq!(Detection::Normal.limit(), Some(Duration::from_secs(5)));
/// assert_eq!(Detection::Off.limit(), None);
/// let config = Config::new(0, 1).detection(Detection::After(Duration::from_secs(2)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Detection {
    /// After 1 s: for wired hosts that are not overloaded.
    Fast,
    /// After 5 s.
    #[default]
    Normal,
    /// After 30 s: for Wi-Fi, and for computers that doze.
    Patient,
    /// After this; from 0.1 s to a day.
    After(Duration),
    /// Never: for a rank that is stopped in a debugger. A host that vanishes is still noticed, by TCP, after about a minute; on its
    /// own host only a rank that ends is.
    Off,
}

impl Detection {
    /// Returns the longest silence of a rank; `None` is no limit.
    pub fn limit(self) -> Option<Duration> {
        match self {
            Self::Fast => Some(Duration::from_secs(1)),
            Self::Normal => Some(Duration::from_secs(5)),
            Self::Patient => Some(Duration::from_secs(30)),
            Self::After(limit) => Some(limit),
            Self::Off => None,
        }
    }

    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::After(limit) if limit < SHORTEST || limit > LONGEST => bad_value(
                "COMITY_DETECTION",
                format_args!("{limit:?}"),
                format!("detection (COMITY_DETECTION) is {limit:?}; allowed is 0.1 s to a day, or off"),
            ),
            _ => Ok(()),
        }
    }

    /// `COMITY_DETECTION`.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "fast" => Ok(Self::Fast),
            "normal" => Ok(Self::Normal),
            "patient" => Ok(Self::Patient),
            "off" => Ok(Self::Off),
            _ => seconds(text).map(Self::After).ok_or(
                "is none of fast (1 s), normal (5 s), patient (30 s) and off, nor a number of seconds such as 2.5",
            ),
        }
    }
}

named! {
    /// Backend that carries out the calls of a group (`COMITY_BACKEND`).
    ///
    /// ```
    /// use comity::BackendKind;
    ///
    /// assert_eq!(BackendKind::from_name("mpi"), Some(BackendKind::Mpi));
    /// for kind in BackendKind::ALL {
    ///     println!("{}: {}", kind.name(), if kind.is_available() { "can be loaded here" } else { "its library is missing" });
    /// }
    /// assert!(BackendKind::Any.is_available());
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum BackendKind: "kind" {
        /// The best there is: Comity's own plans over its own links.
        #[default]
        Any => "any",
        /// An MPI library, in a job that its launcher started.
        Mpi => "mpi",
        /// Comity's own plans, as [`Any`](Self::Any), for buffers in host memory; NCCL for buffers in CUDA memory.
        Nccl => "nccl",
        /// Comity's own plans, as [`Any`](Self::Any), with RDMA before all other links, like MLX's backend of this name. Pairs without a
        /// device take shared memory or TCP.
        Jaccl => "jaccl",
    }
}

impl BackendKind {
    /// The kind of link that it takes before all others.
    pub fn link(self) -> Option<LinkKind> {
        let takes = |k: &LinkKind| k.about().is_some_and(|a| a.first_for == Some(self.name()));
        LinkKind::LISTED.iter().copied().find(takes)
    }

    /// Returns true if the library that it needs can be loaded here. Making a group may still fail.
    pub fn is_available(self) -> bool {
        match self {
            Self::Any => true,
            Self::Mpi => crate::sys::mpi::find().is_ok(),
            Self::Jaccl => crate::sys::verbs::Verbs::find().is_ok(),
            Self::Nccl => {
                crate::sys::cuda::CudaDriver::find().is_ok() && crate::sys::nccl::Nccl::find().is_ok()
            }
        }
    }
}

named! {
    /// When ranks make the links that carry data (`COMITY_CONNECT`).
    ///
    /// ```
    /// use comity::{Config, ConnectTiming};
    ///
    /// assert_eq!(ConnectTiming::default(), ConnectTiming::Needed);
    /// let config = Config::new(0, 1).connect_when(ConnectTiming::All); // no call waits for a link
    /// ```
    #[non_exhaustive]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ConnectTiming: "time" {
        /// The first call that needs a link makes it.
        #[default]
        Needed => "needed",
        /// A group makes all its links when it opens: every pair of ranks has one, and no call waits for one.
        All => "all",
    }
}

named! {
    /// The launcher whose variables gave rank and size.
    ///
    /// ```
    /// use comity::{Config, Launcher};
    ///
    /// let config = Config::from_vars(|name| match name {
    ///     "OMPI_COMM_WORLD_RANK" => Some("0".into()),
    ///     "OMPI_COMM_WORLD_SIZE" => Some("1".into()),
    ///     _ => None,
    /// })?;
    /// assert_eq!(config.evidence().launcher, Launcher::OpenMpi);
    /// assert_eq!(Launcher::OpenMpi.to_string(), "Open MPI");
    /// # Ok::<(), comity::Error>(())
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Launcher: "launcher" {
        /// None: [`Config::new`](../comity/struct.Config.html#method.new).
        #[default]
        Explicit => "the program",
        /// `comity launch`, or `COMITY_*` set by hand.
        Comity => "comity launch",
        /// `mlx.launch`, or `MLX_RANK` and `MLX_HOSTFILE`.
        Mlx => "mlx.launch",
        /// `torchrun`, or what torch's `env://` reads.
        Torch => "torchrun",
        /// Open MPI's `mpirun`.
        OpenMpi => "Open MPI",
        /// MPICH's `mpiexec` and its kin that speak PMI-1.
        Mpich => "MPICH",
        /// Slurm's `srun`.
        Slurm => "Slurm",
        /// dstack, a process for each node.
        Dstack => "dstack",
        /// SkyPilot, a process for each node.
        SkyPilot => "SkyPilot",
        /// None was found: a group of one.
        Alone => "no launcher",
    }
}

/// Launcher that the environment shows, and the evidence. [`Config::evidence`](../comity/struct.Config.html#method.evidence) returns it.
///
/// ```
/// let config = comity::Config::from_env()?;
/// let found = config.evidence();
/// println!("{}: {}", found.launcher, found.why);
/// for (name, value) in &found.seen {
///     println!("  {name}={value}");
/// }
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Evidence {
    /// Launcher whose variables gave rank and size.
    pub launcher: Launcher,
    /// The reason, in one sentence.
    pub why: String,
    /// Every variable that was read and set, in the order of reading. None of them holds a secret.
    pub seen: Vec<(&'static str, String)>,
}

/// Meeting point of the ranks. [`Config::meeting_point`](../comity/struct.Config.html#method.meeting_point) returns it.
///
/// ```
/// use comity::{Config, MeetingPoint};
///
/// let config = Config::new(1, 2).store("10.0.0.1:7000")?;
/// assert!(matches!(config.meeting_point(), MeetingPoint::Store(at) if at[0].port() == 7000));
/// assert_eq!(config.meeting_point().to_string(), "at the store at 10.0.0.1:7000");
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum MeetingPoint {
    /// Nowhere: a group of one.
    #[default]
    Alone,
    /// At a store that runs elsewhere, such as the launcher's; its addresses. An address of a rank's host leads to the store too: that
    /// rank passes on what comes there.
    Store(Vec<HostPort>),
    /// At a store that rank 0 runs at these addresses and, at the same port, at all others of its own; as above.
    Host(Vec<HostPort>),
    /// At a store that rank 0 runs at its first address; each rank's addresses to listen on, by rank.
    ///
    /// A rank whose addresses the file does not tell has an empty list; that is never rank 0. Only this rank's own
    /// may be unspecified (`0.0.0.0`), which stands for all addresses of this host.
    Hostfile(Vec<Vec<HostPort>>),
    /// At a store that rank 0 runs at an ephemeral port, which it tells the others through this exchange.
    Exchange(Arc<dyn Exchange>),
}

impl fmt::Display for MeetingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone => f.write_str("nowhere (one rank)"),
            Self::Store(at) => write!(f, "at the store at {}", list(at)),
            Self::Host(at) => write!(f, "at rank 0's store at {}", list(at)),
            Self::Hostfile(ranks) => match ranks.first().and_then(|r| r.first()) {
                Some(at) => write!(f, "at rank 0's store at {at}, from the hostfile"),
                None => f.write_str("at rank 0's store"),
            },
            Self::Exchange(exchange) => write!(f, "at rank 0's store, told through {exchange}"),
        }
    }
}

/// Addresses with a comma between.
fn list(all: &[HostPort]) -> String {
    all.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_are_told_from_private_ones() {
        for (text, public) in [
            ("127.0.0.1", false),
            ("10.1.2.3", false),
            ("172.16.0.1", false),
            ("172.32.0.1", true),
            ("192.168.1.1", false),
            ("169.254.1.1", false),
            ("100.64.0.1", false),
            ("100.128.0.1", true),
            ("8.8.8.8", true),
            ("::1", false),
            ("fe80::1", false),
            ("fd00::1", false),
            ("2a00:1450::1", true),
            ("::ffff:8.8.8.8", true),
            ("::ffff:10.0.0.1", false),
        ] {
            let at = SocketAddr::new(text.parse().unwrap(), 7000);
            assert_eq!(is_public(at.ip()), public, "{text}");
            let refused = Insecure::Private.check_listen("rank 0", at);
            assert_eq!(refused.is_err(), public, "{text}");
            if let Err(e) = refused {
                let e = e.to_string();
                assert!(
                    e.contains(text.trim_start_matches("::ffff:")) && e.contains("COMITY_INSECURE=public"),
                    "{e}"
                );
            }
            Insecure::No.check_listen("rank 0", at).unwrap();
            Insecure::Public.check_listen("rank 0", at).unwrap();
        }
    }
}
