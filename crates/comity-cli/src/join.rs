//! `comity join`: a program on this host joins a job that runs.
use crate::say::{CommandError, Exit};
use comity::{HostPort, Key};
use comity_launch::{KEY_FILE, OURS, find_program, job_name};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const AFTER: &str = "\
The job is one of `comity launch --elastic`, started with the same key (COMITY_KEY_FILE=FILE) or with --insecure. Its
launcher prints the command that joins it. Make the key with `comity key new`, and copy it with `comity key copy`.
The command waits at the job until the ranks form their group again; it ends with an error when the job ends before.
Its exit code is the one of the command. Start it once for each process that is to join.

The command finds COMITY_JOIN=1, COMITY_STORE, COMITY_JOB and COMITY_KEY_FILE or COMITY_INSECURE in its environment,
and calls comity::init() or comity.init() like any rank.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct JoinArgs {
    /// Address of the job's store, HOST:PORT, or several with commas between
    #[arg(value_name = "JOB")]
    job: String,

    /// Take the job's key from this file (default: that of COMITY_KEY_FILE)
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    key_file: Option<PathBuf>,

    /// Join a job that was started with --insecure, and has no key
    #[arg(long)]
    insecure: bool,

    /// The command that joins, with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes the command; returns where that cannot be.
pub(crate) fn join(args: &JoinArgs) -> Exit {
    let (mut command, program) = prepare(args).map_err(CommandError::usage)?;
    let e = command.exec();
    Err(CommandError::faulty(format!("cannot start '{program}': {e}")))
}

fn prepare(args: &JoinArgs) -> Result<(Command, String), String> {
    for at in args.job.split(',') {
        at.trim().parse::<HostPort>().map_err(|e| {
            format!(
                "JOB '{}': {e}; give the address that `comity launch --elastic` prints, as in 10.0.0.1:7100",
                args.job
            )
        })?;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let (name, words) = args.command.split_first().ok_or("there is no command")?;
    let program = find_program(name, None, &path)?;
    let mut command = Command::new(&program);
    command.arg0(name).args(words);
    // LOCAL_RANK alone says which device to take.
    for name in OURS.iter().filter(|name| !name.starts_with("LOCAL_")) {
        command.env_remove(name);
    }
    command.env("COMITY_JOIN", "1").env("COMITY_STORE", &args.job).env("COMITY_JOB", job_name());
    if args.insecure {
        command.env("COMITY_INSECURE", "1");
    } else {
        command.env(KEY_FILE, key_file(args)?);
    }
    Ok((command, program.display().to_string()))
}

/// File with the job's key, which can be read.
fn key_file(args: &JoinArgs) -> Result<PathBuf, String> {
    let given = args
        .key_file
        .clone()
        .or_else(|| std::env::var_os(KEY_FILE).filter(|f| !f.is_empty()).map(Into::into));
    let file = given.ok_or_else(|| {
        format!("the job's key is missing: name its file with --key-file, or in {KEY_FILE}; for a job without a key give --insecure")
    })?;
    Key::from_file(&file).map_err(|e| e.to_string())?;
    std::path::absolute(&file).map_err(|e| format!("--key-file {}: {e}", file.display()))
}
