//! Live jobs of this host: where their launchers listen, and what a launcher answers.
//!
//! A launcher makes a Unix socket, `PID.sock`, in a folder that only its user can enter, and removes it at the end. Who connects
//! gets one [`JobView`] as JSON, then the end. No rank takes part, so a job that hangs answers too. Times in it are ages, since hosts' clocks differ.
use comity::tools::{FlightCall, FlightState, LiveGroup, LiveRank, Sheet};
use rustix::process::{Pid, geteuid};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
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
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

/// Asks the launcher behind a socket.
pub fn ask(socket: &Path) -> io::Result<JobView> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER))?;
    let mut text = Vec::new();
    stream.take(LONGEST).read_to_end(&mut text)?;
    parse(&text).map_err(|why| io::Error::new(ErrorKind::InvalidData, why))
}

/// The live jobs of this user on this host, the oldest first, each with its socket. What a launcher that was killed has left is removed.
pub fn jobs() -> io::Result<Vec<(PathBuf, JobView)>> {
    let dir = folder();
    match is_ours(&dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
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
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
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

const VERSION: u32 = 1;

/// A job at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    pub comity_live: u32,
    pub version: String,
    /// A hash of the job's name.
    pub job_id: String,
    /// Process id.
    pub launcher: i32,
    pub host: String,
    pub command: String,
    /// Ranks in all.
    pub size: usize,
    /// Only the ranks of this host are told of.
    pub is_part: bool,
    /// Hosts that did not answer.
    pub silent: Vec<String>,
    pub up_ns: u64,
    pub ranks: Vec<RankView>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankView {
    pub rank: usize,
    pub host: String,
    pub pid: i32,
    pub state: RankState,
    /// Number of times that it was started again, alone.
    #[serde(default)]
    pub restarts: u32,
    /// When this was seen, by its host's clock, in nanoseconds since 1970.
    pub at_ns: u64,
    pub groups: Vec<GroupView>,
    pub links: Vec<LinkView>,
    /// Calls that succeeded.
    pub calls: u64,
    pub errors: u64,
    /// Payload bytes sent.
    pub sent: u64,
    /// Time asleep in calls.
    pub waited_ns: u64,
    pub silence_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankState {
    /// Not started yet.
    #[default]
    Waiting,
    Running,
    /// By a signal or a debugger.
    Stopped,
    /// With this code, 128 + N after signal N.
    Ended(u8),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupView {
    /// Hexadecimal; 0 is the group of the whole job.
    pub id: String,
    pub rank: usize,
    pub size: usize,
    /// Number of times that the job's group was formed again, up to this one.
    #[serde(default)]
    pub epoch: u32,
    /// Epoch in which this process joined.
    #[serde(default)]
    pub since: u32,
    /// Ranks that were in the group before and are not in this one, and those that came with it.
    #[serde(default)]
    pub left: u32,
    #[serde(default)]
    pub joined: u32,
    /// This rank's number among those that `waits_for` counts, where the group was formed again.
    #[serde(default)]
    pub number: usize,
    /// Epoch in which its world began. 0: the job's start, and numbers are the launcher's.
    #[serde(default)]
    pub world: u32,
    pub made: u64,
    /// A rank of the job.
    pub waits_for: Option<usize>,
    pub asleep_ns: u64,
    /// The last ones, oldest first.
    pub calls: Vec<CallView>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallView {
    /// Description of the call, as in errors.
    pub text: String,
    pub op: String,
    pub seq: u64,
    /// Payload of one rank.
    pub bytes: u64,
    /// "begun", "done" or "failed".
    pub state: String,
    /// Ages of its begin and end, in nanoseconds.
    pub began_ns: u64,
    pub ended_ns: u64,
    pub waited_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkView {
    /// Number of the peer in its world, and the epoch in which that world began.
    pub peer: usize,
    #[serde(default)]
    pub world: u32,
    pub kind: String,
    pub sent: u64,
    pub received: u64,
}

impl JobView {
    /// Adds what another launcher told of the same job.
    pub fn join(&mut self, other: Self) {
        self.ranks.extend(other.ranks);
        self.ranks.sort_by_key(|r| r.rank);
        self.ranks.dedup_by_key(|r| r.rank);
        self.silent.extend(other.silent);
        self.is_part &= other.is_part && self.ranks.len() < self.size;
    }

    /// Reason for which a host that is [`Self::silent`] told of no rank, as far as that is known here.
    pub fn silence(&self, host: &str) -> String {
        if self.ranks.len() >= self.size {
            return format!("host {host} has no rank of this job: all {} are shown", self.size);
        }
        match self.is_part {
            false => format!("host {host} does not answer; its ranks are missing here"),
            true => format!(
                "host {host} told of no rank: it does not answer, or no job runs there; `ssh {host} comity top --once` says which"
            ),
        }
    }

    /// Sentence on the ranks that this shows, where these are not all.
    pub fn missing(&self) -> Option<String> {
        let shown = self.ranks.len();
        if !self.is_part || shown >= self.size {
            return None;
        }
        let mut hosts: Vec<&str> = self.ranks.iter().map(|r| r.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let s = if hosts.len() == 1 { "" } else { "s" };
        Some(format!(
            "shown are {shown} of {} ranks, those of host{s} {}; for all ask where the job was launched, or name its hosts (comity top a,b)",
            self.size,
            hosts.join(", ")
        ))
    }
}

impl RankView {
    /// The group that the job formed again last, as far as this rank is in it.
    pub fn newest(&self) -> Option<&GroupView> {
        self.groups.iter().filter(|g| g.epoch > 0).max_by_key(|g| g.epoch)
    }
}

impl GroupView {
    /// The call under way.
    pub fn current(&self) -> Option<&CallView> {
        self.calls.last().filter(|c| c.state == FlightState::Begun.name())
    }
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// View of a rank, from its sheet.
pub fn rank(sheet: &Sheet, rank: usize, host: &str) -> RankView {
    let live = LiveRank::of(sheet);
    let tally = sheet.read();
    let at_ns = now();
    RankView {
        rank,
        host: host.into(),
        at_ns,
        groups: live.groups.iter().map(|g| group(g, at_ns)).collect(),
        links: live
            .links
            .iter()
            .map(|l| LinkView {
                peer: l.peer,
                world: l.world,
                kind: l.kind.map_or_else(String::new, |k| k.to_string()),
                sent: l.sent,
                received: l.received,
            })
            .collect(),
        calls: tally.ops.iter().map(|o| o.1).sum(),
        errors: tally.errors,
        sent: tally.ops.iter().map(|o| o.2).sum(),
        waited_ns: tally.parked.as_nanos() as u64,
        silence_ns: tally.longest_silence.as_nanos() as u64,
        ..RankView::default()
    }
}

fn group(g: &LiveGroup, now: u64) -> GroupView {
    let call = |c: &FlightCall| CallView {
        text: c.info.to_string(),
        op: c.info.op.name().into(),
        seq: c.info.seq,
        bytes: c.info.count as u64 * c.info.dtype.map_or(1, |d| d.size() as u64),
        state: c.state.name().into(),
        began_ns: now.saturating_sub(c.begin),
        ended_ns: now.saturating_sub(c.end),
        waited_ns: c.waited,
    };
    GroupView {
        id: format!("{:x}", g.id),
        rank: g.rank,
        size: g.size,
        epoch: g.epoch,
        since: g.since,
        left: g.left,
        joined: g.joined,
        number: g.number,
        world: g.world,
        made: g.made,
        waits_for: g.waits_for,
        asleep_ns: g.asleep.as_nanos() as u64,
        calls: g.calls.iter().map(call).collect(),
    }
}

/// For a job of `size` ranks.
pub fn job(job_id: &str, host: &str, size: usize) -> JobView {
    JobView {
        comity_live: VERSION,
        version: crate::VERSION.into(),
        job_id: job_id.into(),
        host: host.into(),
        size,
        ..JobView::default()
    }
}

/// Reads an answer.
pub fn parse(text: &[u8]) -> Result<JobView, String> {
    let all: serde_json::Value =
        serde_json::from_slice(text).map_err(|e| format!("the launcher's answer is no JSON: {e}"))?;
    match all["comity_live"].as_u64() {
        Some(n) if n == u64::from(VERSION) => {
            serde_json::from_value(all).map_err(|e| format!("the launcher's answer cannot be read: {e}"))
        }
        Some(n) => Err(format!("the launcher answers in version {n}; this comity reads version {VERSION}")),
        None => Err("what listens there is no launcher of Comity".into()),
    }
}

/// Limit on a write of the answer to a visitor.
const LIMIT: Duration = Duration::from_secs(1);

/// The socket, while this value lives.
#[derive(Debug)]
pub(crate) struct Door(PathBuf);

impl Door {
    /// Listens, and has a thread answer with what `view` says.
    pub(crate) fn open(launcher: Pid, view: impl Fn() -> JobView + Send + 'static) -> io::Result<Self> {
        let path = socket_of(launcher);
        let listener = listen(&path)?;
        let door = Self(path);
        // It ends with the process: nothing in it is worth waiting for.
        std::thread::Builder::new().name("live".into()).spawn(move || {
            loop {
                match listener.accept() {
                    // Who went away has seen enough.
                    Ok((stream, _)) => drop(answer(&stream, &view)),
                    Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        })?;
        Ok(door)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        // Only the last one of this user's finds it empty.
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

/// Removes what a supervisor of this launcher that was killed has left.
pub(crate) fn clear(launcher: Pid) {
    drop(Door(socket_of(launcher)));
}

fn listen(path: &PathBuf) -> io::Result<UnixListener> {
    let dir = path.parent().unwrap_or(path);
    let mut tries = 0;
    loop {
        make_folder(dir)?;
        match UnixListener::bind(path) {
            Ok(listener) => {
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                return Ok(listener);
            }
            // Left by a launcher that was killed and had this number.
            Err(e) if e.kind() == ErrorKind::AddrInUse && tries < 3 => fs::remove_file(path)?,
            // Another job has removed the folder meanwhile.
            Err(e) if e.kind() == ErrorKind::NotFound && tries < 3 => {}
            Err(e) => return Err(e),
        }
        tries += 1;
    }
}

fn answer(mut stream: &UnixStream, view: &impl Fn() -> JobView) -> io::Result<()> {
    if !may_ask(stream) {
        return Ok(());
    }
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(&serde_json::to_vec(&view())?)
}

/// This user, or root. The folder and the mode keep others out; this does so where a file system knows no modes.
fn may_ask(stream: &UnixStream) -> bool {
    #[cfg(target_os = "linux")]
    {
        comity::tools::peer_user(stream).is_ok_and(|uid| uid == geteuid().as_raw() || uid == 0)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (stream, geteuid());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_ranks_is_not_said_to_be_silent() {
        let ranks = |n| (0..n).map(|rank| RankView { rank, ..RankView::default() }).collect();
        let whole = JobView { ranks: ranks(2), silent: vec!["d".into()], ..job("7f", "h", 2) };
        assert_eq!(whole.silence("d"), "host d has no rank of this job: all 2 are shown");
        let part = JobView { is_part: true, ranks: ranks(1), ..job("7f", "h", 2) };
        assert!(part.silence("d").contains("it does not answer, or no job runs there"));
        let launcher = JobView { is_part: false, ..part };
        assert_eq!(launcher.silence("d"), "host d does not answer; its ranks are missing here");
    }

    #[test]
    fn an_answer_comes_back_as_it_was() {
        let mut view = job("7f", "h", 2);
        let mut one = rank(&Sheet::create().unwrap().0, 1, "h");
        one.state = RankState::Ended(137);
        one.groups.push(GroupView { calls: vec![CallView::default()], ..GroupView::default() });
        view.ranks.push(one);
        assert_eq!(parse(&serde_json::to_vec(&view).unwrap()).unwrap(), view);
        assert!(parse(b"x").unwrap_err().contains("no JSON"));
        assert!(parse(b"{}").unwrap_err().contains("no launcher"));
        assert!(parse(br#"{"comity_live":9}"#).unwrap_err().contains("version 9"));
        assert!(parse(br#"{"comity_live":1}"#).unwrap_err().contains("cannot be read"));
    }
}
