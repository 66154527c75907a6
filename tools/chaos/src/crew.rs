//! Ranks that live through many trials: each is a process that joins one job after the other.

use super::{
    fault::{MOST, Plan},
    net,
    processes::{Processes, Said, Started, monotonic, signal},
};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use std::{
    io::Write,
    ops::Range,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Limit on anything that must come, on a machine that does other things too.
pub(super) const LONG: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Member {
    process: Started,
    /// Least that it held after a job: descriptors, threads, shared maps.
    held: Option<Vec<usize>>,
}

#[derive(Debug)]
pub(super) struct Crew {
    worker: PathBuf,
    /// True if the members are on hosts of their own: two on each, and then one on each.
    hosts: bool,
    pub(super) processes: Processes,
    members: Vec<Option<Member>>,
    /// Lines of this trial, with ranks.
    pub(super) heard: Vec<Said>,
    jobs: u16,
}

/// Way to join a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Play<'a> {
    pub(super) role: &'a str,
    /// In seconds.
    pub(super) detection: f64,
    pub(super) join: f64,
}

impl Crew {
    pub(super) fn new(worker: PathBuf, hosts: bool) -> Self {
        let members = Vec::new();
        Self { worker, hosts, processes: Processes::new(), members, heard: Vec::new(), jobs: 0 }
    }

    /// The host of a member.
    pub(super) fn host(member: usize) -> usize {
        member.checked_sub(MOST).unwrap_or(member / 2)
    }

    /// Have these members ready, and forget the last trial.
    pub(super) fn ready(&mut self, members: Range<usize>) -> Result<(), String> {
        if self.members.len() < members.end {
            self.members.resize_with(members.end, || None);
        }
        for rank in members {
            let gone = match &self.members[rank] {
                Some(member) => self.processes.ended(member.process.pid).is_some(),
                None => true,
            };
            if gone {
                self.members[rank] = None;
                let process = self.processes.start(self.command(rank))?;
                self.members[rank] = Some(Member { process, held: None });
                let by = self.by(rank);
                let up = |s: &Said| s.by == by && s.event == "up";
                if self.hear_where(Instant::now() + LONG, up).is_none() {
                    return Err(format!("rank {rank} does not start"));
                }
            }
        }
        // What is still in the pipes belongs to the trial before.
        while self.processes.hear(Instant::now()).is_some() {}
        self.heard.clear();
        Ok(())
    }

    fn command(&self, rank: usize) -> Command {
        let mut command = if self.hosts {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net=/run/netns/h{}", Self::host(rank))).arg(&self.worker);
            command
        } else {
            Command::new(&self.worker)
        };
        command.arg("crew").env("RUST_BACKTRACE", "0");
        command
    }

    fn by(&self, rank: usize) -> usize {
        self.members.get(rank).and_then(Option::as_ref).map_or(usize::MAX, |m| m.process.by)
    }

    pub(super) fn pid(&self, rank: usize) -> Pid {
        self.members.get(rank).and_then(Option::as_ref).map_or(Pid::INIT, |m| m.process.pid)
    }

    pub(super) fn pids(&self) -> Vec<Pid> {
        self.members.iter().flatten().map(|m| m.process.pid).collect()
    }

    /// A port that no trial has used for long.
    pub(super) fn next_port(&mut self) -> u16 {
        self.jobs = (self.jobs + 1) % 9000;
        20_000 + self.jobs
    }

    /// Tell these members to join a job at `port` of rank 0's host.
    pub(super) fn play(
        &mut self,
        plan: &Plan,
        port: u16,
        how: Play<'_>,
        members: impl IntoIterator<Item = usize>,
    ) {
        let links = if plan.links == "mixed" || self.hosts { "shm,tcp" } else { plan.links };
        for member in members {
            let rank = member - plan.first;
            let Play { role, detection, join } = how;
            let (at, host, addr) = if self.hosts {
                let own = net::address(Self::host(member));
                (net::address(0), "-".to_owned(), format!("{own}:0"))
            } else {
                let host = if plan.links == "mixed" { format!("host{}", rank / 2) } else { "-".into() };
                ("127.0.0.1".to_owned(), host, "-".to_owned())
            };
            let Plan { seed, size, .. } = plan;
            let line = format!(
                "play {role} {seed} {rank} {size} {at}:{port} job{port} {links} {detection} {join} {host} {addr}"
            );
            self.tell(member, &line);
        }
    }

    pub(super) fn tell(&mut self, rank: usize, line: &str) {
        if let Some(Some(member)) = self.members.get_mut(rank)
            && let Some(stdin) = &mut member.process.stdin
        {
            // One that was killed reads nothing.
            let _ = stdin.write_all(format!("{line}\n").as_bytes());
        }
    }

    /// When it was sent.
    pub(super) fn signal(&self, rank: usize, what: Signal) -> u64 {
        let at = monotonic();
        if self.pid(rank) != Pid::INIT {
            signal(self.pid(rank), what);
        }
        at
    }

    /// Limit what a rank may use.
    pub(super) fn limit(&self, rank: usize, resource: Resource, to: u64) -> Result<(), String> {
        let limit = Rlimit { current: Some(to), maximum: Some(to) };
        // Only Linux limits another process; elsewhere no trial runs at all.
        #[cfg(target_os = "linux")]
        let done = rustix::process::prlimit(Some(self.pid(rank)), resource, limit).map(drop);
        #[cfg(not(target_os = "linux"))]
        let done = Err::<(), _>(format!("rank {rank}: {limit:?} needs Linux"));
        done.map_err(|e| format!("cannot limit {resource:?}: {e}"))
    }

    fn hear_where(&mut self, until: Instant, is: impl Fn(&Said) -> bool) -> Option<Said> {
        loop {
            let said = self.processes.hear(until)?;
            if is(&said) {
                return Some(said);
            }
            self.heard.push(said);
        }
    }

    /// Line of this kind from a rank.
    pub(super) fn said(&self, rank: usize, event: &str) -> Option<&Said> {
        let by = self.by(rank);
        self.heard.iter().find(|s| s.by == by && s.event == event)
    }

    /// Wait until all of these have said it; those that have not.
    pub(super) fn hear(
        &mut self,
        event: &str,
        ranks: impl Iterator<Item = usize> + Clone,
        until: Instant,
    ) -> Vec<usize> {
        loop {
            let missing: Vec<usize> = ranks.clone().filter(|r| self.said(*r, event).is_none()).collect();
            if missing.is_empty() {
                return missing;
            }
            match self.processes.hear(until) {
                Some(said) => self.heard.push(said),
                None => return missing,
            }
        }
    }

    /// End a rank; the next trial starts another.
    pub(super) fn end(&mut self, rank: usize) {
        if let Some(member) = self.members.get_mut(rank).and_then(Option::take) {
            self.processes.end(member.process.pid);
        }
    }

    /// Find ranks that hold more than they held after earlier jobs: descriptors, threads, memory of groups.
    pub(super) fn leaks(&mut self, ranks: impl Iterator<Item = usize>) -> Vec<String> {
        let mut found = Vec::new();
        for rank in ranks {
            let Some(said) = self.said(rank, "left") else { continue };
            let now: Vec<usize> = said.fields.iter().filter_map(|f| f.parse().ok()).collect();
            let Some(Some(member)) = self.members.get_mut(rank) else { continue };
            let held = member.held.get_or_insert_with(|| now.clone());
            for (what, (before, now)) in
                ["descriptors", "threads", "shared maps"].iter().zip(held.iter_mut().zip(now))
            {
                if now > *before {
                    found.push(format!("rank {rank} holds {now} {what} after the job, {before} before"));
                }
                *before = (*before).min(now);
            }
        }
        found
    }

    /// Every line of this trial, for whoever has to find out.
    pub(super) fn story(&self, from: u64) -> String {
        let mut lines = Vec::new();
        for said in &self.heard {
            let ms = (said.at as f64 - from as f64) / 1e6;
            let who = if said.rank == usize::MAX { "?".into() } else { said.rank.to_string() };
            lines.push(format!("    {ms:9.1} ms  rank {who} {} {}", said.event, said.fields.join(" | ")));
        }
        lines.join("\n")
    }
}

/// Let a trial's time pass.
pub(super) fn pause(micros: u64) {
    thread::sleep(Duration::from_micros(micros));
}
