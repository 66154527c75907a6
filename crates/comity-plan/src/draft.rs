//! A plan being written: the vocabulary in which the algorithms are told.
//!
//! Algorithms speak of positions in a [`Team`], not of ranks, so that each of them runs on all
//! ranks, on those of one host, or on one rank of each host. Every member of a team moves
//! `Draft::round` on by the same number, taking part in a round or not.

use crate::{Buf, Plan, ReceiveMode, Slice, Step, StepOp};
use std::collections::BTreeMap;

/// The ranks that carry out an algorithm together, and this rank's position among them.
#[derive(Clone, Debug)]
pub(crate) struct Team {
    ranks: Vec<usize>,
    pub(crate) me: usize,
}

/// Offset and length of each part of a buffer, by position in the team.
pub(crate) type Parts = Vec<(usize, usize)>;

#[derive(Debug, Default)]
pub(crate) struct Draft {
    steps: Vec<Step>,
    pub(crate) round: u32,
    tmp: usize,
    /// True if messages without elements are sent: only a barrier's are.
    pub(crate) empty: bool,
}

impl Team {
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

/// The ranks of each host, hosts in the order of their first rank, and where this rank is.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// By host.
    pub(crate) ranks: Vec<Vec<usize>>,
    /// This rank's host.
    pub(crate) mine: usize,
    pub(crate) me: usize,
}

impl Hosts {
    /// `hosts` names the host of each rank; where it ends (it may be empty) all are on one more.
    pub(crate) fn new(hosts: &[usize], rank: usize, size: usize) -> Self {
        let mut at: BTreeMap<Option<usize>, usize> = BTreeMap::new();
        let mut ranks: Vec<Vec<usize>> = Vec::new();
        let mut mine = 0;
        for r in 0..size {
            let h = *at.entry(hosts.get(r).copied()).or_insert(ranks.len());
            if h == ranks.len() {
                ranks.push(Vec::new());
            }
            ranks[h].push(r);
            if r == rank {
                mine = h;
            }
        }
        Self { ranks, mine, me: rank }
    }

    /// All ranks, those of a host side by side.
    pub(crate) fn by_host(&self) -> Vec<usize> {
        self.ranks.concat()
    }

    pub(crate) fn is_even(&self) -> bool {
        self.ranks.iter().all(|r| r.len() == self.ranks[0].len())
    }

    /// This rank's host, led by `root` if it is there, and the leaders of all hosts if this rank is one, with the root's
    /// position among them.
    pub(crate) fn led_by(&self, root: usize) -> (Team, Option<Team>, usize) {
        let mut local = self.ranks[self.mine].clone();
        if let Some(at) = local.iter().position(|&r| r == root) {
            local.swap(0, at);
        }
        let leader = |r: &Vec<usize>| if r.contains(&root) { root } else { r[0] };
        let leaders: Vec<_> = self.ranks.iter().map(leader).collect();
        let at = leaders.iter().position(|&r| r == root).unwrap_or(0);
        let me = local.iter().position(|&r| r == self.me).unwrap_or(0);
        (Team::at(local, me), Team::of(leaders, self.me), at)
    }

    /// The ranks that stand at this position of their hosts, by host.
    pub(crate) fn peers(&self, at: usize) -> Vec<usize> {
        self.ranks.iter().filter_map(|r| r.get(at).copied()).collect()
    }

    /// The position, on host `h`, of the rank that handles what goes between `h` and rank `l` of another host.
    pub(crate) fn handler(&self, h: usize, l: usize) -> usize {
        l % self.ranks[h].len()
    }

    /// Ranks of other hosts as (host, position there, rank).
    pub(crate) fn foreign(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let hosts = self.ranks.iter().enumerate().filter(|&(h, _)| h != self.mine);
        hosts.flat_map(|(h, ranks)| ranks.iter().enumerate().map(move |(l, &r)| (h, l, r)))
    }

    /// All ranks, and those of this host.
    pub(crate) fn all(&self) -> (Team, Team) {
        let local = self.ranks[self.mine].clone();
        let at = local.iter().position(|&r| r == self.me).unwrap_or(0);
        let size = self.ranks.iter().map(Vec::len).sum();
        (Team::all(self.me, size), Team::at(local, at))
    }
}
