//! The `comity` command.
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(comity_cli::run(std::env::args_os()))
}
