//! `comity cluster`: finds hosts and the cables between them, draws them, gives them addresses, writes the hostfile.
pub(crate) mod agent;
mod announce;
mod config;
mod find;
mod setup;
mod team;
mod whole;

pub(crate) use team::{HostTeam, Member, ReachArgs, SshArgs};
pub(crate) use whole::{answer_limit, beacons, token};

use std::path::PathBuf;

/// Subcommands of `comity cluster`.
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

/// The exit code for input that a user can correct.
pub(crate) const BAD_INPUT: u8 = 2;
/// The exit code where something is not as it should be.
pub(crate) const FAULTY: u8 = 1;

/// Runs the command and returns the exit code.
pub(crate) fn cluster(command: ClusterCommand) -> u8 {
    let done = match command {
        ClusterCommand::Find(args) => find::find(args),
        ClusterCommand::Announce(args) => announce::announce(&args),
        ClusterCommand::Config(args) => config::config(args),
        ClusterCommand::Undo { file, dry_run, reach } => setup::undo(&file, dry_run, &reach),
    };
    match done {
        Ok(()) => 0,
        Err((code, problems)) => {
            problems.iter().for_each(|p| eprintln!("comity cluster: {p}"));
            code
        }
    }
}

/// Failure of a command: the exit code and its sentences.
type Trouble = (u8, Vec<String>);

/// Prints it on standard output.
fn tell(text: impl AsRef<[u8]>) -> Result<(), Trouble> {
    crate::say::said(text.as_ref()).map_err(|why| (FAULTY, vec![why]))
}

fn usage(problem: impl Into<String>) -> Trouble {
    (BAD_INPUT, vec![problem.into()])
}
