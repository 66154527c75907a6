//! A job on several hosts as `comity top` sees it: who asks at the launcher's socket has every host asked, over its `ssh`.
use super::plan::FleetPlan;
use crate::host::door::Door;
use crate::host::metrics::job_id;
use crate::live::{self, JobView, RankState, RankView};
use comity_base::sync::lock;
use comity_base::sys::Waker;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time that hosts have for their answers.
const ANSWERS: Duration = Duration::from_secs(1);

/// The socket, and what connects the thread behind it with the launcher's own.
#[derive(Debug)]
pub(super) struct FleetShow {
    door: Option<Door>,
    seen: Arc<Seen>,
}

#[derive(Debug)]
struct Seen {
    hosts: Mutex<SeenHosts>,
    came: Condvar,
    /// Readable when somebody asks.
    asked: Waker,
}

#[derive(Debug, Default)]
struct SeenHosts {
    /// The last question.
    round: u64,
    hosts: Vec<SeenHost>,
    /// Codes of ranks that have ended.
    ended: Vec<Option<u8>>,
}

#[derive(Debug, Default)]
struct SeenHost {
    name: String,
    /// The question that it answered last.
    round: u64,
    /// It answers no more.
    gone: bool,
    /// It was lost; else it has ended as it should.
    lost: bool,
    ranks: Vec<RankView>,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, SeenHosts> {
        lock(&self.hosts)
    }

    /// Asks all hosts, and waits for their answers, not for long: all ranks, and the hosts that did not answer.
    fn look(&self) -> (Vec<RankView>, Vec<String>) {
        let mut seen = self.lock();
        seen.round += 1;
        let round = seen.round;
        let until = Instant::now() + ANSWERS;
        self.asked.wake();
        while seen.hosts.iter().any(|h| !h.gone && h.round < round) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // WAIT(left): the hosts' answers, for a second at most
            seen = self.came.wait_timeout(seen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let silent = seen
            .hosts
            .iter()
            .filter(|h| h.lost || !h.gone && h.round < round)
            .map(|h| h.name.clone())
            .collect();
        let ranks = seen.hosts.iter().flat_map(|h| &h.ranks).map(|r| match seen.ended.get(r.rank) {
            Some(Some(code)) => RankView { state: RankState::Ended(*code), ..r.clone() },
            _ => r.clone(),
        });
        let mut ranks: Vec<RankView> = ranks.collect();
        ranks.sort_by_key(|r| r.rank);
        (ranks, silent)
    }
}

impl FleetShow {
    /// Answers from now on; a job that cannot be looked at runs all the same.
    pub(super) fn open(plan: &FleetPlan, job: &str) -> io::Result<Self> {
        let host =
            |h: &super::plan::PlannedHost| SeenHost { name: h.name().to_owned(), ..SeenHost::default() };
        let hosts = plan.hosts.iter().map(host).collect();
        let hosts = Mutex::new(SeenHosts { hosts, ended: vec![None; plan.world], round: 0 });
        let seen = Arc::new(Seen { hosts, came: Condvar::new(), asked: Waker::new()? });
        let shared = seen.clone();
        let begun = Instant::now();
        let size = plan.world;
        let id = job_id(job);
        let command = plan.hosts.first().map(|h| h.part.command.join(" ")).unwrap_or_default();
        let command = comity_cluster::printable(&command, 200);
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let door = rustix::process::getppid().map(|launcher| {
            Door::open(launcher, move || {
                let (ranks, silent) = shared.look();
                JobView {
                    launcher: launcher.as_raw_pid(),
                    command: command.clone(),
                    up_ns: begun.elapsed().as_nanos() as u64,
                    ranks,
                    silent,
                    ..live::job(&id, &name, size)
                }
            })
        });
        Ok(Self { door: door.and_then(Result::ok), seen })
    }

    /// Takes note of a question.
    pub(super) fn take_visit(&self) {
        self.seen.asked.drain();
    }

    pub(super) fn want(&self) -> Option<PollFd<'_>> {
        let asked = self.seen.asked.fd();
        self.door.as_ref().map(|_| PollFd::from_borrowed_fd(asked, PollFlags::IN))
    }

    /// A host has answered.
    pub(super) fn answered(&self, host: usize, text: &[u8]) {
        let Ok(ranks) = serde_json::from_slice(text) else { return };
        let mut seen = self.seen.lock();
        let round = seen.round;
        if let Some(host) = seen.hosts.get_mut(host) {
            host.ranks = ranks;
            host.round = round;
        }
        self.seen.came.notify_all();
    }

    /// A rank has ended, with this code.
    pub(super) fn ended(&self, rank: usize, code: u8) {
        if let Some(place) = self.seen.lock().ended.get_mut(rank) {
            *place = Some(code);
        }
    }

    /// A rank runs again, on this host.
    pub(super) fn runs_again(&self, rank: usize, host: usize) {
        let mut seen = self.seen.lock();
        if let Some(place) = seen.ended.get_mut(rank) {
            *place = None;
        }
        if let Some(host) = seen.hosts.get_mut(host) {
            host.gone = false;
            host.lost = false;
        }
    }

    /// A host will answer no more.
    pub(super) fn gone(&self, host: usize, lost: bool) {
        if let Some(host) = self.seen.lock().hosts.get_mut(host) {
            host.gone = true;
            host.lost = lost;
        }
        self.seen.came.notify_all();
    }
}
