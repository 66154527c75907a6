//! What backends share that wait for a library instead of links: who the members are, how to wait, and whom to blame.

use super::Alarm;
use crate::{
    CallInfo, Error, Op, Peer, Result,
    engine::{ASK, Asking, Census, Patience, Stage, Wait},
    stats::Counters,
    status::{Differs, Failure, Header, Watch, World},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// The shortest and the longest sleep between two looks: such a library has no descriptor to sleep on.
const NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

/// How long after a member's word that it leaves a call that it may have finished is waited for.
const BEHIND: Duration = Duration::from_secs(1);

/// How long the reason of a library's failure is waited for.
const WORD: Duration = Duration::from_secs(1);

/// Sends kept until their receive is called, in bytes per peer.
const MAX_STASH: usize = 256 << 20;

/// The members of a group, as one of them knows them.
pub(crate) struct Company {
    pub(super) rank: usize,
    pub(super) world: Arc<dyn World>,
    pub(super) watch: Arc<Watch>,
    /// World ranks by rank.
    pub(super) members: Vec<usize>,
    pub(super) peers: Arc<[Peer]>,
    pub(super) context: u64,
    pub(super) counters: Arc<Counters>,
}

impl fmt::Debug for Company {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Company")
            .field("rank", &self.rank)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

/// Why a call stopped.
pub(super) enum Stop {
    Failed(Failure),
    Late,
    Closed,
    /// This rank's program was interrupted, and why.
    Interrupted(String),
    Left(usize),
    /// What another rank called, and what differs.
    Differs(usize, CallInfo, &'static str),
    /// Words about a peer that broke a rule.
    Peer(usize, String),
    /// Of this rank; the others are told.
    Own(Error),
    /// Told to all already.
    Told(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Self::Own(e)
    }
}

pub(super) type Stopped<T> = std::result::Result<T, Stop>;

/// One call's waiting for a library.
#[derive(Debug)]
pub(super) struct Waiting {
    wait: Wait,
    asking: Asking,
    /// The call as all members know it; none for a call of two ranks alone.
    call: Option<Header>,
    /// The others were told of it.
    told: bool,
}

impl Waiting {
    /// A call that may take `limit`.
    pub(super) fn new(patience: Patience, limit: Duration) -> Self {
        Self { wait: Wait::new(patience, limit), asking: Asking::new(), call: None, told: false }
    }

    /// What this call has learnt, for the next.
    pub(super) fn patience(&self) -> Patience {
        self.wait.patience()
    }
}

impl Company {
    /// The members (world ranks) of a group whose watch is kept already.
    pub(super) fn new(
        world: Arc<dyn World>,
        members: Vec<usize>,
        context: u64,
        watch: Arc<Watch>,
        counters: Arc<Counters>,
    ) -> Self {
        let rank = members.iter().position(|&m| m == world.rank()).unwrap_or_default();
        let known =
            |m: usize| world.peers().get(m).cloned().unwrap_or(Peer { rank: m, host: None, pid: None });
        let peers = members.iter().enumerate().map(|(rank, &m)| Peer { rank, ..known(m) }).collect();
        Self { rank, world, watch, members, peers, context, counters }
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    /// How patiently to wait here.
    pub(super) fn patience(&self) -> Patience {
        let host = self.world.hosts().get(self.world.rank()).copied();
        let here = self.world.hosts().iter().filter(|&&h| Some(h) == host).count();
        Patience::new(here, thread::available_parallelism().map_or(1, |n| n.get()))
    }

    /// This rank makes a call: known from now on to those who ask, and told to the others if it waits for long.
    pub(super) fn announce(&self, call: Header, waiting: &mut Waiting) {
        self.watch.ledger().record(&call);
        waiting.call = Some(call);
    }

    /// Wait until `done` says so; it is asked again and again.
    pub(super) fn wait(&self, waiting: &mut Waiting, mut done: impl FnMut() -> Stopped<bool>) -> Stopped<()> {
        let Waiting { wait, asking, call, told } = waiting;
        let (mut nap, mut leaver) = (NAPS.0, None);
        loop {
            if done()? {
                wait.reset();
                return Ok(());
            }
            // Another rank waits in a call that this one made otherwise.
            if self.watch.ledger().is_due()
                && let Some((peer, calls)) = self.watch.ledger().settle()
            {
                self.fail(Failure::differs(peer, self.rank, calls));
            }
            if let Some(f) = self.watch.failure() {
                return Err(Stop::Failed(f.clone()));
            }
            if self.watch.is_closing() {
                return Err(Stop::Closed);
            }
            match wait.next() {
                Stage::Spin => std::hint::spin_loop(),
                Stage::Yield => thread::yield_now(),
                Stage::Park => {
                    // It may have left because its part of this call is done, and the others still pass it on to each other.
                    if self.watch.anyone_left()
                        && let Some(peer) = (0..self.size()).find(|&r| self.watch.has_left(r))
                        && leaver.get_or_insert_with(Instant::now).elapsed() >= BEHIND
                    {
                        return Err(Stop::Left(peer));
                    }
                    let Some(left) = wait.left() else { return Err(Stop::Late) };
                    if let Some(why) = asking.ask() {
                        return Err(Stop::Interrupted(why));
                    }
                    if let Some(call) = call.as_ref().filter(|_| !*told && wait.waited() >= ASK) {
                        *told = true;
                        let others: Vec<usize> = (0..self.size()).filter(|&r| r != self.rank).collect();
                        self.world.ask(self.context, &others, call);
                    }
                    self.sleep(left.min(nap));
                    nap = (nap * 2).min(NAPS.1);
                }
            }
        }
    }

    /// Until the group's bell rings, at most `limit`.
    fn sleep(&self, limit: Duration) {
        let slept = Instant::now();
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        // A signal ends the sleep early, which is no harm.
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.watch.bell_fd(), PollFlags::IN)], Some(&limit));
        self.watch.hush();
        self.counters.slept(slept.elapsed());
    }

    /// The group has failed here; the others are told.
    pub(super) fn tell(&self, culprit: usize, cause: String) {
        self.fail(Failure::lost(culprit, self.rank, cause));
    }

    fn fail(&self, failure: Failure) {
        if self.watch.fail(failure.clone()) {
            self.world.abort(self.context, &failure);
        }
    }

    /// Turn what stopped a call into this rank's error, and tell the others.
    pub(super) fn explain(&self, stop: Stop, info: CallInfo, limit: Duration) -> Error {
        let call = Some(info);
        match stop {
            Stop::Failed(f) => self.blame(&f, call),
            Stop::Closed => Error::Closed,
            Stop::Left(peer) => {
                let cause = "left the group".to_owned();
                self.tell(peer, cause.clone());
                Error::PeerLost { peer: self.peers[peer].clone(), cause, call }
            }
            Stop::Interrupted(why) => {
                let me = self.rank;
                self.fail(Failure::reported(me, why.clone()));
                Error::Aborted { by: self.peers[me].clone(), reason: why, call }
            }
            Stop::Late => self.late(info, limit),
            Stop::Differs(peer, theirs, differs) => {
                let calls = Differs { ours: info, theirs, what: differs };
                let failure = Failure::differs(peer, self.rank, calls);
                self.fail(failure.clone());
                self.blame(&failure, call)
            }
            Stop::Peer(peer, cause) => {
                self.tell(peer, cause.clone());
                Error::PeerLost { peer: self.peers[peer].clone(), cause, call }
            }
            Stop::Own(e) => {
                // A library that fails because a member is gone does not say so.
                if matches!(e, Error::Library { .. }) {
                    if let Some(f) = word(&self.watch) {
                        return self.blame(&f, call);
                    }
                    if self.watch.is_closing() {
                        return Error::Closed;
                    }
                }
                self.tell(self.rank, format!("could not go on: {e}"));
                e
            }
            Stop::Told(e) => e,
        }
    }

    /// As [`explain`](Self::explain), of what is no call: the members do not come together in `library`.
    pub(super) fn explain_joining(&self, stop: Stop, library: &str, limit: Duration) -> Error {
        let late = |waiting_for: &[Peer]| {
            let names: Vec<String> = waiting_for.iter().map(Peer::to_string).collect();
            let names = names.join(", ");
            Error::Join(format!(
                "rank {} was not connected with {names} by {library} within {limit:?}; look at those ranks, or raise the limit of joining (COMITY_JOIN_TIMEOUT) or of the call if they are only slow",
                self.rank
            ))
        };
        let stop = match stop {
            Stop::Late => {
                let others: Vec<Peer> = self.peers.iter().filter(|p| p.rank != self.rank).cloned().collect();
                Stop::Own(late(&others))
            }
            stop => stop,
        };
        match self.explain(stop, CallInfo::new(Op::Split), limit) {
            // On the way there the members make small calls of their own.
            Error::Timeout { waiting_for, .. } => late(&waiting_for),
            Error::PeerLost { peer, cause, .. } => Error::PeerLost { peer, cause, call: None },
            Error::Aborted { by, reason, .. } => Error::Aborted { by, reason, call: None },
            e => e,
        }
    }

    /// The limit of a call has passed: find out who has not made it, and tell all.
    fn late(&self, call: CallInfo, after: Duration) -> Error {
        let (rank, size) = (self.rank, self.size());
        let census = Census { world: &*self.world, watch: &self.watch, context: self.context, rank, size };
        let late = match census.hold(call, after, None) {
            Ok(late) => late,
            Err(failure) => return self.blame(&failure, Some(call)),
        };
        let crossed = census.crossed(&late, &self.peers);
        self.fail(Failure::late(rank, late.clone()));
        late.error(rank, rank, &|r| self.peers[r].clone(), crossed)
    }

    pub(super) fn blame(&self, f: &Failure, call: Option<CallInfo>) -> Error {
        f.error(self.rank, &self.peers, call)
    }

    /// What ends a call under way from another thread.
    pub(super) fn alarm(&self) -> Alarm {
        let (watch, world) = (self.watch.clone(), Arc::downgrade(&self.world));
        Alarm { watch, world, context: self.context }
    }

    /// The failure that another rank or the control thread has seen, if any.
    pub(super) fn failure(&self, call: Option<CallInfo>) -> Option<Error> {
        self.watch.failure().map(|f| self.blame(f, call))
    }
}

/// Whether a send of `len` bytes, `theirs`, that `peer` made before the one that is waited for can be kept beside `kept` bytes.
pub(super) fn room(kept: usize, len: usize, peer: usize, theirs: CallInfo) -> Stopped<()> {
    if kept.saturating_add(len) <= MAX_STASH {
        return Ok(());
    }
    let limit = MAX_STASH >> 20;
    let words = format!("sent {theirs} that this rank has not asked for; no more than {limit} MiB are kept");
    Err(Stop::Peer(peer, words))
}

/// Why the group failed, once that is known; [`WORD`] is given for it. A library can see that a peer is gone before the control
/// connections say which.
pub(super) fn word(watch: &Watch) -> Option<Failure> {
    let until = Instant::now() + WORD;
    while watch.failure().is_none() && !watch.is_closing() && Instant::now() < until {
        thread::sleep(NAPS.1);
    }
    watch.failure().cloned()
}

/// The members a rank asks for, as world ranks.
pub(super) fn world_ranks(of: &Company, members: &[usize]) -> Vec<usize> {
    members.iter().map(|&m| of.members[m]).collect()
}

/// Watch over a group that has links of its own.
pub(super) fn attend(
    world: &Arc<dyn World>,
    members: &[usize],
    context: u64,
    counters: &Arc<Counters>,
) -> Result<Arc<Watch>> {
    let watch = Watch::new(members.len(), counters.clone());
    let watch = Arc::new(watch.map_err(|e| Error::os("making an event descriptor", e))?);
    world.attend(context, members, &watch)?;
    Ok(watch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, interrupt_with, links::LocalWorld};

    /// Two ranks without a library, whose calls never end by themselves.
    fn pair() -> [Company; 2] {
        let worlds = LocalWorld::all(2);
        let mut all = worlds.into_iter().map(|w| {
            let (world, counters): (Arc<dyn World>, Arc<Counters>) = (Arc::new(w), Arc::default());
            let watch = attend(&world, &[0, 1], 7, &counters).unwrap();
            Company::new(world, vec![0, 1], 7, watch, counters)
        });
        [all.next().unwrap(), all.next().unwrap()]
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let theirs = CallInfo { tag: Some(7), count: 1, dtype: Some(DType::U8), ..CallInfo::new(Op::Send) };
        assert!(room(MAX_STASH - 1, 1, 3, theirs).is_ok() && room(0, MAX_STASH, 3, theirs).is_ok());
        for (kept, len) in [(MAX_STASH, 1), (0, MAX_STASH + 1), (1, usize::MAX)] {
            let Err(Stop::Peer(3, words)) = room(kept, len, 3, theirs) else {
                panic!("{kept} and {len} are kept")
            };
            assert!(words.contains("no more than 256 MiB are kept") && words.contains("tag 7"), "{words}");
        }
    }

    fn call(seq: u64, count: usize) -> Header {
        let info = CallInfo { seq, count, dtype: Some(DType::F32), ..CallInfo::new(Op::AllReduce) };
        Header { info, shape: 0, epoch: 0, context: 7 }
    }

    /// A call that waits for ever, and the error that ends it.
    fn waits(company: &Company, call: Option<Header>, limit: Duration) -> Error {
        let mut waiting = Waiting::new(company.patience(), limit);
        if let Some(call) = call {
            company.announce(call, &mut waiting);
        }
        let stop = company.wait(&mut waiting, || Ok(false)).unwrap_err();
        company.explain(stop, call.map_or_else(|| CallInfo::new(Op::Recv), |c| c.info), limit)
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_library_that_fails_for_a_member_that_is_gone_does_not_hide_it() {
        let failed = || Error::Library { library: "MPI", code: 9, message: "no such communicator".into() };
        let info = CallInfo::new(Op::AllReduce);
        let [a, b] = pair();
        thread::scope(|s| {
            s.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                b.tell(1, "its control connection closed".into());
            });
            let e = a.explain(Stop::Own(failed()), info, LONG);
            assert!(matches!(&e, Error::PeerLost { peer, .. } if peer.rank == 1), "{e}");
        });
        let [a, b] = pair();
        let e = a.explain(Stop::Own(failed()), info, LONG);
        assert!(matches!(e, Error::Library { code: 9, .. }), "nobody is gone: {e}");
        let told = waits(&b, Some(call(1, 5)), LONG).to_string();
        assert!(told.contains("no such communicator"), "{told}");
    }

    #[test]
    fn a_wait_for_a_library_is_given_up_when_the_program_is_interrupted() {
        let [a, b] = pair();
        let took = thread::scope(|s| {
            let asked = s.spawn(|| {
                interrupt_with(Some(|| Some("interrupted by a test".into())));
                let start = Instant::now();
                (waits(&a, Some(call(1, 5)), LONG), start.elapsed())
            });
            let e = waits(&b, Some(call(1, 5)), LONG);
            let told = |e: &Error| matches!(e, Error::Aborted { by, reason, .. } if by.rank == 0 && reason == "interrupted by a test");
            assert!(told(&e), "{e}");
            let (e, took) = asked.join().unwrap();
            assert!(told(&e), "{e}");
            took
        });
        assert!(took < Duration::from_secs(5), "asked ten times a second: {took:?}");
    }

    #[test]
    fn ranks_that_wait_in_different_calls_are_told() {
        let [a, b] = pair();
        thread::scope(|s| {
            let other = s.spawn(|| waits(&a, Some(call(1, 5)), LONG));
            let errors = [waits(&b, Some(call(1, 6)), LONG), other.join().unwrap()];
            for e in errors {
                assert!(matches!(&e, Error::Mismatch { differs: "count", .. }), "{e}");
            }
        });
    }

    #[test]
    fn a_limit_names_who_has_not_made_the_call() {
        let [a, b] = pair();
        // It is in another call, of two ranks alone, while `a` waits in one of all.
        let e = thread::scope(|s| {
            let other = s.spawn(|| waits(&b, None, LONG));
            let e = waits(&a, Some(call(1, 5)), Duration::from_millis(300));
            let told = other.join().unwrap();
            let words = "timed out after 300ms: not called by this rank";
            assert!(
                matches!(&told, Error::Aborted { by, reason, .. } if by.rank == 0 && reason.contains(words)),
                "{told}"
            );
            e
        });
        assert!(
            matches!(&e, Error::Timeout { rank: 0, waiting_for, .. } if waiting_for.len() == 1 && waiting_for[0].rank == 1),
            "{e}"
        );
    }

    #[test]
    fn a_message_between_two_names_the_other_one() {
        let worlds = LocalWorld::all(3).into_iter().map(|w| {
            let (world, counters): (Arc<dyn World>, Arc<Counters>) = (Arc::new(w), Arc::default());
            let watch = attend(&world, &[0, 1, 2], 7, &counters).unwrap();
            Company::new(world, vec![0, 1, 2], 7, watch, counters)
        });
        let all: Vec<Company> = worlds.collect();
        let recv = CallInfo { root: Some(2), tag: Some(4), ..CallInfo::new(Op::Recv) };
        let e = all[0].explain(Stop::Late, recv, Duration::from_millis(1));
        assert!(matches!(&e, Error::Timeout { waiting_for, .. } if waiting_for.len() == 1), "{e}");
        assert!(e.to_string().contains("timed out after 1ms on rank 0: it was waiting for rank 2 "), "{e}");
    }
}
