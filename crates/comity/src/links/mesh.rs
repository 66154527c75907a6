//! Making the links of a group, pair by pair.
//!
//! The higher rank of a pair connects and so decides: over the first transport in the table that both ranks have and that leads there.
//! The lower rank sees from what arrives what was decided.

mod error;
mod reach;

use super::way::Way;
use crate::{
    Error, JoinCause, JoinError, LinkKind, Peer, Result,
    channel::{Channel, Stream, is_own},
    control::{Arrival, ControlPlane},
    rendezvous::Facts,
    status::{GroupStatus, Links},
    sys::poll_until,
    transport::{Card, Connection, NewLink, Pair, Transports},
};
use error::MeshError;
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long after a member's word that it leaves what it made may still come. It leaves in good order only when its own links are made, so
/// the other ends of them are on their way: with the thread that accepts, or unread.
const BEHIND: Duration = Duration::from_secs(5);

/// What a process knows of all, for making links.
#[derive(Debug)]
pub(super) struct Mesh<'a> {
    pub(super) me: usize,
    pub(super) world: u64,
    pub(super) facts: &'a [Facts],
    pub(super) cards: &'a [Card],
    /// How the others are reached.
    pub(super) way: Way<'a>,
    pub(super) sealed: bool,
    pub(super) control: &'a ControlPlane,
    /// What this process can use.
    pub(super) transports: &'a Transports,
    /// The kind that goes before those that the table prefers.
    pub(super) first: Option<LinkKind>,
}

impl Mesh<'_> {
    /// See [`World::open`](crate::status::World::open).
    pub(super) fn open(
        &self,
        group_id: u64,
        members: &[usize],
        status: &Arc<GroupStatus>,
        until: Instant,
    ) -> Result<Links> {
        let internal =
            |what: &str| Error::config(format!("group {group_id:x}: {what}; this is a bug in Comity"));
        let mine = members
            .iter()
            .position(|m| *m == self.me)
            .ok_or_else(|| internal("this rank is not a member"))?;
        if members.iter().any(|m| *m >= self.facts.len()) {
            return Err(internal("a member is not in the world"));
        }
        if !self.control.enter(group_id, members, mine, status) {
            return Err(internal("it is open already"));
        }
        let opening = Opening {
            mesh: self,
            group_id,
            members,
            mine,
            status,
            until,
            begun: Instant::now(),
            renewed: (!self.control.has_begun()).then(|| until.saturating_duration_since(Instant::now())),
            links: members.iter().map(|_| None).collect(),
            parts: HashMap::new(),
        };
        let made = opening.run().map_err(|failed| {
            if let Some(failure) = failed.news {
                self.control.abort(group_id, &failure);
            }
            self.control.leave(group_id, false);
            failed.error
        });
        if made.is_ok() {
            self.control.begin();
        }
        made
    }

    /// The kinds of link, as this process prefers them.
    fn order(&self) -> impl Iterator<Item = LinkKind> {
        let rest = LinkKind::LISTED.iter().copied().filter(|k| Some(*k) != self.first);
        self.first.into_iter().chain(rest)
    }

    /// A member as errors name it.
    fn peer(&self, members: &[usize], rank: usize) -> Peer {
        let facts = members.get(rank).and_then(|m| self.facts.get(*m));
        Peer { rank, host: facts.map(|f| f.host.as_str().into()), pid: facts.map(|f| f.pid) }
    }
}

/// A connection of a higher rank: which of how many that make a link.
struct Arrived {
    kind: LinkKind,
    index: u16,
    of: u16,
    connection: Connection,
}

/// A link with a lower rank that is made when the stream is readable.
struct Soon {
    rank: usize,
    kind: LinkKind,
    stream: Stream,
}

struct Opening<'a> {
    mesh: &'a Mesh<'a>,
    group_id: u64,
    members: &'a [usize],
    mine: usize,
    status: &'a Arc<GroupStatus>,
    until: Instant,
    begun: Instant,
    /// How long from each new connection, while the job's first group is made: on a crowded host hundreds of them take long.
    renewed: Option<Duration>,
    links: Links,
    /// What has come of links that want more connections.
    parts: HashMap<(usize, LinkKind), Vec<Option<Connection>>>,
}

impl<'a> Opening<'a> {
    fn run(mut self) -> Result<Links, MeshError> {
        let mut offered = Vec::new();
        for rank in 0..self.members.len() {
            if self.world_rank(rank) < self.mesh.me
                && let Some(soon) = self.connect(rank)?
            {
                offered.push(soon);
                self.renew();
            }
        }
        self.complete(offered)?;
        Ok(self.links)
    }

    fn world_rank(&self, rank: usize) -> usize {
        self.members.get(rank).copied().unwrap_or_default()
    }

    fn pair(&self, rank: usize) -> Result<Pair<'a>, MeshError> {
        Pair::new(self.mesh.cards, self.mesh.me, self.world_rank(rank), self.group_id)
            .ok_or_else(|| self.own(rank, "has no entry in the table".into()))
    }

    /// Take what the others make: connections of higher ranks, memory of lower ones.
    fn complete(&mut self, mut offered: Vec<Soon>) -> Result<(), MeshError> {
        let mut leaver = None;
        for rank in 0..self.members.len() {
            // What is there already needs no connection.
            if self.world_rank(rank) > self.mesh.me {
                self.stands(rank)?;
            }
        }
        loop {
            self.status.drain();
            self.receive()?;
            let missing: Vec<usize> = (0..self.members.len())
                .filter(|r| *r != self.mine && matches!(self.links.get(*r), Some(None)))
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            if let Some(f) = self.status.failure() {
                return Err(MeshError { error: self.failed(f), news: None });
            }
            if let Some(error) = self.failed_above() {
                return Err(self.unable(error));
            }
            if let Some(rank) = missing.iter().find(|r| self.status.has_left(**r)) {
                let (who, until) = *leaver.get_or_insert_with(|| (*rank, Instant::now() + BEHIND));
                // Another one's time begins when this one's things have come.
                if who != *rank {
                    leaver = None;
                    continue;
                }
                if Instant::now() >= until {
                    return Err(self.explained(who, "left before the group was complete".into()));
                }
            } else {
                leaver = None;
            }
            if Instant::now() >= self.until {
                return Err(self.late(&missing));
            }
            let until = leaver.map_or(self.until, |(_, until)| until.min(self.until));
            // WAIT(until): links being made, to the join deadline
            for rank in self.wait(&offered, until)? {
                if let Some(i) = offered.iter().position(|o| o.rank == rank) {
                    let Soon { kind, stream, .. } = offered.swap_remove(i);
                    if let Some(transport) = self.mesh.transports.get(kind) {
                        self.keep(rank, kind, transport.attach(stream))?;
                    }
                }
            }
        }
    }

    /// Take what has come.
    fn receive(&mut self) -> Result<(), MeshError> {
        // While links are made the waker is drained that told of the next.
        let (control, group_id) = (self.mesh.control, self.group_id);
        let arrivals = || Some(control.arrivals(group_id)).filter(|new| !new.is_empty());
        for Arrival { from, channel, stream, seals, .. } in std::iter::from_fn(arrivals).flatten() {
            if let Some(rank) = self.members.iter().position(|m| *m == from)
                && let Channel::Link { transport, index, of } = channel
                && let Some(kind) = LinkKind::from_wire(transport)
            {
                self.take(rank, Arrived { kind, index, of, connection: (stream, seals) })?;
            }
        }
        Ok(())
    }

    /// Sleep until something is new, at most until then; the ranks whose offer has come.
    fn wait(&self, offered: &[Soon], until: Instant) -> Result<Vec<usize>, MeshError> {
        let above = self.status.above().map(|w| w.waker_fd());
        let wakers = [self.status.waker_fd()].into_iter().chain(above);
        let mut fds: Vec<_> = wakers.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let first = fds.len();
        fds.extend(offered.iter().map(|o| PollFd::new(&o.stream, PollFlags::IN)));
        // WAIT(until): links being made, to the join deadline
        poll_until(&mut fds, Some(until)).map_err(|e| self.own(self.mine, format!("cannot wait: {e}")))?;
        let ready = fds.iter().skip(first).zip(offered).filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, o)| o.rank).collect())
    }

    /// The group that is being split has failed, so some of its members may never come.
    fn failed_above(&self) -> Option<Error> {
        let above = self.status.above()?;
        above.drain();
        let f = above.failure()?;
        let words = format!("the group that was being split failed: its rank {} {}", f.culprit, f.cause);
        Some(JoinError::new(words).of([f.culprit]).because(JoinCause::Ended).into())
    }

    /// Things go on.
    fn renew(&mut self) {
        if let Some(limit) = self.renewed {
            self.until = self.until.max(Instant::now() + limit);
        }
    }

    fn keep(&mut self, rank: usize, kind: LinkKind, link: NewLink) -> Result<(), MeshError> {
        self.renew();
        match link {
            Ok(link) => {
                if let Some(place) = self.links.get_mut(rank) {
                    *place = Some(link);
                }
                Ok(())
            }
            Err(e) if is_own(&e) => {
                Err(self.unable(Error::os(format!("making a {} link to rank {rank}", kind.medium()), e)))
            }
            Err(e) => Err(self.explained(rank, format!("could not be linked over {}: {e}", kind.medium()))),
        }
    }
}
