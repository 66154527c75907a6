//! A job of which one rank differs: playing it, and what must be true of how it came out.

use crate::call::{Call, Outcome, make};
use comity::{ErrorKind, Group, Op, Request, Result};
use std::time::Duration;

/// Time limit of a call. No rank is to fail by it.
const LIMIT: Duration = Duration::from_secs(20);

/// `limit`, so many times longer as the sanitizers' parts of `cargo xtask test --deep` say that everything takes.
pub(super) fn patient(limit: Duration) -> Duration {
    let times = std::env::var("COMITY_TEST_SLOWNESS").ok().map_or(1, |n| n.parse().unwrap());
    limit * times
}

/// A job of which one rank differs.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) what: &'static str,
    pub(super) odd: usize,
    /// By rank.
    pub(super) calls: Vec<Vec<Call>>,
}

impl Case {
    pub(super) fn new(what: &'static str, n: usize, odd: usize, usual: &[Call], other: &[Call]) -> Self {
        Self::of(what, odd, (0..n).map(|r| if r == odd { other.to_vec() } else { usual.to_vec() }).collect())
    }

    /// Barriers follow: in the first a difference may show that nobody could see before, so that some still return
    /// from it; a second then fails; and so does what comes after a failure.
    pub(super) fn of(what: &'static str, odd: usize, mut calls: Vec<Vec<Call>>) -> Self {
        calls.iter_mut().for_each(|c| c.extend([Call::new(Op::Barrier, 0); 3]));
        Self { what, odd, calls }
    }

    pub(super) fn name(&self) -> String {
        let usual = &self.calls[usize::from(self.odd == 0)];
        let show = |calls: &[Call]| {
            let one = |c: &Call| format!("{}[{}]{:?}/{} {:?}", c.op, c.count, c.dtype, c.root, c.wire);
            calls.iter().filter(|c| c.op != Op::Barrier).map(one).collect::<Vec<_>>().join(", ")
        };
        let n = self.calls.len();
        let odd = self.odd;
        format!("{}: {n} ranks, {}; rank {odd}: {}", self.what, show(usual), show(&self.calls[odd]))
    }
}

/// From which thread a rank makes its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Now,
    /// In background work.
    Later,
}

fn later(g: &Group, call: Call) -> Request<Outcome> {
    g.spawn(move |g| Ok(make(g, &call)))
}

/// Returns the outcomes of the case, by rank: each call up to the first that failed, and one more.
pub(super) fn play(case: &Case, groups: &[Group], how: How) -> Vec<Vec<Outcome>> {
    let play_rank = |g: &Group| {
        let g = g.with_timeout(patient(LIMIT));
        let mut outcomes = Vec::new();
        for call in &case.calls[g.rank()] {
            let failed = outcomes.last().is_some_and(|o: &Outcome| o.result.is_err());
            outcomes.push(match how {
                How::Now => make(&g, call),
                How::Later => later(&g, *call).wait().unwrap(),
            });
            if failed {
                break;
            }
        }
        outcomes
    };
    // The groups outlive the threads, so that nobody is told that somebody has left.
    scope::each(groups, play_rank)
}

/// Returns the fault of the outcomes, if any.
pub(super) fn judge(case: &Case, outcomes: &[Vec<Outcome>]) -> Result<(), String> {
    // With more ranks calls take several rounds, and a rank can hear of another in any of them.
    let direct = outcomes.len() <= 4;
    for (rank, made) in outcomes.iter().enumerate() {
        if made.last().is_none_or(|o| o.result.is_ok()) {
            return Err(format!("rank {rank} can go on"));
        }
        let first = made.iter().position(|o| o.result.is_err()).unwrap_or_default();
        for (k, (o, call)) in made.iter().zip(&case.calls[rank]).enumerate() {
            let Err(e) = &o.result else {
                if k > first {
                    return Err(format!("rank {rank} had success in call {k}, after a failure"));
                }
                for from in (0..outcomes.len()).filter(|&f| f != rank && call.needs(rank, f)) {
                    if !case.calls[from].get(k).is_some_and(|theirs| call.agrees(rank, theirs, from)) {
                        return Err(format!("rank {rank} had success in call {k}, which needs rank {from}"));
                    }
                }
                if !o.right {
                    return Err(format!("rank {rank} had success in call {k} with a wrong result"));
                }
                continue;
            };
            // Both calls in words, also where another rank has seen it.
            let ErrorKind::Mismatch { rank: by, peer, .. } = e.root().kind() else {
                return Err(format!("rank {rank} was told after {:?}: {e}", o.took));
            };
            // It may have all of its result when it hears of a rank from which it takes nothing.
            if direct && k == first && *by == rank && o.written && call.needs(rank, peer.rank) {
                return Err(format!("rank {rank} wrote its output in call {k} and then saw the difference"));
            }
        }
    }
    Ok(())
}
