//! `comity cluster`: finds hosts and the cables between them, draws them, gives them addresses, writes the hostfile.
pub(crate) mod agent;
mod announce;
mod config;
mod find;
mod setup;
mod team;

pub(crate) use find::beacons;
pub(crate) use team::{HostTeam, Member, ReachArgs, SshArgs};

use crate::say::Exit;
use std::path::PathBuf;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ClusterCommand {
    /// Say what the hosts are, and how they are cabled
    Find(find::FindArgs),
    /// Say in this host's networks that it is there, for `comity cluster find --announced`
    Announce(announce::AnnounceArgs),
    /// Find the cables, give them addresses, write a hostfile for `comity launch` and `mlx.launch`
    Config(config::ConfigArgs),
    /// Undo what `comity cluster config --auto-setup` did
    Undo {
        /// The file that it wrote
        file: PathBuf,
        /// Say what would be run, and run nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        reach: ReachArgs,
    },
}

pub(crate) fn cluster(command: ClusterCommand) -> Exit {
    match command {
        ClusterCommand::Find(args) => find::find(args),
        ClusterCommand::Announce(args) => announce::announce(&args),
        ClusterCommand::Config(args) => config::config(args),
        ClusterCommand::Undo { file, dry_run, reach } => setup::undo(&file, dry_run, &reach),
    }
    .map(|()| 0)
}
