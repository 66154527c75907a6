//! Into how many lanes a call is cut whose ranks share a host and own several cores each: a thread carries each lane.
//!
//! ```text
//!   seconds of k lanes = start + each * k + seconds without lanes / k^0.8
//!   over several hosts = the same within a host, twice, and what goes between hosts meanwhile not
//! ```
//! Measured with 2, 4 and 8 ranks on 64 cores (bench/record/2026-11-27-lanes.md): a lane does as much as a rank's own thread, until lanes
//! share the memory's speed.
//!
//! Only calls that add all contributions at once are cut, or that add nothing: lanes do so too, and the bits are the same. Over several
//! hosts those are calls by `hierarchy`, whose ranks add up within their host at once. May import `algorithms`, `model`, `shape` and
//! `topology`.

use crate::{
    algorithms::Algorithm,
    model::{
        Model,
        Traffic::{BothWays, Same},
    },
    shape::{Common, Kind, Lengths},
    topology::Topology,
};

/// Seconds until all ranks know of the call and all threads are at work.
const START: f64 = 15e-6;
/// Seconds that a thread adds to that.
const EACH: f64 = 0.6e-6;
/// Lanes share the memory: how much of each adds to the speed.
const GAIN: f64 = 0.8;
/// Bytes of a lane below which it is none.
const LEAST: f64 = 16384.0;
/// The most lanes that gain.
const MOST: usize = 16;
/// The most ranks of a host.
const MOST_MATES: f64 = 64.0;
/// The most hosts: between more, an element's order of additions would depend on where the parts begin.
const MOST_HOSTS: f64 = 16.0;
/// Bytes from which on an all_reduce over several hosts is cut into segments, so that it moves bytes within hosts and between them at once.
const OVERLAPS: f64 = 1048576.0;

/// Number of lanes that there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// Lanes up to the number that gains.
    UpTo(usize),
    /// A given number of lanes wherever each has bytes enough.
    Just(usize),
}

impl Lanes {
    /// The most that a call may be cut into.
    pub fn most(self) -> usize {
        let (Self::UpTo(n) | Self::Just(n)) = self;
        n
    }
}

/// The most lanes of a rank that owns so many cores: the calling thread's, and threads on half of the cores; one core stays with the
/// program. With three quarters, calls of 8 ranks on 64 cores took up to six times as long in one turn of two
/// (`bench/record/2026-11-27-lanes.md`).
pub fn lanes_of(cores: usize) -> usize {
    (1 + cores / 2).min(cores.saturating_sub(1)).clamp(1, MOST)
}

/// Number of lanes, by [`lanes_of`] the ranks of the fullest host, which share its cores.
pub(crate) fn most(host: &[usize], cores: usize) -> usize {
    let fullest = host.iter().map(|h| host.iter().filter(|o| *o == h).count()).max().unwrap_or(1);
    lanes_of(cores / fullest)
}

/// Lanes of a call, and the seconds that they take; `plain` seconds without.
pub(crate) fn lanes(
    call: &Common<'_>,
    world: &Topology,
    model: &Model<'_>,
    algorithm: Algorithm,
    plain: f64,
) -> (usize, f64) {
    let none = (1, plain);
    let Lengths::Equal(count) = call.lengths else { return none };
    let is_one_host = model.hosts < 2.0;
    let serves = match call.kind {
        Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather if !is_one_host => {
            let is_even =
                model.even && (2.0..=MOST_MATES).contains(&model.local) && model.hosts <= MOST_HOSTS;
            // The parts of a host lie side by side.
            let mut mates = world.host.chunks(model.local as usize);
            let is_cut = !call.kind.has_parts() || mates.all(|m| m.iter().all(|h| *h == m[0]));
            algorithm == Algorithm::Hierarchy && is_even && is_cut
        }
        _ if !is_one_host => false,
        Kind::AllReduce | Kind::ReduceScatter => algorithm.adds_at_once(),
        Kind::AllGather | Kind::AllToAll | Kind::Broadcast => true,
        _ => false,
    };
    let most = world.lanes.most();
    if most < 2 || !serves {
        return none;
    }
    let bytes = (count * call.elem) as f64 * if call.kind.has_parts() { call.size as f64 } else { 1.0 };
    let far = model.hosts - 1.0;
    let (between, starts) = match call.kind {
        _ if is_one_host => (0.0, 1.0),
        Kind::AllReduce => (2.0 * model.cross(far, far / model.hosts * bytes, BothWays), 2.0),
        kind => {
            let traffic = if kind == Kind::AllGather { Same } else { BothWays };
            (model.cross(far, model.local * far * model.bytes, traffic), model.hosts)
        }
    };
    let within = plain - between;
    let seconds = |k: usize| between + starts * (START + EACH * k as f64) + within / (k as f64).powf(GAIN);
    let mut all = (2..=most).take_while(|&k| bytes / k as f64 >= LEAST).map(|k| (k, seconds(k)));
    let overlaps = call.kind == Kind::AllReduce && bytes >= OVERLAPS;
    let without = if overlaps { within.max(between) } else { plain };
    match world.lanes {
        Lanes::UpTo(_) => {
            let best = all.reduce(|best, next| if next.1 < best.1 { next } else { best });
            best.filter(|(_, seconds)| *seconds < without).unwrap_or(none)
        }
        Lanes::Just(_) => all.find(|(k, _)| *k == most).unwrap_or(none),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{choose, price, shape::Shape};

    fn of(kind: Kind, n: usize, bytes: usize, lanes: usize) -> crate::Choice {
        let world = Topology { lanes: Lanes::UpTo(lanes), ..Topology::new(vec![0; n], 64) };
        choose(&Shape::new(kind, 0, n, bytes / 4, 4).common(), &world, None)
    }

    #[test]
    fn threads_of_lanes_have_half_of_the_cores() {
        assert_eq!([0, 1, 2, 3, 4, 5, 8, 16, 32, 64].map(lanes_of), [1, 1, 1, 2, 3, 3, 5, 9, 16, 16]);
        assert_eq!((most(&[0, 0, 1], 16), most(&[0; 2], 2), most(&[], 8)), (5, 1, 5));
    }

    #[test]
    fn long_calls_are_cut_and_short_ones_are_not() {
        for n in [2, 4, 8] {
            assert_eq!(of(Kind::AllReduce, n, 64 << 10, 16).lanes, 1, "{n}");
            assert_eq!(of(Kind::AllReduce, n, 64 << 20, 16).lanes, 16, "{n}");
            assert_eq!(of(Kind::AllReduce, n, 64 << 20, 1).lanes, 1, "a core each");
            for kind in [Kind::ReduceScatter, Kind::AllGather, Kind::AllToAll, Kind::Broadcast] {
                assert_eq!(of(kind, n, 16 << 20, 6).lanes, 6, "{kind:?}");
            }
        }
        let middle = of(Kind::AllReduce, 2, 512 << 10, 16).lanes;
        assert!((2..16).contains(&middle), "fewer for a shorter one: {middle}");
        let world = Topology { lanes: Lanes::Just(3), ..Topology::new(vec![0; 2], 2) };
        let told = |bytes: usize| {
            choose(&Shape::new(Kind::AllReduce, 0, 2, bytes / 4, 4).common(), &world, None).lanes
        };
        assert_eq!([47 << 10, 48 << 10, 64 << 20].map(told), [1, 3, 3], "somebody has said so");
        for kind in [Kind::Reduce, Kind::Gather, Kind::Scatter, Kind::Barrier] {
            assert_eq!(of(kind, 4, 64 << 20, 16).lanes, 1, "{kind:?}");
        }
    }

    #[test]
    fn what_stores_partial_sums_or_spans_hosts_is_not_cut() {
        let world = Topology { lanes: Lanes::Just(8), ..Topology::new(vec![0; 4], 64) };
        let shape = Shape::new(Kind::AllReduce, 0, 4, 16 << 20, 4);
        for &algorithm in Algorithm::ALL.iter().filter(|a| a.serves(Kind::AllReduce)) {
            let lanes = price(&shape.common(), &world, algorithm).lanes;
            assert_eq!(lanes > 1, algorithm.adds_at_once(), "{algorithm:?}");
        }
    }

    #[test]
    fn over_hosts_of_as_many_ranks_each_a_hierarchy_is_cut() {
        let of = |hosts: &[usize], lanes, algorithm| {
            let world = Topology { lanes, ..Topology::new(hosts.to_vec(), 64) };
            let shape = Shape::new(Kind::AllReduce, 0, hosts.len(), 16 << 20, 4);
            price(&shape.common(), &world, algorithm).lanes
        };
        assert_eq!(of(&[0, 0, 1, 1], Lanes::Just(8), Algorithm::Hierarchy), 8);
        assert_eq!(of(&[0, 0, 1, 1], Lanes::Just(8), Algorithm::TwoPhase), 1);
        assert_eq!(
            of(&[0, 1, 1], Lanes::Just(8), Algorithm::Hierarchy),
            1,
            "one rank has nobody to share with"
        );
        let many: Vec<usize> = (0..34).map(|r| r / 2).collect();
        assert_eq!(of(&many[..32], Lanes::Just(8), Algorithm::Hierarchy), 8);
        assert_eq!(of(&many, Lanes::Just(8), Algorithm::Hierarchy), 1, "17 hosts pass parts on in a ring");
        // Segments hide what goes within hosts behind a slow network, and the other way around; lanes hide nothing.
        let world = Topology { lanes: Lanes::UpTo(8), ..Topology::new((0..16).map(|r| r / 8).collect(), 64) };
        let call = Shape::new(Kind::AllReduce, 0, 16, 16 << 20, 4);
        let over = |bytes_per_second: f64| {
            let mut world = world.clone();
            world.remote.cost.beta = 1.0 / bytes_per_second;
            price(&call.common(), &world, Algorithm::Hierarchy).lanes
        };
        assert_eq!((over(1e9), over(50e9)), (1, 8));
    }
}
