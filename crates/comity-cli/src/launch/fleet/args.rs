//! What `comity launch` takes for jobs on several hosts.
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

/// The hosts, and how they are reached.
#[derive(Debug, Default, clap::Args)]
pub(in crate::launch) struct FleetArgs {
    /// Start ranks on these hosts over ssh: a,b:4,user@c (:4 for four ranks there)
    #[arg(long, value_name = "LIST", conflicts_with = "hostfile", allow_hyphen_values = true)]
    pub(super) hosts: Option<String>,

    /// The same from a file: MLX's JSON, Open MPI's lines (a slots=4), or ours (docs/hosts.md)
    #[arg(long, value_name = "FILE")]
    pub(super) hostfile: Option<PathBuf>,

    /// So many ranks in all, filling the hosts in their order
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) total: Option<u32>,

    /// Read variables for every rank from a file with a line NAME=VALUE for each
    #[arg(long, value_name = "FILE")]
    pub(super) env_file: Vec<PathBuf>,

    /// Put this interpreter before the command, and look for comity in it where a host has no command of that name
    #[arg(long, value_name = "PROGRAM")]
    pub(super) python: Option<String>,

    /// Hand this to ssh, before its other arguments (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(super) ssh_arg: Vec<OsString>,

    /// The program that is run as ssh
    #[arg(long, value_name = "PROGRAM", default_value = "ssh")]
    pub(super) ssh: OsString,

    /// The address of this machine at which the hosts' ranks meet; default: the one towards the first host
    #[arg(long, value_name = "ADDR")]
    pub(super) bind: Option<IpAddr>,

    /// Say what each host would run, and run nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Addresses for MLX's ring: so many for each IP of a host
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) connections_per_ip: u32,

    /// The first port of MLX's ring; default: ports that are free
    #[arg(long, short = 'p', value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..))]
    pub(super) starting_port: Option<u16>,

    /// The port at which MLX's NCCL ranks meet; default: one that is free
    #[arg(long, value_name = "PORT")]
    pub(super) nccl_port: Option<u16>,
}

impl FleetArgs {
    /// Whether the job is for hosts that were named.
    pub(in crate::launch) fn is_given(&self) -> bool {
        self.hosts.is_some() || self.hostfile.is_some()
    }
}
