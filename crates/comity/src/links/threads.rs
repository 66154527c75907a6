//! How many threads send for a rank, and how many connections a pair has: each rank finds the same for all.

use crate::rendezvous::Facts;

impl Facts {
    /// Threads that may send for a rank of these, beside its own: as it wishes, or one for every four cores of its share of the host. Such
    /// a thread looks for work as the rank's own does, and what the system does for both wants cores as well.
    pub(super) fn couriers(all: &[Self], rank: usize) -> usize {
        const CORES: usize = 4;
        all.get(rank).map_or(0, |ours| {
            if ours.senders != u16::MAX {
                return ours.senders.into();
            }
            let here = all.iter().filter(|f| f.host_id == ours.host_id).count();
            usize::from(ours.cores) / here.max(1) / CORES
        })
    }

    /// How many TCP connections two ranks of these have per address; both find the same.
    pub(super) fn connections(all: &[Self], pair: [usize; 2]) -> u16 {
        /// Ranks of a job in which pairs have two by themselves: each group takes two descriptors a pair then, and 1,024 is a usual limit.
        const FEW: usize = 64;
        let wish = pair.iter().filter_map(|r| all.get(*r)).map(|f| f.connections).max();
        wish.filter(|n| *n > 0).unwrap_or_else(|| {
            // A thread sends where one connection carries all that is long one way, and none the other way.
            let listener = pair.iter().min().and_then(|r| all.get(*r));
            let is_narrow = listener.is_none_or(|f| f.addrs.len() == 1);
            let asked = |r: &usize| all.get(*r).is_some_and(|f| f.senders != u16::MAX);
            let sends = |r: &usize| (all.len() <= FEW || asked(r)) && Self::couriers(all, *r) > 0;
            if is_narrow && pair.iter().any(sends) { 2 } else { 1 }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, rendezvous::facts};

    #[test]
    fn pairs_agree_on_threads_and_connections() {
        let rank = |host_id, cores, senders, connections| {
            let config = Config::new(0, 1);
            let facts = facts(&config, false, Vec::new(), String::new());
            Facts { host_id, cores, senders, connections, addrs: vec![([10, 0, 0, 1], 1).into()], ..facts }
        };
        const AUTO: u16 = u16::MAX;
        let mut all = [
            rank(1, 16, AUTO, 0),
            rank(1, 16, AUTO, 0),
            rank(2, 3, AUTO, 0),
            rank(3, 2, AUTO, 0),
            rank(4, 64, 0, 0),
            rank(5, 1, 1, 0),
            rank(6, 64, AUTO, 1),
            rank(7, 2, AUTO, 3),
        ];
        let couriers: Vec<_> = (0..9).map(|r| Facts::couriers(&all, r)).collect();
        assert_eq!(couriers, [2, 2, 0, 0, 0, 1, 16, 0, 0]);
        for (pair, connections) in [
            ([0, 1], 2),
            ([0, 2], 2),
            ([2, 3], 1),
            ([3, 4], 1),
            ([4, 5], 2),
            ([2, 6], 1),
            ([0, 6], 1),
            ([6, 7], 3),
        ] {
            for pair in [pair, [pair[1], pair[0]]] {
                assert_eq!(Facts::connections(&all, pair), connections, "{pair:?}");
            }
        }
        let crowd = |n, senders| (0..n).map(|host| rank(host, 8, senders, 0)).collect::<Vec<_>>();
        let of = |n, senders| Facts::connections(&crowd(n, senders), [0, 1]);
        assert_eq!([of(64, AUTO), of(65, AUTO), of(65, 1)], [2, 1, 2]);
        // The lower rank listens; with two addresses each direction would have two connections, and no thread.
        all[0].addrs.push(([10, 0, 1, 1], 1).into());
        assert_eq!([[0, 1], [1, 0], [1, 2]].map(|pair| Facts::connections(&all, pair)), [1, 1, 2]);
    }
}
