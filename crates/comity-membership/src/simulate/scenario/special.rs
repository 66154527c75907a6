//! Scenarios made for one purpose.

use super::{MS, NEVER, PlantedFault, Rng, SECOND, Scenario, SimulatedGroup};

impl Scenario {
    /// A large group that one in nine has opened when one of these aborts it.
    pub(in crate::simulate) fn sparse(seed: u64) -> Self {
        let mut s = Self::new(seed, Some(65..=80));
        let n = s.size;
        let enter = (0..n).map(|m| if m % 9 == 0 { MS } else { NEVER }).collect();
        s.groups =
            vec![SimulatedGroup { group_id: 1, members: (0..n).collect(), enter, leave: vec![None; n] }];
        (s.goodbyes, s.linger) = (Vec::new(), None);
        let by = Rng::new(seed).below(7) * 9;
        s.faults = vec![PlantedFault::Abort { group: 0, by, culprit: by, at: 100 * MS }];
        s.end = s.limit + 2 * SECOND;
        s
    }

    /// A large job of which three in four ranks leave and end, and then one that is left is killed.
    pub(in crate::simulate) fn thinned(seed: u64) -> Self {
        let mut s = Self::new(seed, Some(65..=80));
        let n = s.size;
        let mut rng = Rng::new(seed ^ 3);
        (s.limit, s.sparse, s.linger) = (SECOND, true, None);
        let order = rng.some(n, n);
        let (stay, go) = order.split_at(n / 4);
        let mut members = stay.to_vec();
        members.sort_unstable();
        let size = members.len();
        s.groups =
            vec![SimulatedGroup { group_id: 1, members, enter: vec![MS; size], leave: vec![None; size] }];
        s.goodbyes = go.iter().map(|r| (*r, 200 * MS + rng.between(0, 2 * SECOND))).collect();
        s.faults = vec![PlantedFault::Kill { rank: stay[0], at: 4 * SECOND, sends: None }];
        s.end = 4 * SECOND + s.limit + SECOND + 2 * s.slack();
        s
    }
}
