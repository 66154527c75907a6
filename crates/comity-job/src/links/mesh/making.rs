//! Making links of a group: those that this rank wants, and those that others make with it.
//!
//! ```text
//!   wanted by a rank, with a lower one      it connects
//!   wanted by a rank, with a higher one     it asks that one to (Connect{group}), which connects
//!   a connection has come                   the transport makes the link of it; with the last one, where it takes several
//!
//!   Linking::connect   for each kind, the preferred first: do both have it, does it lead there?
//!     Transport::connect(pair, Path)     Link: made | Not: the next kind | an error: all is over
//!       Path::dial, reach, wait          -> Ways, until the group fails, either rank leaves, or time is up
//! ```

use super::{MeshError, OpenedGroup, Opening, order};
use crate::{
    ErrorKind, LinkKind, Result,
    channel::{
        Channel, DialLimits, Hello, Miss, Sealing, Stream, TRY, Target, answering, dial, dial_all, is_own,
    },
    control::{Arrival, ControlNote},
    error::seconds,
    sys::{Waker, poll_until},
    transport::{Candidates, Connected, Connection, Connector, Missed, NewLink, Pair, Transport},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::HashMap,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

/// Time after a member's goodbye in which its connections may still come from another host.
const BEHIND: Duration = Duration::from_secs(5);
/// Rounds of the control thread in which they may still come within a host: they have come by the time of one more.
const ROUNDS: u64 = 2;

/// Time beyond the connecting rank's limit for which its connection is awaited: at its limit that rank reports why it could not connect.
const WORD: Duration = Duration::from_secs(1);

/// Interval at which a rank of a large job is asked to connect.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Until the control thread has looked again, for one that leaves within the host.
const ROUND: Duration = Duration::from_millis(2);
/// The longest sleep: making a link can swallow a wake that was for another one.
const LOOK: Duration = Duration::from_millis(50);

/// A connection of a higher rank: which of how many that make a link.
pub(super) struct ArrivedConnection {
    pub(super) kind: LinkKind,
    pub(super) index: u16,
    pub(super) of: u16,
    pub(super) connection: Connection,
}

/// The connections of a link of which some are still to come.
pub(super) struct LinkParts {
    pub(super) connections: Vec<Option<Connection>>,
    /// Time by which the rank that began has given up.
    pub(super) until: Instant,
}

/// A higher rank that was asked to connect.
struct AwaitedRank {
    rank: usize,
    until: Instant,
    /// In a large job: when to ask it again. One that passed the word on may have ended meanwhile.
    again: Instant,
    /// When it was seen to have left, and which round of the control thread that was.
    left: Option<(Instant, u64)>,
}

/// The making of links of one group, while there are some to make.
pub(in crate::links) struct Linking<'a> {
    pub(super) opening: Opening<'a>,
    /// By rank; true also for those that will not be.
    pub(super) made: &'a mut Vec<bool>,
    awaited: Vec<AwaitedRank>,
    /// Connections that have come of links that want more.
    pub(super) parts: HashMap<(usize, LinkKind), LinkParts>,
    /// Returns true if this rank leaves the group.
    pub(super) is_over: &'a dyn Fn() -> bool,
}

impl<'a> Linking<'a> {
    pub(in crate::links) fn new(
        group: &'a OpenedGroup,
        waker: &'a Waker,
        made: &'a mut Vec<bool>,
        is_over: &'a dyn Fn() -> bool,
    ) -> Self {
        let now = Instant::now();
        let opening =
            Opening { group, until: now + group.limit, begun: now, renewed: None, waker: Some(waker) };
        Self { opening, made, awaited: Vec::new(), parts: HashMap::new(), is_over }
    }

    pub(super) fn pair(&self, rank: usize) -> Result<Pair<'a>, MeshError> {
        let OpenedGroup { ways, group_id, .. } = self.opening.group;
        Pair::new(&ways.cards, ways.me, self.opening.group.world_rank(rank), *group_id)
            .ok_or_else(|| self.opening.own(rank, "has no entry in the table".into()))
    }

    /// Make what can be made now of links to `wanted`, and of what others began. True while some are still to come.
    pub(in crate::links) fn go_on(&mut self, wanted: &[usize]) -> Result<bool, MeshError> {
        self.opening.drain();
        if let Some(f) = self.opening.group.status.failure() {
            return Err(MeshError { error: self.opening.failed(f), news: None });
        }
        self.receive()?;
        let OpenedGroup { control, group_id, .. } = self.opening.group;
        for rank in wanted.iter().copied().chain(control.wanted(*group_id)) {
            self.begin(rank)?;
            self.receive()?;
        }
        let now = Instant::now();
        self.parts.retain(|_, parts| now < parts.until);
        self.miss_leavers();
        self.ask_again();
        self.keep_time()?;
        Ok(!self.awaited.is_empty() || !self.parts.is_empty())
    }

    /// Begin with the link to `rank`, unless it is made or has begun.
    fn begin(&mut self, rank: usize) -> Result<(), MeshError> {
        let begun = self.awaited.iter().any(|a| a.rank == rank) || self.parts.keys().any(|(r, _)| *r == rank);
        if begun || self.made.get(rank).is_none_or(|m| *m) || self.stands(rank)? {
            return Ok(());
        }
        let group = self.opening.group;
        let now = Instant::now();
        let limit = group.limit;
        if group.world_rank(rank) > group.ways.me {
            group.control.say(&[rank], ControlNote::Connect { group_id: group.group_id });
            self.awaited.push(AwaitedRank {
                rank,
                until: now + limit + WORD,
                again: now + ASK_AGAIN,
                left: None,
            });
            return Ok(());
        }
        self.opening.begin();
        let made = self.connect(rank);
        self.unless_left(rank, made)
    }

    /// A link to a rank that has left need not be made any more.
    fn unless_left(&mut self, rank: usize, made: Result<(), MeshError>) -> Result<(), MeshError> {
        let status = &self.opening.group.status;
        if made.is_err() && status.failure().is_none() && status.has_left(rank) {
            self.rule_out(rank);
            return Ok(());
        }
        made
    }

    fn rule_out(&mut self, rank: usize) {
        if let Some(made) = self.made.get_mut(rank) {
            *made = true;
        }
        self.opening.group.status.rule_out_link(rank);
    }

    /// Whoever was asked and had left makes no link, unless its connection is on its way.
    fn miss_leavers(&mut self) {
        let group = self.opening.group;
        let control = &group.control;
        let mut gone = Vec::new();
        for one in &mut self.awaited {
            if !group.status.has_left(one.rank) || self.parts.keys().any(|(r, _)| *r == one.rank) {
                continue;
            }
            let here = Pair::new(&group.ways.cards, group.ways.me, group.world_rank(one.rank), 0)
                .is_some_and(|p| p.ours.host_id == p.theirs.host_id);
            let (since, round) = *one.left.get_or_insert_with(|| (Instant::now(), control.rounds()));
            let over = if here { control.rounds() >= round + ROUNDS } else { since.elapsed() >= BEHIND };
            if over {
                gone.push(one.rank);
            } else if here {
                control.nudge();
            }
        }
        self.awaited.retain(|a| !gone.contains(&a.rank));
        gone.into_iter().for_each(|rank| self.rule_out(rank));
    }

    /// Ask those again that were asked to connect and have not, where others pass on the word.
    fn ask_again(&mut self) {
        let OpenedGroup { control, group_id, .. } = self.opening.group;
        let now = Instant::now();
        for late in self.awaited.iter_mut().filter(|a| control.is_sparse() && now >= a.again) {
            control.say(&[late.rank], ControlNote::Connect { group_id: *group_id });
            late.again = now + ASK_AGAIN;
        }
    }

    /// Fails if a rank that was asked to connect has not in time.
    fn keep_time(&self) -> Result<(), MeshError> {
        let now = Instant::now();
        let Some(late) = self.awaited.iter().find(|a| now >= a.until) else { return Ok(()) };
        if let Some(error) = self.opening.group.control.lacked() {
            return Err(self.opening.unable(error));
        }
        let group = self.opening.group;
        let limit = self.opening.group.limit;
        let words = format!(
            "was asked by {} to connect to it, and did not within {}; can its host reach that one?",
            group.peer(group.mine),
            seconds(limit)
        );
        Err(self.opening.explained(late.rank, words))
    }

    /// Take what has come.
    fn receive(&mut self) -> Result<(), MeshError> {
        let OpenedGroup { control, group_id, members, .. } = self.opening.group;
        for Arrival { from, channel, stream, seals, .. } in control.arrivals(*group_id) {
            if let Some(rank) = members.iter().position(|m| *m == from)
                && let Channel::Link { transport, index, of } = channel
                && let Some(kind) = LinkKind::from_wire(transport)
            {
                let taken =
                    self.take(rank, ArrivedConnection { kind, index, of, connection: (stream, seals) });
                self.unless_left(rank, taken)?;
            }
        }
        Ok(())
    }

    pub(in crate::links) fn wait(&self) -> Result<(), MeshError> {
        let mut fds = [PollFd::from_borrowed_fd(self.opening.waker_fd(), PollFlags::IN)];
        let ends = self.awaited.iter().map(|a| match a.left {
            Some((since, _)) => a.until.min(since + BEHIND),
            None => a.until,
        });
        let long = Instant::now() + self.opening.group.limit;
        let until = ends.chain(self.parts.values().map(|p| p.until)).min().unwrap_or(long);
        // One that leaves within the host is looked for again when the control thread has looked.
        let soon = self.awaited.iter().any(|a| a.left.is_some());
        let until = until.min(Instant::now() + if soon { ROUND } else { LOOK });
        // WAIT(until): links being made, to the join deadline; the waker wakes for a failure
        let woken = poll_until(&mut fds, Some(until));
        woken.map_err(|e| self.opening.own(self.opening.group.mine, format!("cannot wait: {e}")))?;
        Ok(())
    }

    pub(super) fn keep(&mut self, rank: usize, kind: LinkKind, link: NewLink) -> Result<(), MeshError> {
        match link {
            Ok(link) => {
                if let Some(made) = self.made.get_mut(rank) {
                    *made = true;
                }
                self.awaited.retain(|a| a.rank != rank);
                // Things go on.
                let until = Instant::now() + self.opening.group.limit + WORD;
                self.awaited.iter_mut().for_each(|a| a.until = until);
                self.opening.group.status.link_is_made(rank, link);
                Ok(())
            }
            Err(e) if is_own(&e) => {
                let what = format!("making a {} link to rank {rank}", kind.medium());
                Err(self.opening.unable(crate::Error::os(what, e)))
            }
            Err(e) => {
                Err(self.opening.explained(rank, format!("could not be linked over {}: {e}", kind.medium())))
            }
        }
    }
}

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
