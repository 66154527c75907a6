//! Census of the ranks that have made a call whose limit has passed.
//!
//! ```text
//!   rank 0, whose limit passed        control threads of the others
//!     Census{#812}  ------------------->  what does this rank's ledger say?
//!     <---- Reached{made #812, waits for rank 3 since 0.9 s}     (rank 1: innocent)
//!     <---- Reached{made #811}                                   (rank 3: not made it)
//!     <---- Reached{made #811, waits for rank 3 since 2 s}       (rank 4: late on account of rank 3, innocent; also in another group)
//! ```
//!
//! No rank's own thread has to answer, so one that sleeps or computes is told from one that waits like the asker. Whoever does not answer
//! at all has not shown that it made the call. One note each way to every other member, and only where a call has failed anyway.

use crate::{
    CallInfo, CrossedWait, Peer,
    status::{Failure, GroupStatus, Late, NO_COMPARISON, Reached, World},
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Time limit for the answers: control threads answer within milliseconds, on a crowded host within some tenths of a second.
const ANSWERS: Duration = Duration::from_millis(500);
/// Between two looks whether they have come.
const CENSUS_POLL: Duration = Duration::from_millis(1);
/// For so long nothing must have moved between two ranks to say so, if the limit is not shorter.
const STILL: Duration = Duration::from_secs(1);

/// The group whose members are asked, and this rank's place in it.
pub(crate) struct Census<'a> {
    pub(crate) world: &'a dyn World,
    pub(crate) status: &'a GroupStatus,
    pub(crate) group_id: u64,
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

impl Census<'_> {
    /// Returns the state of `call`, in which this rank has waited for `after`: the ranks that have not made it, or the place where it stands
    /// still. This rank itself lacks something of `lacks` for that long. An error if the group has failed for another reason meanwhile.
    pub(crate) fn hold(
        &self,
        call: CallInfo,
        after: Duration,
        lacks: Option<(usize, Duration)>,
    ) -> Result<Late, Failure> {
        if call.seq == 0 {
            // Of two ranks alone: it has no number that could be asked for.
            let others = || (0..self.size).filter(|r| *r != self.rank).collect();
            return self.hold_pair(call, after, call.root.map_or_else(others, |r| vec![r]));
        }
        let answers = self.ask()?;
        let mut missing = Vec::new();
        let mut silent = None;
        for (r, reached) in answers.iter().enumerate().filter(|(r, _)| *r != self.rank) {
            match reached {
                Some(reached) if reached.made < call.seq => missing.push(r),
                // It told that it waits in this call, or a later one, but says nothing now.
                None if self.status.ledger().heard(r) >= call.seq => silent = silent.or(Some(r)),
                // Who left had made it, or this rank would have been told.
                None if !self.status.has_left(r) => missing.push(r),
                Some(_) | None => {}
            }
        }
        let stalled = if missing.is_empty() { self.stalled(&answers, after, lacks, silent) } else { None };
        Ok(Late { call, after, missing: without_waiting(missing, &answers), stalled })
    }

    /// Hold the census as [`hold`](Self::hold) does, of a call between two ranks alone that waits for `others`: they, or the ranks that those wait for themselves.
    pub(crate) fn hold_pair(
        &self,
        call: CallInfo,
        after: Duration,
        others: Vec<usize>,
    ) -> Result<Late, Failure> {
        let answers = self.ask()?;
        let mut missing: Vec<usize> =
            others.into_iter().map(|other| end_of_chain(other, self.rank, &answers)).collect();
        missing.sort_unstable();
        missing.dedup();
        Ok(Late { call, after, missing, stalled: None })
    }

    /// Returns the named ranks that wait for this rank, each with its call.
    pub(crate) fn crossed_waits(&self, late: &Late, members: &[Peer]) -> Vec<CrossedWait> {
        let crossed = late.missing.iter().filter_map(|&r| {
            let (call, elsewhere) = self.world.waits(self.group_id, r)?;
            Some(CrossedWait { peer: members.get(r)?.clone(), call: call.info, elsewhere })
        });
        crossed.collect()
    }

    /// All have made the call: whoever waits longest comes first in whatever the others wait for.
    fn stalled(
        &self,
        answers: &[Option<Reached>],
        after: Duration,
        lacks: Option<(usize, Duration)>,
        silent: Option<usize>,
    ) -> Option<(usize, usize)> {
        if let Some(silent) = silent {
            return Some((self.rank, silent));
        }
        let others = answers.iter().enumerate().filter_map(|(r, m)| {
            let (whom, since) = (*m).filter(|m| !m.elsewhere)?.lacks?;
            (r != self.rank && whom < self.size && whom != r).then_some((
                Duration::from_millis(since),
                r,
                whom,
            ))
        });
        let own = lacks.map(|(whom, since)| (since, self.rank, whom));
        let longest = others.chain(own).max_by_key(|(since, r, _)| (*since, std::cmp::Reverse(*r)));
        longest.filter(|(since, ..)| *since >= STILL.min(after / 2)).map(|(_, r, whom)| (r, whom))
    }

    /// Returns the progress of the others, as far as their answers come in time.
    fn ask(&self) -> Result<Vec<Option<Reached>>, Failure> {
        self.status.forget_answers();
        let others: Vec<usize> = (0..self.size).filter(|r| *r != self.rank).collect();
        self.world.census(self.group_id, NO_COMPARISON, &others);
        let until = Instant::now() + ANSWERS;
        loop {
            if let Some(f) = self.status.failure() {
                return Err(f.clone());
            }
            let answers = self.status.answers();
            let due = |r: usize| r != self.rank && !self.status.has_left(r) && answers[r].is_none();
            if !(0..self.size).any(due) || Instant::now() >= until {
                return Ok(answers);
            }
            // WAIT(until): answers of control threads when a limit has passed: half a second at most
            thread::sleep(CENSUS_POLL);
        }
    }
}

/// The member that `rank` sleeps for in a call; none where a library does not say for whom.
fn awaited(answers: &[Option<Reached>], rank: usize) -> Option<usize> {
    let (whom, _) = (*answers.get(rank)?)?.lacks?;
    (whom != rank && whom < answers.len()).then_some(whom)
}

/// The ranks of `missing` at fault. A rank that waits in an earlier call, or in another group, for another one of them is only late on that one's
/// account: it is the root of a gather, say, that the others have left.
fn without_waiting(missing: Vec<usize>, answers: &[Option<Reached>]) -> Vec<usize> {
    let is_asleep = |r: usize| answers.get(r).copied().flatten().is_some_and(|a| a.lacks.is_some());
    let waits = |r: usize| awaited(answers, r).map_or_else(|| is_asleep(r), |whom| missing.contains(&whom));
    let guilty: Vec<usize> = missing.iter().copied().filter(|r| !waits(*r)).collect();
    // They wait for one another: nobody is innocent.
    if guilty.is_empty() { missing } else { guilty }
}

/// The rank at fault where `mine` waits for a message of `first`: that rank, or the one at the end of those that wait for each other. Where the
/// chain comes back to `mine`, or to itself, it tells nothing.
fn end_of_chain(first: usize, mine: usize, answers: &[Option<Reached>]) -> usize {
    let mut at = first;
    for _ in 0..answers.len() {
        match awaited(answers, at) {
            None => return at,
            Some(next) if next == mine => return first,
            Some(next) => at = next,
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(whom: Option<usize>) -> Option<Reached> {
        Some(Reached {
            made: 1,
            digest: None,
            lacks: whom.map(|w| (w, 100)),
            elsewhere: false,
            standing: None,
        })
    }

    #[test]
    fn a_rank_that_waits_for_a_guilty_one_is_innocent() {
        // Rank 3 is the root that waits for rank 1, by way of rank 2.
        let answers = [None, waits(None), waits(Some(1)), waits(Some(2))];
        assert_eq!(without_waiting(vec![1, 2, 3], &answers), [1]);
        assert_eq!(without_waiting(vec![2, 3], &answers), [2], "rank 1 has made the call");
        let circle = [None, waits(Some(2)), waits(Some(1))];
        assert_eq!(without_waiting(vec![1, 2], &circle), [1, 2]);
        // Rank 1 is in a call of a library.
        let library = [None, waits(Some(1)), waits(None)];
        assert_eq!(without_waiting(vec![1, 2], &library), [2]);
    }

    #[test]
    fn a_message_is_missed_on_account_of_the_last_of_those_that_wait() {
        let answers = [waits(Some(1)), waits(Some(2)), waits(Some(3)), None];
        assert_eq!(end_of_chain(1, 0, &answers), 3);
        // Each waits for the next, the last one for this rank.
        let circle = [waits(Some(1)), waits(Some(2)), waits(Some(0))];
        assert_eq!(end_of_chain(1, 0, &circle), 1);
        // Two that wait for each other.
        let pair = [waits(Some(1)), waits(Some(2)), waits(Some(1))];
        assert_eq!(end_of_chain(1, 0, &pair), 1);
    }
}
