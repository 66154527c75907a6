//! Starts ranks as processes of their own, hears them, and ends them.
use super::{
    actor::{ROLE, SAYS, monotonic},
    patience::patient,
};
use comity::{Key, tools::Store};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Longer than anything takes that is to succeed, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(60);
const KEY: [u8; 32] = [9; 32];
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
    _meet: Option<(Store, tempfile::NamedTempFile)>,
}

impl Crew {
    /// `ranks` of `n`, which play `role` in the test of this name.
    pub(crate) fn start(
        test: &str,
        role: &str,
        n: usize,
        ranks: impl IntoIterator<Item = usize>,
        env: &[(&str, &str)],
    ) -> Self {
        Self::start_each(test, role, n, ranks, |_| {
            env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
        })
    }

    /// Like [`start`](Self::start), with variables that differ by rank.
    pub(crate) fn start_each(
        test: &str,
        role: &str,
        n: usize,
        ranks: impl IntoIterator<Item = usize>,
        env: impl Fn(usize) -> Vec<(String, String)>,
    ) -> Self {
        let store =
            Store::start(([127, 0, 0, 1], 0).into(), n, &Key::from(KEY), "faults", patient(LONG)).unwrap();
        let mut key = tempfile::NamedTempFile::new().unwrap();
        key.write_all(&KEY).unwrap();
        let (send, lines) = channel();
        let mut crew = Self::new(lines);
        for rank in ranks {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(words(test));
            for (name, value) in [
                ("COMITY_RANK", rank.to_string()),
                ("COMITY_SIZE", n.to_string()),
                ("COMITY_STORE", store.addr().to_string()),
                ("COMITY_JOB", "faults".into()),
            ] {
                command.env(name, value);
            }
            command.env("COMITY_KEY_FILE", key.path()).env(ROLE, role).envs(env(rank));
            let mut child = crew.spawn(command, &send);
            crew.stdin.insert(rank, child.stdin.take().unwrap());
            crew.pids.insert(rank, Pid::from_child(&child));
            crew.children.push(child);
        }
        crew._meet = Some((store, key));
        crew
    }

    /// Like [`start`](Self::start), all ranks, under `comity launch`.
    pub(crate) fn launch(test: &str, role: &str, n: usize, env: &[(&str, &str)]) -> Self {
        let (send, lines) = channel();
        let mut crew = Self::new(lines);
        let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
        command.args(["launch", "-n", &n.to_string(), "--"]).arg(std::env::current_exe().unwrap());
        command.args(words(test)).env(ROLE, role).envs(env.iter().copied());
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
        Self { children, stdin: HashMap::new(), heard, lines, readers, pids: HashMap::new(), _meet: None }
    }

    fn spawn(&mut self, mut command: Command, send: &Sender<Value>) -> Child {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for out in out {
            let send = send.clone();
            self.readers.push(std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if let Some((_, words)) = line.split_once(SAYS) {
                        let _ = send.send(serde_json::from_str(words).unwrap());
                    } else if let Some(words) = line
                        .strip_prefix("comity launch: ")
                        .filter(|words| !words.starts_with("how the ranks ended"))
                    {
                        let _ = send
                            .send(serde_json::json!({ "event": "verdict", "text": words, "rank": LAUNCHER }));
                    } else if line.contains("panicked") || line.contains("wrong sum") {
                        let _ = send.send(serde_json::json!({ "event": "panic", "text": line, "rank": 99 }));
                    }
                }
            }));
        }
        child
    }

    /// Events of this kind of each of `ranks`, in that order, as soon as all have come.
    pub(crate) fn hear(&mut self, event: &str, ranks: impl IntoIterator<Item = usize>) -> Vec<Value> {
        let end = Instant::now() + patient(LONG);
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
        let end = Instant::now() + patient(LONG);
        loop {
            if let Some(status) = self.children[0].try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
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

fn words(test: &str) -> Vec<String> {
    ["--exact", test, "--nocapture", "--test-threads=1"].map(Into::into).into()
}
