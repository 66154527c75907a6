//! The public builder of what a process says about itself before it meets the others. Its values are [`Settings`].

use crate::{
    BackendKind, ConnectTiming, Detection, Error, HostPort, Key, LinkKind, MeetingPoint, Protection, Result,
    exchange::Exchange,
    lanes::MOST_LANES,
    settings::{Costs, Evidence, Insecure, MAX_TIMEOUT, Settings},
    transport::InterfaceRules,
};
use comity_plan::Algorithm;
use std::{
    ffi::OsString,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

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
/// [`ErrorKind::Config`](crate::ErrorKind::Config), which names the variable, file or setter.
#[derive(Clone)]
pub struct Config {
    pub(crate) settings: Settings,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Programs know the settings as fields of this type.
        let text =
            if f.alternate() { format!("{:#?}", self.settings) } else { format!("{:?}", self.settings) };
        f.write_str("Config")?;
        f.write_str(text.strip_prefix("Settings").unwrap_or(&text))
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
    /// println!("{}; meeting {}", config.evidence().why, config.meeting_point());
    /// ```
    pub fn new(rank: usize, size: usize) -> Self {
        Self { settings: Settings::new(rank, size) }
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
        Self { settings: Settings { joins: true, ..Settings::new(0, 1) } }
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
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), with the variable as its key, where a value makes no sense or two contradict each other.
    ///
    /// ```
    /// let config = comity::Config::from_env()?;
    /// println!("rank {} of {}: {}", config.rank(), config.size(), config.evidence().why);
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
        Ok(Self { settings: Settings::from_vars(&var)? })
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.settings.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.settings.size
    }

    /// Rank and size among the processes of this host; `None` where the launcher did not tell.
    pub fn local(&self) -> Option<(usize, usize)> {
        self.settings.local
    }

    /// Returns the time limit for all ranks to meet; see [`join_timeout`](Self::join_timeout).
    pub fn join_limit(&self) -> Duration {
        self.settings.join_timeout
    }

    /// Returns the meeting point of the ranks.
    pub fn meeting_point(&self) -> &MeetingPoint {
        &self.settings.meeting_point
    }

    /// Returns the launcher that the environment shows, and the evidence.
    pub fn evidence(&self) -> &Evidence {
        &self.settings.evidence
    }

    /// The settings that hold under every launcher (`COMITY_TIMEOUT`, `COMITY_LINKS`, ...; see [`from_env`](Self::from_env)), from a
    /// function. Settings that it does not name stay as they are, and so do the meeting place, rank and size.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) with the variable as its key, where a value makes no sense.
    ///
    /// ```
    /// let limit = |name: &str| (name == "COMITY_TIMEOUT").then(|| "30".into());
    /// let config = comity::Config::new(0, 1).settings_from_vars(limit)?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn settings_from_vars(mut self, var: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        self.settings.read(&var)?;
        Ok(self)
    }

    /// Changes one setting, by the name of its variable and with a value in the variable's form: for settings that come as text.
    ///
    /// Takes the variables that `comity info --settings` lists, but for those of a process's place (`COMITY_RANK` and its neighbours,
    /// `MASTER_ADDR`, `MASTER_PORT`) and those that only the environment has, such as the paths of libraries.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), which names both, where there is no such setting or the value makes no sense.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).set("COMITY_TIMEOUT", "30")?.set("COMITY_LINKS", "shm,tcp")?;
    /// let e = comity::Config::new(0, 1).set("COMITY_LINKS", "string").unwrap_err();
    /// assert!(e.to_string().contains("COMITY_LINKS"));
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn set(mut self, name: &str, value: &str) -> Result<Self> {
        self.settings.set(name, value)?;
        Ok(self)
    }

    /// Meet at a store that runs elsewhere (`comity launch` runs one): `host:port`, or several addresses of it with a comma between, of
    /// which each rank takes one that it reaches.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) when an address is no `host:port`.
    ///
    /// ```
    /// let config = comity::Config::new(1, 4).store("10.0.0.1:7000,[fd00::1]:7000")?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn store(mut self, at: &str) -> Result<Self> {
        self.settings.meeting_point = MeetingPoint::Store(HostPort::list(at)?);
        Ok(self)
    }

    /// Meet at a store that rank 0 runs at this `host:port`, and at this port of its other addresses; or several with a comma between. Each
    /// rank may name another address of rank 0, or of a rank that reaches it: that one passes on what comes there.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) when an address is no `host:port`.
    ///
    /// ```
    /// use comity::{Config, Key};
    ///
    /// // The same on both ranks but for the number.
    /// let config = Config::new(1, 2).rendezvous("10.0.0.1:7000")?.key(Key::from([7; 32]));
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn rendezvous(mut self, at: &str) -> Result<Self> {
        self.settings.meeting_point = MeetingPoint::Host(HostPort::list(at)?);
        Ok(self)
    }

    /// Meet at rank 0's first address in a hostfile of MLX's form, and listen on this rank's own:
    /// `[["10.0.0.1:5000"], ["10.0.0.2:5000"]]`, one entry per rank.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) with file, line and column, when it cannot be read, is no such list, or has another number of entries than there are ranks.
    ///
    /// ```
    /// let file = std::env::temp_dir().join(format!("hosts-{}.json", std::process::id()));
    /// std::fs::write(&file, r#"[["10.0.0.1:5000"], ["10.0.0.2:5000"]]"#)?;
    /// let config = comity::Config::new(0, 2).hostfile(&file)?;
    /// std::fs::remove_file(&file)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hostfile(mut self, path: impl AsRef<Path>) -> Result<Self> {
        self.settings.meet_by_hostfile(path.as_ref())?;
        Ok(self)
    }

    /// Meet at a store that rank 0 runs at a free port, which it tells the others through `exchange`. Without a key rank 0 makes
    /// one and tells that too: whoever can read the exchange can join.
    ///
    /// ```
    /// use comity::{Config, Exchange, Result};
    /// use std::{fmt, sync::{Arc, Mutex}, thread, time::{Duration, Instant}};
    ///
    /// /// Between threads. Between processes, something that all of them reach: a file, a database, Ray.
    /// #[derive(Debug, Default)]
    /// struct Desk(Mutex<Option<String>>);
    ///
    /// impl fmt::Display for Desk {
    ///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    ///         f.write_str("a desk")
    ///     }
    /// }
    ///
    /// impl Exchange for Desk {
    ///     fn share(&self, _: usize, _: usize, mine: Option<&str>, _until: Instant) -> Result<String> {
    ///         if let Some(text) = mine {
    ///             *self.0.lock().unwrap() = Some(text.into());
    ///         }
    ///         loop {
    ///             if let Some(text) = self.0.lock().unwrap().clone() {
    ///                 return Ok(text);
    ///             }
    ///             thread::sleep(Duration::from_millis(1));
    ///         }
    ///     }
    /// }
    ///
    /// let desk = Arc::new(Desk::default());
    /// thread::scope(|s| {
    ///     for rank in 0..2 {
    ///         let config = Config::new(rank, 2).exchange(desk.clone());
    ///         s.spawn(move || config.connect().unwrap().barrier().unwrap());
    ///     }
    /// });
    /// ```
    pub fn exchange(mut self, exchange: Arc<dyn Exchange>) -> Self {
        self.settings.meeting_point = MeetingPoint::Exchange(exchange);
        self
    }

    /// Measure every link when the ranks have met, in some 2 s, and choose plans by that: [`Group::measure_links`](crate::Group::measure_links). On all
    /// ranks or none. Without it the cost model knows shared memory within a host and a fast network between hosts.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).measure_costs();
    /// ```
    pub fn measure_costs(mut self) -> Self {
        self.settings.costs = Costs::Measure;
        self
    }

    /// Carry out every operation by this algorithm, where it can, instead of by the cheapest. On all ranks, or calls fail with
    /// [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch). For tests and measurements.
    ///
    /// ```
    /// use comity::{Algorithm, Config};
    ///
    /// let config = Config::new(0, 1).algorithm(Algorithm::Ring);
    /// ```
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.settings.algorithm = Some(algorithm);
        self
    }

    /// Choose plans by what `comity check --links --json` wrote into a file. On all ranks or none; the numbers of rank 0's file hold.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).costs_file("links.json");
    /// ```
    pub fn costs_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.costs = Costs::File(path.into());
        self
    }

    /// The name of the job, the same on all ranks; default `-`. Ranks of different jobs refuse one another.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).job("digits");
    /// ```
    pub fn job(mut self, job: impl Into<String>) -> Self {
        self.settings.job = job.into();
        self
    }

    /// The secret that every rank of the job holds. More than one rank needs one, unless they meet at a
    /// [`exchange`](Self::exchange), over which rank 0 then shares one of its own making, or say [`insecure`](Self::insecure).
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).key(comity::Key::from([7; 32]));
    /// ```
    pub fn key(mut self, key: Key) -> Self {
        self.settings.key = Some(key);
        self
    }

    /// Sets the key as [`key`](Self::key) does, from a file that only its owner can read.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) with the file, when it cannot be read, holds no key, or others than its owner can read it.
    ///
    /// ```
    /// let refused = comity::Config::new(0, 1).key_file("/nowhere/job.key").unwrap_err();
    /// assert!(refused.to_string().contains("/nowhere/job.key"));
    /// ```
    pub fn key_file(self, path: impl AsRef<Path>) -> Result<Self> {
        Ok(self.key(Key::from_file(path)?))
    }

    /// Meet without a secret: whoever reaches a port and knows the job's name can join. Addresses that the internet may
    /// reach are refused.
    ///
    /// ```
    /// let config = comity::Config::new(0, 2).rendezvous("10.0.0.1:7000")?.insecure();
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn insecure(mut self) -> Self {
        self.settings.insecure = Insecure::Private;
        self
    }

    /// Meet without a secret, as with [`insecure`](Self::insecure), also at addresses that the internet may reach.
    ///
    /// ```
    /// let config = comity::Config::new(0, 2).rendezvous("203.0.113.7:7000")?.insecure_in_public();
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn insecure_in_public(mut self) -> Self {
        self.settings.insecure = Insecure::Public;
        self
    }

    /// Protection that the key gives; default [`Protection::Handshake`]. All ranks must choose the same.
    ///
    /// ```
    /// use comity::{Config, Protection};
    ///
    /// let config = Config::new(0, 1).secure(Protection::Data);
    /// ```
    pub fn secure(mut self, secure: Protection) -> Self {
        self.settings.secure = secure;
        self
    }

    /// When a group fails, write its last 4,096 calls to a file in this directory, for `comity report`; default: nowhere.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).log_dir("logs");
    /// ```
    pub fn log_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.log_dir = Some(dir.into());
        self
    }

    /// Time limit of a call; default 5 minutes, longer than a slow checkpoint on another rank and shorter than a night. With
    /// `Duration::MAX` a call waits as long as all ranks live: [`detection`](Self::detection) limits silence all the same.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let config = comity::Config::new(0, 1).timeout(Duration::from_secs(30));
    /// ```
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.settings.timeout = if limit == Duration::MAX { MAX_TIMEOUT } else { limit };
        self
    }

    /// Time limit for all ranks to meet; default one minute, the time in which a launcher starts the last
    /// process of a large job on a cold file system.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let config = comity::Config::new(0, 1).join_timeout(Duration::from_secs(600));
    /// ```
    pub fn join_timeout(mut self, limit: Duration) -> Self {
        self.settings.join_timeout = limit;
        self
    }

    /// Longest silence of a rank before the others give it up; default 5 s. The ranks agree on the most patient of their
    /// choices.
    ///
    /// ```
    /// use comity::{Config, Detection};
    ///
    /// let config = Config::new(0, 1).detection(Detection::Patient);
    /// ```
    pub fn detection(mut self, detection: Detection) -> Self {
        self.settings.detection = detection;
        self
    }

    /// The name of this host. Ranks whose hosts have equal names use shared memory; default: the system's, made unique.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).host_name("rack-3");
    /// ```
    pub fn host_name(mut self, name: impl Into<String>) -> Self {
        self.settings.host = Some(name.into());
        self
    }

    /// This rank's own addresses to listen on; port 0 stands for any. Default: those of all network interfaces but loopback; loopback where
    /// the store is there. Each pair uses what works: of named addresses all, else the best, or several equal cables.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).addrs(["10.0.0.1:0".parse().unwrap()]);
    /// ```
    pub fn addrs(mut self, addrs: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.settings.addrs = addrs.into_iter().collect();
        self
    }

    /// The network interfaces that may be used, in the form of `COMITY_INTERFACES`: `en,!en0`, `=eth1`, `10.0.0.0/8`, `^docker`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) when an entry is none of these.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).interfaces("en,!en0")?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn interfaces(mut self, rules: &str) -> Result<Self> {
        let wrong = |why| Error::setting("interfaces", rules, format!("interfaces {rules:?} {why}"));
        self.settings.interfaces = InterfaceRules::parse(rules).map_err(wrong)?;
        Ok(self)
    }

    /// The ports to listen on, where no address names one; default: any. A rank takes a free one on each of its addresses.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).ports(7100..=7199);
    /// ```
    pub fn ports(mut self, range: std::ops::RangeInclusive<u16>) -> Self {
        self.settings.ports = Some((*range.start(), *range.end()));
        self
    }

    /// Let TCP connections of this process use several paths at once, by the kernel's MPTCP; default: they do not. Linux only. The last group
    /// that a process joins decides for all its new connections. Where the other end does not use it, they are plain TCP.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).mptcp(true);
    /// ```
    pub fn mptcp(mut self, mptcp: bool) -> Self {
        self.settings.mptcp = mptcp;
        self
    }

    /// Lets ranks relay between two others that have no way to each other; default: yes. The two encrypt the traffic.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).relay(false);
    /// ```
    pub fn relay(mut self, relay: bool) -> Self {
        self.settings.relay = relay;
        self
    }

    /// The kinds of link that may be used; default: shared memory within a host, between hosts RDMA where both have a device for
    /// the pair, else TCP.
    ///
    /// ```
    /// use comity::{Config, LinkKind};
    ///
    /// let config = Config::new(0, 1).links([LinkKind::Tcp]);
    /// ```
    pub fn links(mut self, kinds: impl IntoIterator<Item = LinkKind>) -> Self {
        // Threads of one process are never connected through a Config, and MPI makes its own links.
        self.settings.links =
            kinds.into_iter().filter(|kind| LinkKind::choices().any(|k| k == *kind)).collect();
        self
    }

    /// Backend that carries out the calls; default [`BackendKind::Any`]. With [`BackendKind::Mpi`] rank and size come from MPI.
    ///
    /// ```
    /// use comity::{BackendKind, Config};
    ///
    /// let config = Config::new(0, 1).backend(BackendKind::Any);
    /// ```
    pub fn backend(mut self, kind: BackendKind) -> Self {
        self.settings.backend = kind;
        self
    }

    /// The RDMA devices that lead from each rank to each other: a file's path or the JSON itself, in the form of MLX's
    /// `MLX_IBV_DEVICES`: `[[null, "rdma_en5"], ["rdma_en4", null]]`. Default: the device that has the address of the pair's TCP
    /// connection.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) when it cannot be read or is no square matrix.
    ///
    /// ```
    /// let matrix = r#"[[null, "rdma_en5"], ["rdma_en4", null]]"#;
    /// let config = comity::Config::new(0, 2).devices(matrix)?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    pub fn devices(mut self, matrix: &str) -> Result<Self> {
        self.settings.transports.set_devices(matrix).map_err(|why| {
            let words = format!("the device matrix {} {why}", crate::address::shown(matrix));
            let e = Error::setting("devices", matrix, words);
            why.place(e)
        })?;
        Ok(self)
    }

    /// The CUDA device of this rank for [`BackendKind::Nccl`], by its number among those that this process sees; default: by the
    /// rank's number on its host.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).device(1);
    /// ```
    pub fn device(mut self, device: u32) -> Self {
        self.settings.device = Some(device);
        self
    }

    /// TCP connections per pair of addresses; the larger wish of a pair of ranks holds. If the number is even, each direction has half for
    /// its long messages; short ones take the first both ways. Default: 15, or fewer in a job of more than 17 ranks, where a round trip
    /// takes more than 10 ms; 2 where a rank of the pair has [threads for sending](Self::send_threads) and the lower one a single address;
    /// else 1.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).connections(4);
    /// ```
    pub fn connections(mut self, n: usize) -> Self {
        self.settings.transports.set_connections(n);
        self
    }

    /// Number of threads that may send long messages over TCP beside the rank's own, while others are received: one a link, for links of two
    /// [connections](Self::connections) in all. Default: one for every four cores of this rank's share of its host.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).send_threads(0);
    /// ```
    pub fn send_threads(mut self, n: usize) -> Self {
        self.settings.transports.set_send_threads(n);
        self
    }

    /// When links are made: as calls need them, or all when a group opens.
    ///
    /// ```
    /// use comity::{Config, ConnectTiming};
    ///
    /// let config = Config::new(0, 1).connect_when(ConnectTiming::All);
    /// ```
    #[must_use]
    pub fn connect_when(mut self, when: ConnectTiming) -> Self {
        self.settings.connect_when = when;
        self
    }

    /// Move and add up large messages within a host with so many threads of each rank, its own among them; 1 makes none. On all ranks
    /// alike, or calls fail with [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch). Default: as the rank's cores allow.
    ///
    /// ```
    /// let config = comity::Config::new(0, 1).lanes(4);
    /// ```
    pub fn lanes(mut self, threads: usize) -> Self {
        self.settings.lanes = Some(threads.clamp(1, MOST_LANES));
        self
    }
}

#[cfg(test)]
mod tests;
