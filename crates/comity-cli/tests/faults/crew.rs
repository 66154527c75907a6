//! Starts ranks as processes of their own, hears them, and ends them.
use super::{
    actor::{ROLE, SAYS, monotonic},
    common::{Meeting, deadline, hear, launch, slowness, this_test, wait_for},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    collections::HashMap,
    io::Write,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Stands for a rank in what `comity launch` says itself.
pub(crate) const LAUNCHER: usize = 98;

/// Ranks that run, each as a child, or all under `comity launch`.
pub(crate) struct Crew {
    children: Vec<Child>,
    stdin: HashMap<usize, ChildStdin>,
    heard: Vec<Value>,
    lines: Receiver<Value>,
    readers: Vec<JoinHandle<()>>,
    pids: HashMap<usize, Pid>,
    _meeting: Option<Meeting>,
}

impl Crew {
    /// All `n` ranks, which play `role`.
    pub(crate) fn start(role: &str, n: usize, env: &[(&str, &str)]) -> Self {
        Self::start_some(role, n, 0..n, |_| env.to_vec())
    }

    /// Some ranks of `n`, with variables that differ by rank.
    pub(crate) fn start_some<'a>(
        role: &str,
        n: usize,
        ranks: impl IntoIterator<Item = usize>,
        env: impl Fn(usize) -> Vec<(&'a str, &'a str)>,
    ) -> Self {
        let meeting = Meeting::new(n);
        let (send, lines) = channel();
        let mut crew = Self::new(lines);
        for rank in ranks {
            let mut command = this_test(RANK);
            meeting.join(rank, &mut command);
            command.env(ROLE, role).envs(env(rank));
            let mut child = crew.spawn(command, &send);
            crew.stdin.insert(rank, child.stdin.take().unwrap());
            crew.pids.insert(rank, Pid::from_child(&child));
            crew.children.push(child);
        }
        crew._meeting = Some(meeting);
        crew
    }

    /// Like [`start`](Self::start), all ranks, under `comity launch`.
    pub(crate) fn launch(role: &str, n: usize, env: &[(&str, &str)]) -> Self {
        let (send, lines) = channel();
        let mut crew = Self::new(lines);
        let mut command = launch(&["-n", &n.to_string()], &this_test(RANK));
        command.env(ROLE, role).envs(env.iter().copied());
        // As under a shell: then SIGTSTP stops it.
        command.process_group(0);
        let mut child = crew.spawn(command, &send);
        crew.stdin.insert(0, child.stdin.take().unwrap());
        crew.children.push(child);
        crew
    }

    fn new(lines: Receiver<Value>) -> Self {
        let children = Vec::new();
        let heard = Vec::new();
        let readers = Vec::new();
        Self { children, stdin: HashMap::new(), heard, lines, readers, pids: HashMap::new(), _meeting: None }
    }

    fn spawn(&mut self, mut command: Command, send: &Sender<Value>) -> Child {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let send = send.clone();
        self.readers.extend(hear(&mut child, move |line| {
            let said = if let Some((_, words)) = line.split_once(SAYS) {
                serde_json::from_str(words).unwrap()
            } else if let Some(words) =
                line.strip_prefix("comity launch: ").filter(|words| !words.starts_with("how the ranks ended"))
            {
                serde_json::json!({ "event": "verdict", "text": words, "rank": LAUNCHER })
            } else if line.contains("panicked") || line.contains("wrong sum") {
                serde_json::json!({ "event": "panic", "text": line, "rank": 99 })
            } else {
                return;
            };
            let _ = send.send(said);
        }));
        child
    }

    /// Events of this kind of each of `ranks`, in that order, as soon as all have come.
    pub(crate) fn hear(&mut self, event: &str, ranks: impl IntoIterator<Item = usize>) -> Vec<Value> {
        let end = Instant::now() + deadline();
        ranks
            .into_iter()
            .map(|rank| {
                loop {
                    let said = |v: &Value| v["event"] == event && v["rank"] == rank;
                    if let Some(v) = self.heard.iter().find(|v| said(v)) {
                        return v.clone();
                    }
                    let left = end.saturating_duration_since(Instant::now());
                    let Ok(v) = self.lines.recv_timeout(left) else {
                        panic!("rank {rank} did not say {event}; said was {:#?}", self.heard)
                    };
                    assert_ne!(v["event"], "panic", "{v}");
                    if let (Some(rank), Some(pid)) = (v["rank"].as_u64(), v["pid"].as_i64()) {
                        self.pids.insert(rank as usize, Pid::from_raw(pid as i32).unwrap());
                    }
                    self.heard.push(v);
                }
            })
            .collect()
    }

    /// Event of this kind from `rank`, of those that were heard already.
    pub(crate) fn said(&self, rank: usize, event: &str) -> Option<Value> {
        self.heard.iter().find(|v| v["rank"] == rank && v["event"] == event).cloned()
    }

    /// Events of this kind of `ranks` until the launcher ended. It gives survivors a second, which on a crowded machine may be too short for
    /// some of them, but not for all.
    pub(crate) fn said_in_time(&mut self, event: &str, ranks: impl IntoIterator<Item = usize>) -> Vec<Value> {
        self.code();
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        self.heard.extend(self.lines.try_iter());
        assert!(self.heard.iter().all(|v| v["event"] != "panic"), "{:#?}", self.heard);
        let said: Vec<_> = ranks.into_iter().filter_map(|rank| self.said(rank, event)).collect();
        assert!(!said.is_empty(), "nobody said {event}: {:#?}", self.heard);
        said
    }

    /// When the signal was sent.
    pub(crate) fn signal(&self, rank: usize, signal: Signal) -> u64 {
        let at = monotonic();
        kill_process(self.pids[&rank], signal).unwrap();
        at
    }

    /// To `comity launch`.
    pub(crate) fn signal_launcher(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.children[0]), signal).unwrap();
    }

    pub(crate) fn tell(&mut self, rank: usize, word: &str) {
        if let Err(e) = writeln!(self.stdin.get_mut(&rank).unwrap(), "{word}") {
            self.readers.drain(..).for_each(|reader| reader.join().unwrap());
            self.heard.extend(self.lines.try_iter());
            panic!("rank {rank} cannot be told {word}: {e}; said was {:#?}", self.heard);
        }
    }

    /// The exit code of `comity launch`, or the only child's.
    pub(crate) fn code(&mut self) -> Option<i32> {
        wait_for("the end", || self.children[0].try_wait().unwrap()).code()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.stdin.clear();
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

/// The test that is each rank's program.
const RANK: &str = "actor::rank";
/// A limit on silence that no rank reaches: who is told sooner is told of the death itself.
pub(crate) const PATIENT: (&str, &str) = ("COMITY_DETECTION", "60");

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn text(said: &Value) -> &str {
    said["text"].as_str().unwrap()
}

pub(crate) fn others(n: usize, not: usize) -> impl Iterator<Item = usize> + Clone {
    (0..n).filter(move |r| *r != not)
}

/// Bound in milliseconds, larger where everything takes longer.
pub(crate) fn at_most(millis: u32) -> f64 {
    f64::from(millis * slowness())
}

/// Milliseconds from `since` until it was said.
pub(crate) fn took(said: &Value, since: u64) -> f64 {
    said["at"].as_u64().unwrap().saturating_sub(since) as f64 / 1e6
}

/// Milliseconds, at most so many, after which each of these errors has named `victim`, in such words.
pub(crate) fn all_name(errors: &[Value], victim: usize, since: u64, within: u32, words: &str) -> Vec<f64> {
    let check = |said: &Value| {
        let told = text(said).contains(&format!("rank {victim} ")) && text(said).contains(words);
        assert!(told, "rank {victim}: {said}");
        let took = took(said, since);
        assert!(took < at_most(within), "{took} ms: {said}");
        took
    };
    errors.iter().map(check).collect()
}
