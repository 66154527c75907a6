//! Making the links of a group, pair by pair.
//!
//! The higher rank of a pair connects and so decides: over the host's own socket for shared memory if both ends allow it and
//! it works, else over RDMA if both have a device for the pair and it works, else over TCP. The lower rank sees from what arrives
//! what was decided.

mod reach;
mod trouble;

use crate::{
    Error, Peer, Result,
    channel::{Channel, Sealing, Secret, Stream, is_own},
    control::{Arrival, Control},
    rendezvous::Facts,
    status::Watch,
    sys::poll_until,
    transport::{
        Link,
        tcp::{Couriers, TcpOptions},
        verbs::Edges,
    },
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::HashMap,
    io,
    net::TcpStream,
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};
use trouble::Trouble;

/// How long after a member's word that it leaves what it made may still come. It leaves in good order only when its own links are made, so
/// the other ends of them are on their way: with the thread that accepts, or unread.
const BEHIND: Duration = Duration::from_secs(5);

/// A link over the connections of a pair, with what seals each.
type MakeTcp<L> = fn(Vec<(TcpStream, Sealing)>, &TcpOptions) -> io::Result<L>;

/// How connected streams become links.
#[derive(Debug)]
pub(super) struct Makers<L> {
    /// On the listening side: makes the memory and sends it.
    pub(super) create: fn(UnixStream) -> io::Result<L>,
    /// On the connecting side, once the stream is readable: takes the memory.
    pub(super) attach: fn(UnixStream) -> io::Result<L>,
    /// All connections of the pair, in the same order on both sides.
    pub(super) tcp: MakeTcp<L>,
    /// Over the wires of a pair.
    pub(super) rdma: fn(Box<dyn Link>) -> L,
}

/// What a process knows of all, for making links.
#[derive(Debug)]
pub(super) struct Mesh<'a> {
    pub(super) me: usize,
    pub(super) world: u64,
    pub(super) facts: &'a [Facts],
    pub(super) secret: &'a Secret,
    pub(super) sealed: bool,
    pub(super) control: &'a Control,
    /// What leads to whom over RDMA, where this process uses that.
    pub(super) edges: Option<&'a Edges>,
    /// RDMA goes before shared memory.
    pub(super) prefers_rdma: bool,
    /// Threads that may send for this process.
    pub(super) couriers: &'a Arc<Couriers>,
}

impl Mesh<'_> {
    /// See [`World::open`](crate::status::World::open).
    pub(super) fn open<L>(
        &self,
        makers: &Makers<L>,
        context: u64,
        members: &[usize],
        watch: &Arc<Watch>,
        until: Instant,
    ) -> Result<Vec<Option<L>>> {
        let internal =
            |what: &str| Error::Config(format!("group {context:x}: {what}; this is a bug in Comity"));
        let mine = members
            .iter()
            .position(|m| *m == self.me)
            .ok_or_else(|| internal("this rank is not a member"))?;
        if members.iter().any(|m| *m >= self.facts.len()) {
            return Err(internal("a member is not in the world"));
        }
        if !self.control.enter(context, members, mine, watch) {
            return Err(internal("it is open already"));
        }
        let opening = Opening {
            mesh: self,
            makers,
            context,
            members,
            mine,
            watch,
            until,
            begun: Instant::now(),
            renewed: (!self.control.has_begun()).then(|| until.saturating_duration_since(Instant::now())),
            links: members.iter().map(|_| None).collect(),
        };
        let made = opening.run().map_err(|trouble| {
            if let Some(failure) = trouble.news {
                self.control.abort(context, &failure);
            }
            self.control.leave(context, false);
            trouble.error
        });
        if made.is_ok() {
            self.control.begin();
        }
        made
    }

    /// A member as errors name it.
    fn peer(&self, members: &[usize], rank: usize) -> Peer {
        let facts = members.get(rank).and_then(|m| self.facts.get(*m));
        Peer { rank, host: facts.map(|f| f.host.as_str().into()), pid: facts.map(|f| f.pid) }
    }
}

struct Opening<'a, L> {
    mesh: &'a Mesh<'a>,
    makers: &'a Makers<L>,
    context: u64,
    members: &'a [usize],
    mine: usize,
    watch: &'a Arc<Watch>,
    until: Instant,
    begun: Instant,
    /// How long from each new connection, while the job's first group is made: on a crowded host hundreds of them take long.
    renewed: Option<Duration>,
    links: Vec<Option<L>>,
}

impl<L> Opening<'_, L> {
    fn run(mut self) -> Result<Vec<Option<L>>, Trouble> {
        let mut offered = Vec::new();
        for rank in 0..self.members.len() {
            if self.world_rank(rank) < self.mesh.me
                && let Some(stream) = self.connect(rank)?
            {
                offered.push((rank, stream));
                self.renew();
            }
        }
        self.complete(offered)?;
        Ok(self.links)
    }

    fn world_rank(&self, rank: usize) -> usize {
        self.members.get(rank).copied().unwrap_or_default()
    }

    fn facts(&self, rank: usize) -> Result<(&Facts, &Facts), Trouble> {
        let of = |r| self.mesh.facts.get(r);
        of(self.mesh.me)
            .zip(of(self.world_rank(rank)))
            .ok_or_else(|| self.own(rank, "has no entry in the table".into()))
    }

    /// Take what the others make: connections of higher ranks, memory of lower ones.
    fn complete(&mut self, mut offered: Vec<(usize, UnixStream)>) -> Result<(), Trouble> {
        let mut parts: HashMap<usize, Vec<Option<(TcpStream, Sealing)>>> = HashMap::new();
        let mut leaver = None;
        for rank in 0..self.members.len() {
            // The wires are there, so it will make no connection.
            if self.world_rank(rank) > self.mesh.me {
                self.over_edge(rank)?;
            }
        }
        loop {
            self.watch.hush();
            self.receive(&mut parts)?;
            let missing: Vec<usize> = (0..self.members.len())
                .filter(|r| *r != self.mine && matches!(self.links.get(*r), Some(None)))
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            if let Some(f) = self.watch.failure() {
                return Err(Trouble { error: self.failed(f), news: None });
            }
            if let Some(error) = self.failed_above() {
                return Err(self.unable(error));
            }
            if let Some(rank) = missing.iter().find(|r| self.watch.has_left(**r)) {
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
            for rank in self.wait(&offered, until)? {
                if let Some(i) = offered.iter().position(|o| o.0 == rank) {
                    let (_, stream) = offered.swap_remove(i);
                    self.keep(rank, "shared memory", (self.makers.attach)(stream))?;
                }
            }
        }
    }

    fn receive(
        &mut self,
        parts: &mut HashMap<usize, Vec<Option<(TcpStream, Sealing)>>>,
    ) -> Result<(), Trouble> {
        // While wires are made the bell is hushed that told of the next.
        let (control, context) = (self.mesh.control, self.context);
        let arrivals = || Some(control.arrivals(context)).filter(|new| !new.is_empty());
        for Arrival { from, channel, stream, seals, .. } in std::iter::from_fn(arrivals).flatten() {
            let Some(rank) = self.members.iter().position(|m| *m == from) else { continue };
            match (channel, stream) {
                (Channel::Shm, Stream::Unix(stream)) => {
                    self.keep(rank, "shared memory", (self.makers.create)(stream))?;
                }
                (Channel::Rdma, Stream::Tcp(stream)) => {
                    if let Some(edges) = self.mesh.edges {
                        // It makes another connection where there are none.
                        self.wire(rank, edges, stream, &mut Vec::new())?;
                    }
                }
                (Channel::Tcp { index, of }, Stream::Tcp(stream)) => {
                    let streams = parts.entry(rank).or_insert_with(|| (0..of).map(|_| None).collect());
                    match streams.get_mut(usize::from(index)) {
                        Some(place @ None) => *place = Some((stream, seals)),
                        _ => return Err(self.own(rank, "made its connections twice".into())),
                    }
                    if streams.iter().all(Option::is_some) {
                        let streams = parts.remove(&rank).into_iter().flatten().flatten().collect();
                        let options = self.tcp_options(rank, false);
                        self.keep(rank, "TCP", (self.makers.tcp)(streams, &options))?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sleep until something is new, at most until then; the ranks whose offer has come.
    fn wait(&self, offered: &[(usize, UnixStream)], until: Instant) -> Result<Vec<usize>, Trouble> {
        let above = self.watch.above().map(|w| w.bell_fd());
        let bells = [self.watch.bell_fd()].into_iter().chain(above);
        let mut fds: Vec<_> = bells.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let first = fds.len();
        fds.extend(offered.iter().map(|(_, s)| PollFd::new(s, PollFlags::IN)));
        poll_until(&mut fds, Some(until)).map_err(|e| self.own(self.mine, format!("cannot wait: {e}")))?;
        let ready = fds.iter().skip(first).zip(offered).filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, o)| o.0).collect())
    }

    /// The group that is being split has failed, so some of its members may never come.
    fn failed_above(&self) -> Option<Error> {
        let above = self.watch.above()?;
        above.hush();
        let f = above.failure()?;
        let words = format!("the group that was being split failed: its rank {} {}", f.culprit, f.cause);
        Some(Error::Join(words))
    }

    /// Things go on.
    fn renew(&mut self) {
        if let Some(limit) = self.renewed {
            self.until = self.until.max(Instant::now() + limit);
        }
    }

    fn keep(&mut self, rank: usize, kind: &str, link: io::Result<L>) -> Result<(), Trouble> {
        self.renew();
        match link {
            Ok(link) => {
                if let Some(place) = self.links.get_mut(rank) {
                    *place = Some(link);
                }
                Ok(())
            }
            Err(e) if is_own(&e) => {
                Err(self.unable(Error::os(format!("making a {kind} link to rank {rank}"), e)))
            }
            Err(e) => Err(self.explained(rank, format!("could not be linked over {kind}: {e}"))),
        }
    }
}
