//! `cargo xtask demo`, and the door to all other tasks: the program of `tools/toolbox`, which takes longer to compile.

use std::{
    env,
    ffi::OsString,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};
use tasks::{child::catch_signals, demo, place::built};

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let result = if args == ["demo"] { train() } else { Err(open_toolbox(&args)) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
    }
}

fn train() -> Result<(), String> {
    catch_signals().map_err(|e| format!("cannot catch signals: {e}"))?;
    demo::run(demo::Profile::Demo).map(drop)
}

/// Become the toolbox, built if it is not yet. Returns why this process could not.
fn open_toolbox(args: &[OsString]) -> String {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Of the whole workspace, so that what it needs has the features that the tests' build has it with, and is compiled once.
    let build = ["build", "--quiet", "--workspace", "--bin", "toolbox"];
    match Command::new(cargo).args(build).status() {
        Ok(status) if status.success() => {}
        Ok(status) => return format!("the toolbox cannot be built: cargo ended with {status}"),
        Err(why) => return format!("cannot start cargo: {why}"),
    }
    let why = Command::new(built("debug", "toolbox")).args(args).exec();
    format!("cannot start the toolbox: {why}")
}
