//! Hosts as a user asks for them, and how they are reached.
use crate::request::{seconds, section};
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The hosts, and how they are reached.
#[derive(Clone, Debug, clap::Args)]
pub struct HostsRequest {
    /// Start ranks on these hosts over ssh: a,b:4,user@c (:4 for four ranks there)
    #[arg(long, value_name = "LIST", conflicts_with = "hostfile", allow_hyphen_values = true, help_heading = section::HOSTS)]
    pub hosts: Option<String>,

    /// Start ranks on the hosts of this file: MLX's JSON, Open MPI's lines (a slots=4), or ours (docs/hosts.md)
    #[arg(long, value_name = "FILE", help_heading = section::HOSTS)]
    pub hostfile: Option<PathBuf>,

    /// Start this many ranks in all, filling the hosts in their order
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = section::HOSTS)]
    pub total: Option<u32>,

    /// Read variables for every rank from a file with a line NAME=VALUE for each
    #[arg(hide_short_help = true, long, value_name = "FILE", help_heading = section::RANKS)]
    pub env_file: Vec<PathBuf>,

    /// Put this interpreter before the command, and look for comity in it where a host has no command of that name
    #[arg(long, value_name = "PROGRAM", help_heading = section::RANKS)]
    pub python: Option<String>,

    /// Hand this to ssh, before its other arguments (repeatable)
    #[arg(hide_short_help = true, long, value_name = "ARG", allow_hyphen_values = true, help_heading = section::SSH)]
    pub ssh_arg: Vec<OsString>,

    /// Wait this long for hosts that are away before a restart (default: 600); the wait counts as no restart
    #[arg(hide_short_help = true, long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, help_heading = section::ENDING)]
    pub wait_for_hosts: Option<Duration>,

    /// Hand this to MPI's launcher, with --backend mpi (repeatable)
    #[arg(hide_short_help = true, long, value_name = "ARG", allow_hyphen_values = true, help_heading = section::MLX)]
    pub mpi_arg: Vec<String>,

    /// Print the interpreter that --python names, or python3, and do nothing else
    #[arg(hide_short_help = true, long, help_heading = section::MLX)]
    pub print_python: bool,

    /// Run this program as ssh
    #[arg(hide_short_help = true, long, value_name = "PROGRAM", default_value = "ssh", help_heading = section::SSH)]
    pub ssh: OsString,

    /// Let the ranks meet at this address of this machine, a port of it (:7100), or both (10.0.0.1:7100); default: the addresses by
    /// which the hosts know it, and a free port, of COMITY_PORTS where that is set
    #[arg(hide_short_help = true, long, value_name = "ADDR[:PORT]", value_parser = MeetingPlace::parse, help_heading = section::HOSTS)]
    pub meet_at: Option<MeetingPlace>,

    /// Copy these files to every host that lacks them or has other content, into the directory of the ranks (repeatable)
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = section::HOSTS)]
    pub stage: Vec<PathBuf>,

    /// Do not copy this program to hosts that have no comity of its version
    #[arg(hide_short_help = true, long, help_heading = section::HOSTS)]
    pub no_stage_comity: bool,

    /// Let hosts run programs and scripts of the same name whose content differs
    #[arg(hide_short_help = true, long, help_heading = section::HOSTS)]
    pub mixed_programs: bool,

    /// Show the command of each host, and run nothing
    #[arg(long, help_heading = section::HOSTS)]
    pub dry_run: bool,

    /// Give MLX's ring this many addresses for each IP of a host
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = section::MLX)]
    pub connections_per_ip: u32,

    /// Give MLX's ring ports from this one on; default: free ports
    #[arg(hide_short_help = true, long, short = 'p', value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..), help_heading = section::MLX)]
    pub starting_port: Option<u16>,

    /// Let MLX's NCCL ranks meet at this port; default: a free port
    #[arg(hide_short_help = true, long, value_name = "PORT", help_heading = section::MLX)]
    pub nccl_port: Option<u16>,
}

/// A flag, and whether it was given.
pub type FlagUse = (&'static str, bool);

/// Flags of several hosts.
#[derive(Debug)]
pub struct HostFlags {
    /// The launcher of several hosts heeds them, also where it is given none.
    pub several_hosts: Vec<FlagUse>,
    /// They only mean something where there is another host.
    pub ssh: Vec<FlagUse>,
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
    /// Returns whether something was asked for that the launcher of several hosts does; without a host it means this one.
    pub fn is_given(&self) -> bool {
        let hosts = self.hosts.is_some() || self.hostfile.is_some() || self.total.is_some();
        hosts || self.uses().several_hosts.iter().any(|(_, is_given)| *is_given)
    }

    /// Flags by the launcher that heeds them.
    pub fn uses(&self) -> HostFlags {
        // By name: a flag that no launcher heeds, and none refuses, does not compile.
        let Self {
            python,
            env_file,
            meet_at,
            stage,
            dry_run,
            starting_port,
            nccl_port,
            ssh_arg,
            ssh,
            no_stage_comity,
            mixed_programs,
            // They say that there are several hosts, or are refused in words of their own.
            hosts: _,
            hostfile: _,
            total: _,
            wait_for_hosts: _,
            mpi_arg: _,
            connections_per_ip: _,
            print_python: _,
        } = self;
        let several_hosts = vec![
            ("--python", python.is_some()),
            ("--env-file", !env_file.is_empty()),
            ("--meet-at", meet_at.is_some()),
            ("--stage", !stage.is_empty()),
            ("--dry-run", *dry_run),
            ("--starting-port", starting_port.is_some()),
            ("--nccl-port", nccl_port.is_some()),
        ];
        let ssh = vec![
            ("--ssh-arg", !ssh_arg.is_empty()),
            ("--ssh", ssh != OsStr::new("ssh")),
            ("--no-stage-comity", *no_stage_comity),
            ("--mixed-programs", *mixed_programs),
        ];
        HostFlags { several_hosts, ssh }
    }

    /// `--print-python`
    pub fn interpreter(&self) -> &str {
        self.python.as_deref().unwrap_or("python3")
    }

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
