//! A plan being written: the vocabulary in which the algorithms are told.
//!
//! Algorithms speak of positions in a [`Team`], not of ranks, so that each of them runs on all
//! ranks, on those of one host, or on one rank of each host. Every member of a team moves
//! `Draft::round` on by the same number, taking part in a round or not.

use crate::{Buf, Plan, ReceiveMode, Slice, Step, StepOp};

/// The ranks that carry out an algorithm together, and this rank's position among them.
#[derive(Clone, Debug)]
pub(crate) struct Team {
    ranks: Vec<usize>,
    pub(crate) me: usize,
}

/// Offset and length of each part of a buffer, by position in the team.
pub(crate) type Parts = Vec<(usize, usize)>;

/// Steps so far.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    steps: Vec<Step>,
    pub(crate) round: u32,
    tmp: usize,
    /// True if messages without elements are sent: only a barrier's are.
    pub(crate) empty: bool,
}

impl Team {
    /// All ranks in order.
    pub(crate) fn all(rank: usize, size: usize) -> Self {
        Self { ranks: (0..size).collect(), me: rank }
    }

    /// These ranks, if `rank` is among them.
    pub(crate) fn of(ranks: Vec<usize>, rank: usize) -> Option<Self> {
        let me = ranks.iter().position(|&r| r == rank)?;
        Some(Self { ranks, me })
    }

    /// These ranks; this one stands at `me`.
    pub(crate) fn at(ranks: Vec<usize>, me: usize) -> Self {
        Self { ranks, me }
    }

    pub(crate) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The rank at a position.
    pub(crate) fn rank(&self, at: usize) -> usize {
        self.ranks[at]
    }

    /// The position `by` after this rank, around.
    pub(crate) fn after(&self, by: usize) -> usize {
        (self.me + by) % self.len()
    }

    /// The position `by` before this rank, around. `by` is at most the team's size.
    pub(crate) fn before(&self, by: usize) -> usize {
        (self.me + self.len() - by) % self.len()
    }

    /// The other positions, beginning after this rank, so that not everyone turns to the first at once.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        let n = self.len();
        (1..n).map(move |k| (me + k) % n)
    }
}

/// `len` elements in `n` parts that differ by one at most.
pub(crate) fn even(len: usize, n: usize) -> Parts {
    let each = len / n;
    let more = len % n;
    (0..n).map(|i| (i * each + i.min(more), each + usize::from(i < more))).collect()
}

impl Draft {
    /// Send to a position. A pair may have several messages in a round: its first send meets its first receive, the second the second, in the order
    /// of these lines on either side. One without elements is left out on both.
    pub(crate) fn send(&mut self, team: &Team, to: usize, src: Slice) {
        if src.len > 0 || self.empty {
            self.push(StepOp::Send { to: team.rank(to), src });
        }
    }

    /// Take what a position [sends](Self::send) in this round: as many elements.
    pub(crate) fn recv(&mut self, team: &Team, from: usize, dst: Slice) {
        self.take(team, from, dst, ReceiveMode::Copy);
    }

    /// `dst = with ∘ what comes`.
    pub(crate) fn reduce(&mut self, team: &Team, from: usize, with: Slice, dst: Slice, last: bool) {
        self.take(team, from, dst, ReceiveMode::Reduce { with, last });
    }

    /// `dst` = own and what comes from all other positions of the team, in rank order.
    pub(crate) fn n_way_reduce(&mut self, team: &Team, own: Slice, dst: Slice, last: bool) {
        match team.len() {
            1 => self.copy(own, dst),
            2 => self.reduce(team, 1 - team.me, own, dst, last),
            _ if dst.len == 0 => {}
            _ => {
                let mut from: Vec<_> = team.others().map(|i| team.rank(i)).collect();
                from.sort_unstable();
                self.push(StepOp::NWayReduce { from, own, dst, last });
            }
        }
    }

    pub(crate) fn copy(&mut self, src: Slice, dst: Slice) {
        if src != dst && src.len > 0 {
            self.push(StepOp::Copy { src, dst });
        }
    }

    /// Memory of the plan's own.
    pub(crate) fn reserve(&mut self, len: usize) -> Slice {
        self.tmp += len;
        Slice::new(Buf::Tmp, self.tmp - len, len)
    }

    pub(crate) fn finish(mut self) -> Plan {
        // Stable: within a round segments stay in order, and each one's steps too, on every rank alike.
        self.steps.sort_by_key(|s| s.round);
        Plan { steps: self.steps, tmp: self.tmp }
    }

    fn take(&mut self, team: &Team, from: usize, dst: Slice, mode: ReceiveMode) {
        if dst.len > 0 || self.empty {
            self.push(StepOp::Recv { from: team.rank(from), dst, mode });
        }
    }

    fn push(&mut self, op: StepOp) {
        self.steps.push(Step { round: self.round, op });
    }
}
