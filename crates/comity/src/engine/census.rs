//! Who has made a call whose limit has passed.
//!
//! ```text
//!   rank 0, whose limit passed        control threads of the others
//!     Census{#812}  ------------------->  what does this rank's ledger say?
//!     <---- Reached{made #812, waits for rank 3 since 0.9 s}     (rank 1: innocent)
//!     <---- Reached{made #811}                                   (rank 3: not made it)
//! ```
//!
//! No rank's own thread has to answer, so one that sleeps or computes is told from one that waits like the asker. Whoever does not answer
//! at all has not shown that it made the call. One note each way to every other member, and only where a call has failed anyway.

use crate::{
    CallInfo, Crossed, Peer,
    status::{Failure, GroupStatus, Late, Reached, World},
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// How long answers are waited for: control threads answer within milliseconds, on a crowded host within some tenths of a second.
const ANSWERS: Duration = Duration::from_millis(500);
/// Between two looks whether they have come.
const CENSUS_POLL: Duration = Duration::from_millis(1);
/// For so long nothing must have moved between two ranks to say so, if the limit is not shorter.
const STILL: Duration = Duration::from_secs(1);

/// Who is asked, and what for.
pub(crate) struct Census<'a> {
    pub(crate) world: &'a dyn World,
    pub(crate) status: &'a GroupStatus,
    pub(crate) group_id: u64,
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

impl Census<'_> {
    /// What became of `call`, which this rank waits in for `after`: whoever has not made it, or where it stands still. This rank itself lacks
    /// something of `lacks` for that long. An error if the group has failed for another reason meanwhile.
    pub(crate) fn hold(
        &self,
        call: CallInfo,
        after: Duration,
        lacks: Option<(usize, Duration)>,
    ) -> Result<Late, Failure> {
        if call.seq == 0 {
            // Of two ranks alone: it has no number that could be asked for, and only the other one can be waited for.
            if let Some(f) = self.status.failure() {
                return Err(f.clone());
            }
            let others = || (0..self.size).filter(|r| *r != self.rank).collect();
            return Ok(Late {
                call,
                after,
                missing: call.root.map_or_else(others, |r| vec![r]),
                stalled: None,
            });
        }
        let answers = self.ask(call.seq)?;
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
        Ok(Late { call, after, missing, stalled })
    }

    /// Who of those that are named waits for this rank, and in which call.
    pub(crate) fn crossed(&self, late: &Late, members: &[Peer]) -> Vec<Crossed> {
        let crossed = late.missing.iter().filter_map(|&r| {
            let (call, elsewhere) = self.world.waits(self.group_id, r)?;
            Some(Crossed { peer: members.get(r)?.clone(), call: call.info, elsewhere })
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
            let (whom, since) = (*m)?.lacks?;
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

    /// What the others say of their calls up to number `at`, as far as it comes in time.
    fn ask(&self, at: u64) -> Result<Vec<Option<Reached>>, Failure> {
        self.status.forget_answers();
        let others: Vec<usize> = (0..self.size).filter(|r| *r != self.rank).collect();
        self.world.census(self.group_id, at, &others);
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
