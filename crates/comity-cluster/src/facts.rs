//! Facts about a host.
use crate::addresses::Subnet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostSystem {
    Linux,
    Macos,
    /// Another, or not known.
    #[default]
    Other,
}

/// Facts about a host; those that it did not report are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The name by which ssh reaches it.
    pub ssh: String,
    pub hostname: String,
    pub system: HostSystem,
    /// The system, its release and the machine, for people.
    pub release: String,
    /// The same for two names of one host, and for no others.
    pub identity: String,
    /// Comity's version there, where it is installed.
    pub version: Option<String>,
    pub cores: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Graphics processors, by name.
    pub gpus: Vec<String>,
    /// Network interfaces but the loopback.
    pub nics: Vec<Nic>,
    /// Every network that something on this host leads to: of addresses and of routes.
    pub in_use: Vec<Subnet>,
    pub rdma: RdmaFacts,
    pub thunderbolt: Vec<ThunderboltPort>,
    /// True if commands can be run as root: by root, or by sudo without a password.
    pub root: Option<bool>,
    /// True if that is because ssh logs in as root.
    pub is_root: bool,
    pub limits: Limits,
    /// The kernel's state of MPTCP, several paths for one connection; absent where it has none.
    pub multipath: Option<Multipath>,
    /// Questions that could not be answered.
    pub problems: Vec<Problem>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    pub name: String,
    pub mac: String,
    /// True if it is of containers or virtual machines, a tunnel, or a bridge: no cable leads to another host of ours.
    pub is_inner: bool,
    /// True if it carries packets.
    pub is_up: bool,
    pub mtu: u64,
    /// Bits a second that it negotiated.
    pub speed: Option<u64>,
    pub addresses: Vec<Subnet>,
    /// The bridge that it is part of.
    pub bridge: Option<String>,
}

impl Nic {
    /// Its addresses but those of the link alone.
    pub fn outer(&self) -> impl Iterator<Item = &Subnet> {
        self.addresses.iter().filter(|a| !a.is_link_local())
    }

    /// Its addresses of IPv4, but those of the link alone.
    pub fn v4(&self) -> impl Iterator<Item = Subnet> + '_ {
        self.outer().filter(|a| a.ip.is_ipv4()).copied()
    }

    /// The same of IPv6.
    pub fn v6(&self) -> impl Iterator<Item = Subnet> + '_ {
        self.outer().filter(|a| a.ip.is_ipv6()).copied()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaFacts {
    /// State by `rdma_ctl status` on a Mac.
    pub enabled: Option<bool>,
    pub devices: Vec<RdmaDevice>,
}

/// A device, with its first port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaDevice {
    pub name: String,
    /// The network interface of the same hardware.
    pub nic: Option<String>,
    /// `ACTIVE` when it carries data.
    pub state: Option<String>,
}

/// A Thunderbolt port of a Mac.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThunderboltPort {
    pub nic: String,
    /// The number in its name.
    pub receptacle: String,
    pub domain: String,
    /// Identities of the domains behind it, the nearest first.
    pub peers: Vec<String>,
    pub speed: Option<u64>,
}

/// Limits of the processes of a login there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Open files, the limit that cannot be raised; None where it is unlimited.
    pub files: Option<Option<u64>>,
    /// Bytes of memory that may be locked; None where it is unlimited.
    pub memlock: Option<Option<u64>>,
    /// Bytes of /dev/shm, and those that are free.
    pub shm: Option<(u64, u64)>,
    /// `kernel.yama.ptrace_scope`, where there is one.
    pub yama: Option<u64>,
}

/// The part of a Linux kernel's MPTCP that a host's administrator sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multipath {
    /// True if programs may use it.
    pub is_enabled: bool,
    /// Paths that a connection may have beside its first one.
    pub subflows: u64,
    /// Addresses of the other end that a connection may use.
    pub accepted: u64,
    /// The number and the address of each path that this host offers.
    pub endpoints: Vec<(u64, IpAddr)>,
}

/// Something that could not be asked or done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    pub about: String,
    pub why: String,
    pub mend: String,
}

impl HostFacts {
    /// Returns whether it has addresses of IPv6 and none of IPv4, but those of the link alone.
    pub fn is_v6_alone(&self) -> bool {
        let outer = || self.nics.iter().filter(|n| !n.is_inner);
        outer().all(|n| n.v4().next().is_none()) && outer().any(|n| n.v6().next().is_some())
    }

    /// "eth0, 10 Gb/s": an interface with its speed.
    pub(crate) fn nic_in_words(&self, name: &str) -> String {
        let speed = self.nic(name).and_then(|n| n.speed).map(|s| format!(", {}", bits_in_words(s)));
        format!("{name}{}", speed.unwrap_or_default())
    }

    pub fn nic(&self, name: &str) -> Option<&Nic> {
        self.nics.iter().find(|n| n.name == name)
    }

    /// The RDMA device of this interface that can be used: it is active, and on a Mac the port is one of Thunderbolt 5.
    pub fn rdma_of(&self, nic: &str) -> Option<&RdmaDevice> {
        let device = self.rdma.devices.iter().find(|d| d.nic.as_deref() == Some(nic))?;
        let active = device.state.as_deref().is_none_or(|s| s.contains("ACTIVE"));
        let fast = match self.system {
            HostSystem::Macos => self.is_thunderbolt5(nic) && self.rdma.enabled != Some(false),
            _ => true,
        };
        (active && fast).then_some(device)
    }

    /// Returns whether the port of this interface runs faster than Thunderbolt 4 can: RDMA needs that.
    pub fn is_thunderbolt5(&self, nic: &str) -> bool {
        let port = self.thunderbolt.iter().find(|p| p.nic == nic);
        port.and_then(|p| p.speed).is_some_and(|s| s > THUNDERBOLT_4)
    }

    /// "8 cores, 32 GiB, Linux 6.1 x86_64".
    pub fn summary(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.cores.map(|n| format!("{n} cores")));
        parts.extend(self.memory.map(|b| format!("{} GiB", (b as f64 / (1u64 << 30) as f64).round())));
        parts.extend(self.gpus.iter().cloned());
        if !self.release.is_empty() {
            parts.push(self.release.clone());
        }
        parts.join(", ")
    }
}

/// Bits a second of Thunderbolt 3 and 4.
pub const THUNDERBOLT_4: u64 = 40_000_000_000;

/// "80 Gb/s", "100 Mb/s".
pub fn bits_in_words(bits: u64) -> String {
    let (unit, name) = match bits {
        b if b >= 1_000_000_000 => (1e9, "Gb/s"),
        b if b >= 1_000_000 => (1e6, "Mb/s"),
        _ => (1e3, "kb/s"),
    };
    let x = bits as f64 / unit;
    if x >= 10.0 || x.fract() < 0.05 { format!("{x:.0} {name}") } else { format!("{x:.1} {name}") }
}
