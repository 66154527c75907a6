//! Number of threads that send for a rank, and of connections of a pair: each rank finds the same for all.

use crate::{
    Card, LinkKind,
    channel::{Malformed, Reader, Writer},
};
use std::time::Duration;

/// A rank's announcement of its TCP threads and connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// Threads that may send for this rank, beside its own; without: as its cores allow.
    pub(super) senders: Option<u16>,
    /// Connections per address; 0: as the pair's threads for sending ask for.
    pub(super) connections: u16,
}

impl Wish {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u16(self.senders.unwrap_or(u16::MAX));
        w.u16(self.connections);
        w.0
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let senders = r.u16()?;
        let connections = r.u16()?;
        r.end(Self { senders: Some(senders).filter(|n| *n != u16::MAX), connections })
    }

    /// Reads a rank's announcement; nothing in particular where it announced nothing that makes sense.
    fn of(card: &Card) -> Self {
        card.links.of(LinkKind::Tcp).and_then(|bytes| Self::decode(bytes).ok()).unwrap_or_default()
    }
}

/// Threads that may send for a rank of these, beside its own: as it wishes, or one for every four cores of its share of the host. Such
/// a thread looks for work as the rank's own does, and what the system does for both wants cores as well.
pub(super) fn send_threads(all: &[Card], rank: usize) -> usize {
    const CORES: usize = 4;
    all.get(rank).map_or(0, |ours| {
        if let Some(n) = Wish::of(ours).senders {
            return n.into();
        }
        let here = all.iter().filter(|f| f.host_id == ours.host_id).count();
        usize::from(ours.cores) / here.max(1) / CORES
    })
}

/// Number of TCP connections that two ranks of these have per address; both find the same.
pub(super) fn connections(all: &[Card], pair: [usize; 2]) -> u16 {
    /// Ranks of a job in which pairs have two by themselves: each group takes two descriptors a pair then, and 1,024 is a usual limit.
    const FEW: usize = 64;
    let wish = pair.iter().filter_map(|r| all.get(*r)).map(|f| Wish::of(f).connections).max();
    wish.filter(|n| *n > 0).unwrap_or_else(|| {
        let asked = |r: &usize| all.get(*r).is_some_and(|f| Wish::of(f).senders.is_some());
        let sends = |r: &usize| (all.len() <= FEW || asked(r)) && send_threads(all, *r) > 0;
        // A thread sends where one connection carries all that is long one way, and none the other way.
        if pair.iter().any(sends) { 2 } else { 1 }
    })
}

/// Round trip from which on a pair is far: what one connection has under way without an answer takes less than it.
pub(super) const FAR: Duration = Duration::from_millis(10);
/// Connections of a far pair. An odd number: all of them serve both directions.
pub(super) const FAR_CONNECTIONS: u16 = 15;
/// Connections that a rank may have with all others by itself, where they are far: 1,024 descriptors are a usual limit.
const FAR_IN_ALL: usize = 240;

/// Number of TCP connections that two ranks of these have in all if they are [`FAR`] from each other; none where a user has chosen, or
/// the job is large. The rank that connects decides.
pub(super) fn far_connections(all: &[Card], pair: [usize; 2]) -> Option<u16> {
    let is_chosen = pair.iter().filter_map(|r| all.get(*r)).any(|card| Wish::of(card).connections > 0);
    let each = FAR_IN_ALL / all.len().saturating_sub(1).max(1);
    let each = u16::try_from(each).map_or(FAR_CONNECTIONS, |n| n.min(FAR_CONNECTIONS));
    let odd = each.checked_sub(u16::from(each.is_multiple_of(2)))?;
    (!is_chosen && odd > 1).then_some(odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_agree_on_threads_and_connections() {
        let rank = |host_id, cores, senders, connections| Card {
            host_id,
            cores,
            links: [(LinkKind::Tcp, Wish { senders, connections }.encode())].into_iter().collect(),
            unix: String::new(),
            addrs: Vec::new(),
            are_named: false,
            relays: true,
        };
        let all = [
            rank(1, 16, None, 0),
            rank(1, 16, None, 0),
            rank(2, 3, None, 0),
            rank(3, 2, None, 0),
            rank(4, 64, Some(0), 0),
            rank(5, 1, Some(1), 0),
            rank(6, 64, None, 1),
            rank(7, 2, None, 3),
        ];
        let threads: Vec<_> = (0..9).map(|r| send_threads(&all, r)).collect();
        assert_eq!(threads, [2, 2, 0, 0, 0, 1, 16, 0, 0]);
        for (pair, n) in [
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
                assert_eq!(connections(&all, pair), n, "{pair:?}");
            }
        }
        let crowd = |n, senders| (0..n).map(|host| rank(host, 8, senders, 0)).collect::<Vec<_>>();
        let of = |n, senders| connections(&crowd(n, senders), [0, 1]);
        assert_eq!([of(64, None), of(65, None), of(65, Some(1))], [2, 1, 2]);
        let far = |n| far_connections(&crowd(n, None), [0, 1]);
        assert_eq!(
            [2, 17, 18, 33, 64, 81, 82, 500].map(far),
            [Some(15), Some(15), Some(13), Some(7), Some(3), Some(3), None, None]
        );
        assert_eq!((far_connections(&all, [0, 1]), far_connections(&all, [0, 6])), (Some(15), None));
    }
}
