//! Place of a process in its job and its way to meet the others: given by value, or found in the environment.

mod check;
mod choices;
mod common;
mod env;
#[cfg(fuzzing)]
pub mod fuzz;
mod mlx_hostfile;
mod notes;
mod slurm;
mod table;
mod variable;

use crate::{
    Error, HostPort, Key, MAX_SIZE, Result,
    root_cause::RootCauseReport,
    sys::fnv,
    transport::{InterfaceRules, Kinds, TransportSettings},
};
pub use choices::{
    BackendKind, ConnectTiming, Detection, Evidence, Insecure, Launcher, MeetingPoint, Protection, Trust,
};
use comity_plan::Algorithm;
use common::{Vars, wrong};
pub use mlx_hostfile::HOSTFILE;
pub use notes::{AddressNote, LinkNote, own_addresses};
use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};
pub use table::VARIABLES;
pub use variable::{Topic, Variable};

/// The limit of calls that have none. A longer one is a mistake in the unit.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The job of ranks that were told no name.
pub const NO_NAME: &str = "-";

/// Place of a process in its job, and its settings, as they were given or read. `comity::Config` makes them.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub rank: usize,
    pub size: usize,
    /// Rank and size among the processes of this host, where the launcher says so.
    pub local: Option<(usize, usize)>,
    pub meeting_point: MeetingPoint,
    /// This process joins a job that runs.
    pub joins: bool,
    /// The rank in whose place a launcher started it.
    pub place: Option<u32>,
    pub job: String,
    pub key: Option<Key>,
    pub insecure: Insecure,
    pub secure: Protection,
    pub timeout: Duration,
    pub join_timeout: Duration,
    pub detection: Detection,
    /// The kinds of link that may be used.
    pub links: Kinds,
    /// Choices about each of them.
    pub transports: TransportSettings,
    pub backend: BackendKind,
    pub connect_when: ConnectTiming,
    /// Rings before other plans.
    pub ring: bool,
    /// Jobs of more ranks do not connect all pairs. For tests: all ranks need the same.
    pub sparse_above: usize,
    /// For [`BackendKind::Nccl`]; `None`: by this rank's number on its host.
    pub device: Option<u32>,
    pub costs: Costs,
    /// Threads that carry a part of a call each.
    pub lanes: Option<usize>,
    /// Goes before the cheapest algorithm.
    pub algorithm: Option<Algorithm>,
    /// Own addresses to listen on; port 0 stands for any. Empty: the one that leads to the store.
    pub addrs: Vec<SocketAddr>,
    /// Addresses at which a launcher has the ranks meet, whatever else they meet at.
    pub launched_at: Vec<IpAddr>,
    /// The network interfaces that may be used.
    pub interfaces: InterfaceRules,
    /// The ports to listen on, the first and the last, where no address says one.
    pub ports: Option<(u16, u16)>,
    /// Pass on what two others say that have no way to each other, and have others pass on what is said from here.
    pub relay: bool,
    /// TCP connections use several paths, where the kernels of both ends do.
    pub mptcp: bool,
    pub host: Option<String>,
    pub log_dir: Option<PathBuf>,
    pub root_cause: Option<RootCauseReport>,
    /// Descriptor of the launcher's sheet of counters, if it wants them.
    pub stats_fd: Option<i32>,
    /// Cores that the ranks of this host share, where a launcher has given each some of its own.
    pub host_cores: Option<u16>,
    pub evidence: Evidence,
}

/// In a larger job each rank has control connections to its neighbours in a graph only; up to here all pairs have one.
const SPARSE_ABOVE: usize = 64;

/// By what the cost model of a group's plans goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Costs {
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
    pub fn are_asked_for(&self) -> bool {
        matches!(self, Self::Measure | Self::File(_))
    }
}

impl Settings {
    /// Rank `rank` of `size`, with every other setting at its default.
    pub fn new(rank: usize, size: usize) -> Self {
        let why = format!("the program said rank {rank} of {size}");
        Self {
            rank,
            size,
            job: NO_NAME.into(),
            timeout: Duration::from_secs(300),
            join_timeout: Duration::from_secs(60),
            links: Kinds::usual(),
            sparse_above: SPARSE_ABOVE,
            relay: true,
            evidence: Evidence { why, ..Evidence::default() },
            ..Self::default()
        }
    }

    /// Reads the variables that `var` returns, and the files and descriptors that they name.
    pub fn from_vars(var: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        env::read(var)
    }

    /// Reads the settings that hold under every launcher; those that `var` does not name stay as they are.
    pub fn read(&mut self, var: &dyn Fn(&str) -> Option<OsString>) -> Result<()> {
        common::read(&Vars::new(var), self)
    }

    /// Meet at rank 0's first address in a hostfile, and listen on this rank's own.
    pub fn meet_by_hostfile(&mut self, path: &Path) -> Result<()> {
        let file = mlx_hostfile::Hostfile::read(path)?;
        file.check("rank", self.rank, Some(self.size), true)?;
        if self.job == "-" {
            self.job = file.job();
        }
        self.meeting_point = MeetingPoint::Hostfile(file.ranks);
        Ok(())
    }

    /// Changes one setting, by the name of its variable and with a value in the variable's form.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        if !VARIABLES.iter().any(|v| v.name == name) {
            return wrong(
                name,
                value,
                "is no setting; `comity info --settings` lists all, such as COMITY_TIMEOUT",
            );
        }
        let var = |asked: &str| (asked == name).then(|| OsString::from(value));
        let vars = Vars::new(&var);
        common::read(&vars, self)?;
        if let Some(at) = vars.host_ports("COMITY_STORE")? {
            self.meeting_point = MeetingPoint::Store(at);
        }
        if vars.is_set("COMITY_JOIN") {
            self.joins = vars.flag("COMITY_JOIN")?;
        }
        if vars.into_seen().is_empty() {
            let why = match name {
                "COMITY_RANK" | "COMITY_SIZE" => {
                    "cannot be set here: a configuration gets both when it is made"
                }
                "MASTER_ADDR" | "MASTER_PORT" => "cannot be set here: give rendezvous both, as host:port",
                _ => "cannot be set here: this setting counts in the environment of the process only",
            };
            return wrong(name, value, why);
        }
        self.check_values()
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
