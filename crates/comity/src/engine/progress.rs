//! The one loop in which a rank waits in a call, for links that carry a plan or for a library that works by itself.
//!
//! ```text
//!   loop:  step            done: out     moved: again, and now and then a look at failure, limit and interrupt
//!          nothing moved:  others' calls, failure, closing; then spin | yield | step aside | park
//!          park:           idle too long? limit? interrupted? announce sleep, tell those waited for, sleep
//! ```
//!
//! Stages of a wait: spin, then yield, then park. The descriptors that a rank sleeps on are in `run.rs`, and the sleep in
//! [`Members::sleep`].
//!
//! A peer that runs answers within microseconds, so a rank first spins for about ten of them; then it yields, so
//! that ranks which share a core with it get on; waking a sleeping core costs some 20 us, so only after a multiple of that
//! it parks in `poll` and costs nothing. Where
//! more ranks live on a host than it has cores, spinning only keeps the others from running: it is left out. And where the
//! system puts two ranks on one core all the same, spinning that was in vain is halved each time, until it pays again. Yielding
//! never moves a thread to another core. So a rank that has seen for some calls that another ran while it yielded asks the system for
//! another core, seldomer each time that it did not help.
//!
//! A limit counts the time in which the process ran: where it did not look at the clock for much longer than it ever sleeps, it was
//! stopped (Ctrl-Z, a debugger, a machine that stood still), and the call goes on with the time that was left before.

use super::{Members, OutstandingMessages, StepResult, Stop};
use crate::{
    status::Header,
    sys::{self, Asking},
};
use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

/// The longest sleep without a look around.
const NAP: Duration = Duration::from_millis(500);
/// Moves between two looks at the time and at what others say, in a call that moves on.
const MOVES_PER_CHECK: u32 = 32;
/// After so long without a byte a rank tells those it waits for which call it is in.
pub(super) const ASK: Duration = Duration::from_millis(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallProgress {
    Done,
    /// Something moved, and more may at once.
    Moved,
    /// Nothing can move now.
    Stuck,
}

/// Driver of a call: links, or a library.
pub(crate) trait Progress {
    fn members(&self) -> &Members;

    /// Move what can move now.
    fn step(&mut self) -> StepResult<CallProgress>;

    /// Nothing has moved for `idle` and this rank is about to sleep: why not to wait any longer. True to look once more first.
    fn idle(&mut self, idle: Duration) -> StepResult<bool>;

    /// Returns the outstanding messages at the call's limit, after nothing has moved for `idle`.
    fn lacking(&self, idle: Duration) -> OutstandingMessages;

    fn waits_for(&self) -> Vec<usize>;

    /// Announce sleep. True if that was not announced before, and one more look must come first.
    fn arm(&mut self) -> bool {
        false
    }

    /// Until something may have moved or the group's waker is woken, at most `limit`. Nothing has moved for `idle`.
    fn sleep(&mut self, limit: Duration, idle: Duration);
}

#[derive(Debug)]
pub(crate) struct Waiting {
    wait: Wait,
    asking: Asking,
    moves: u32,
    /// The call as all members know it; none for a call of two ranks alone.
    call: Option<Header>,
    /// Members that were told of it.
    told: Vec<usize>,
}

impl Waiting {
    #[inline]
    pub(crate) fn new(patience: Patience, limit: Duration, call: Option<Header>) -> Self {
        let wait = Wait::new(patience, limit);
        let asking = Asking::new();
        Self { wait, asking, moves: 0, call, told: Vec::new() }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.wait.limit()
    }

    /// Returns the patience that this call has learnt, for the next.
    pub(crate) fn patience(&self) -> Patience {
        self.wait.patience()
    }

    /// From now on it is this call, which the members who are waited for long are told of.
    pub(crate) fn is_in(&mut self, call: Header) {
        self.call = Some(call);
    }

    /// Something moved. Between two moves there may be a wait of some milliseconds that is too short to sleep in.
    #[inline]
    fn moved(&mut self, progress: &impl Progress) -> StepResult<()> {
        self.wait.reset();
        self.moves = self.moves.wrapping_add(1);
        if self.moves.is_multiple_of(MOVES_PER_CHECK) { self.look(progress) } else { Ok(()) }
    }

    fn look(&mut self, progress: &impl Progress) -> StepResult<()> {
        if let Some(f) = progress.members().status.failure() {
            return Err(Stop::Failed(f.clone()));
        }
        if self.wait.left().is_none() {
            return Err(Stop::Late(progress.lacking(Duration::ZERO)));
        }
        self.interrupted()
    }

    fn interrupted(&mut self) -> StepResult<()> {
        self.asking.ask().map_or(Ok(()), |why| Err(Stop::Interrupted(why)))
    }

    /// Tell those whom this rank has waited for which call it is in, once each.
    fn tell(&mut self, progress: &impl Progress) {
        let members = progress.members();
        let Some(call) = self.call.as_ref().filter(|_| self.told.len() + 1 < members.size()) else { return };
        let new: Vec<usize> = progress.waits_for().into_iter().filter(|p| !self.told.contains(p)).collect();
        if !new.is_empty() {
            members.world.ask(members.group_id, &new, call);
            self.told.extend(new);
        }
    }
}

/// Until `progress` is done. Why not, if it stops before.
// WAIT(failure): the call, which has a deadline; a failure of the group ends it
#[inline]
pub(crate) fn complete<P: Progress>(progress: &mut P, waiting: &mut Waiting) -> StepResult<()> {
    loop {
        match progress.step()? {
            CallProgress::Done => {
                waiting.wait.reset();
                return Ok(());
            }
            CallProgress::Moved => {
                waiting.moved(progress)?;
                continue;
            }
            CallProgress::Stuck => {}
        }
        let members = progress.members();
        // Another rank may wait in a call that this one made otherwise.
        members.settle();
        if let Some(f) = members.status.failure() {
            return Err(Stop::Failed(f.clone()));
        }
        if members.status.is_closing() {
            return Err(Stop::Closed);
        }
        match waiting.wait.next() {
            Stage::Spin => std::hint::spin_loop(),
            Stage::Yield => thread::yield_now(),
            Stage::StepAside => sys::leave_core(),
            Stage::Park => park(progress, waiting)?,
        }
    }
}

/// Sleep, unless there is a reason to look again first, or not to wait any longer.
fn park<P: Progress>(progress: &mut P, waiting: &mut Waiting) -> StepResult<()> {
    let idle = waiting.wait.waited();
    if progress.idle(idle)? {
        return Ok(());
    }
    let Some(left) = waiting.wait.left() else { return Err(Stop::Late(progress.lacking(idle))) };
    waiting.interrupted()?;
    if progress.arm() {
        return Ok(());
    }
    let early = ASK.saturating_sub(waiting.wait.waited());
    if early.is_zero() {
        waiting.tell(progress);
    }
    let nap = waiting.asking.nap(if early.is_zero() { NAP } else { early });
    // WAIT(left): the call, which has a deadline; the waker wakes for a failure
    progress.sleep(left.min(nap), waiting.wait.waited());
    Ok(())
}

/// Looks that take some 10 us.
const MOST: u32 = 200;
/// Spinning never falls below this, or it could not prove that it pays again.
const LEAST: u32 = 4;
/// A yield takes that long only if another thread ran on this core meanwhile: two switches, and what it did.
const RAN: Duration = Duration::from_micros(1);
/// So many calls in a row on a shared core before a rank steps aside for the first time; up to twice as many, another number in
/// each process, so that not all leave at once.
const SHARED: u32 = 32;
/// Each time that it did not help, twice as many, but so often at most: then it costs some 10 us in a tenth of a second or more.
const DOUBLINGS: u8 = 10;

/// Between two looks at the clock a process that runs lets at most this pass: three times the longest sleep.
const PAUSE: Duration = Duration::from_millis(1500);

/// Pauses of one call that are forgiven. A machine so crowded that each look comes late must not keep a call from ever ending.
const PAUSES: u8 = 16;

/// Length of each stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Spin this long, in looks without a clock; a look takes some 50 ns.
    spins: u32,
    /// At most this long.
    most: u32,
    /// Then yield until this long after the first look at the clock.
    yields: Duration,
    /// Calls in a row in which another thread ran on this core while this one yielded.
    shared: u32,
    /// Below [`SHARED`], another number in each process.
    turn: u32,
    /// Number of times that stepping aside was tried since this thread had a core of its own.
    tries: u8,
}

impl Patience {
    /// For a host that runs `ranks` of the group on `cores`.
    pub(crate) fn new(ranks: usize, cores: usize) -> Self {
        // Threads of one process that are ranks differ, too.
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        let turn = std::process::id().wrapping_add(GROUPS.fetch_add(1, Ordering::Relaxed)) % SHARED;
        if ranks > cores {
            Self { spins: 0, most: 0, yields: Duration::from_millis(2), shared: 0, turn, tries: 0 }
        } else {
            Self { spins: MOST, most: MOST, yields: Duration::from_micros(300), shared: 0, turn, tries: 0 }
        }
    }

    /// The same, but yielding that long before it parks: all that is waited for is under way.
    pub(crate) fn yielding(self, yields: Duration) -> Self {
        Self { yields, ..self }
    }

    /// Looks that are worth it before anything else; at least one.
    pub(crate) fn looks(&self) -> u32 {
        self.spins.max(1)
    }
}

/// Next action after a look that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Look again.
    Spin,
    /// Let others run, look again.
    Yield,
    /// Go to another core.
    StepAside,
    /// Sleep until woken.
    Park,
}

#[derive(Debug)]
struct Wait {
    patience: Patience,
    limit: Duration,
    looks: u32,
    since: Option<Instant>,
    /// When the call gives up; known from the first look at the clock.
    until: Option<Instant>,
    /// The last look at the clock.
    looked: Option<Instant>,
    /// Number of pauses that are still forgiven.
    pauses: u8,
}

impl Wait {
    /// A call that may take `limit`. The clock is not read before spinning has failed.
    fn new(patience: Patience, limit: Duration) -> Self {
        Self { patience, limit, looks: 0, since: None, until: None, looked: None, pauses: PAUSES }
    }

    /// Something moved.
    #[inline]
    fn reset(&mut self) {
        if self.looks > 0 {
            let yields = self.looks.saturating_sub(self.patience.spins);
            // The clock costs more than most waits: it is read only after a yield.
            let yielded = self.looked.filter(|_| yields > 0).map(|looked| looked.elapsed());
            self.learn(yields, yielded);
        }
        self.looks = 0;
        self.since = None;
    }

    fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the patience that this call has learnt, for the next.
    fn patience(&self) -> Patience {
        self.patience
    }

    /// Did spinning pay? After so many yields something had moved; the last one took `yielded`.
    fn learn(&mut self, yields: u32, yielded: Option<Duration>) {
        let p = &mut self.patience;
        // On a core of its own a peer is not hastened by yielding, on a shared one the first yield lets it answer.
        let shared = (1..=2).contains(&yields) && yielded.is_some_and(|y| y >= RAN);
        p.spins = if shared { (p.spins / 2).max(LEAST) } else { p.spins * 2 }.min(p.most);
        p.shared = if shared { p.shared + 1 } else { 0 };
        if yields == 0 {
            p.tries = 0;
        }
    }

    /// Returns true if it is time to step aside: ranks have a core each here, and this one does not run on its own.
    fn steps_aside(&mut self) -> bool {
        let p = &mut self.patience;
        let due = p.most > 0 && p.shared >= (SHARED + p.turn) << p.tries;
        if due {
            p.shared = 0;
            p.tries = (p.tries + 1).min(DOUBLINGS);
        }
        due
    }

    /// Nothing moved.
    #[inline]
    fn next(&mut self) -> Stage {
        self.looks += 1;
        if self.looks <= self.patience.spins {
            return Stage::Spin;
        }
        if self.steps_aside() {
            return Stage::StepAside;
        }
        let now = Instant::now();
        self.look(now);
        let since = *self.since.get_or_insert(now);
        self.until.get_or_insert_with(|| now + self.limit);
        if now - since < self.patience.yields { Stage::Yield } else { Stage::Park }
    }

    /// Leaves the time since the last look out of the count if this process was stopped meanwhile.
    #[inline]
    fn look(&mut self, now: Instant) {
        let gap = self.looked.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        if gap > PAUSE && self.pauses > 0 {
            self.pauses -= 1;
            self.until = self.until.map(|until| until + gap);
            self.since = self.since.map(|since| since + gap);
        }
    }

    /// Returns the time in which nothing has moved, since the first look at the clock.
    fn waited(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |s| s.elapsed())
    }

    /// Time left, or `None` when the call must give up.
    fn left(&mut self) -> Option<Duration> {
        self.left_at(Instant::now())
    }

    fn left_at(&mut self, now: Instant) -> Option<Duration> {
        self.look(now);
        let until = *self.until.get_or_insert_with(|| now + self.limit);
        until.checked_duration_since(now).filter(|d| !d.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_then_yields_then_parks() {
        let mut w = Wait::new(
            Patience { yields: Duration::from_millis(5), spins: 2, most: 2, ..Patience::new(1, 2) },
            Duration::from_secs(1),
        );
        assert_eq!([w.next(), w.next(), w.next()], [Stage::Spin, Stage::Spin, Stage::Yield]);
        thread::sleep(Duration::from_millis(6));
        assert_eq!(w.next(), Stage::Park);
        w.reset();
        assert_eq!(w.next(), Stage::Spin);
    }

    #[test]
    fn ends_at_the_limit_whatever_moves() {
        let mut w =
            Wait::new(Patience { yields: Duration::ZERO, ..Patience::new(2, 1) }, Duration::from_millis(5));
        assert!(w.left().is_some());
        w.reset();
        thread::sleep(Duration::from_millis(6));
        assert_eq!(w.left(), None);
    }

    #[test]
    fn a_pause_of_the_process_costs_no_time() {
        let second = Duration::from_secs(1);
        let mut w = Wait::new(Patience { yields: Duration::ZERO, ..Patience::new(2, 1) }, second);
        let mut now = Instant::now();
        assert_eq!(w.left_at(now), Some(second));
        now += second / 2;
        assert_eq!(w.left_at(now), Some(second / 2));
        // Stopped, twice.
        for _ in 0..2 {
            now += second * 3;
            assert_eq!(w.left_at(now), Some(second / 2));
        }
        now += second / 2;
        assert_eq!(w.left_at(now), None);
        // A sleep of the longest length, and somewhat more on a busy machine, counts.
        let mut w = Wait::new(Patience::new(2, 1), second);
        w.left_at(now);
        assert_eq!(w.left_at(now + second), None);
    }

    #[test]
    fn spinning_in_vain_gets_shorter_and_recovers() {
        let mut w = Wait::new(Patience::new(1, 2), Duration::from_secs(1));
        // The first yield lets a peer on the same core answer.
        for _ in 0..10 {
            w.learn(1, Some(RAN * 3));
        }
        assert_eq!(w.patience().spins, LEAST);
        // It answered during the first yield, from a core of its own.
        for _ in 0..10 {
            w.learn(1, Some(RAN / 4));
        }
        assert_eq!(w.patience().spins, MOST);
        // Many yields in vain: the peer runs elsewhere and is only slow.
        w.learn(100, Some(RAN * 3));
        assert_eq!(w.patience().spins, MOST);
    }

    #[test]
    fn who_shares_a_core_steps_aside_and_seldomer_each_time() {
        let mut w = Wait::new(Patience::new(2, 2), Duration::from_secs(1));
        let calls_until = |w: &mut Wait| {
            let mut calls = 0;
            while !w.steps_aside() {
                w.learn(1, Some(RAN * 3));
                calls += 1;
            }
            calls
        };
        let calls = [0; 3].map(|_| calls_until(&mut w));
        let first = SHARED + w.patience().turn;
        assert_eq!(calls, [first, 2 * first, 4 * first]);
        let last = (0..20).map(|_| calls_until(&mut w)).last();
        assert_eq!(last, Some(first << DOUBLINGS));
        // Alone again: what was is forgotten.
        w.learn(0, None);
        assert_eq!((w.patience().shared, w.patience().tries), (0, 0));
        // Ranks beyond the cores have nowhere to go.
        let mut w = Wait::new(Patience::new(3, 2), Duration::from_secs(1));
        (0..10_000).for_each(|_| w.learn(1, Some(RAN * 3)));
        assert!(!w.steps_aside());
    }

    #[test]
    fn crowded_hosts_do_not_spin() {
        assert_eq!(Patience::new(4, 2).spins, 0);
        assert!(Patience::new(2, 2).spins > 0);
    }

    #[test]
    fn a_call_whose_looks_all_come_late_ends_all_the_same() {
        let limit = Duration::from_secs(2);
        let mut w = Wait::new(Patience { yields: Duration::ZERO, ..Patience::new(2, 1) }, limit);
        let start = Instant::now();
        let end = (0..100).map(|i| PAUSE * 2 * i).find(|at| w.left_at(start + *at).is_none());
        assert!(end.is_some_and(|end| end <= PAUSE * 2 * (u32::from(PAUSES) + 2)), "{end:?}");
    }
}
