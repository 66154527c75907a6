//! TCP as a transport: how many connections a pair has and who makes them, settings, and what `comity info` says.
//!
//! Number of threads that send for a rank, and of connections of a pair: each rank finds the same for all.

use super::{SendThreads, TcpLink, TcpOptions, Ways};
use crate::{
    About, Attempt, Card, Connected, Connection, Connector, Error, JobInfo, Link, LinkKind, Missed, NewLink,
    Pair, Result, Seen, Transport, TransportInfo, TransportSettings, Variables,
    channel::{Malformed, Miss, Reader, Refusal, Stream, Target, Writer},
    sys::here,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, TcpListener},
    sync::Arc,
    time::Duration,
};

/// The most threads that send beside the rank's own.
const MAX_SEND_THREADS: usize = 64;
/// The most connections per pair of addresses.
const MAX_CONNECTIONS: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpSettings {
    /// Per pair of addresses.
    pub(crate) connections: Option<usize>,
    pub(crate) send_threads: Option<usize>,
}

impl TransportSettings {
    /// TCP connections per pair of addresses.
    pub fn set_connections(&mut self, n: usize) {
        self.tcp.connections = Some(n);
    }

    /// Threads that may send beside the rank's own.
    pub fn set_send_threads(&mut self, n: usize) {
        self.tcp.send_threads = Some(n);
    }
}

#[derive(Debug)]
pub(crate) struct Tcp {
    wish: Wish,
    /// Threads that may send for this process.
    send_threads: Arc<SendThreads>,
}

impl Transport for Tcp {
    type Settings = TcpSettings;

    fn about() -> About {
        About::PRIVATE
    }

    fn read(settings: &mut TcpSettings, vars: &dyn Variables) -> Result<()> {
        if let Some(n) = vars.number("COMITY_CONNECTIONS", MAX_CONNECTIONS)? {
            settings.connections = Some(n);
        }
        if let Some(n) = vars.number("COMITY_SEND_THREADS", MAX_SEND_THREADS)? {
            settings.send_threads = Some(n);
        }
        Ok(())
    }

    fn check(settings: &TcpSettings, _: usize) -> Result<()> {
        for (given, key, variable, least, most) in [
            (settings.connections, "connections", "COMITY_CONNECTIONS", 1, MAX_CONNECTIONS),
            (settings.send_threads, "send_threads", "COMITY_SEND_THREADS", 0, MAX_SEND_THREADS),
        ] {
            if let Some(n) = given.filter(|n| !(least..=most).contains(n)) {
                let why = format!("{key} ({variable}) is {n}; allowed is {least} to {most}");
                return Err(Error::setting(variable, n, why));
            }
        }
        Ok(())
    }

    fn note(_: &TcpSettings, seen: Seen<'_>) -> TransportInfo {
        let with = seen("COMITY_CONNECTIONS").map_or_else(
            || format!(", up to {} connections if far", FAR_CONNECTIONS),
            |n| format!(", {n} connections each"),
        );
        let note = |works, why| TransportInfo { works, why, devices: Vec::new() };
        if let Some(own) = seen("COMITY_ADDRS") {
            return note(true, format!("with other ranks, on {own} (COMITY_ADDRS){with}"));
        }
        let out = here::ANYWHERE.into_iter().find_map(|to| here::source(to).ok());
        let ip = out.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        match TcpListener::bind((ip, 0)) {
            Ok(_) => note(true, format!("with other ranks{with}; the way out is {ip}")),
            Err(e) => note(false, format!("cannot listen on {ip}: {e}")),
        }
    }

    fn find(settings: &TcpSettings, _: &JobInfo) -> Result<Option<Self>> {
        let short = |n| u16::try_from(n).unwrap_or(u16::MAX);
        let wish = Wish {
            senders: settings.send_threads.map(short),
            connections: settings.connections.map_or(0, short),
        };
        Ok(Some(Self { wish, send_threads: SendThreads::new(0) }))
    }

    fn announce(&self) -> Vec<u8> {
        self.wish.encode()
    }

    fn meet(&mut self, me: usize, cards: &[Card]) {
        self.send_threads = SendThreads::new(send_threads(cards, me));
    }

    fn leads(&self, _: &Pair<'_>) -> Result<(), String> {
        Ok(())
    }

    fn connect(&self, pair: &Pair<'_>, connector: &dyn Connector) -> Attempt {
        match self.connections(pair, connector) {
            Ok(connections) => {
                let options = self.options(pair, connections.len(), connector);
                Ok(Connected::Link(link(connections, &options)))
            }
            Err(miss) => Err(Missed { at: pair.theirs.place(), miss }),
        }
    }

    fn accept(&self, pair: &Pair<'_>, connections: Vec<Connection>, connector: &dyn Connector) -> Attempt {
        let options = self.options(pair, connections.len(), connector);
        Ok(Connected::Link(link(connections, &options)))
    }
}

impl Tcp {
    /// The connections of a new link to the lower rank: over several addresses where those are used side by side, else over the first that
    /// answers.
    fn connections(&self, pair: &Pair<'_>, connector: &dyn Connector) -> Result<Vec<Connection>, Miss> {
        let found = connector.candidates();
        let each = connections(pair.all, [pair.me, pair.peer]);
        let is_far = is_far(connector) && !found.all.is_empty();
        let far = far_connections(pair.all, [pair.me, pair.peer]).filter(|_| is_far);
        let targets: Vec<_> = found.all.iter().map(|c| Target::Tcp(c.at)).collect();
        let many = found.side_by_side(pair.theirs.are_named);
        let together = targets.get(..many).unwrap_or_default();
        if together.len() > 1 {
            let works = connector.answering(together)?;
            let together: Vec<_> = works.iter().filter_map(|i| together.get(*i)).collect();
            if together.len() > 1 {
                let near = u16::try_from(together.len()).unwrap_or(u16::MAX).saturating_mul(each);
                let of = far.map_or(near, |far| far.max(near));
                let ways = ways(pair, each, usize::from(of));
                if let Some(connections) = over_all(&together, of, ways, connector)? {
                    return Ok(connections);
                }
            }
        }
        let of = far.unwrap_or(each);
        let first = connector.reach(&targets, &found.vain, 0, of)?;
        alongside(first, of, connector)
    }

    /// Use of the `n` connections of a pair by this end of it.
    fn options(&self, pair: &Pair<'_>, n: usize, connector: &dyn Connector) -> TcpOptions {
        let each = connections(pair.all, [pair.me, pair.peer]);
        let send_threads = Some(Arc::clone(&self.send_threads));
        TcpOptions { ways: ways(pair, each, n), is_far: is_far(connector), send_threads }
    }
}

/// Returns true if the two ranks are far from each other, as far as the system tells.
fn is_far(connector: &dyn Connector) -> bool {
    connector.round_trip().is_some_and(|trip| trip > FAR)
}

/// Choice of the `n` connections of a pair that carry what this end sends; near ones have `each` at an address.
fn ways(pair: &Pair<'_>, each: u16, n: usize) -> Ways {
    match (each.is_multiple_of(2) && n.is_multiple_of(2), pair.me > pair.peer) {
        // The higher rank made them.
        (true, true) => Ways::First,
        (true, false) => Ways::Second,
        (false, _) => Ways::All,
    }
}

/// The other connections of a link, the way that the first one took.
fn alongside(first: Connection, of: u16, connector: &dyn Connector) -> Result<Vec<Connection>, Miss> {
    let mut connections = vec![first];
    if of > 1 {
        let way = connections.first().and_then(|(stream, _)| stream.peer_addr()).map(Target::Tcp);
        let way = way.ok_or_else(|| Miss::Nobody(io::ErrorKind::NotConnected.into()))?;
        let others = vec![way; usize::from(of) - 1];
        connections.extend(connector.dial_all(&others, 1, of)?);
    }
    Ok(connections)
}

/// Connections over several addresses; none where one of them does not hold.
fn over_all(
    together: &[&Target],
    of: u16,
    ways: Ways,
    connector: &dyn Connector,
) -> Result<Option<Vec<Connection>>, Miss> {
    // Where directions are kept apart each address serves both.
    let each = if ways == Ways::All { 1 } else { 2 };
    let turns = together.iter().flat_map(|t| std::iter::repeat_n((*t).clone(), each)).cycle();
    let targets: Vec<_> = turns.take(usize::from(of)).collect();
    match connector.dial_all(&targets, 0, of) {
        Ok(made) => Ok(Some(made)),
        Err(miss @ (Miss::Stop(_) | Miss::Refused(Refusal::No(_)))) => Err(miss),
        Err(miss) => {
            tracing::warn!(%miss, "an address of a rank does not hold; the others are used");
            Ok(None)
        }
    }
}

/// The link over connections that are listed in the same order on both ends.
fn link(connections: Vec<Connection>, options: &TcpOptions) -> NewLink {
    let mut streams = Vec::with_capacity(connections.len());
    let mut seals = Vec::new();
    for (stream, sealing) in connections {
        if let Stream::Tcp(stream) = stream {
            streams.push(stream);
            seals.extend(sealing.map(|s| *s));
        }
    }
    Ok(Box::new(TcpLink::with_options(streams, seals, options)?) as Box<dyn Link>)
}

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
