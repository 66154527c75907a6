//! `comity report`: what the flight records in a directory say together: who was where when a group failed, and for whom the
//! others waited.

mod bundle;
mod secrets;
mod trace;
mod words;

pub(crate) use secrets::Secrets;

use crate::{save, say::say};
use comity::tools::Flight;
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// No job has more groups and ranks than this that fail at once.
const MOST_FILES: usize = 100_000;
/// The exit code for input that a user can correct.
const USAGE: u8 = 2;

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

/// `comity report`; the exit code.
pub(crate) fn report(args: ReportArgs) -> u8 {
    let refuse = |why: &str| {
        eprintln!("comity report: {why}");
        USAGE
    };
    if let Some(file) = &args.bundle {
        return match bundle::bundle(file, args.dir.as_deref()) {
            Ok(names) => {
                let names = names.join(", ");
                let text = format!("{} has {names}; look at it before you pass it on\n", file.display());
                say("report", text, 0)
            }
            Err(why) => refuse(&why),
        };
    }
    let dir = args.dir.unwrap_or_default();
    let (flights, bad) = match read(&dir) {
        Ok(read) => read,
        Err(why) => return refuse(&why),
    };
    for why in &bad {
        refuse(why);
    }
    if flights.is_empty() {
        if bad.is_empty() {
            return refuse(&format!(
                "'{}' holds no flight records (rank-N.group-ID.flight.json); they are written when a group \
                 fails under comity launch --log-dir",
                dir.display()
            ));
        }
        return USAGE;
    }
    if let Some(file) = &args.trace
        && let Err(e) = save::replace(file, trace::trace(&flights).as_bytes(), save::FOR_ALL)
    {
        return refuse(&format!("--trace '{}': {e}", file.display()));
    }
    say("report", words::report(&flights), if bad.is_empty() { 0 } else { USAGE })
}

/// The first lines of the report on a job that has ended, for its launcher.
pub(crate) fn first_lines(dir: &Path, most: usize) -> Vec<String> {
    match read(dir) {
        Ok((flights, bad)) => {
            let text = if flights.is_empty() { String::new() } else { words::report(&flights) };
            bad.into_iter().chain(text.lines().map(String::from)).take(most).collect()
        }
        Err(why) => vec![why],
    }
}

/// Variables of this process that launchers and libraries read, a line each.
pub(crate) fn variables() -> String {
    bundle::environment(&std::env::vars_os().collect::<Vec<_>>())
}

/// Removes the records that an earlier job has left here.
pub(crate) fn clear(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)?.flatten() {
        if entry.file_name().to_str().is_some_and(|n| Flight::of_name(n).is_some()) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// All records of a directory, by group and rank, and what is wrong with the files that hold none.
fn read(dir: &Path) -> Result<(Vec<Flight>, Vec<String>), String> {
    let bad = |e| format!("'{}': {e}", dir.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(bad)? {
        let name = entry.map_err(bad)?.file_name();
        if let Some(name) = name.to_str().filter(|n| Flight::of_name(n).is_some()) {
            names.push(name.to_owned());
        }
        if names.len() > MOST_FILES {
            return Err(format!("'{}' holds more than {MOST_FILES} flight records", dir.display()));
        }
    }
    let mut flights = Vec::new();
    let mut refused = Vec::new();
    names.sort();
    for name in names {
        match load(dir, &name) {
            Ok(flight) => flights.push(flight),
            Err(why) => refused.push(format!("'{}' {why}", dir.join(&name).display())),
        }
    }
    flights.sort_by_key(|f| (f.group, f.rank));
    Ok((flights, refused))
}

fn load(dir: &Path, name: &str) -> Result<Flight, String> {
    let path = dir.join(name);
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(&path).map_err(|e| format!("cannot be read: {e}"))?.is_file() {
        return Err("is not a file".into());
    }
    let file = File::open(path).map_err(|e| format!("cannot be read: {e}"))?;
    let mut bytes = Vec::new();
    file.take(Flight::MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| format!("cannot be read: {e}"))?;
    Flight::parse(name, &bytes)
}
