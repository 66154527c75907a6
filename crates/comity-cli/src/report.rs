//! `comity report`: what the flight records in a directory say together: who was where when a group failed, and for whom the
//! others waited.

mod secrets;

pub(crate) use secrets::Secrets;

use crate::{
    here, info, save,
    say::{CommandError, Exit, USAGE, complain, say},
};
use comity_launch::flights;
use flate2::{Compression, write::GzEncoder};
use secrets::is_secret;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// Most bytes of a file, from its end.
const MOST: u64 = 16 << 20;

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

pub(crate) fn report(args: ReportArgs) -> Exit {
    if let Some(file) = &args.bundle {
        let names = bundle(file, args.dir.as_deref()).map_err(CommandError::usage)?.join(", ");
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
    environment(&std::env::vars_os().collect::<Vec<_>>())
}

/// Writes one archive with what somebody else needs to help: logs, flight records, versions, settings. Returns the names of its files.
/// Secrets are taken out of every file: those of this process's variables, and what an output shows as one.
fn bundle(to: &Path, logs: Option<&Path>) -> Result<Vec<String>, String> {
    let vars: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    files.insert("versions.txt".into(), versions().into_bytes());
    files.insert("settings.txt".into(), info::all_settings().into_bytes());
    files.insert("environment.txt".into(), environment(&vars).into_bytes());
    if let Some(dir) = logs {
        let bad = |e: io::Error| format!("'{}': {e}", dir.display());
        for entry in std::fs::read_dir(dir).map_err(bad)? {
            let entry = entry.map_err(bad)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_ours = name.starts_with("rank-")
                && [".out", ".err", ".flight.json"].iter().any(|e| name.ends_with(e));
            // Opening a pipe would wait for its writer.
            if is_ours && entry.file_type().is_ok_and(|t| t.is_file()) {
                files.insert(format!("logs/{name}"), end_of(&entry.path()).map_err(bad)?);
            }
        }
        if let Ok((records, _)) = flights::read(dir)
            && !records.is_empty()
        {
            files.insert("report.txt".into(), flights::report(&records).into_bytes());
        }
    }
    let secrets = Secrets::of(&vars).map_err(|e| e.to_string())?;
    for text in files.values_mut() {
        *text = secrets.removed(std::mem::take(text));
    }
    let put = packed(&files).and_then(|archive| save::replace(to, &archive, save::FOR_ALL));
    put.map_err(|e| format!("--bundle '{}': {e}", to.display()))?;
    Ok(files.into_keys().collect())
}

fn versions() -> String {
    format!(
        "comity {}\nsystem {}\nhost {}\ncores {}\npage {} bytes\nwhen {}\n",
        here::VERSION,
        here::system(),
        here::host(),
        here::cores(),
        rustix::param::page_size(),
        humantime::format_rfc3339_seconds(std::time::SystemTime::now()),
    )
}

/// The variables that launchers and libraries of this kind read; no others, which are nobody's business.
fn environment(vars: &[(OsString, OsString)]) -> String {
    let known = [
        "COMITY_",
        "NCCL_",
        "MLX_",
        "OMPI_",
        "PMI",
        "SLURM_",
        "MASTER_",
        "CUDA_VISIBLE",
        "UCX_",
        "GLOO_",
        "TORCH",
    ];
    let alone = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
    let mut lines: Vec<String> = vars
        .iter()
        .map(|(n, v)| (n.to_string_lossy(), v.to_string_lossy()))
        .filter(|(n, _)| known.iter().any(|k| n.starts_with(k)) || alone.contains(&n.as_ref()))
        .map(|(n, v)| if is_secret(&n) { format!("{n}=[removed]") } else { format!("{n}={v}") })
        .collect();
    lines.sort();
    lines.join("\n") + "\n"
}

fn end_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST)))?;
    let mut text = Vec::new();
    file.take(MOST).read_to_end(&mut text)?;
    Ok(text)
}

fn packed(files: &BTreeMap<String, Vec<u8>>) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append_data(&mut header, format!("comity-report/{name}"), text.as_slice())?;
    }
    archive.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_taken_out_wherever_they_stand() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        let vars: Vec<(OsString, OsString)> = [
            ("COMITY_KEY_FILE", file.path().to_str().unwrap()),
            ("MY_API_TOKEN", "hush-hush-hush"),
            ("COMITY_RANK", "1"),
            ("NCCL_SECRET", "sh"),
            ("HOME", "/root"),
        ]
        .map(|(n, v)| (n.into(), v.into()))
        .into();
        let text = b"a 0123456789abcdef b hush-hush-hush hush-hush-hush";
        let text = Secrets::of(&vars).unwrap().removed(text.to_vec());
        assert_eq!(String::from_utf8(text).unwrap(), "a [removed] b [removed] [removed]");
        let shown = environment(&vars);
        assert!(shown.contains("COMITY_RANK=1\n") && shown.contains("NCCL_SECRET=[removed]"), "{shown}");
        assert!(!shown.contains("hush") && !shown.contains("HOME"), "{shown}");
    }
}
