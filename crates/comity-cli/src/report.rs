//! `comity report`: what the flight records in a directory say together: who was where when a group failed, and for whom the
//! others waited.

mod bundle;
mod secrets;

pub(crate) use secrets::Secrets;

use crate::{
    save,
    say::{CommandError, Exit, USAGE, complain, say},
};
use comity_launch::flights;
use std::path::PathBuf;

/// Arguments of `comity report`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A rank writes a flight record, rank-N.group-ID.flight.json, when one of its groups fails and comity launch
has --log-dir (or COMITY_LOG_DIR is set). Exit code: 0 when there were records and all could be read.")]
pub(crate) struct ReportArgs {
    /// The directory with the flight records
    #[arg(value_name = "DIR", required_unless_present = "bundle")]
    dir: Option<PathBuf>,

    /// Write the calls as a trace for Perfetto or chrome://tracing to this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Write an archive for those who are to help: logs and records of DIR, versions, settings, no secrets
    #[arg(long, value_name = "FILE.tar.gz", conflicts_with = "trace")]
    bundle: Option<PathBuf>,
}

/// `comity report`
pub(crate) fn report(args: ReportArgs) -> Exit {
    if let Some(file) = &args.bundle {
        let names = bundle::bundle(file, args.dir.as_deref()).map_err(CommandError::usage)?.join(", ");
        return say(format!("{} has {names}; look at it before you pass it on\n", file.display()), 0);
    }
    let dir = args.dir.unwrap_or_default();
    let (records, bad) = flights::read(&dir).map_err(CommandError::usage)?;
    if records.is_empty() && bad.is_empty() {
        return Err(CommandError::usage(format!(
            "'{}' holds no flight records (rank-N.group-ID.flight.json); they are written when a group \
             fails under comity launch --log-dir",
            dir.display()
        )));
    }
    if records.is_empty() {
        return Err(CommandError { code: USAGE, problems: bad });
    }
    bad.iter().for_each(|why| complain("report", why));
    if let Some(file) = &args.trace {
        save::replace(file, flights::trace(&records).as_bytes(), save::FOR_ALL)
            .map_err(|e| CommandError::usage(format!("--trace '{}': {e}", file.display())))?;
    }
    say(flights::report(&records), if bad.is_empty() { 0 } else { USAGE })
}

/// Variables of this process that launchers and libraries read, a line each.
pub(crate) fn variables() -> String {
    bundle::environment(&std::env::vars_os().collect::<Vec<_>>())
}
