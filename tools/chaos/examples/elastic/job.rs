//! Processes of a job, and the store at which they meet.

use super::{
    Choice,
    rank::{LEFT_OUT, Line, Work, key},
};
use comity::tools::Store;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    net::Ipv4Addr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

/// The longest wait for whatever is to happen.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// Job of processes that this one started.
#[derive(Debug)]
pub(super) struct Job {
    store: Store,
    choice: Choice,
    work: Work,
    /// The network namespace of every second process that is started, if there is one.
    second: Option<String>,
    started: usize,
    ranks: BTreeMap<u32, Child>,
    send: Sender<(u32, Option<Line>)>,
    lines: Receiver<(u32, Option<Line>)>,
}

impl Job {
    /// Start a store at an address of this host and the first ranks, every second process in another namespace, if there is one.
    pub(super) fn start(
        at: Ipv4Addr,
        choice: &Choice,
        work: Work,
        second: Option<String>,
    ) -> Result<Self, String> {
        let store =
            Store::start((at, 0).into(), choice.ranks, &key(), "elastic", LONG).map_err(|e| e.to_string())?;
        let (send, lines) = channel();
        let choice = choice.clone();
        let ranks = BTreeMap::new();
        let mut job = Self { store, choice, work, second, started: 0, ranks, send, lines };
        for rank in 0..job.choice.ranks {
            job.add(&rank.to_string(), None)?;
        }
        Ok(job)
    }

    /// Start a joiner, in a network namespace if one is given.
    pub(super) fn join(&mut self, host: Option<&str>) -> Result<u32, String> {
        self.add("join", host)
    }

    fn add(&mut self, place: &str, host: Option<&str>) -> Result<u32, String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let c = &self.choice;
        self.started += 1;
        let second = || self.second.as_deref().filter(|_| self.started.is_multiple_of(2));
        let host = host.or_else(second);
        let mut command = Command::new(if host.is_some() { "ip".as_ref() } else { program.as_os_str() });
        if let Some(host) = host {
            command.args(["netns", "exec", host]).arg(&program);
        }
        let mut child = command
            .args(["rank", place, &c.ranks.to_string(), &self.store.addr().to_string(), &c.links])
            .args([&c.detection.to_string(), &self.work.word()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start a rank: {e}"))?;
        let pid = child.id();
        if let Some(stdout) = child.stdout.take() {
            let send = self.send.clone();
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if let Some(line) = Line::parse(&line) {
                        let _ = send.send((pid, Some(line)));
                    }
                }
                let _ = send.send((pid, None));
            });
        }
        self.ranks.insert(pid, child);
        Ok(pid)
    }

    /// Port of the store.
    pub(super) fn port(&self) -> u16 {
        self.store.addr().port()
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.ranks.keys().copied().collect()
    }

    pub(super) fn signal(&self, pid: u32, signal: Signal) {
        if let Some(pid) = Pid::from_raw(pid as i32) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Forget a process that has ended; how it did.
    pub(super) fn reap(&mut self, pid: u32) -> Result<ExitStatus, String> {
        let mut child = self.ranks.remove(&pid).ok_or("no such rank")?;
        child.wait().map_err(|e| e.to_string())
    }

    /// The next line of a process, or none of one that has ended.
    pub(super) fn hear(&self, until: Instant) -> Result<Option<(u32, Option<Line>)>, String> {
        match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(heard) => Ok(Some(heard)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Wait until all of these have added up in a group of `size`.
    pub(super) fn sums(&mut self, pids: &[u32], size: usize) -> Result<BTreeMap<u32, Line>, String> {
        let until = Instant::now() + LONG;
        let mut sums = BTreeMap::new();
        while sums.len() < pids.len() {
            let (pid, line) = self.hear(until)?.ok_or_else(|| {
                let missing: Vec<_> = pids.iter().filter(|p| !sums.contains_key(*p)).collect();
                format!("no group of {size} within {LONG:?}: {missing:?} have not added up")
            })?;
            match line {
                Some(line) if line.event == "sum" && line.size == size && pids.contains(&pid) => {
                    sums.insert(pid, line);
                }
                None if pids.contains(&pid) => return Err(format!("the rank of process {pid} ended")),
                _ => {}
            }
        }
        Ok(sums)
    }

    /// Wait until some have added up in a group of `size` and the others have ended: nobody of these is in a group meanwhile.
    pub(super) fn parts(&mut self, stay: &[u32], end: &[u32], size: usize) -> Result<(), String> {
        let until = Instant::now() + LONG;
        let mut sums = BTreeSet::new();
        while sums.len() < stay.len() || self.ranks.keys().any(|pid| end.contains(pid)) {
            let (pid, line) = self.hear(until)?.ok_or_else(|| {
                let sums = sums.len();
                format!("within {LONG:?} {sums} of {stay:?} formed a group of {size}, and of {end:?} not all ended")
            })?;
            match line {
                Some(line) if line.event == "sum" && end.contains(&pid) => {
                    return Err(format!("two groups: process {pid} is in one of {}", line.size));
                }
                Some(line) if line.event == "sum" && line.size == size => _ = sums.insert(pid),
                None if stay.contains(&pid) => return Err(format!("the rank of process {pid} ended")),
                None => match self.reap(pid)?.code() {
                    Some(code) if code == i32::from(LEFT_OUT) => {}
                    code => return Err(format!("process {pid} ended with {code:?}, and was not left out")),
                },
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Have all ranks end, and wait for that: what each said last, where it ended in good order.
    pub(super) fn end(&mut self) -> Result<BTreeMap<u32, Line>, String> {
        self.ranks.values_mut().for_each(|child| drop(child.stdin.take()));
        let until = Instant::now() + LONG;
        let mut last = BTreeMap::new();
        while !self.ranks.is_empty() {
            let words = || format!("{:?} did not end within {LONG:?}", self.pids());
            match self.hear(until)?.ok_or_else(words)? {
                (pid, Some(line)) => _ = last.insert(pid, line),
                (pid, None) if self.ranks.contains_key(&pid) => {
                    let status = self.reap(pid)?;
                    if !status.success() {
                        return Err(format!("process {pid} ended with {status}"));
                    }
                }
                _ => {}
            }
        }
        Ok(last)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in self.ranks.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
