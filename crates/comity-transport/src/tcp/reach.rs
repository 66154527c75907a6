//! TCP as a transport: how many connections a pair has and who makes them, settings, and what `comity info` says.

use super::{
    SendThreads, TcpLink, TcpOptions, Ways,
    threads::{self, Wish},
};
use crate::{
    About, Connected, Connection, Connector, Error, JobInfo, Link, Missed, NewLink, Pair, Result, Seen,
    Transport, TransportInfo, TransportSettings, Variables,
    channel::{Miss, Refusal, Stream, Target},
    sys::here,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, TcpListener},
    sync::Arc,
};

/// The most threads that send beside the rank's own.
const MAX_SEND_THREADS: usize = 64;
/// The most connections per pair of addresses.
const MAX_CONNECTIONS: usize = 64;

/// Choices of the user.
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

/// The transport over TCP.
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
        if let Some(n) = settings.connections.filter(|n| !(1..=MAX_CONNECTIONS).contains(n)) {
            return Err(Error::setting(
                "COMITY_CONNECTIONS",
                n,
                format!("connections (COMITY_CONNECTIONS) is {n}; allowed is 1 to {MAX_CONNECTIONS}"),
            ));
        }
        if let Some(n) = settings.send_threads.filter(|n| *n > MAX_SEND_THREADS) {
            return Err(Error::setting(
                "COMITY_SEND_THREADS",
                n,
                format!("send_threads (COMITY_SEND_THREADS) is {n}; allowed is 0 to {MAX_SEND_THREADS}"),
            ));
        }
        Ok(())
    }

    fn note(_: &TcpSettings, seen: Seen<'_>) -> TransportInfo {
        let with = seen("COMITY_CONNECTIONS").map_or_else(
            || format!(", up to {} connections if far", threads::FAR_CONNECTIONS),
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

    fn meet(&mut self, me: usize, cards: &[crate::Card]) {
        self.send_threads = SendThreads::new(threads::send_threads(cards, me));
    }

    fn leads(&self, _: &Pair<'_>) -> Result<(), String> {
        Ok(())
    }

    fn connect(&self, pair: &Pair<'_>, connector: &dyn Connector) -> Result<Connected, Missed> {
        match self.connections(pair, connector) {
            Ok(connections) => {
                let options = self.options(pair, connections.len(), connector);
                Ok(Connected::Link(link(connections, &options)))
            }
            Err(miss) => Err(Missed { at: pair.theirs.place(), miss }),
        }
    }

    fn accept(
        &self,
        pair: &Pair<'_>,
        connections: Vec<Connection>,
        connector: &dyn Connector,
    ) -> Result<Connected, Missed> {
        let options = self.options(pair, connections.len(), connector);
        Ok(Connected::Link(link(connections, &options)))
    }
}

impl Tcp {
    /// The connections of a new link to the lower rank: over several addresses where those are used side by side, else over the first that
    /// answers.
    fn connections(&self, pair: &Pair<'_>, connector: &dyn Connector) -> Result<Vec<Connection>, Miss> {
        let found = connector.candidates();
        let each = threads::connections(pair.all, [pair.me, pair.peer]);
        let is_far = is_far(connector) && !found.all.is_empty();
        let far = threads::far_connections(pair.all, [pair.me, pair.peer]).filter(|_| is_far);
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
        let each = threads::connections(pair.all, [pair.me, pair.peer]);
        let send_threads = Some(Arc::clone(&self.send_threads));
        TcpOptions { ways: ways(pair, each, n), is_far: is_far(connector), send_threads }
    }
}

/// Returns true if the two ranks are far from each other, as far as the system tells.
fn is_far(connector: &dyn Connector) -> bool {
    connector.round_trip().is_some_and(|trip| trip > threads::FAR)
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
