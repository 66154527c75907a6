//! Place of a process in its job and its way to meet the others: given by value, or found in the environment.
//!
//! May import: `exchange`.

mod backend;
mod check;
mod common;
mod connect_when;
mod detection;
mod env;
#[cfg(fuzzing)]
pub(crate) mod fuzz;
mod hostfile;
mod lanes;
mod launcher;
mod link_choices;
mod meet;
mod network;
mod notes;
mod setters;
mod slurm;
mod table;
mod trust;
mod variable;
mod vars;

use crate::{
    Error, HostPort, Key, MAX_SIZE, Result,
    root_cause::RootCauseReport,
    sys::fnv,
    transport::{InterfaceRules, Kinds, TransportSettings},
};
pub use backend::BackendKind;
use comity_plan::Algorithm;
pub use connect_when::ConnectWhen;
pub use detection::Detection;
pub(crate) use hostfile::HOSTFILE;
pub use launcher::{Found, Launcher};
pub use meet::Meet;
pub use network::AddressNote;
pub use notes::LinkNote;
use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};
pub use table::VARIABLES;
pub use trust::Secure;
pub(crate) use trust::{Insecure, Trust};
pub use variable::{Topic, Variable};

/// The limit of calls that have none. A longer one is a mistake in the unit.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The job of ranks that were told no name.
pub(crate) const NO_NAME: &str = "-";

/// Everything a process says about itself before it meets the others.
///
/// ```
/// use comity::{Config, Key};
/// # fn main() -> comity::Result<()> {
/// let config = Config::new(0, 4).rendezvous("10.0.0.1:7000")?.key(Key::random()?);
/// # Ok(()) }
/// ```
///
/// Nothing is opened or sent before the configuration as a whole makes sense; what contradicts itself is
/// [`Error::Config`], which names the variable, file or setter.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Rank and size among the processes of this host, where the launcher says so.
    pub(crate) local: Option<(usize, usize)>,
    pub(crate) meet: Meet,
    /// This process joins a job that runs.
    pub(crate) joins: bool,
    /// The rank in whose place a launcher started it.
    pub(crate) place: Option<u32>,
    pub(crate) job: String,
    pub(crate) key: Option<Key>,
    pub(crate) insecure: Insecure,
    pub(crate) secure: Secure,
    pub(crate) timeout: Duration,
    pub(crate) join_timeout: Duration,
    pub(crate) detection: Detection,
    /// The kinds of link that may be used.
    pub(crate) links: Kinds,
    /// Choices about each of them.
    pub(crate) transports: TransportSettings,
    pub(crate) backend: BackendKind,
    pub(crate) connect_when: ConnectWhen,
    /// Rings before other plans.
    pub(crate) ring: bool,
    /// Jobs of more ranks do not connect all pairs. For tests: all ranks need the same.
    pub(crate) sparse_above: usize,
    /// For [`BackendKind::Nccl`]; `None`: by this rank's number on its host.
    pub(crate) device: Option<u32>,
    pub(crate) costs: Costs,
    /// Goes before the cheapest algorithm.
    /// Threads that carry a part of a call each.
    pub(crate) lanes: Option<usize>,
    pub(crate) algorithm: Option<Algorithm>,
    /// Own addresses to listen on; port 0 stands for any. Empty: the one that leads to the store.
    pub(crate) addrs: Vec<SocketAddr>,
    /// Addresses at which a launcher has the ranks meet, whatever else they meet at.
    pub(crate) launched_at: Vec<IpAddr>,
    /// The network interfaces that may be used.
    pub(crate) interfaces: InterfaceRules,
    /// The ports to listen on, the first and the last, where no address says one.
    pub(crate) ports: Option<(u16, u16)>,
    /// Pass on what two others say that have no way to each other, and have others pass on what is said from here.
    pub(crate) relay: bool,
    /// TCP connections use several paths, where the kernels of both ends do.
    pub(crate) mptcp: bool,
    pub(crate) host: Option<String>,
    pub(crate) log_dir: Option<PathBuf>,
    pub(crate) root_cause: Option<RootCauseReport>,
    /// Descriptor of the launcher's sheet of counters, if it wants them.
    pub(crate) stats_fd: Option<i32>,
    /// Cores that the ranks of this host share, where a launcher has given each some of its own.
    pub(crate) host_cores: Option<u16>,
    pub(crate) found: Found,
}

/// In a larger job each rank has control connections to its neighbours in a graph only; up to here all pairs have one.
const SPARSE_ABOVE: usize = 64;

/// By what the cost model of a group's plans goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Costs {
    /// Usual costs of links of each kind.
    #[default]
    Usual,
    /// Measurements that the ranks make when they have met.
    Measure,
    /// Earlier measurements, from this file.
    File(PathBuf),
}

impl Costs {
    /// Returns true if the user asked for them, so that ranks gather before their first group.
    pub(crate) fn are_asked_for(&self) -> bool {
        matches!(self, Self::Measure | Self::File(_))
    }
}

impl Config {
    /// Rank `rank` of `size`, with every other setting at its default. More than one rank needs a place to meet:
    /// [`store`](Self::store), [`rendezvous`](Self::rendezvous), [`hostfile`](Self::hostfile) or [`exchange`](Self::exchange).
    ///
    /// ```
    /// let config = comity::Config::new(0, 1);
    /// assert_eq!((config.rank(), config.size(), config.local()), (0, 1, None));
    /// assert_eq!(config.join_limit().as_secs(), 60);
    /// println!("{}; meeting {}", config.found().why, config.meet());
    /// ```
    pub fn new(rank: usize, size: usize) -> Self {
        let why = format!("the program said rank {rank} of {size}");
        Self {
            rank,
            size,
            local: None,
            meet: Meet::Alone,
            joins: false,
            place: None,
            job: NO_NAME.into(),
            key: None,
            insecure: Insecure::No,
            secure: Secure::Handshake,
            timeout: Duration::from_secs(300),
            join_timeout: Duration::from_secs(60),
            detection: Detection::Normal,
            links: Kinds::usual(),
            transports: TransportSettings::default(),
            backend: BackendKind::Any,
            connect_when: ConnectWhen::Needed,
            ring: false,
            sparse_above: SPARSE_ABOVE,
            device: None,
            costs: Costs::Usual,
            algorithm: None,
            lanes: None,
            addrs: Vec::new(),
            launched_at: Vec::new(),
            interfaces: InterfaceRules::default(),
            ports: None,
            relay: true,
            mptcp: false,
            host: None,
            log_dir: None,
            root_cause: None,
            stats_fd: None,
            host_cores: None,
            found: Found { launcher: Launcher::Explicit, why, seen: Vec::new() },
        }
    }

    /// A process that joins a job while it runs: [`connect`](Self::connect) waits until the job's ranks form their group again
    /// ([`Group::reform`](crate::Group::reform)), and returns the new group. There this process is one of the last ranks.
    ///
    /// Give the address of the [store](Self::store) at which the job met, its [name](Self::job) and its [key](Self::key). The wait has no
    /// limit; it ends with an error when the store ends. A job whose rank 0 runs the store takes in nobody. A launcher that sets `COMITY_JOIN=1`
    /// makes a joiner of a program that calls [`init`](crate::init) or [`from_env`](Self::from_env).
    ///
    /// ```no_run
    /// # fn main() -> comity::Result<()> {
    /// # let key = comity::Key::random()?;
    /// let group = comity::Config::joiner().store("10.0.0.1:7000")?.job("train").key(key).connect()?;
    /// # Ok(()) }
    /// ```
    pub fn joiner() -> Self {
        Self { joins: true, ..Self::new(0, 1) }
    }

    /// Reads the environment. The first of these that is there decides, and a variable that is set but makes no sense is
    /// an error, never passed over:
    ///
    /// | Launcher | Variables |
    /// |---|---|
    /// | `comity launch` | `COMITY_RANK`, `COMITY_SIZE` |
    /// | `mlx.launch` | `MLX_RANK` and `MLX_HOSTFILE`; or `MLX_IBV_DEVICES`, `MLX_JACCL_COORDINATOR` (also as `JACCL_*`); or `MLX_WORLD_SIZE`, `NCCL_HOST_IP`, `NCCL_PORT` |
    /// | `torchrun` | `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` |
    /// | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` |
    /// | MPICH | `PMI_RANK`, `PMI_SIZE`, `PMI_FD` |
    /// | Slurm | `SLURM_STEP_ID`, `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` (inside `srun` only) |
    /// | dstack | `DSTACK_NODE_RANK`, `DSTACK_NODES_NUM`, `DSTACK_MASTER_NODE_IP` (a process for each node) |
    /// | SkyPilot | `SKYPILOT_NODE_RANK`, `SKYPILOT_NUM_NODES`, `SKYPILOT_NODE_IPS` (the same) |
    /// | none | a group of one |
    ///
    /// All other variables hold under every launcher. [`tools::VARIABLES`](crate::tools::VARIABLES) has them, each with a sentence, its default and an
    /// example; `comity info --settings` prints them.
    ///
    /// # Errors
    /// [`Error::Config`], with the variable as its key, where a value makes no sense or two contradict each other.
    ///
    /// ```
    /// let config = comity::Config::from_env()?;
    /// println!("rank {} of {}: {}", config.rank(), config.size(), config.found().why);
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn from_env() -> Result<Self> {
        Self::from_vars(|name| std::env::var_os(name))
    }

    /// Reads as [`from_env`](Self::from_env), with the variables from a function: for tests, and for launchers that show what a rank would do.
    /// Reads the files and descriptors that the variables name and nothing else.
    ///
    /// # Errors
    /// The errors of [`from_env`](Self::from_env).
    ///
    /// ```
    /// let config = comity::Config::from_vars(|name| match name {
    ///     "COMITY_RANK" => Some("0".into()),
    ///     "COMITY_SIZE" => Some("1".into()),
    ///     _ => None,
    /// })?;
    /// assert_eq!(config.size(), 1);
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        env::read(&var)
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Rank and size among the processes of this host; `None` where the launcher did not tell.
    pub fn local(&self) -> Option<(usize, usize)> {
        self.local
    }

    /// Returns the time limit for all ranks to meet; see [`join_timeout`](Self::join_timeout).
    pub fn join_limit(&self) -> Duration {
        self.join_timeout
    }

    /// Returns the meeting point of the ranks.
    pub fn meet(&self) -> &Meet {
        &self.meet
    }

    /// Returns the launcher that the environment shows, and the evidence.
    pub fn found(&self) -> &Found {
        &self.found
    }
}

fn bad<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::config(why))
}

fn bad_value<T>(key: &str, value: impl std::fmt::Display, why: impl Into<String>) -> Result<T> {
    Err(Error::setting(key, value, why))
}

#[cfg(test)]
mod tests;
