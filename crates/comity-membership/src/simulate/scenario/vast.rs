//! Jobs of up to 4,096 ranks: few faults, each to show something that the size may break.

use super::{MS, PlantedFault, Rng, SECOND, Scenario, SimulatedGroup};
use crate::overlay_neighbours;

scope::listed! {
    /// Event in a vast job.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in crate::simulate) enum Vast {
        /// A rank is killed.
        Kill,
        /// A rank is stopped for ever.
        Stop,
        /// A host has no power any more.
        Power,
        /// Nothing comes from a host any more, nor goes to it.
        CutOff,
        /// Nothing comes from a host for most of the limit, and what it sent comes late.
        Hiccup,
        /// Three ranks abort at once.
        Aborts,
        /// A rank aborts the job before most have opened it.
        Early,
        /// A rank leaves the job's group, and is killed then.
        LeftAndKilled,
        /// A rank is killed that is in a small group with none of those that watch it.
        Apart,
        /// All that watch a rank end in good order, and then it is killed.
        Bared,
    }
}

impl Vast {
    /// Return whether ranks are to learn of a failure.
    pub(in crate::simulate) fn is_fatal(self) -> bool {
        !matches!(self, Self::Hiccup | Self::LeftAndKilled)
    }
}

/// Ranks of a host.
const HOST: usize = 2;
/// About so many members of a small group.
const FEW: usize = 32;
/// When the fault begins: every rank has heard its neighbours by then.
const AT: u64 = 700 * MS;

impl Scenario {
    /// A job of `size` ranks to which that happens; `seed` says where.
    pub(in crate::simulate) fn vast(what: Vast, seed: u64, size: usize) -> Self {
        let mut s = Self::new(seed, Some(65..=80));
        s.size = size;
        s.sparse = true;
        s.linger = None;
        s.goodbyes = Vec::new();
        s.limit = 5 * SECOND;
        s.delay = (100, 5 * MS);
        s.lag = (2 * MS, 8 * MS);
        s.groups = vec![whole(1, (0..size).collect())];
        let mut rng = Rng::new(seed);
        let rank = rng.below(size);
        let host = (rank..rank + HOST).map(|r| r % size);
        let side = || (0..size).map(|r| host.clone().any(|h| h == r)).collect::<Vec<bool>>();
        let kill = |at| PlantedFault::Kill { rank, at, sends: None };
        let abort = |by| PlantedFault::Abort { group: 0, by, culprit: by, at: AT };
        let mut need = s.limit + SECOND;
        s.faults = match what {
            Vast::Kill => vec![kill(AT)],
            Vast::Stop => vec![PlantedFault::Stop { rank, at: AT, to: None, host: false }],
            Vast::Power => host.map(|rank| PlantedFault::Power { rank, at: AT }).collect(),
            Vast::CutOff => vec![PlantedFault::Cut { side: side(), both: true, at: AT, to: None }],
            Vast::Hiccup => {
                let to = Some(AT + s.limit * 8 / 10);
                need += s.limit;
                vec![PlantedFault::Cut { side: side(), both: true, at: AT, to }]
            }
            Vast::Aborts => (0..3).map(|_| abort(rng.below(size))).collect(),
            Vast::Early => {
                let late = |m: usize| if m.is_multiple_of(9) { MS } else { AT + SECOND };
                s.groups[0].enter = (0..size).map(late).collect();
                need += SECOND;
                vec![abort(rng.below(size / 9) * 9)]
            }
            Vast::LeftAndKilled => {
                s.groups[0].leave[rank] = Some(AT);
                vec![kill(AT + SECOND)]
            }
            Vast::Apart => {
                let near = overlay_neighbours(rank, size);
                let apart = |r: &usize| *r == rank || !near.contains(r);
                let members = rng.some(FEW, size).into_iter().chain([rank]).filter(apart);
                let members: std::collections::BTreeSet<usize> = members.collect();
                s.groups.push(whole(2, members.into_iter().collect()));
                s.groups.remove(0);
                vec![kill(AT)]
            }
            Vast::Bared => {
                let near = overlay_neighbours(rank, size);
                // They are in no group, so that nobody misses them.
                let members = (0..size).filter(|r| !near.contains(r)).collect();
                s.groups = vec![whole(1, members)];
                s.goodbyes = near.into_iter().map(|r| (r, AT + rng.between(0, SECOND))).collect();
                // Others take their places within two beats of the last.
                need += 3 * SECOND;
                vec![kill(AT + 3 * SECOND)]
            }
        };
        s.end = AT + need + 2 * s.slack();
        s
    }
}

/// A group that all members open at once, for good.
fn whole(group_id: u64, members: Vec<usize>) -> SimulatedGroup {
    let size = members.len();
    SimulatedGroup { group_id, members, enter: vec![MS; size], leave: vec![None; size] }
}
