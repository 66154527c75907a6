//! Live jobs of this host: where their launchers listen, and what a launcher answers.
//!
//! A launcher makes a Unix socket, `PID.sock`, in a folder that only its user can enter, and removes it at the end. Who connects
//! gets one [`JobView`] as JSON, then the end. No rank takes part, so a job that hangs answers too.
pub mod view;

use rustix::process::{Pid, geteuid};
use std::{
    fs, io,
    io::Read,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};
use view::JobView;

/// Time that a launcher has to answer: it asks other hosts for at most a second.
const ANSWER: Duration = Duration::from_secs(5);
/// An answer is never longer.
const LONGEST: u64 = 256 << 20;

/// The folder of sockets: in the user's runtime folder, else one for the user among the temporary files.
pub fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|d| d.is_absolute() && d.is_dir()) {
        Some(dir) => dir.join("comity"),
        None => std::env::temp_dir().join(format!("comity-{}", geteuid().as_raw())),
    }
}

/// Socket of the launcher with this process id.
pub fn socket_of(pid: Pid) -> PathBuf {
    folder().join(format!("{}.sock", pid.as_raw_pid()))
}

/// Makes the folder, if need be. It must be this user's alone: among the temporary files anybody can make one of its name.
pub fn make_folder(dir: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    is_ours(dir)
}

fn is_ours(dir: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(dir)?;
    if meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    let why =
        format!("'{}' is not a folder of this user's alone (mode 0700); remove or mend it", dir.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Asks the launcher behind a socket.
pub fn ask(socket: &Path) -> io::Result<JobView> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER))?;
    let mut text = Vec::new();
    stream.take(LONGEST).read_to_end(&mut text)?;
    view::parse(&text).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
}

/// The live jobs of this user on this host, the oldest first, each with its socket. What a launcher that was killed has left is removed.
pub fn jobs() -> io::Result<Vec<(PathBuf, JobView)>> {
    let dir = folder();
    match is_ours(&dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        out => out?,
    }
    let mut found: Vec<(PathBuf, JobView)> = Vec::new();
    for entry in fs::read_dir(dir)?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|e| e != "sock") {
            continue;
        }
        match ask(&path) {
            Ok(view) => found.push((path, view)),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = fs::remove_file(&path);
            }
            // It has just ended, or does not answer.
            Err(_) => {}
        }
    }
    // A host's own part of a job whose launcher is here as well.
    let whole: Vec<String> =
        found.iter().filter(|(_, v)| !v.is_part).map(|(_, v)| v.job_id.clone()).collect();
    found.retain(|(_, v)| !v.is_part || !whole.contains(&v.job_id));
    found.sort_by_key(|(_, v)| (std::cmp::Reverse(v.up_ns), v.launcher));
    Ok(found)
}

/// The one job that is meant: by the launcher's process id or the begin of the job's id, or the only one there is. Its sockets: one, or that of each
/// launcher that has a part of it.
pub fn find(wanted: Option<&str>) -> Result<Vec<PathBuf>, String> {
    let all = jobs().map_err(|e| format!("cannot look for jobs: {e}"))?;
    let list = |all: &[&(PathBuf, JobView)]| {
        let lines = all.iter().map(|(_, v)| format!("  {:<8} {}  {}", v.launcher, v.job_id, v.command));
        lines.collect::<Vec<_>>().join("\n")
    };
    let none = "jobs that `comity launch` started by this user on this host can be looked at";
    let matches: Vec<_> = all
        .iter()
        .filter(|(_, v)| {
            wanted.is_none_or(|w| v.launcher.to_string() == w || !w.is_empty() && v.job_id.starts_with(w))
        })
        .collect();
    match (&matches[..], wanted) {
        ([one, more @ ..], _) if more.iter().all(|m| m.1.job_id == one.1.job_id) => {
            Ok(matches.iter().map(|m| m.0.clone()).collect())
        }
        ([], None) => Err(format!("no job runs here; {none}")),
        ([], Some(w)) if all.is_empty() => Err(format!("no job runs here, and so none called '{w}'; {none}")),
        ([], Some(w)) => Err(format!(
            "no job here has the launcher's process id or job id '{w}'; there are:\n{}",
            list(&all.iter().collect::<Vec<_>>())
        )),
        (many, _) => Err(format!("several jobs run here; name one by its first word:\n{}", list(many))),
    }
}
