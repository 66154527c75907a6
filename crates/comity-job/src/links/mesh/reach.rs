//! Reaching the other rank of a pair: over the first transport that both have and that leads there.
//!
//! ```text
//!   Linking::connect   for each kind, the preferred first: do both have it, does it lead there?
//!     Transport::connect(pair, Path)     Link: made | Not: the next kind | an error: all is over
//!       Path::dial, reach, wait          -> Ways, until the group fails, either rank leaves, or time is up
//! ```

use super::{
    MeshError,
    making::{ArrivedConnection, LinkParts, Linking},
    order,
};
use crate::{
    ErrorKind, LinkKind, Result,
    channel::{Channel, DialLimits, Hello, Miss, Sealing, Stream, TRY, Target, answering, dial, dial_all},
    transport::{Candidates, Connected, Connector, Missed, Pair, Transport},
};
use rustix::event::PollFlags;
use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

/// Time limit for the other connections of a making: a peer that proves late has so long.
const HALF_MADE: Duration = Duration::from_secs(20);

/// Way of a transport to connect to a rank of the group, and to wait for it.
struct Path<'a, 'b> {
    making: &'a Linking<'b>,
    rank: usize,
    kind: LinkKind,
}

impl<'a, 'b> Path<'a, 'b> {
    fn new(making: &'a Linking<'b>, rank: usize, kind: LinkKind) -> Self {
        Self { making, rank, kind }
    }
}

impl Path<'_, '_> {
    fn hello(&self, index: u16, of: u16) -> Result<Hello, Miss> {
        let group = self.making.opening.group;
        let ways = &group.ways;
        let Some(transport) = self.kind.wire() else {
            return Err(Miss::Nowhere(std::io::ErrorKind::Unsupported.into()));
        };
        let to = group.world_rank(self.rank);
        let hello = ways.hello(to, group.group_id, Channel::Link { transport, index, of });
        // What a third rank passes on is between the two.
        Ok(Hello { sealed: ways.sealed || ways.book.relay_of(to).is_some(), ..hello })
    }
}

impl Connector for Path<'_, '_> {
    fn dial(&self, target: Target, index: u16, of: u16) -> Result<(Stream, Sealing), Miss> {
        let hello = self.hello(index, of)?;
        let secret = &self.making.opening.group.ways.secret;
        self.making.patiently(self.rank, |patience| dial(&[target], secret, &hello, patience))
    }

    fn dial_all(&self, targets: &[Target], first: u16, of: u16) -> Result<Vec<(Stream, Sealing)>, Miss> {
        let hello = self.hello(first, of)?;
        let secret = &self.making.opening.group.ways.secret;
        self.making.patiently(self.rank, |patience| dial_all(targets, first, secret, &hello, patience))
    }

    fn round_trip(&self) -> Option<Duration> {
        let group = self.making.opening.group;
        let rank = group.world_rank(self.rank);
        if group.ways.book.relay_of(rank).is_some() {
            return None;
        }
        group.control.round_trip(rank)
    }

    fn candidates(&self) -> Candidates {
        let group = self.making.opening.group;
        let rank = group.world_rank(self.rank);
        self.making.patiently(self.rank, |patience| group.ways.link_candidates(rank, patience))
    }

    fn answering(&self, targets: &[Target]) -> Result<Vec<usize>, Miss> {
        self.making.patiently(self.rank, |patience| answering(targets, patience, TRY))
    }

    fn reach(
        &self,
        targets: &[Target],
        vain: &[String],
        index: u16,
        of: u16,
    ) -> Result<(Stream, Sealing), Miss> {
        let group = self.making.opening.group;
        let hello = self.hello(index, of)?;
        let rank = group.world_rank(self.rank);
        self.making.patiently(self.rank, |patience| group.ways.dial(rank, targets, vain, &hello, patience))
    }

    fn wait(&self, fd: BorrowedFd<'_>, until: Instant) -> Result<bool> {
        // WAIT(until): links being made, to the join deadline
        self.making.patiently(self.rank, |patience| patience.wait(Some((fd, PollFlags::IN)), until))
    }

    fn until(&self) -> Instant {
        self.making.opening.until
    }
}

impl<'a> Linking<'a> {
    /// Make the link with a lower rank.
    pub(super) fn connect(&mut self, rank: usize) -> Result<(), MeshError> {
        let group = self.opening.group;
        let pair = self.pair(rank)?;
        let mut why_not = Vec::new();
        for kind in order(group.first) {
            let transport = match self.is_open(rank, &pair, kind) {
                Ok(Some(transport)) => transport,
                Ok(None) => continue,
                Err(why) => {
                    why_not.push((kind, why));
                    continue;
                }
            };
            match transport.connect(&pair, &Path::new(self, rank, kind)) {
                Ok(Connected::Link(link)) => return self.keep(rank, kind, link),
                Ok(Connected::Not(why)) => {
                    tracing::debug!(rank, %kind, why, "no such link, trying the next");
                    why_not.push((kind, why));
                }
                Err(Missed { at, miss }) => return Err(self.opening.missed(rank, &at, miss)),
            }
        }
        let tried: Vec<_> =
            why_not.iter().map(|(kind, why)| format!("not over {} ({why})", kind.medium())).collect();
        let words = if tried.is_empty() {
            "the ranks have no kind of link in common".into()
        } else {
            tried.join(", ")
        };
        Err(self.opening.explained(
            rank,
            format!(
                "cannot be reached from {}: {words}; allow a kind of link that leads there (COMITY_LINKS) on both ranks",
                group.peer(group.mine)
            ),
        ))
    }

    /// The transport, if a pair may try it; why not, where one of the two could.
    fn is_open(
        &self,
        rank: usize,
        pair: &Pair<'_>,
        kind: LinkKind,
    ) -> Result<Option<&'a dyn Transport>, String> {
        let lacking = |rank| Err(format!("rank {rank} does not use it"));
        match (self.opening.group.transports.get(kind), pair.theirs.links.has(kind)) {
            (Some(transport), true) => transport.leads(pair).map(|()| Some(transport)),
            (Some(_), false) => lacking(rank),
            (None, true) => lacking(self.opening.group.mine),
            (None, false) => Ok(None),
        }
    }

    /// Take what the pair has between it already, if it has.
    pub(super) fn stands(&mut self, rank: usize) -> Result<bool, MeshError> {
        let group = self.opening.group;
        let pair = self.pair(rank)?;
        let mut existing = group.transports.iter().filter_map(|(kind, t)| Some((kind, t.existing(&pair)?)));
        match existing.next() {
            Some((kind, link)) => self.keep(rank, kind, link).map(|()| true),
            None => Ok(false),
        }
    }

    /// Take a connection of a higher rank; with the last one of its link, make that.
    pub(super) fn take(&mut self, rank: usize, arrived: ArrivedConnection) -> Result<(), MeshError> {
        let ArrivedConnection { kind, index, of, connection } = arrived;
        let group = self.opening.group;
        let pair = self.pair(rank)?;
        let Some(transport) = group.transports.get(kind) else { return Ok(()) };
        let begun = self.parts.get(&(rank, kind)).map(|p| p.connections.len());
        if begun != Some(usize::from(of)) {
            // It began again, with other paths: some of the first ones did not hold. What is late for a link that stands is soon forgotten.
            let is_late = begun.is_some() || self.made.get(rank) == Some(&true);
            let until = Instant::now() + if is_late { HALF_MADE } else { group.limit };
            let connections = (0..of).map(|_| None).collect();
            self.parts.insert((rank, kind), LinkParts { connections, until });
        }
        let Some(LinkParts { connections: parts, .. }) = self.parts.get_mut(&(rank, kind)) else {
            return Ok(());
        };
        match parts.get_mut(usize::from(index)) {
            Some(place @ None) => *place = Some(connection),
            _ => return Err(self.opening.own(rank, "made its connections twice".into())),
        }
        if !parts.iter().all(Option::is_some) {
            return Ok(());
        }
        let all =
            self.parts.remove(&(rank, kind)).into_iter().flat_map(|p| p.connections).flatten().collect();
        self.opening.begin();
        match transport.accept(&pair, all, &Path::new(self, rank, kind)) {
            Ok(Connected::Link(link)) => self.keep(rank, kind, link),
            // It makes another connection.
            Ok(Connected::Not(_)) => Ok(()),
            Err(Missed { at, miss }) => Err(self.opening.missed(rank, &at, miss)),
        }
    }

    /// Do what waits for `rank`, until the group fails, that rank or this one leaves, or time is up.
    fn patiently<T>(&self, rank: usize, run: impl FnOnce(&DialLimits<'_>) -> T) -> T {
        let opening = &self.opening;
        let status = &self.opening.group.status;
        let check = || {
            opening.drain();
            status.failure().map_or(Ok(()), |f| Err(opening.failed(f)))?;
            if (self.is_over)() || status.has_left(rank) { Err(ErrorKind::Closed.into()) } else { Ok(()) }
        };
        run(&DialLimits { until: opening.until, wakers: vec![opening.waker_fd()], check: &check })
    }
}
