//! Which algorithm, and in what segments: a cost model over what all ranks know alike.
//!
//! A message costs `alpha`, a byte `beta`, a byte added `gamma`; an algorithm is a few rounds of
//! messages. The sums here mirror the costs that each algorithm's file promises:
//!
//! ```text
//!   seconds = sum over rounds of  alpha * messages + beta * bytes + gamma * bytes added
//! ```
//!
//! The ranks of a host share its network; ranks beyond its cores take turns, so that a round costs
//! a switch for each of them. The answer must be the same on every rank: nothing here looks at `rank`, nor at the counts
//! of all_to_all, which ranks do not share.

use crate::{Algorithm, Kind, PairCosts, Shape, costs};
use std::collections::BTreeMap;

/// What messages cost on a kind of link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Seconds per message.
    pub alpha: f64,
    /// Seconds per byte.
    pub beta: f64,
}

/// Where the ranks are, and what moving between them costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Host of each rank, any numbers; empty when all share one.
    pub host: Vec<usize>,
    /// Cores of each host.
    pub cores: usize,
    /// Within a host.
    pub local: Cost,
    /// Between hosts.
    pub remote: Cost,
    /// Seconds per byte added.
    pub gamma: f64,
    /// Seconds to hand a core from one rank to the next.
    pub switch: f64,
    /// Ranks that follow each other have the best links, so a ring goes before all else.
    pub ring: bool,
    /// What was measured between the ranks, if that was asked for.
    pub pairs: Option<PairCosts>,
}

/// How to carry out a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Elements of a segment; 0 for one segment.
    pub segment: usize,
    /// Expected seconds.
    pub predicted: f64,
}

/// The cheapest way to carry out `shape`. The same on every rank.
pub fn choose(shape: &Shape, world: &Topology) -> Choice {
    let call = Call::new(shape, world);
    let mut best = Choice { algorithm: Algorithm::Direct, segment: 0, predicted: f64::INFINITY };
    for &algorithm in shape.kind.algorithms() {
        if world.ring && algorithm == Algorithm::Ring {
            return price(shape, world, algorithm);
        }
        let predicted = call.price(shape, algorithm);
        if predicted < best.predicted {
            best = Choice { algorithm, segment: 0, predicted };
        }
    }
    best.segment = call.segment(best.algorithm);
    best
}

/// As [`choose`], with the algorithm given.
pub fn price(shape: &Shape, world: &Topology, algorithm: Algorithm) -> Choice {
    let call = Call::new(shape, world);
    Choice { algorithm, segment: call.segment(algorithm), predicted: call.price(shape, algorithm) }
}

impl Cost {
    /// Shared memory.
    pub const SHM: Self = Self { alpha: 0.15e-6, beta: 1.0 / 12e9 };
    /// TCP on a fast network or loopback.
    pub const TCP: Self = Self { alpha: 5e-6, beta: 1.0 / 3e9 };
}

impl Topology {
    /// Shared memory within hosts, TCP between them.
    pub fn new(host: Vec<usize>, cores: usize) -> Self {
        Self {
            host,
            cores: cores.max(1),
            local: Cost::SHM,
            remote: Cost::TCP,
            gamma: 1.0 / 8e9,
            switch: 1.5e-6,
            ring: false,
            pairs: None,
        }
    }
}

/// A call in the numbers that cost.
struct Call<'a> {
    kind: Kind,
    world: &'a Topology,
    /// Ranks.
    n: f64,
    /// Hosts.
    hosts: f64,
    /// Ranks of the fullest host.
    local: f64,
    even: bool,
    /// Bytes of the whole buffer; of one part, on average, where ranks have parts.
    bytes: f64,
    elem: usize,
}

impl<'a> Call<'a> {
    fn new(shape: &Shape, world: &'a Topology) -> Self {
        let mut ranks: BTreeMap<Option<usize>, usize> = BTreeMap::new();
        (0..shape.size).for_each(|r| *ranks.entry(world.host.get(r).copied()).or_default() += 1);
        let most = ranks.values().copied().max().unwrap_or(1);
        let count = match (shape.kind, shape.counts) {
            (Kind::Barrier, _) => 0.0,
            (Kind::AllToAll, [_, ..]) | (_, []) => shape.count as f64,
            (_, counts) => counts.iter().map(|&c| c as f64).sum::<f64>() / counts.len() as f64,
        };
        Self {
            kind: shape.kind,
            world,
            n: shape.size as f64,
            hosts: ranks.len() as f64,
            local: most as f64,
            even: ranks.values().all(|&c| c == most),
            bytes: count * shape.elem as f64,
            elem: shape.elem.max(1),
        }
    }

    /// How many ranks a core serves.
    fn share(&self) -> f64 {
        (self.local / self.world.cores.max(1) as f64).max(1.0)
    }

    /// A round in which a rank moves messages and bytes within its host.
    fn within(&self, messages: f64, bytes: f64) -> f64 {
        if messages <= 0.0 {
            return 0.0;
        }
        let share = self.share();
        let turns = if share > 1.0 { share * self.world.switch } else { 0.0 };
        turns + share * (messages * self.world.local.alpha + bytes * self.world.local.beta)
    }

    /// A round in which a rank moves messages, and its host bytes, between hosts. Messages of one round overlap.
    fn between(&self, messages: f64, host_bytes: f64) -> f64 {
        if messages <= 0.0 {
            return 0.0;
        }
        self.world.remote.alpha * (1.0 + (messages - 1.0) / 2.0) * self.share()
            + host_bytes * self.world.remote.beta
    }

    fn add(&self, bytes: f64) -> f64 {
        self.share() * self.world.gamma * bytes
    }

    /// Everyone sends `bytes` to everyone.
    fn exchange(&self, bytes: f64) -> f64 {
        let (near, far) = (self.local - 1.0, self.n - self.local);
        self.within(near, near * bytes) + self.between(far, self.local * far * bytes)
    }

    /// One rank sends `bytes` to everyone, or takes as much.
    fn star(&self, bytes: f64) -> f64 {
        let (near, far) = (self.local - 1.0, self.n - self.local);
        self.within(near, near * bytes) + self.between(far, far * bytes)
    }

    /// Everyone sends `bytes` to one neighbour.
    fn shift(&self, bytes: f64) -> f64 {
        self.within((self.local - 1.0).min(1.0), bytes) + self.between((self.hosts - 1.0).min(1.0), bytes)
    }

    /// Whether ranks at a distance of `by` share a host. Unless counts are powers of two, some pairs lie astride two
    /// hosts at any distance.
    fn is_near(&self, by: f64) -> bool {
        let aligned = self.even && self.local.log2().fract() == 0.0 && self.n.log2().fract() == 0.0;
        self.hosts < 2.0 || (aligned && by < self.local)
    }

    /// Everyone sends `bytes` to a partner at a distance of `by`.
    fn swap(&self, by: f64, bytes: f64) -> f64 {
        if self.is_near(by) { self.within(1.0, bytes) } else { self.between(1.0, self.local * bytes) }
    }

    /// A step of a tree: `bytes` from one rank to another at a distance of `by`.
    fn hop(&self, by: f64, bytes: f64) -> f64 {
        if self.is_near(by) { self.within(1.0, bytes) } else { self.between(1.0, bytes) }
    }

    /// Sum over the distances 1, 2, 4, ... below `n`.
    fn levels(&self, n: f64, round: impl Fn(f64) -> f64) -> f64 {
        let distances = std::iter::successors(Some(1.0), |by| Some(by * 2.0));
        distances.take_while(|&by| by < n).map(round).sum()
    }

    /// By what was measured, where it was. What ranks send in an all_to_all they do not share.
    fn price(&self, shape: &Shape, algorithm: Algorithm) -> f64 {
        match self.world.costs(shape.size) {
            Some(c) if self.kind != Kind::AllToAll => {
                costs::seconds(shape, self.world, c, algorithm, self.share())
            }
            _ => self.seconds(algorithm),
        }
    }

    fn seconds(&self, algorithm: Algorithm) -> f64 {
        let (n, b) = (self.n, self.bytes);
        if n < 2.0 {
            return 0.0;
        }
        match self.kind {
            Kind::AllReduce => self.all_reduce(algorithm),
            Kind::Reduce => match algorithm {
                Algorithm::TwoPhase => self.exchange(b / n) + self.add(b) + self.star(b / n),
                Algorithm::Ring => (n - 1.0) * (self.shift(b / n) + self.add(b / n)) + self.star(b / n),
                Algorithm::Tree => self.levels(n, |by| self.hop(by, b) + self.add(b)),
                Algorithm::Leader => {
                    let near = self.local - 1.0;
                    let local = self.within(near, near * b) + self.add(near * b);
                    local + self.levels(self.hosts, |_| self.between(1.0, b) + self.add(b))
                }
                _ => self.star(b) + self.add((n - 1.0) * b),
            },
            Kind::Broadcast => match algorithm {
                Algorithm::TwoPhase => self.star(b / (n - 1.0)) + self.exchange(b / (n - 1.0)),
                Algorithm::Tree => self.levels(n, |by| self.hop(by, b)),
                // All hops at once, after the first bytes have come through.
                Algorithm::Chain => {
                    let near = (self.local - 1.0) * self.hosts;
                    let first = b.min(65536.0);
                    let fill = near * self.within(1.0, first) + (self.hosts - 1.0) * self.between(1.0, first);
                    fill + self.shift(b - first)
                }
                Algorithm::Leader => {
                    let near = self.local - 1.0;
                    self.levels(self.hosts, |_| self.between(1.0, b)) + self.within(near, near * b)
                }
                _ => self.star(b),
            },
            Kind::AllGather | Kind::ReduceScatter => self.parted(algorithm),
            Kind::Gather | Kind::Scatter => match algorithm {
                // Half of everything passes twice, copied once more.
                Algorithm::Tree => self.levels(n, |by| self.hop(by, by * b)) + self.within(1.0, n / 2.0 * b),
                _ => self.star(b),
            },
            Kind::AllToAll => self.exchange(b),
            Kind::Barrier => match algorithm {
                Algorithm::Doubling => self.levels(n, |by| self.swap(by, 0.0)),
                Algorithm::Leader => {
                    2.0 * self.within(self.local - 1.0, 0.0)
                        + self.levels(self.hosts, |_| self.between(1.0, 0.0))
                }
                _ => self.exchange(0.0),
            },
        }
    }

    fn all_reduce(&self, algorithm: Algorithm) -> f64 {
        let (n, b, near) = (self.n, self.bytes, self.local - 1.0);
        match algorithm {
            Algorithm::TwoPhase => 2.0 * self.exchange(b / n) + self.add(b * (n - 1.0) / n),
            Algorithm::Ring => (n - 1.0) * (2.0 * self.shift(b / n) + self.add(b / n)),
            Algorithm::Doubling => {
                let levels = self.levels(n / 2.0 + 0.5, |by| self.swap(by, b) + self.add(b));
                let fold = if n.log2().fract() > 0.0 { 2.0 * self.swap(1.0, b) + self.add(b) } else { 0.0 };
                levels + fold
            }
            Algorithm::Leader => {
                let local = 2.0 * self.within(near, near * b) + self.add(near * b);
                local + self.levels(self.hosts, |_| self.between(1.0, b) + self.add(b))
            }
            Algorithm::Hierarchy if self.even => {
                let each = b / self.local;
                let far = self.hosts - 1.0;
                let local = 2.0 * self.within(near, near * each) + self.add(near * each);
                local + 2.0 * self.between(far, far / self.hosts * b) + self.add(each)
            }
            Algorithm::Hierarchy => {
                let local = 4.0 * self.within(near, near / self.local * b) + self.add(b);
                let far = self.hosts - 1.0;
                local + 2.0 * self.between(far, far / self.hosts * b) + self.add(b)
            }
            _ => self.exchange(b) + self.add((n - 1.0) * b),
        }
    }

    fn parted(&self, algorithm: Algorithm) -> f64 {
        let (n, b, near, far) = (self.n, self.bytes, self.local - 1.0, self.n - self.local);
        let add = |bytes: f64| if self.kind == Kind::ReduceScatter { self.add(bytes) } else { 0.0 };
        match algorithm {
            Algorithm::Ring => (n - 1.0) * (self.shift(b) + add(b)),
            Algorithm::Doubling if self.kind == Kind::AllGather => {
                self.levels(n, |by| self.swap(by, by * b))
                    + self.share() * 2.0 * n * b * self.world.local.beta
            }
            Algorithm::Doubling => self.levels(n, |by| self.swap(by, n * b) + add(n * b)),
            Algorithm::Hierarchy => {
                let hosts = self.hosts - 1.0;
                let cross = self.between(hosts, self.local * hosts * b);
                let passed = far / self.local * near;
                self.within(near, near * b) + cross + self.within(passed, passed * b) + add(n * b)
            }
            _ => self.exchange(b) + add((n - 1.0) * b),
        }
    }

    /// Elements of a segment. Only plans whose later rounds pass on what earlier ones made gain by it; a message is to
    /// stay in a core's cache on the way.
    fn segment(&self, algorithm: Algorithm) -> usize {
        let messages = match (self.kind, algorithm) {
            (Kind::AllReduce | Kind::Reduce, Algorithm::TwoPhase | Algorithm::Ring) => self.n,
            (Kind::AllReduce, Algorithm::Hierarchy) if self.even => self.n,
            (Kind::AllReduce, Algorithm::Hierarchy) => self.local,
            _ => return 0,
        };
        if self.bytes < 1048576.0 {
            return 0;
        }
        let message = if self.hosts > 1.0 { 524288.0 } else { 131072.0 };
        let segment = (message * messages) as usize / self.elem;
        if segment as f64 * self.elem as f64 >= self.bytes { 0 } else { segment.max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(kind: Kind, n: usize, bytes: usize, per_host: usize, cores: usize) -> Choice {
        let host = (0..n).map(|r| r / per_host).collect();
        choose(&Shape::new(kind, 0, n, bytes / 4, 4), &Topology::new(host, cores))
    }

    #[test]
    fn small_messages_take_few_rounds_and_large_ones_few_bytes() {
        assert_eq!(pick(Kind::AllReduce, 2, 8, 2, 2).algorithm, Algorithm::Direct);
        assert_eq!(pick(Kind::AllReduce, 4, 8, 4, 2).algorithm, Algorithm::Direct);
        assert_eq!(pick(Kind::AllReduce, 64, 8, 1, 1).algorithm, Algorithm::Doubling);
        let large = pick(Kind::AllReduce, 4, 64 << 20, 4, 2);
        assert_eq!(large.algorithm, Algorithm::TwoPhase);
        assert!((1..16 << 20).contains(&large.segment));
        assert_eq!(pick(Kind::Broadcast, 8, 64, 1, 1).algorithm, Algorithm::Tree);
        assert_eq!(pick(Kind::Barrier, 2, 0, 2, 2).algorithm, Algorithm::Direct);
        assert_eq!(pick(Kind::Barrier, 512, 0, 1, 1).algorithm, Algorithm::Doubling);
    }

    #[test]
    fn hosts_with_several_ranks_speak_as_one() {
        assert_eq!(pick(Kind::AllReduce, 16, 64 << 20, 8, 8).algorithm, Algorithm::Hierarchy);
        assert_eq!(pick(Kind::AllReduce, 12, 8, 3, 3).algorithm, Algorithm::Leader);
        assert_eq!(pick(Kind::AllGather, 16, 1 << 20, 8, 8).algorithm, Algorithm::Hierarchy);
        assert_eq!(pick(Kind::Broadcast, 12, 8, 3, 3).algorithm, Algorithm::Leader);
    }

    #[test]
    fn a_ring_that_is_preferred_goes_before_what_is_cheaper() {
        for kind in Kind::ALL {
            for (n, bytes) in [(2, 8), (4, 1 << 20), (16, 64 << 20)] {
                let shape = Shape::new(kind, 0, n, bytes / 4, 4);
                let usual = Topology::new((0..n).map(|r| r / 4).collect(), 2);
                let free = choose(&shape, &usual);
                let ring = choose(&shape, &Topology { ring: true, ..usual });
                let has_ring = kind.algorithms().contains(&Algorithm::Ring);
                let wanted = if has_ring { Algorithm::Ring } else { free.algorithm };
                assert_eq!(ring.algorithm, wanted, "{kind:?}, {n} ranks, {bytes} bytes");
            }
        }
        let small = Shape::new(Kind::AllReduce, 0, 4, 2, 4);
        assert_ne!(choose(&small, &Topology::new(vec![0; 4], 2)).algorithm, Algorithm::Ring);
    }

    #[test]
    fn all_ranks_choose_alike() {
        let counts = [[1, 2, 3], [7, 0, 900], [0, 0, 0]];
        let world = Topology::new(vec![0, 0, 1], 2);
        for kind in Kind::ALL {
            let choice = |rank: usize| {
                // What a rank sends in an all_to_all is its own affair.
                let counts = if kind == Kind::AllToAll { &counts[rank] } else { &counts[0] };
                choose(&Shape { counts, recv_counts: counts, ..Shape::new(kind, rank, 3, 0, 4) }, &world)
            };
            assert_eq!(choice(0), choice(1), "{kind:?}");
            assert_eq!(choice(0), choice(2), "{kind:?}");
        }
    }

    #[test]
    fn costs_grow_with_bytes_and_never_go_wrong() {
        for kind in Kind::ALL {
            for n in [1, 2, 3, 5, 8, 64, 1000] {
                for &algorithm in kind.algorithms() {
                    let world = Topology::new((0..n).map(|r| r / 3).collect(), 2);
                    let at = |count| price(&Shape::new(kind, 0, n, count, 4), &world, algorithm).predicted;
                    assert!(at(0).is_finite() && at(0) >= 0.0, "{kind:?} {algorithm:?} {n}");
                    assert!(at(1000) <= at(1_000_000), "{kind:?} {algorithm:?} {n}");
                    assert_eq!(n == 1, at(1) == 0.0, "{kind:?} {algorithm:?} {n}");
                }
            }
        }
    }
}
