//! Arguments of `comity launch` for jobs on several hosts.
use crate::launch::{seconds, section};
use comity_launch::fleet::{HostsRequest, HostsSource, MeetingPlace};
use comity_launch::{Elastic, RESTARTS};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// The hosts, and how they are reached.
#[derive(Debug, Default, clap::Args)]
pub(in crate::launch) struct FleetArgs {
    /// Start ranks on these hosts over ssh: a,b:4,user@c (:4 for four ranks there)
    #[arg(long, value_name = "LIST", conflicts_with = "hostfile", allow_hyphen_values = true, help_heading = section::HOSTS)]
    pub(in crate::launch) hosts: Option<String>,

    /// Start ranks on the hosts of this file: MLX's JSON, Open MPI's lines (a slots=4), or ours (docs/hosts.md)
    #[arg(long, value_name = "FILE", help_heading = section::HOSTS)]
    pub(in crate::launch) hostfile: Option<PathBuf>,

    /// `-n`, as mlx.launch calls it
    #[arg(long, value_name = "N", hide = true, conflicts_with = "ranks", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(in crate::launch) repeat_hosts: Option<u32>,

    /// Start this many ranks in all, filling the hosts in their order
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = section::HOSTS)]
    pub(in crate::launch) total: Option<u32>,

    /// Read variables for every rank from a file with a line NAME=VALUE for each
    #[arg(hide_short_help = true, long, value_name = "FILE", help_heading = section::RANKS)]
    pub(in crate::launch) env_file: Vec<PathBuf>,

    /// Put this interpreter before the command, and look for comity in it where a host has no command of that name
    #[arg(long, value_name = "PROGRAM", help_heading = section::RANKS)]
    pub(in crate::launch) python: Option<String>,

    /// Hand this to ssh, before its other arguments (repeatable)
    #[arg(hide_short_help = true, long, value_name = "ARG", allow_hyphen_values = true, help_heading = section::SSH)]
    pub(in crate::launch) ssh_arg: Vec<OsString>,

    /// Go on without ranks that die as long as MIN are left, and start these again to join: for programs that form their group again
    /// (docs/elastic.md). MAX limits the ranks with those that `comity join` adds
    #[arg(long, value_name = "MIN[:MAX]", value_parser = Elastic::parse, help_heading = section::ENDING)]
    pub(in crate::launch) elastic: Option<Elastic>,

    /// Start a job that failed again, this many times (default: 0), with a pause that doubles from 1 s to 30 s; with --elastic each rank
    /// that failed (default: 10)
    #[arg(long, value_name = "N", help_heading = section::ENDING)]
    max_restarts: Option<u32>,

    /// Wait this long for hosts that are away before a restart (default: 600); the wait counts as no restart
    #[arg(hide_short_help = true, long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, help_heading = section::ENDING)]
    pub(in crate::launch) wait_for_hosts: Option<Duration>,

    /// Hand this to MPI's launcher, with --backend mpi (repeatable)
    #[arg(hide_short_help = true, long, value_name = "ARG", allow_hyphen_values = true, help_heading = section::MLX)]
    pub(in crate::launch) mpi_arg: Vec<String>,

    /// Print the interpreter that --python names, or python3, and do nothing else
    #[arg(hide_short_help = true, long, help_heading = section::MLX)]
    pub(in crate::launch) print_python: bool,

    /// Run this program as ssh
    #[arg(hide_short_help = true, long, value_name = "PROGRAM", default_value = "ssh", help_heading = section::SSH)]
    pub(in crate::launch) ssh: OsString,

    /// Let the ranks meet at this address of this machine, a port of it (:7100), or both (10.0.0.1:7100); default: the addresses by
    /// which the hosts know it, and a free port, of COMITY_PORTS where that is set
    #[arg(hide_short_help = true, long, value_name = "ADDR[:PORT]", value_parser = MeetingPlace::parse, help_heading = section::HOSTS)]
    pub(in crate::launch) meet_at: Option<MeetingPlace>,

    /// Copy these files to every host that lacks them or has other content, into the directory of the ranks (repeatable)
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = section::HOSTS)]
    pub(in crate::launch) stage: Vec<PathBuf>,

    /// Do not copy this program to hosts that have no comity of its version
    #[arg(hide_short_help = true, long, help_heading = section::HOSTS)]
    pub(in crate::launch) no_stage_comity: bool,

    /// Let hosts run programs and scripts of the same name whose content differs
    #[arg(hide_short_help = true, long, help_heading = section::HOSTS)]
    pub(in crate::launch) mixed_programs: bool,

    /// Show the command of each host, and run nothing
    #[arg(long, help_heading = section::HOSTS)]
    pub(in crate::launch) dry_run: bool,

    /// Give MLX's ring this many addresses for each IP of a host
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = section::MLX)]
    pub(in crate::launch) connections_per_ip: u32,

    /// Give MLX's ring ports from this one on; default: free ports
    #[arg(hide_short_help = true, long, short = 'p', value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..), help_heading = section::MLX)]
    pub(in crate::launch) starting_port: Option<u16>,

    /// Let MLX's NCCL ranks meet at this port; default: a free port
    #[arg(hide_short_help = true, long, value_name = "PORT", help_heading = section::MLX)]
    pub(in crate::launch) nccl_port: Option<u16>,
}

impl FleetArgs {
    /// The request that the flags make. Every field is named here: a new flag does not compile until it has a place in the request.
    pub(in crate::launch) fn request(self) -> HostsRequest {
        let max_restarts = self.restarts_of_job();
        let Self {
            hosts,
            hostfile,
            // Of the job: see `LaunchArgs::request`.
            repeat_hosts: _,
            elastic: _,
            max_restarts: _,
            total,
            env_file,
            python,
            ssh_arg,
            wait_for_hosts,
            // Of other placements.
            mpi_arg: _,
            print_python: _,
            ssh,
            meet_at,
            stage,
            no_stage_comity,
            mixed_programs,
            dry_run,
            connections_per_ip,
            starting_port,
            nccl_port,
        } = self;
        HostsRequest {
            hosts: match hostfile {
                Some(path) => HostsSource::File(path),
                None => HostsSource::List(hosts.unwrap_or_else(|| "localhost".into())),
            },
            total: total.map(|n| n as usize),
            env_files: env_file,
            python,
            ssh,
            ssh_args: ssh_arg,
            max_restarts,
            wait_for_hosts,
            meet_at,
            stage,
            stages_program: !no_stage_comity,
            mixed_programs,
            dry_run,
            connections_per_ip: connections_per_ip as usize,
            starting_port,
            nccl_port,
        }
    }

    /// Number of times that the whole job is started again.
    pub(in crate::launch) fn restarts_of_job(&self) -> u32 {
        self.max_restarts.filter(|_| self.elastic.is_none()).unwrap_or(0)
    }

    /// `--elastic`, with the number of times that each rank is started again.
    pub(in crate::launch) fn elastic(&self) -> Option<(Elastic, u32)> {
        self.elastic.map(|elastic| (elastic, self.max_restarts.unwrap_or(RESTARTS)))
    }

    /// Returns whether something was asked for that the launcher of several hosts does; without a host it means this one.
    pub(in crate::launch) fn is_given(&self) -> bool {
        let hosts = self.hosts.is_some() || self.hostfile.is_some() || self.total.is_some();
        hosts || self.restarts_of_job() > 0 || self.of_several_hosts().iter().any(|(_, is_given)| *is_given)
    }

    /// Flags that the launcher of several hosts heeds, also where it is given none: each with whether it was given.
    pub(in crate::launch) fn of_several_hosts(&self) -> [(&'static str, bool); 8] {
        [
            ("--repeat-hosts", self.repeat_hosts.is_some()),
            ("--python", self.python.is_some()),
            ("--env-file", !self.env_file.is_empty()),
            ("--meet-at", self.meet_at.is_some()),
            ("--stage", !self.stage.is_empty()),
            ("--dry-run", self.dry_run),
            ("--starting-port", self.starting_port.is_some()),
            ("--nccl-port", self.nccl_port.is_some()),
        ]
    }

    /// Flags that only mean something where there is another host.
    pub(in crate::launch) fn of_ssh(&self) -> [(&'static str, bool); 4] {
        [
            ("--ssh-arg", !self.ssh_arg.is_empty()),
            ("--ssh", self.ssh != OsStr::new("ssh")),
            ("--no-stage-comity", self.no_stage_comity),
            ("--mixed-programs", self.mixed_programs),
        ]
    }

    /// Flags for jobs that are started again.
    pub(in crate::launch) fn of_restarts(&self) -> [(&'static str, bool); 1] {
        [("--wait-for-hosts", self.wait_for_hosts.is_some())]
    }

    /// Flags that need `--max-restarts`, where that is missing.
    pub(in crate::launch) fn of_waiting(&self) -> [(&'static str, bool); 1] {
        self.of_restarts().map(|(flag, is_given)| (flag, is_given && self.restarts_of_job() == 0))
    }

    /// `--connections-per-ip`
    pub(in crate::launch) fn has_connections(&self) -> bool {
        self.connections_per_ip != 1
    }

    /// `--print-python`
    pub(in crate::launch) fn interpreter(&self) -> &str {
        self.python.as_deref().unwrap_or("python3")
    }
}
