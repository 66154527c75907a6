//! The `comity` command as a library: [`run`] takes the arguments and returns the exit code, so that
//! other front ends (a Python entry point, a test) can offer the same command.
mod launch;

use clap::{Parser, Subcommand};
use std::ffi::OsString;

#[derive(Debug, Parser)]
#[command(name = "comity", version, about = "Collective communication for machine learning")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// One variant per subcommand; each lives in its own module with its arguments and one function that runs it.
#[derive(Debug, Subcommand)]
enum Command {
    /// Start N copies of a command on this machine as the ranks of one group
    Launch(launch::Args),
}

/// Runs `comity` with these arguments (the first is the program's name) and returns the exit code.
///
/// Call it from the main thread before other threads are started: `comity launch` forks.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => {
            // A closed terminal is no reason to change the exit code.
            let _ = e.print();
            return u8::try_from(e.exit_code()).unwrap_or(2);
        }
    };
    match cli.command {
        Command::Launch(args) => launch::launch(args),
    }
}
