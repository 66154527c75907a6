//! The last look before a rank leaves a group: did all ranks make the same calls?
//!
//! ```text
//!   rank 0, made #7          rank 1's control thread
//!     Census{up to #7, digest a}  -->   it made #7, too: what do its calls come to?
//!     <--  Reached{made #7, digest b}
//!     a = b: done.   a != b: rank 0 tells its last 254 headers, oldest first; rank 1 compares each with
//!                    its own, and the first that differs fails the group on all ranks, with both calls.
//! ```
//!
//! Headers show a wrong call to whoever takes a message of it. The last call of a group may have no such reader: two ranks that both
//! broadcast from themselves are done at once.
//!
//! It takes one round trip. Control threads answer, so nobody has to make a call for it. A rank waits for one that has not come so far, at
//! most [`BEHIND`]. A rank that leaves says what it has made, so that a later one can compare. Two that leave and have not made equally many
//! calls disagree: neither makes another.

use super::{
    failure::Failure,
    group_status::{GroupStatus, Reached},
    header::Header,
};
use std::{
    cmp::Ordering,
    sync::atomic::{self, AtomicBool},
    thread,
    time::{Duration, Instant},
};

/// Time for which a leaving rank waits for a member that has made fewer calls.
const BEHIND: Duration = Duration::from_secs(2);
/// Interval at which such a member is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// Time limit for the answer to a difference: long enough for a control thread that waits for a processor.
const WORD: Duration = Duration::from_secs(2);
/// In groups up to this size all are asked; above, those at distance 1, 2, 4, ...: if any two differ, two neighbours do.
const ALL: usize = 64;

/// A difference was found by a handle that was dropped, so nobody could be told but by the exit code.
static UNTOLD: AtomicBool = AtomicBool::new(false);

/// Services that closing needs of the world.
pub trait Ask {
    /// Ask `ranks` how far they have come, and what their calls up to number `at` come to ([`World::census`](super::World::census)).
    fn census(&self, at: u64, ranks: &[usize]);
    /// Tell `rank` one of this rank's calls, to be compared there ([`World::ask`](super::World::ask)).
    fn tell(&self, rank: usize, call: &Header);
    /// Tell the members that the group has failed ([`World::abort`](super::World::abort)).
    fn abort(&self, failure: &Failure);
}

/// Compare the calls that this rank, `mine` of `size`, has made with those of the others. All have been told of a difference.
pub fn conclude(status: &GroupStatus, mine: usize, size: usize, world: &dyn Ask) -> Result<(), Failure> {
    let ledger = status.ledger();
    let (made, Some(ours)) = ledger.digest(ledger.digest(0).0) else { return Ok(()) };
    if size < 2 {
        return Ok(());
    }
    status.forget_answers();
    let end = End { status, mine, made, world };
    let all = || (0..size).filter(|r| *r != mine).collect::<Vec<_>>();
    let distances = || (0..).map(|i| 1usize << i).take_while(|d| *d < size);
    let asked = if size <= ALL { all() } else { distances().map(|d| (mine + d) % size).collect() };
    // Also those that ask this one: should it leave first they know what it has made.
    let told = if size <= ALL {
        all()
    } else {
        asked.iter().copied().chain(distances().map(|d| (mine + size - d) % size)).collect()
    };
    let start = Instant::now();
    let mut ask_at = start;
    let mut nap = Duration::from_micros(20);
    loop {
        if let Some(f) = status.failure() {
            return Err(f.clone());
        }
        // One that has made no call says so, and need not know more.
        if made == 0 || Instant::now() >= ask_at {
            world.census(made, &told);
            ask_at = Instant::now() + AGAIN;
        }
        let answers = status.answers();
        let mut behind = false;
        for &r in &asked {
            end.compare(r)?;
            match answers.get(r).copied().flatten() {
                _ if status.has_left(r) => {}
                Some(Reached { digest: Some(theirs), .. }) if theirs != ours => return Err(end.differs(r)),
                // One far ahead no longer knows, and has taken messages of the calls between.
                Some(Reached { digest: None, made: theirs, .. }) if theirs < made => behind = true,
                None => behind |= made > 0,
                Some(_) => {}
            }
        }
        if !behind || start.elapsed() >= BEHIND {
            return Ok(());
        }
        // WAIT(BEHIND): a rank that has made fewer calls when this one leaves: two seconds at most
        thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(2));
    }
}

/// The calls of rank `r` come to something else than those of this rank, `mine`: the first that differs, or that nobody knows it any more. All
/// have been told.
pub fn find_difference(status: &GroupStatus, mine: usize, r: usize, world: &dyn Ask) -> Failure {
    End { status, mine, made: status.ledger().made(), world }.differs(r)
}

/// A rank that makes no more calls in a group.
struct End<'a> {
    status: &'a GroupStatus,
    mine: usize,
    made: u64,
    world: &'a dyn Ask,
}

impl End<'_> {
    /// Compare with the calls of rank `r`, if it closes too, or has: it said then what it had made.
    fn compare(&self, r: usize) -> Result<(), Failure> {
        let Some((at, theirs)) = self.status.concluded(r) else { return Ok(()) };
        let made = self.made;
        let ledger = self.status.ledger();
        let ours = ledger.digest(at).1;
        let has_left = self.status.has_left(r);
        let who = format!("rank {r}{}", if has_left { ", which has left" } else { "" });
        let cause = match at.cmp(&made) {
            // One that is here can say which call differs.
            _ if ours.is_some_and(|ours| ours != theirs) && has_left => {
                format!("its calls up to #{at} are not those of {who}")
            }
            _ if ours.is_some_and(|ours| ours != theirs) => return Err(self.differs(r)),
            Ordering::Equal => return Ok(()),
            Ordering::Greater => format!("it made {made} of the {at} calls of {who}"),
            Ordering::Less => {
                let first = ledger.kept().find(|call| call.info.seq > at);
                let first =
                    first.map_or_else(String::new, |call| format!(", and did not call {}", call.info));
                let comma = if has_left { "," } else { "" };
                format!("{who}{comma} made {at} of the {made} calls of rank {}{first}", self.mine)
            }
        };
        Err(self.disagree(&cause))
    }

    /// Rank `r` made other calls: which is for it to find.
    fn differs(&self, r: usize) -> Failure {
        for call in self.status.ledger().kept() {
            self.world.tell(r, &call);
        }
        let until = Instant::now() + WORD;
        while Instant::now() < until {
            if let Some(f) = self.status.failure() {
                return f.clone();
            }
            // WAIT(until): which call differs: two seconds at most
            thread::sleep(Duration::from_micros(200));
        }
        self.disagree(&format!("its calls are not those of rank {r}, more than 250 calls ago"))
    }

    /// The failure, told to all, unless the other rank found it first, and then left.
    fn disagree(&self, cause: &str) -> Failure {
        if let Some(f) = self.status.failure() {
            return f.clone();
        }
        let failure = Failure::disagree(self.mine, cause);
        self.world.abort(&failure);
        self.status.fail(failure.clone());
        failure
    }
}

/// A difference that a dropped handle found: said now, and by the exit code.
pub fn untold(words: &str) {
    eprintln!("comity: {words}");
    UNTOLD.store(true, atomic::Ordering::Relaxed);
}

/// Returns true if this process has to end with an error for such a difference.
pub fn is_untold() -> bool {
    UNTOLD.load(atomic::Ordering::Relaxed)
}
