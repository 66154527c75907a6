//! Every order in which the same lane of some ranks can go: nobody writes what another one still reads, and all come to the end.

use super::{Act, Flag, LaneProgress, Next, Phases};
use std::collections::HashSet;

const ALL_REDUCE: Phases = Phases { reduces: true, takes: true };
const REDUCE_SCATTER: Phases = Phases { reduces: true, takes: false };
const ALL_GATHER: Phases = Phases { reduces: false, takes: true };

/// Content of no window: a rank writes there, or none has.
const DIRTY: u64 = 0;

/// Rank of the model: its lane, its act under way, its flags, and the windows whose staged and reduced bytes its halves hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rank {
    call: usize,
    lane: LaneProgress,
    doing: Option<Act>,
    flags: [u64; 2],
    staged: [u64; 2],
    reduced: [u64; 2],
}

/// A test's ranks, and the calls that they make: what is done in each window, and how many windows.
struct Model<'a> {
    calls: &'a [(Phases, u64)],
    half: fn(&LaneProgress) -> usize,
}

impl Model<'_> {
    fn phases(&self, rank: &Rank) -> Phases {
        self.calls[rank.call].0
    }

    /// Asserts that the window this rank reads now lies whole on all others.
    fn check(&self, ranks: &[Rank], me: usize, act: Act) -> Result<(), String> {
        let rank = &ranks[me];
        let half = (self.half)(&ranks[me].lane);
        for (r, other) in ranks.iter().enumerate().filter(|(r, _)| *r != me) {
            let holds = match act {
                Act::Stage => continue,
                Act::Take if self.phases(rank).reduces => other.reduced[half],
                Act::Reduce | Act::Take => other.staged[half],
            };
            if holds != rank.lane.number() {
                return Err(format!("rank {me} reads window {} of {r}: {holds}", rank.lane.number()));
            }
        }
        Ok(())
    }

    /// Let rank `me` go one event on, if it can: the begin of an act or its end.
    fn go(&self, ranks: &mut [Rank], me: usize) -> Result<bool, String> {
        let phases = self.phases(&ranks[me]);
        let Some(act) = ranks[me].doing else {
            let act = match ranks[me].lane.next(phases) {
                Next::Now(act) => act,
                Next::After(flag, act) => {
                    let number = ranks[me].lane.number();
                    if ranks.iter().any(|r| r.flags[flag as usize] < number) {
                        return Ok(false);
                    }
                    act
                }
                Next::End if ranks[me].call + 1 == self.calls.len() => return Ok(false),
                Next::End => {
                    let rank = &mut ranks[me];
                    rank.call += 1;
                    rank.lane =
                        LaneProgress::new(0, rank.flags[Flag::Staged as usize], self.calls[rank.call].1);
                    return Ok(true);
                }
            };
            self.check(ranks, me, act)?;
            let half = (self.half)(&ranks[me].lane);
            let rank = &mut ranks[me];
            rank.doing = Some(act);
            match act {
                Act::Stage => rank.staged[half] = DIRTY,
                Act::Reduce => rank.reduced[half] = DIRTY,
                Act::Take => {}
            }
            return Ok(true);
        };
        self.check(ranks, me, act)?;
        let half = (self.half)(&ranks[me].lane);
        let rank = &mut ranks[me];
        let number = rank.lane.number();
        match act {
            Act::Stage => rank.staged[half] = number,
            Act::Reduce => rank.reduced[half] = number,
            Act::Take => {}
        }
        rank.doing = None;
        if let Some(flag) = rank.lane.did(act, phases) {
            rank.flags[flag as usize] = number;
        }
        Ok(true)
    }

    /// All states that `size` ranks can come to; what is wrong in one of them.
    fn explore(&self, size: usize) -> Result<usize, String> {
        let lane = LaneProgress::new(0, 0, self.calls[0].1);
        let rank =
            Rank { call: 0, lane, doing: None, flags: [0; 2], staged: [DIRTY; 2], reduced: [DIRTY; 2] };
        let mut seen = HashSet::new();
        let mut open = vec![vec![rank; size]];
        while let Some(ranks) = open.pop() {
            if !seen.insert(ranks.clone()) {
                continue;
            }
            let mut moved = false;
            for me in 0..size {
                let mut next = ranks.clone();
                if self.go(&mut next, me)? {
                    moved = true;
                    open.push(next);
                }
            }
            let last = self.calls.len() - 1;
            let is_over = |r: &Rank| r.call == last && r.lane.next(self.calls[last].0) == Next::End;
            if !moved && !ranks.iter().all(is_over) {
                return Err(format!("nobody can go on: {ranks:?}"));
            }
        }
        Ok(seen.len())
    }
}

#[test]
fn in_no_order_does_a_rank_read_what_is_being_written() {
    let mixed = [(ALL_REDUCE, 3), (ALL_GATHER, 1), (REDUCE_SCATTER, 2), (ALL_GATHER, 2), (ALL_REDUCE, 1)];
    for size in 2..=3 {
        for calls in [&[(ALL_REDUCE, 5)][..], &[(ALL_GATHER, 5)], &[(REDUCE_SCATTER, 5)], &mixed] {
            let states = Model { calls, half: LaneProgress::half }.explore(size).unwrap();
            assert!(states > 100, "{states}");
        }
    }
}

#[test]
fn one_half_would_not_do() {
    // For all_reduce it would: who stages anew has seen all stages read, and the reduced parts lie apart.
    for phases in [ALL_GATHER, REDUCE_SCATTER] {
        let wrong = Model { calls: &[(phases, 3)], half: |_| 0 }.explore(2).unwrap_err();
        assert!(wrong.contains("reads window"), "{wrong}");
    }
}
