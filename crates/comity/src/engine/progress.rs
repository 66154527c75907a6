//! The one loop in which a rank waits in a call, for links that carry a plan or for a library that works by itself.
//!
//! ```text
//!   loop:  step            done: out     moved: again, and now and then a look at failure, limit and interrupt
//!          nothing moved:  others' calls, failure, closing; then spin | yield | step aside | park
//!          park:           idle too long? limit? interrupted? announce sleep, tell those waited for, sleep
//! ```

use super::{
    Members, OutstandingMessages, Patience, StepResult, Stop,
    wait::{Stage, Wait},
};
use crate::{
    status::Header,
    sys::{self, Asking},
};
use std::{thread, time::Duration};

/// The longest sleep without a look around.
const NAP: Duration = Duration::from_millis(500);
/// Moves between two looks at the time and at what others say, in a call that moves on.
const MOVES_PER_CHECK: u32 = 32;
/// After so long without a byte a rank tells those it waits for which call it is in.
pub(super) const ASK: Duration = Duration::from_millis(60);

/// Progress of a call.
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

    /// Returns the members that it waits for.
    fn waits_for(&self) -> Vec<usize>;

    /// Announce sleep. True if that was not announced before, and one more look must come first.
    fn arm(&mut self) -> bool {
        false
    }

    /// Until something may have moved or the group's waker is woken, at most `limit`. Nothing has moved for `idle`.
    fn sleep(&mut self, limit: Duration, idle: Duration);
}

/// Waiting of a call.
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
    /// A call that may take `limit`.
    #[inline]
    pub(crate) fn new(patience: Patience, limit: Duration, call: Option<Header>) -> Self {
        let wait = Wait::new(patience, limit);
        let asking = Asking::new();
        Self { wait, asking, moves: 0, call, told: Vec::new() }
    }

    /// Returns the time limit of the call.
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
