//! The processes of a lane: started, heard, signalled, and counted. A lane is process 1 of its namespace, so every process
//! there is its own and becomes its child when nobody else is left.

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, waitpid};
use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Read},
    process::{ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

/// Nanoseconds of a clock that all processes share.
pub fn monotonic() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Something that a process said.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// Number of the process, counted from the lane's start.
    pub(super) by: usize,
    pub(super) event: String,
    pub(super) rank: usize,
    /// By [`monotonic`].
    pub(super) at: u64,
    pub(super) fields: Vec<String>,
}

impl Said {
    pub(super) fn field(&self, i: usize) -> &str {
        self.fields.get(i).map_or("", String::as_str)
    }

    /// Return whether a rank got an error of its call, or of its join.
    pub(super) fn is_error(&self) -> bool {
        self.field(0) != "ok"
    }

    /// The ranks that an error holds to blame, by its fields for programs.
    pub(super) fn blamed(&self) -> Vec<usize> {
        self.field(1).split(',').filter_map(|rank| rank.parse().ok()).collect()
    }

    /// Return whether this rank is among them.
    pub(super) fn names(&self, rank: usize) -> bool {
        self.blamed().contains(&rank)
    }

    /// Return whether an error says that ranks were never seen.
    pub(super) fn is_missing(&self) -> bool {
        self.joins("missing")
    }

    /// Return whether an error says that the store of rank 0 ended before all had met.
    pub(super) fn lost_store(&self) -> bool {
        self.joins("ended") && self.names(0) && self.field(4) != "-"
    }

    fn joins(&self, cause: &str) -> bool {
        self.field(0) == "join" && self.field(3) == cause
    }

    /// Rank that saw another go, if not the one that reports it.
    pub(super) fn seen_by(&self) -> Option<usize> {
        self.field(5).parse().ok()
    }

    /// Milliseconds from `since` until it was said.
    pub(super) fn took(&self, since: u64) -> f64 {
        (self.at as f64 - since as f64) / 1e6
    }
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) by: usize,
    pub(super) pid: Pid,
    pub(super) stdin: Option<ChildStdin>,
}

#[derive(Debug)]
pub(super) struct Processes {
    count: usize,
    send: Sender<Said>,
    lines: Receiver<Said>,
    ended: HashMap<i32, WaitStatus>,
}

impl Processes {
    pub(super) fn new() -> Self {
        let (send, lines) = channel();
        Self { count: 0, send, lines, ended: HashMap::new() }
    }

    pub(super) fn start(&mut self, mut command: Command) -> Result<Started, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("cannot start {command:?}: {e}"))?;
        let by = self.count;
        self.count += 1;
        if let Some(out) = child.stdout.take() {
            follow(by, out, self.send.clone());
        }
        if let Some(err) = child.stderr.take() {
            follow(by, err, self.send.clone());
        }
        let pid = Pid::from_child(&child);
        self.ended.remove(&pid.as_raw_pid());
        Ok(Started { by, pid, stdin: child.stdin.take() })
    }

    /// The next thing that is said until then.
    pub(super) fn hear(&self, until: Instant) -> Option<Said> {
        self.lines.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    /// End of a process, if it has ended; also takes note of all others that have.
    pub(super) fn ended(&mut self, pid: Pid) -> Option<WaitStatus> {
        while let Ok(Some((pid, status))) = waitpid(None, WaitOptions::NOHANG) {
            self.ended.insert(pid.as_raw_pid(), status);
        }
        self.ended.get(&pid.as_raw_pid()).copied()
    }

    /// Wait for the end of a process, until then.
    pub(super) fn wait(&mut self, pid: Pid, until: Instant) -> Option<WaitStatus> {
        loop {
            let status = self.ended(pid);
            if status.is_some() || Instant::now() >= until {
                return status;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// End one that is known, and wait for it.
    pub(super) fn end(&mut self, pid: Pid) {
        if self.ended(pid).is_none() {
            signal(pid, Signal::KILL);
            self.wait(pid, Instant::now() + Duration::from_secs(10));
        }
    }

    /// Every other process of this namespace that lives, with its name.
    pub(super) fn alive(&mut self, but: &[Pid]) -> Vec<(Pid, String)> {
        self.ended(Pid::INIT);
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|e| Pid::from_raw(e.file_name().to_str()?.parse().ok()?));
        let own = rustix::process::getpid();
        numbers
            .filter(|pid| *pid != own && !but.contains(pid))
            .filter_map(|pid| {
                let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
                let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
                (!rest.starts_with(['Z', 'X'])).then(|| (pid, name.to_owned()))
            })
            .collect()
    }
}

pub(super) fn signal(pid: Pid, signal: Signal) {
    // One that has ended is as good as signalled.
    let _ = rustix::process::kill_process(pid, signal);
}

/// Passes on what a process writes; lines that are not events of a rank are "noise".
fn follow(by: usize, from: impl Read + Send + 'static, to: Sender<Said>) {
    thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            let said = parse(by, &line).unwrap_or_else(|| Said {
                by,
                event: "noise".into(),
                rank: usize::MAX,
                at: monotonic(),
                fields: vec![line.into_owned()],
            });
            if to.send(said).is_err() {
                return;
            }
        }
        let end = Said { by, event: "eof".into(), rank: usize::MAX, at: monotonic(), fields: Vec::new() };
        let _ = to.send(end);
    });
}

fn parse(by: usize, line: &str) -> Option<Said> {
    let mut fields = line.strip_prefix("@chaos\t")?.split('\t');
    let event = fields.next()?.to_owned();
    let rank = fields.next()?.parse().ok()?;
    let at = fields.next()?.parse().ok()?;
    Some(Said { by, event, rank, at, fields: fields.map(str::to_owned).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read() {
        let said = parse(4, "@chaos\tout\t2\t77\tlost\t1\trank 1 died").unwrap();
        assert_eq!((said.by, said.rank, said.at, said.event.as_str()), (4, 2, 77, "out"));
        assert_eq!((said.field(1), said.field(2), said.field(9)), ("1", "rank 1 died", ""));
        assert!(parse(0, "thread panicked").is_none() && parse(0, "@chaos\tout\tx\t1").is_none());
    }

    fn out(fields: [&str; 6]) -> Said {
        Said { by: 0, event: "out".into(), rank: 0, at: 0, fields: fields.map(str::to_owned).into() }
    }

    #[test]
    fn whom_an_error_names() {
        let lost = out(["lost", "12", "rank 1 (host m, pid 7) gave up: rank 12 died", "-", "-", "3"]);
        assert!(lost.names(12) && !lost.names(1) && !lost.names(2) && lost.seen_by() == Some(3));
        let nobody = out(["os", "-", "no memory", "-", "-", "-"]);
        assert!(nobody.blamed().is_empty() && nobody.seen_by().is_none() && !nobody.is_missing());
        let late = out(["join", "1,3", "only 2 of 4 ranks joined", "missing", "-", "-"]);
        assert!(late.is_missing() && late.names(1) && late.names(3) && !late.names(0));
        let ended = out(["join", "1", "rank 1 ended before all ranks had joined", "ended", "-", "-"]);
        assert!(ended.names(1) && !ended.is_missing() && !ended.lost_store());
        let store = out(["join", "0", "rank 2 lost rank 0's store", "ended", "127.0.0.1:9", "-"]);
        assert!(store.lost_store() && !store.is_missing());
    }
}
