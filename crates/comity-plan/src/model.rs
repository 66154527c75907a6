//! Cost of a round of messages: the terms in which each algorithm's formula gives its time.
//!
//! A message costs `alpha`, a byte `beta`, a byte added `gamma`. Further messages of a round overlap, but for the time in which they keep
//! their ends `busy`; a rank that sends to all and takes from all is busy nearly three times as long:
//!
//! ```text
//!   seconds = sum over rounds of  alpha * (1 + busy * (messages - 1)) + beta * bytes + gamma * bytes added
//! ```
//!
//! | term | means |
//! |---|---|
//! | near, far | within a host, between hosts |
//! | local | ranks of the fullest host |
//! | share | ranks that a core serves, 1 at least |
//! | turns | switches of a core from rank to rank |
//! | busy, crowd | part of a further message's time, and factor of the bytes' time, where a rank's messages overlap |
//!
//! Rank, host, link, plan, schedule, round, lane and wire: the book's glossary.
//!
//! The ranks of a host share its network. Ranks beyond its cores take turns, so that a round costs a switch for each of them. Each word
//! here ([`exchange`](Model::exchange), [`shift`](Model::shift), ...) is one round, a formula for two kinds of link; a host's ranks follow each other.
//! No word has two messages of a round from one rank to one other: make them one message, or price two rounds, which is never too little. Where
//! each pair was measured, `choose` adds what the plan's own messages take longer. May import `draft`, `shape` and `topology`.

use crate::{
    draft::Hosts,
    shape::Common,
    topology::{
        HostLink::{self, Shm, Tcp},
        LinkClass, Topology,
    },
};
use Traffic::{BothWays, OneWay, Same};

/// Bytes of a part of an all_to_all with unequal parts, of which no rank knows all: a guess that is wrong both ways, where 0 bytes would let every
/// algorithm win that has few rounds and sends much.
const UNKNOWN: f64 = 16384.0;

/// A call in the numbers that cost.
#[derive(Debug)]
pub(crate) struct Model<'a> {
    pub(crate) world: &'a Topology,
    /// Ranks.
    pub(crate) n: f64,
    pub(crate) hosts: f64,
    /// Ranks of the fullest host.
    pub(crate) local: f64,
    /// True if all hosts have as many ranks.
    pub(crate) even: bool,
    /// Numbers of ranks that hosts have, each once, and that of the root's host.
    sizes: Vec<f64>,
    beside_root: f64,
    /// Bytes of the whole buffer; of one part, on average, where ranks have parts.
    pub(crate) bytes: f64,
    pub(crate) elem: usize,
}

impl<'a> Model<'a> {
    pub(crate) fn new(call: &Common<'_>, world: &'a Topology) -> Self {
        let hosts = Hosts::new(&world.host, 0, call.size);
        let mut sizes = hosts.ranks.iter().map(|ranks| ranks.len() as f64).collect::<Vec<_>>();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        let root = hosts.ranks.iter().find(|ranks| ranks.contains(&call.root));
        Self {
            world,
            n: call.size as f64,
            hosts: hosts.ranks.len() as f64,
            local: sizes.last().copied().unwrap_or(1.0),
            even: hosts.is_even(),
            sizes,
            beside_root: root.map_or(1.0, |ranks| ranks.len() as f64),
            bytes: call.lengths.mean().map_or(UNKNOWN, |count| count * call.elem as f64),
            elem: call.elem.max(1),
        }
    }

    /// Part of the formula's time that a call takes whose few messages go through memory and past the schedule, which the engine makes so up
    /// to the last length. Measured with 2, 4, 8 and 16 ranks: 0.5 to 0.7 at 8 B, 0.7 to 0.8 from 1 KiB on.
    pub(crate) fn lean(&self) -> f64 {
        self.part(Shm, &[(256.0, 0.55), (8192.0, 0.75)])
    }

    /// Part of the formula's time that two ranks over TCP take of which each sends all and adds all at once: it adds while the system moves
    /// bytes. Measured: 310 for 390 us at 1 MiB, 1,340 for 1,390 at 4 MiB, equal at 16, a tenth more at 64.
    pub(crate) fn at_once(&self) -> f64 {
        if self.n == 2.0 { self.part(Tcp, &[(8.0 * 1048576.0, 0.85)]) } else { 1.0 }
    }

    /// Part for up to so many bytes, known of ranks that share a host, have a core each and use this link.
    pub(crate) fn part(&self, usual: HostLink, parts: &[(f64, f64)]) -> f64 {
        let is_known = self.hosts <= 1.0 && self.world.pairs.is_none() && self.share() <= 1.0;
        let part = parts.iter().find(|(most, _)| self.bytes <= *most).map_or(1.0, |(_, part)| *part);
        if is_known && self.world.usual == Some(usual) { part } else { 1.0 }
    }

    /// Returns the number of ranks that a core serves.
    fn share(&self) -> f64 {
        (self.local / self.world.cores.max(1) as f64).max(1.0)
    }

    /// Seconds until every rank of a host had its turn.
    fn turns(&self) -> f64 {
        let share = self.share();
        if share > 1.0 { share * self.world.switch } else { 0.0 }
    }

    /// A round in which a rank moves messages and bytes within its host.
    pub(crate) fn within(&self, messages: f64, bytes: f64) -> f64 {
        self.near_round(messages, bytes, OneWay)
    }

    fn near_round(&self, messages: f64, bytes: f64, traffic: Traffic) -> f64 {
        if messages <= 0.0 {
            return 0.0;
        }
        let local = &self.world.local;
        let crowd = traffic.crowd(local, messages);
        let alpha = local.cost.alpha * (1.0 + traffic.busy(local) * (messages - 1.0));
        self.turns() + self.share() * (alpha + crowd * bytes * local.cost.beta)
    }

    /// A round in which a rank moves messages, and its host bytes, between hosts.
    fn far_round(&self, messages: f64, host_bytes: f64, traffic: Traffic) -> f64 {
        if messages <= 0.0 {
            return 0.0;
        }
        let remote = &self.world.remote;
        let crowd = traffic.crowd(remote, messages);
        let alpha = remote.cost.alpha * (1.0 + traffic.busy(remote) * (messages - 1.0));
        alpha * self.share() + crowd * host_bytes * remote.cost.beta
    }

    pub(crate) fn add(&self, bytes: f64) -> f64 {
        self.share() * self.world.gamma * bytes
    }

    /// A rank copies bytes within its memory.
    pub(crate) fn copy(&self, bytes: f64) -> f64 {
        self.share() * bytes * self.world.local.cost.beta
    }

    /// Everyone sends `bytes` of its own to everyone.
    pub(crate) fn exchange(&self, bytes: f64) -> f64 {
        self.all_to_all(bytes, BothWays)
    }

    /// Everyone sends the same `bytes` to everyone.
    pub(crate) fn spread(&self, bytes: f64) -> f64 {
        self.all_to_all(bytes, Same)
    }

    fn all_to_all(&self, bytes: f64, traffic: Traffic) -> f64 {
        // Ranks of a small host send more to others than those of a large one.
        let seconds = |local: &f64| {
            let near = local - 1.0;
            let far = self.n - local;
            self.near_round(near, near * bytes, traffic) + self.far_round(far, local * far * bytes, traffic)
        };
        self.sizes.iter().map(seconds).fold(0.0, f64::max)
    }

    /// Everyone tells everyone that it is there. Between hosts, messages without elements overlap as if they went one way.
    pub(crate) fn greet(&self) -> f64 {
        let seconds = |local: &f64| {
            self.near_round(local - 1.0, 0.0, BothWays) + self.far_round(self.n - local, 0.0, OneWay)
        };
        self.sizes.iter().map(seconds).fold(0.0, f64::max)
    }

    /// Everyone sends `bytes` to every rank of its host.
    pub(crate) fn exchange_within(&self, bytes: f64, traffic: Traffic) -> f64 {
        let near = self.local - 1.0;
        self.near_round(near, near * bytes, traffic)
    }

    /// The root sends `bytes` to everyone, or takes as much.
    pub(crate) fn star(&self, bytes: f64) -> f64 {
        let near = self.beside_root - 1.0;
        let far = self.n - self.beside_root;
        self.within(near, near * bytes) + self.far_round(far, far * bytes, OneWay)
    }

    /// The leader of each host, its first rank, sends `bytes` to its host, or takes as much from each rank.
    pub(crate) fn to_leader(&self, bytes: f64) -> f64 {
        let near = self.local - 1.0;
        self.within(near, near * bytes)
    }

    /// Everyone sends `bytes` to its neighbour, ranks of a host side by side.
    pub(crate) fn shift(&self, bytes: f64) -> f64 {
        self.within((self.local - 1.0).min(1.0), bytes)
            + self.far_round((self.hosts - 1.0).min(1.0), bytes, OneWay)
    }

    /// `bytes` go from neighbour to neighbour through all ranks, one hop after the other.
    pub(crate) fn walk(&self, bytes: f64) -> f64 {
        let near = (self.local - 1.0) * self.hosts;
        near * self.within(1.0, bytes) + (self.hosts - 1.0) * self.far_round(1.0, bytes, OneWay)
    }

    /// Returns true if ranks at a distance of `by` share a host. Unless counts are powers of two, some pairs lie astride two
    /// hosts at any distance.
    fn is_near(&self, by: f64) -> bool {
        let aligned = self.even && self.local.log2().fract() == 0.0 && self.n.log2().fract() == 0.0;
        self.hosts < 2.0 || (aligned && by < self.local)
    }

    /// Ranks of the fullest host that can have a partner elsewhere.
    fn crossing(&self) -> f64 {
        self.local.min(self.n - self.local)
    }

    /// Everyone sends `bytes` to a partner at a distance of `by`, a power of two.
    pub(crate) fn swap(&self, by: f64, bytes: f64) -> f64 {
        if self.is_near(by) {
            self.within(1.0, bytes)
        } else {
            self.far_round(1.0, self.crossing() * bytes, OneWay)
        }
    }

    /// Everyone sends `bytes` to the rank that comes `by` later, around, and takes as much from the one that comes `by` earlier.
    pub(crate) fn rotate(&self, by: f64, bytes: f64) -> f64 {
        if self.hosts < 2.0 {
            return self.within(1.0, bytes);
        }
        // The last `by` ranks of a host send to the next one.
        self.far_round(1.0, self.crossing().min(by) * bytes, OneWay)
    }

    /// Rotates as [`rotate`](Self::rotate), with bytes for which a rank waits that takes them from another than it sends to. Measured: 0.4 of a
    /// message more than between two that swap.
    pub(crate) fn astride(&self, by: f64, bytes: f64) -> f64 {
        self.rotate(by, bytes) + 0.4 * self.rotate(by, 0.0)
    }

    /// A step of a tree: `bytes` from one rank to another at a distance of `by`, a power of two, counted from the root.
    pub(crate) fn hop(&self, by: f64, bytes: f64) -> f64 {
        if self.is_near(by) { self.within(1.0, bytes) } else { self.far_round(1.0, bytes, OneWay) }
    }

    /// Leaders of two hosts swap `bytes`.
    pub(crate) fn lead(&self, bytes: f64) -> f64 {
        self.far_round(1.0, bytes, OneWay)
    }

    /// Every rank sends `messages` to other hosts, and its host `host_bytes` in all.
    pub(crate) fn cross(&self, messages: f64, host_bytes: f64, traffic: Traffic) -> f64 {
        self.far_round(messages, host_bytes, traffic)
    }

    /// Sum over the distances 1, 2, 4, ... below `n`.
    pub(crate) fn levels(&self, n: f64, round: impl Fn(f64) -> f64) -> f64 {
        let distances = std::iter::successors(Some(1.0), |by| Some(by * 2.0));
        distances.take_while(|&by| by < n).map(round).sum()
    }
}

/// Pattern of a rank's sends and receives in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Traffic {
    /// A rank only sends, or only takes, or does both with one other.
    OneWay,
    /// A rank sends to several and takes from several. Measured: nearly three times as busy.
    BothWays,
    /// The same, but everyone sends the same bytes to all and nothing is folded: nothing waits for a slower one.
    Same,
}

/// Factor for the busy time of a rank under [`Traffic::BothWays`], over that of one message alone.
const BOTH_WAYS: f64 = 2.8;
/// Further time of [`Traffic::Same`] bytes for each message above [`FEW`], as a part of their time.
const CROWDED: f64 = 0.035;
/// Number of [`Traffic::Same`] messages at once that cost their bytes nothing.
const FEW: f64 = 3.0;

impl Traffic {
    /// The part of a message's time for which each further one keeps a rank of this kind of link busy.
    pub(crate) fn busy(self, class: &LinkClass) -> f64 {
        class.busy
            * match self {
                Self::OneWay => 1.0,
                Self::BothWays => BOTH_WAYS,
                Self::Same => class.same,
            }
    }

    /// Returns the factor for the time of bytes that come from `messages` others at once.
    pub(crate) fn crowd(self, class: &LinkClass, messages: f64) -> f64 {
        match self {
            Self::BothWays if messages > 1.0 => class.crowd,
            Self::OneWay | Self::BothWays => 1.0,
            Self::Same => 1.0 + CROWDED * (messages - FEW).max(0.0),
        }
    }
}
