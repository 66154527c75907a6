//! Making the links of a group, pair by pair.
//!
//! The higher rank of a pair connects and so decides: over the host's own socket for shared memory if both ends allow it and
//! it works, else over RDMA if both have a device for the pair and it works, else over TCP. The lower rank sees from what arrives
//! what was decided.

use super::{
    control::Control,
    dial::{Miss, Patience, Target, dial, is_own},
    hello::{Channel, Hello, Refusal, Secret},
    standing::Arrival,
    store::seconds,
    stream::{Sealing, Stream},
    wire::Facts,
};
use crate::{
    Error, Peer, Result,
    engine::{Differs, Failure, Watch},
    link::{Link, verbs::Edges},
    sys::poll_until,
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

/// When a link breaks while it is made, a death that explains it may be known this much later.
const EXPLANATION: Duration = Duration::from_millis(250);

/// How long after a member's word that it leaves what it made may still come. It leaves in good order only when its own links are made, so
/// the other ends of them are on their way: with the thread that accepts, or unread.
const BEHIND: Duration = Duration::from_secs(5);

/// How connected streams become links.
#[derive(Debug)]
pub(super) struct Makers<L> {
    /// On the listening side: makes the memory and sends it.
    pub(super) create: fn(UnixStream) -> io::Result<L>,
    /// On the connecting side, once the stream is readable: takes the memory.
    pub(super) attach: fn(UnixStream) -> io::Result<L>,
    /// All connections of the pair, in the same order on both sides.
    pub(super) tcp: fn(Vec<(TcpStream, Sealing)>) -> io::Result<L>,
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
}

impl Mesh<'_> {
    /// See [`World::open`](super::World::open).
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
            links: members.iter().map(|_| None).collect(),
        };
        opening.run().map_err(|trouble| {
            if let Some(failure) = trouble.news {
                self.control.abort(context, &failure);
            }
            self.control.leave(context, false);
            trouble.error
        })
    }

    /// A member as errors name it.
    fn peer(&self, members: &[usize], rank: usize) -> Peer {
        let facts = members.get(rank).and_then(|m| self.facts.get(*m));
        Peer { rank, host: facts.map(|f| f.host.as_str().into()), pid: facts.map(|f| f.pid) }
    }
}

/// An error, and what the other members must hear if they do not know it yet.
struct Trouble {
    error: Error,
    news: Option<Failure>,
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

    /// Connect to a lower rank. A stream: shared memory will come over it.
    fn connect(&mut self, rank: usize) -> Result<Option<UnixStream>, Trouble> {
        if self.over_edge(rank)? {
            return Ok(None);
        }
        let (ours, theirs) = self.facts(rank)?;
        let (ours_rdma, theirs_rdma) = (ours.rdma, theirs.rdma);
        let rdma = ours_rdma && theirs_rdma;
        let share = ours.shm && theirs.shm && ours.host_id == theirs.host_id && !theirs.unix.is_empty();
        let (tcp, n) = (ours.tcp && theirs.tcp, ours.connections.max(theirs.connections));
        let (addrs, unix) = (theirs.addrs.clone(), theirs.unix.clone());
        let mut why_not = vec![if share { String::new() } else { "its host is another".to_owned() }];
        if rdma && self.mesh.prefers_rdma && self.raise(rank, &addrs, &mut why_not)? {
            return Ok(None);
        }
        if share {
            match self.dial(rank, Target::Unix(unix), Channel::Shm) {
                Ok((Stream::Unix(stream), _)) => return Ok(Some(stream)),
                Ok((Stream::Tcp(_), _)) => {}
                Err(miss @ (Miss::Nowhere(_) | Miss::Refused(Refusal::No(_)))) => {
                    tracing::debug!(rank, %miss, "no shared memory, taking TCP");
                    why_not[0] = miss.to_string();
                }
                Err(miss) => return Err(self.missed(rank, "its socket on this host", miss)),
            }
        }
        if rdma && !self.mesh.prefers_rdma && self.raise(rank, &addrs, &mut why_not)? {
            return Ok(None);
        }
        if !tcp {
            let over_rdma = match (why_not.get(1), rdma) {
                (Some(why), _) => format!(", not over RDMA ({why})"),
                (None, false) if ours_rdma != theirs_rdma => {
                    format!(
                        ", not over RDMA (rank {} has no device for it)",
                        if ours_rdma { rank } else { self.mine }
                    )
                }
                _ => String::new(),
            };
            return Err(self.explained(
                rank,
                format!(
                    "cannot be reached: not over shared memory ({}){over_rdma}, and TCP is not allowed; allow it (COMITY_LINKS=shm,tcp)",
                    why_not[0]
                ),
            ));
        }
        let of = u16::try_from(addrs.len() * usize::from(n)).unwrap_or(u16::MAX);
        let mut streams = Vec::with_capacity(usize::from(of));
        for (index, addr) in (0..of).zip(addrs.iter().cycle()) {
            match self.dial(rank, Target::Tcp(*addr), Channel::Tcp { index, of }) {
                Ok((Stream::Tcp(stream), seals)) => streams.push((stream, seals)),
                Ok((Stream::Unix(_), _)) => {}
                Err(miss) => return Err(self.missed(rank, &addr.to_string(), miss)),
            }
        }
        self.keep(rank, "TCP", (self.makers.tcp)(streams))?;
        Ok(None)
    }

    /// Take the wires that the pair has already, if it has.
    fn over_edge(&mut self, rank: usize) -> Result<bool, Trouble> {
        let link = self.mesh.edges.and_then(|e| e.link(self.world_rank(rank), self.context));
        let made = link.is_some();
        if let Some(link) = link {
            self.keep(rank, "RDMA", link.map(self.makers.rdma))?;
        }
        Ok(made)
    }

    /// Make wires to a lower rank; the reason is added where there are none.
    fn raise(
        &mut self,
        rank: usize,
        addrs: &[SocketAddr],
        why_not: &mut Vec<String>,
    ) -> Result<bool, Trouble> {
        let Some(edges) = self.mesh.edges.filter(|e| e.leads_to(self.world_rank(rank))) else {
            why_not.push("no device leads to it".into());
            return Ok(false);
        };
        let mut words = Vec::new();
        for addr in addrs {
            let stream = match self.dial(rank, Target::Tcp(*addr), Channel::Rdma) {
                Ok((Stream::Tcp(stream), _)) => stream,
                Ok((Stream::Unix(_), _)) => continue,
                Err(Miss::Refused(Refusal::No(why))) => {
                    words.push(why);
                    break;
                }
                Err(miss) => return Err(self.missed(rank, &addr.to_string(), miss)),
            };
            if self.wire(rank, edges, stream, &mut words)? {
                return Ok(true);
            }
            // Named devices do not depend on the address.
            if edges.are_named() {
                break;
            }
        }
        words.dedup();
        edges.give_up(self.world_rank(rank));
        why_not.push(words.join("; "));
        Ok(false)
    }

    /// Make wires beside a connection of the pair.
    fn wire(
        &mut self,
        rank: usize,
        edges: &Edges,
        stream: TcpStream,
        words: &mut Vec<String>,
    ) -> Result<bool, Trouble> {
        let raised = self.patiently(|patience| {
            edges.raise(self.world_rank(rank), stream, self.until, &|fd, until| {
                patience.wait(Some((fd, PollFlags::IN)), until)
            })
        });
        match raised {
            Ok(Ok(())) => self.over_edge(rank),
            Ok(Err(why)) => {
                let peer = self.mesh.peer(self.members, rank);
                tracing::warn!(%peer, why, "no RDMA wire to a rank; another link is taken");
                words.push(why);
                Ok(false)
            }
            Err(error) => Err(self.missed(rank, "its RDMA device", Miss::Stop(error))),
        }
    }

    /// Do what waits, until the group fails or time is up.
    fn patiently<T>(&self, run: impl FnOnce(&Patience<'_>) -> T) -> T {
        let check = || {
            self.watch.hush();
            self.watch.failure().map_or(Ok(()), |f| Err(self.failed(f)))?;
            self.failed_above().map_or(Ok(()), Err)
        };
        let above = self.watch.above().map(|w| w.bell_fd());
        let bells = [self.watch.bell_fd()].into_iter().chain(above).collect();
        run(&Patience { until: self.until, bells, check: &check })
    }

    fn dial(&self, rank: usize, target: Target, channel: Channel) -> Result<(Stream, Sealing), Miss> {
        let hello = Hello {
            from: self.mesh.me as u32,
            to: self.world_rank(rank) as u32,
            world: self.mesh.world,
            context: self.context,
            channel,
            sealed: self.mesh.sealed,
        };
        self.patiently(|patience| dial(&[target], self.mesh.secret, &hello, patience))
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
                        self.keep(rank, "TCP", (self.makers.tcp)(streams))?;
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

    fn keep(&mut self, rank: usize, kind: &str, link: io::Result<L>) -> Result<(), Trouble> {
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

    /// What went wrong with `rank`; but if it has died or the group has failed, that is the reason.
    fn explained(&self, rank: usize, cause: String) -> Trouble {
        let until = (Instant::now() + EXPLANATION).min(self.until);
        while self.watch.failure().is_none() && Instant::now() < until {
            self.watch.hush();
            if self.watch.failure().is_some() {
                break;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.watch.bell_fd(), PollFlags::IN)];
            if poll_until(&mut fds, Some(until)).is_err() {
                break;
            }
        }
        match self.watch.failure() {
            Some(f) => Trouble { error: self.failed(f), news: None },
            None => self.own(rank, cause),
        }
    }

    fn missed(&self, rank: usize, at: &str, miss: Miss) -> Trouble {
        match miss {
            Miss::Stop(error) if self.watch.failure().is_some() => Trouble { error, news: None },
            Miss::Stop(error) => self.unable(error),
            miss => self.explained(rank, format!("could not be reached at {at}: {miss}")),
        }
    }

    fn late(&self, missing: &[usize]) -> Trouble {
        if let Some(error) = self.mesh.control.lacked() {
            return self.unable(error);
        }
        let waited = seconds(self.begun.elapsed());
        let names: Vec<String> =
            missing.iter().map(|r| self.mesh.peer(self.members, *r).to_string()).collect();
        let first = missing.first().copied().unwrap_or(self.mine);
        let mut trouble = self.own(first, format!("did not come to the group within {waited}"));
        trouble.error = Error::Join(format!(
            "rank {} waited {waited} for {} to come to the group; do all of its ranks make this call?",
            self.mine,
            names.join(", ")
        ));
        trouble
    }

    /// This rank lacks something itself.
    fn unable(&self, error: Error) -> Trouble {
        let cause = error.to_string();
        let failure = Failure { culprit: self.mine, by: self.mine, cause, reported: true, calls: None };
        Trouble { error, news: Some(failure) }
    }

    /// A failure that this rank has found.
    fn own(&self, culprit: usize, cause: String) -> Trouble {
        let failure = Failure { culprit, by: self.mine, cause, reported: false, calls: None };
        Trouble { error: self.failed(&failure), news: Some(failure) }
    }

    fn failed(&self, f: &Failure) -> Error {
        let peer = self.mesh.peer(self.members, f.culprit);
        if let Some(Differs { ours, theirs, what }) = f.calls {
            Error::Mismatch { rank: f.by, ours, peer, theirs, differs: what }
        } else if f.reported {
            Error::Aborted { by: peer, reason: f.cause.clone(), call: None }
        } else {
            let seen = if f.by == self.mine { String::new() } else { format!(" (seen by rank {})", f.by) };
            Error::PeerLost { peer, cause: format!("{}{seen}", f.cause), call: None }
        }
    }
}
