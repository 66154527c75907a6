//! Deaths, stops, cuts and joiners, one after the other, while the ranks train: the state stays right, each place is filled again, and a rank
//! that lives through all of it holds no more at its end than at first.

use super::{
    Choice,
    job::{Job, LONG},
    rank::{LEFT_OUT, Line, Work},
};
use chaos::Held;
use rustix::{
    net::{Shutdown, shutdown},
    process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open},
};
use scope::Rng;
use std::{
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    os::fd::{OwnedFd, RawFd},
    time::{Duration, Instant},
};

/// Processes to which nothing happens any more after the first part of a run: what they hold is compared.
const VETERANS: usize = 2;
/// A rank is stopped for so much of the limit at most: it is given up, or not.
const STOP: f64 = 2.0;
/// Recovery that takes so much longer than twice the limit is told of.
const SLOW: Duration = Duration::from_secs(2);
/// The first part of a run, as a share of it. Then the holdings are first looked at.
const WARM: f64 = 0.2;

/// Faults, by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    KillTwo,
    Stop,
    Cut,
    CutFromStore,
    Join,
}

impl Fault {
    const ALL: [Self; 6] = [Self::Kill, Self::KillTwo, Self::Stop, Self::Cut, Self::Join, Self::CutFromStore];
}

/// Growth that the last groups explain, beside a tenth of the memory.
const MORE: Held = Held { descriptors: 16, threads: 4, kib: 2048 };

/// State of a run.
struct Chaos {
    job: Job,
    choice: Choice,
    random: Rng,
    veterans: Vec<u32>,
    /// Latest group of each process that lives: rank and size.
    places: BTreeMap<u32, (usize, usize)>,
    /// Stopped processes, and when each wakes.
    stopped: Vec<(u32, Instant)>,
    /// Processes that are to end, or may.
    doomed: Vec<u32>,
    counts: BTreeMap<Fault, usize>,
    groups: u64,
    last: u64,
    longest: Duration,
}

pub(super) fn run(choice: &Choice) -> Result<(), String> {
    let job = Job::start(Ipv4Addr::LOCALHOST, choice, Work::Training, None)?;
    let mut chaos = Chaos {
        job,
        choice: choice.clone(),
        random: Rng::new(choice.seed),
        veterans: Vec::new(),
        places: BTreeMap::new(),
        stopped: Vec::new(),
        doomed: Vec::new(),
        counts: BTreeMap::new(),
        groups: 0,
        last: 0,
        longest: Duration::ZERO,
    };
    chaos.settle(choice.ranks)?;
    let began = Instant::now();
    let length = Duration::from_secs_f64(choice.minutes * 60.0);
    let mut first: Option<Vec<Held>> = None;
    let mut told = Instant::now();
    while began.elapsed() < length {
        let fault = chaos.strike()?;
        let from = Instant::now();
        chaos.settle(choice.ranks)?;
        chaos.longest = chaos.longest.max(from.elapsed());
        if from.elapsed() > Duration::from_secs_f64(choice.detection * STOP) + SLOW {
            println!(
                "{:.0} s: all places were filled {:.1} s after {fault:?}",
                began.elapsed().as_secs_f64(),
                from.elapsed().as_secs_f64()
            );
        }
        if first.is_none() && began.elapsed() > length.mul_f64(WARM) {
            chaos.spare();
            first = Some(chaos.held());
        }
        if told.elapsed() > Duration::from_secs(30) {
            told = Instant::now();
            println!(
                "{:.0} s, after {fault:?}: {}; {:?}",
                began.elapsed().as_secs_f64(),
                chaos.words(),
                chaos.held()
            );
        }
        let pause = Duration::from_millis(200 + chaos.random.below(2_500) as u64);
        chaos.listen(pause)?;
    }
    let first = first.unwrap_or_default();
    let at_last = chaos.held();
    let words = chaos.words();
    println!("held after a fifth {first:?}\nheld at the end    {at_last:?}");
    chaos.finish()?;
    if let Some((first, last)) = first
        .iter()
        .zip(&at_last)
        .find(|(first, last)| last.exceeds(**first, Held { kib: MORE.kib + first.kib / 10, ..MORE }))
    {
        return Err(format!("a rank holds more than before: {first:?}, then {last:?}"));
    }
    println!(
        "=> {:.0} s, {} ranks, seed {}: {words}",
        began.elapsed().as_secs_f64(),
        choice.ranks,
        choice.seed
    );
    Ok(())
}

impl Chaos {
    fn words(&self) -> String {
        let counts: Vec<_> = self.counts.iter().map(|(f, n)| format!("{n} {f:?}")).collect();
        let longest = self.longest.as_secs_f64();
        format!(
            "{}; {} groups; all places filled {longest:.1} s after a fault at most",
            counts.join(", "),
            self.groups
        )
    }

    /// From now on nothing happens to the lowest ranks.
    fn spare(&mut self) {
        let mut by_rank: Vec<(usize, u32)> =
            self.places.iter().map(|(pid, (rank, _))| (*rank, *pid)).collect();
        by_rank.sort_unstable();
        self.veterans = by_rank.into_iter().take(VETERANS).map(|(_, pid)| pid).collect();
    }

    fn held(&self) -> Vec<Held> {
        self.veterans.iter().map(|pid| Held::by(*pid)).collect()
    }

    /// Processes that a fault may hit.
    fn prey(&mut self) -> Vec<u32> {
        let safe = |pid: &u32| !self.veterans.contains(pid) && !self.doomed.contains(pid);
        let mut prey: Vec<u32> = self.places.keys().copied().filter(safe).collect();
        for i in (1..prey.len()).rev() {
            prey.swap(i, self.random.below(i + 1));
        }
        prey
    }

    fn strike(&mut self) -> Result<Fault, String> {
        // The lowest rank calls joiners, and one that is cut from the store cannot: only ranks above the spared ones are.
        let kinds = Fault::ALL.len() - usize::from(self.veterans.is_empty());
        let fault = Fault::ALL[self.random.below(kinds)];
        let prey = self.prey();
        let pair = || prey.first().copied().zip(prey.get(1).copied()).ok_or("too few ranks");
        *self.counts.entry(fault).or_default() += 1;
        match fault {
            Fault::Kill => self.kill(pair()?.0),
            Fault::KillTwo => {
                let (a, b) = pair()?;
                self.kill(a);
                let pause = Duration::from_millis(self.random.below(60) as u64);
                self.listen(pause)?;
                self.kill(b);
            }
            Fault::Stop => {
                let for_ = self.choice.detection * STOP * (self.random.below(1_000) as f64 / 1_000.0);
                let pid = pair()?.0;
                self.job.signal(pid, Signal::STOP);
                self.stopped.push((pid, Instant::now() + Duration::from_secs_f64(for_)));
            }
            Fault::Cut => {
                let (a, b) = pair()?;
                self.cut(a, b, false)?;
            }
            Fault::CutFromStore => {
                let (a, b) = pair()?;
                self.cut(a, b, true)?;
            }
            Fault::Join => {
                // One more than there are places; then one of the others leaves.
                self.job.join(None)?;
                let pause = Duration::from_millis(self.random.below(500) as u64);
                self.listen(pause)?;
                self.kill(pair()?.1);
            }
        }
        Ok(fault)
    }

    fn kill(&mut self, pid: u32) {
        self.doomed.push(pid);
        self.job.signal(pid, Signal::KILL);
    }

    /// Shut a TCP connection of two processes, as a firewall does: each end takes it for the end of the other. Or that of a process to the store.
    fn cut(&mut self, a: u32, b: u32, to_store: bool) -> Result<(), String> {
        let ends = connections(b);
        let port = format!(":{:04X}", self.job.port());
        let is_it = |c: &&Connection| match to_store {
            true => c.far.ends_with(&port),
            false => ends.iter().any(|end| end.near == c.far && end.far == c.near),
        };
        let all = connections(a);
        let all: Vec<_> = all.iter().filter(is_it).collect();
        let Some(one) = all.get(self.random.below(all.len())) else { return Ok(()) };
        let words = |e: rustix::io::Errno| format!("cannot cut a connection of process {a}: {e}");
        shutdown(&take(a, one.fd).map_err(words)?, Shutdown::Both).map_err(words)
    }

    /// Hear for a while, and replace those that end.
    fn listen(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.wake();
            let soon = until.min(Instant::now() + Duration::from_millis(20));
            if let Some((pid, line)) = self.job.hear(soon)? {
                self.note(pid, line)?;
            }
        }
        Ok(())
    }

    fn wake(&mut self) {
        let now = Instant::now();
        let (due, later): (Vec<_>, _) =
            std::mem::take(&mut self.stopped).into_iter().partition(|(_, at)| *at <= now);
        self.stopped = later;
        for (pid, _) in due {
            self.job.signal(pid, Signal::CONT);
        }
    }

    fn note(&mut self, pid: u32, line: Option<Line>) -> Result<(), String> {
        match line {
            Some(line) if line.event == "sum" => {
                self.places.insert(pid, (line.rank, line.size));
                if let Some(formed) =
                    line.numbers.get(1).filter(|_| line.rank == 0 && line.numbers[1] > self.last)
                {
                    self.last = *formed;
                    self.groups += 1;
                }
                Ok(())
            }
            Some(_) => Ok(()),
            None => {
                self.places.remove(&pid);
                let status = self.job.reap(pid)?;
                let killed = self.doomed.contains(&pid);
                if !killed && status.code() != Some(i32::from(LEFT_OUT)) {
                    return Err(format!("process {pid} ended by itself: {status}"));
                }
                if self.veterans.contains(&pid) {
                    return Err(format!("process {pid}, which nothing was done to, was left out"));
                }
                self.doomed.retain(|p| *p != pid);
                if self.job.pids().len() < self.choice.ranks {
                    self.job.join(None)?;
                }
                Ok(())
            }
        }
    }

    /// Wait until all places are filled: all that live are in one group.
    fn settle(&mut self, size: usize) -> Result<(), String> {
        let until = Instant::now() + LONG;
        loop {
            self.listen(Duration::from_millis(20))?;
            let live = self.job.pids();
            let of_one = |pid: &u32| self.places.get(pid).is_some_and(|(_, of)| *of == live.len());
            if live.len() >= size
                && self.stopped.is_empty()
                && self.doomed.is_empty()
                && live.iter().all(of_one)
            {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!(
                    "{LONG:?} after a fault not all ranks are in one group: {live:?} live, {:?}, stopped {:?}, doomed {:?}; {}",
                    self.places,
                    self.stopped,
                    self.doomed,
                    self.words()
                ));
            }
        }
    }

    /// Have all end, each with the right state after the same step.
    fn finish(&mut self) -> Result<(), String> {
        let steps = self.job.end()?;
        let steps: BTreeMap<u32, u64> = steps
            .into_iter()
            .filter(|(_, l)| l.event == "done")
            .filter_map(|(p, l)| Some((p, *l.numbers.first()?)))
            .collect();
        let all: Vec<_> = steps.values().collect();
        println!("{} ranks ended after step {:?}, with the right state", all.len(), all.first());
        match all.windows(2).all(|w| w[0] == w[1]) {
            true => Ok(()),
            false => Err(format!("not all ended after the same step: {steps:?}")),
        }
    }
}

/// TCP connection that stands, as one process has it.
struct Connection {
    fd: RawFd,
    /// Addresses as in /proc/net/tcp.
    near: String,
    far: String,
}

fn connections(pid: u32) -> Vec<Connection> {
    let tcp = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let stands = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, near, far, "01", _, _, _, _, _, inode, ..] = words[..] else { return None };
        Some((format!("socket:[{inode}]"), (near.to_owned(), far.to_owned())))
    };
    let by_inode: BTreeMap<String, (String, String)> = tcp.lines().filter_map(stands).collect();
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let connection = |entry: fs::DirEntry| {
        let (near, far) = by_inode.get(fs::read_link(entry.path()).ok()?.to_str()?)?.clone();
        Some(Connection { fd: entry.file_name().to_str()?.parse().ok()?, near, far })
    };
    entries.filter_map(connection).collect()
}

/// A copy of another process's descriptor.
fn take(pid: u32, fd: RawFd) -> rustix::io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid as i32).ok_or(rustix::io::Errno::SRCH)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())
}
