//! The processes of the job: a store as the launcher's, and ranks; each may open 256 files.
use super::common::{hear, sockets, this_test, wait_for};
use comity::{Config, Key, LinkKind, ReduceOp, tools::Store};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use std::{
    cell::RefCell,
    fs,
    io::{BufRead, Write},
    net::SocketAddr,
    process::{Child, ChildStdin, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, channel},
    },
    thread,
    time::Duration,
};

pub(crate) const KEY: [u8; 32] = [5; 32];
const ROLE: &str = "HOSTILE_TEST_ROLE";
const SAYS: &str = "member: ";
/// Longer than anything takes that is to succeed.
const LONG: Duration = Duration::from_secs(90);
/// `ulimit -n`.
const FILES: u64 = 256;
const SPARE: usize = 16;

fn say(event: &str, words: impl std::fmt::Display) {
    println!("{SAYS}{event} {words}");
}

/// Plays the part of a member if this process is one, and returns whether it is.
pub(crate) fn acted() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), maximum }).unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["store"] => {
            let store =
                Store::start(([127, 0, 0, 1], 0).into(), 3, &Key::from(KEY), "hostile", LONG).unwrap();
            say("listens", store.addr());
            std::io::stdin().lock().lines().next();
        }
        ["rank", rank, at] => add_up(rank.parse().unwrap(), at),
        _ => panic!("no role {role:?}"),
    }
    true
}

/// All-reduces with checked sums, until rank 0 is told to stop. Standard input: `hoard`, `calls` or `stop`.
fn add_up(rank: usize, at: &str) {
    let config = Config::new(rank, 3).store(at).unwrap().job("hostile").key(Key::from(KEY));
    let group = match config.links([LinkKind::Tcp]).join_timeout(LONG).connect() {
        Ok(group) => group,
        Err(e) => return say("failed", e),
    };
    say("ready", group.size());
    let stop = Arc::new(AtomicBool::new(false));
    let calls = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&stop);
    let count = Arc::clone(&calls);
    thread::spawn(move || {
        let mut hoard = Vec::new();
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match line.as_str() {
                "hoard" => {
                    while let Ok(f) = fs::File::open("/dev/null") {
                        hoard.push(f);
                    }
                    hoard.truncate(hoard.len() - SPARE);
                    say("hoards", hoard.len());
                }
                "calls" => say("calls", count.load(Ordering::Relaxed)),
                _ => told.store(true, Ordering::Relaxed),
            }
        }
    });
    let mut x = vec![0u32; 16 << 10];
    loop {
        x.fill(1 + rank as u32);
        x[0] = u32::from(stop.load(Ordering::Relaxed));
        if let Err(e) = group.all_reduce(&mut x, ReduceOp::Sum) {
            return say("failed", e);
        }
        if let Some(wrong) = x[1..].iter().find(|v| **v != 6) {
            return say("failed", format!("a sum is {wrong}, not 6"));
        }
        calls.fetch_add(1, Ordering::Relaxed);
        if x[0] > 0 {
            return say("done", "all sums right");
        }
    }
}

/// A process of the job.
pub(crate) struct Member {
    pub(crate) name: String,
    child: Child,
    stdin: RefCell<ChildStdin>,
    lines: Receiver<String>,
}

impl Member {
    pub(crate) fn start(test: &str, role: &str) -> Self {
        let mut command = this_test(test);
        let mut child = command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        hear(&mut child, move |line| {
            if let Some((_, words)) = line.split_once(SAYS) {
                let _ = send.send(words.to_owned());
            }
        });
        let stdin = RefCell::new(child.stdin.take().unwrap());
        let name = role.split(' ').take(2).collect::<Vec<_>>().join(" ");
        Self { name, child, stdin, lines }
    }

    /// Text of the next event, which must be of this kind.
    pub(crate) fn hear(&self, event: &str) -> String {
        match self.lines.recv_timeout(LONG) {
            Ok(line) => match line.split_once(' ') {
                Some((e, words)) if e == event => words.to_owned(),
                _ => panic!("{} did not say {event:?} but: {line}", self.name),
            },
            Err(e) => panic!("{} did not say {event:?}: {e}", self.name),
        }
    }

    pub(crate) fn tell(&self, line: &str) {
        self.stdin.borrow_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Number of all-reduces it has made.
    pub(crate) fn calls(&self) -> u64 {
        self.tell("calls");
        self.hear("calls").parse().unwrap()
    }

    fn proc(&self, what: &str) -> String {
        format!("/proc/{}/{what}", self.child.id())
    }

    /// Number of descriptors it has open.
    pub(crate) fn files(&self) -> usize {
        fs::read_dir(self.proc("fd")).unwrap_or_else(|e| panic!("{}: {e}", self.name)).count()
    }

    pub(crate) fn await_files(&self, n: usize) {
        wait_for(&format!("{n} descriptors of {}", self.name), || (self.files() == n).then_some(()));
    }

    /// Wait until `n` connections stand.
    pub(crate) fn await_connections(&self, n: usize) {
        wait_for(&format!("connections of {}", self.name), || (self.connections() >= n).then_some(()));
        // The last of them may have to say who it is.
        thread::sleep(Duration::from_millis(500));
    }

    /// Bytes of it in memory.
    pub(crate) fn memory(&self) -> usize {
        let text = fs::read_to_string(self.proc("status")).unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// Processor time of the thread that listens.
    pub(crate) fn control_time(&self) -> Duration {
        let tasks = fs::read_dir(self.proc("task")).unwrap().flatten();
        let ticks = tasks.filter_map(|t| {
            let stat = fs::read_to_string(t.path().join("stat")).ok()?;
            let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
            let fields: Vec<&str> = rest.split(' ').collect();
            let time = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
            ["comity-control", "comity-store"].contains(&name).then_some(time)
        });
        Duration::from_millis(ticks.sum::<u64>() * 1000 / rustix::param::clock_ticks_per_second())
    }

    /// Addresses at which it listens.
    pub(crate) fn listeners(&self) -> Vec<SocketAddr> {
        let of = |at: &String| {
            let (ip, port) = at.split_once(':').unwrap();
            let ip = u32::from_str_radix(ip, 16).unwrap().to_ne_bytes();
            SocketAddr::from((ip, u16::from_str_radix(port, 16).unwrap()))
        };
        sockets(self.child.id(), "0A").iter().map(of).collect()
    }

    fn connections(&self) -> usize {
        sockets(self.child.id(), "01").len()
    }

    pub(crate) fn end(mut self) {
        wait_for(&format!("the end of {}", self.name), || self.child.try_wait().unwrap());
        assert!(self.child.wait().unwrap().success(), "{}", self.name);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
