//! Hosts as a user asks for them, and how they are reached.
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The hosts, and how they are reached.
#[derive(Debug)]
pub struct HostsRequest {
    pub hosts: HostsSource,
    /// Ranks in all, where these do not fill the hosts.
    pub total: Option<usize>,
    /// Files with variables of every rank.
    pub env_files: Vec<PathBuf>,
    /// The interpreter before the command.
    pub python: Option<String>,
    /// The program that is run as `ssh`.
    pub ssh: OsString,
    /// Its arguments before all others.
    pub ssh_args: Vec<OsString>,
    /// Number of times that the whole job is started again.
    pub max_restarts: u32,
    /// Time that a restart waits for hosts that are away.
    pub wait_for_hosts: Option<Duration>,
    pub meet_at: Option<MeetingPlace>,
    /// Files that are copied to the hosts.
    pub stage: Vec<PathBuf>,
    /// This program is copied to hosts that have none of its version.
    pub stages_program: bool,
    /// Hosts may run programs of the same name whose content differs.
    pub mixed_programs: bool,
    /// The commands are shown, and nothing runs.
    pub dry_run: bool,
    /// Addresses of MLX's ring for each IP of a host.
    pub connections_per_ip: usize,
    /// The first port of MLX's ring.
    pub starting_port: Option<u16>,
    /// The port at which MLX's NCCL ranks meet.
    pub nccl_port: Option<u16>,
}

/// Where the names of the hosts stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostsSource {
    /// A list with commas between: `a,b:4`.
    List(String),
    File(PathBuf),
}

/// `--meet-at`: address and port of this machine where the ranks meet, as far as the user chooses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeetingPlace {
    pub ip: Option<IpAddr>,
    pub port: Option<u16>,
}

impl MeetingPlace {
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(ip) = text.parse() {
            return Ok(Self { ip: Some(ip), port: None });
        }
        let port = |port: u16| Some(port).filter(|p| *p > 0);
        let both = text.parse::<SocketAddr>().ok().map(|at| (Some(at.ip()), port(at.port())));
        let alone = || Some((None, port(text.strip_prefix(':')?.parse().ok()?)));
        match both.or_else(alone) {
            Some((ip, Some(port))) => Ok(Self { ip, port: Some(port) }),
            _ if ["core", "complex", "off"].contains(&text) => {
                Err(format!("no address of this machine; ranks are bound to cores by --bind-to {text}"))
            }
            _ => {
                Err("no address of this machine; write 10.0.0.1, 10.0.0.1:7100, [fd00::1]:7100 or :7100"
                    .into())
            }
        }
    }
}

impl HostsRequest {
    /// Write a line for each flag that this backend, as MLX calls it, does not heed. mlx.launch takes these beside any backend, so a command
    /// written for it runs.
    pub(super) fn say_unheeded(&self, backend: &str) {
        let is_ring = !backend.starts_with("jaccl") && backend != "nccl";
        let rings = "is for MLX's ring";
        [
            ("--nccl-port", self.nccl_port.is_some() && backend != "nccl", "is for --backend nccl"),
            ("--starting-port", self.starting_port.is_some() && !is_ring, rings),
            ("--connections-per-ip", self.connections_per_ip != 1 && !is_ring, rings),
        ]
        .into_iter()
        .filter(|(_, is_unheeded, _)| *is_unheeded)
        .for_each(|(flag, _, why)| {
            eprintln!("comity launch: {flag} {why}, and this job has --backend {backend}")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_meet_is_an_address_a_port_or_both() {
        let parsed = |text| MeetingPlace::parse(text).map(|p| (p.ip.map(|ip| ip.to_string()), p.port));
        let ip = |text: &str| Some(text.to_owned());
        for (text, expected) in [
            ("10.0.0.1", (ip("10.0.0.1"), None)),
            ("10.0.0.1:7100", (ip("10.0.0.1"), Some(7100))),
            ("fd00::3:2", (ip("fd00::3:2"), None)),
            ("[fd00::3]:2", (ip("fd00::3"), Some(2))),
            (":7100", (None, Some(7100))),
        ] {
            assert_eq!(parsed(text), Ok(expected), "{text}");
        }
        for text in ["", ":", ":0", "10.0.0.1:0", "host", "host:7100", "10.0.0.1:70000"] {
            assert!(parsed(text).unwrap_err().contains(":7100"), "{text}");
        }
        assert!(parsed("core").unwrap_err().contains("--bind-to core"));
    }
}
