//! Opening a group: wait until all members have come. Their links are made by [`Linking`], when they are needed.

use super::{maker::Makers, way::Ways};
use crate::{
    Error, JoinCause, JoinError, LinkKind, Peer, Result,
    channel::Miss,
    control::{ControlNote, ControlPlane},
    error::seconds,
    rendezvous::Facts,
    status::{Failure, GroupStatus, Links},
    sys::{Waker, poll_joining, poll_until},
    transport::{Pair, Transports},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    os::fd::BorrowedFd,
    sync::Arc,
    time::{Duration, Instant},
};

mod making;

pub(super) use making::Linking;

/// A group, as this process makes links in it.
#[derive(Debug)]
pub(super) struct OpenedGroup {
    pub(super) ways: Ways,
    pub(super) facts: Arc<[Facts]>,
    pub(super) control: Arc<ControlPlane>,
    /// Transports that this process can use.
    pub(super) transports: Arc<Transports>,
    /// The kind that goes before those that the table prefers.
    pub(super) first: Option<LinkKind>,
    pub(super) limit: Duration,
    /// All links are made when the group opens.
    pub(super) all: bool,
    pub(super) group_id: u64,
    /// World ranks.
    pub(super) members: Vec<usize>,
    pub(super) mine: usize,
    pub(super) status: Arc<GroupStatus>,
}

impl OpenedGroup {
    fn world_rank(&self, rank: usize) -> usize {
        self.members.get(rank).copied().unwrap_or_default()
    }

    /// All ranks but this one.
    fn others(&self) -> impl Iterator<Item = usize> {
        let mine = self.mine;
        (0..self.members.len()).filter(move |r| *r != mine)
    }

    /// A member as errors name it.
    fn peer(&self, rank: usize) -> Peer {
        let facts = self.members.get(rank).and_then(|m| self.facts.get(*m));
        Peer { rank, host: facts.map(|f| f.host.as_str().into()), pid: facts.map(|f| f.pid) }
    }

    /// Watch the members and wait until all have come ([`World::open`](crate::status::World::open)).
    pub(super) fn open(self, until: Instant, makers: &Makers) -> Result<Links> {
        let control = Arc::clone(&self.control);
        let all = self.all;
        let opened = Arc::new(self);
        let Self { group_id, members, mine, status, .. } = &*opened;
        let group_id = *group_id;
        if !control.enter(group_id, members, *mine, status) {
            return Err(Error::config(format!(
                "group {group_id:x}: it is open already; this is a bug in Comity"
            )));
        }
        makers.add(&opened);
        // Each to each other, that would be most of the work of a large group that forms again.
        let gathers = all || !control.is_agreed_on(group_id);
        if gathers {
            control.say(&opened.others().collect::<Vec<_>>(), ControlNote::Entered { group_id });
        }
        let mut opening = Opening {
            group: &opened,
            until,
            begun: Instant::now(),
            renewed: (!control.has_begun()).then(|| until.saturating_duration_since(Instant::now())),
            waker: None,
        };
        let gathered = if gathers { opening.gather() } else { Ok(()) };
        let made = gathered.and_then(|()| match all {
            true => opening.link_all(makers),
            false => Ok(members.iter().map(|_| None).collect()),
        });
        let made = made.map_err(|failed| {
            makers.forget(group_id);
            if let Some(failure) = failed.news {
                control.abort(group_id, &failure);
            }
            control.leave(group_id, false);
            failed.error
        });
        if made.is_ok() {
            control.begin();
        }
        made
    }
}

/// The kinds of link, as a process prefers them whose first choice is `first`.
fn order(first: Option<LinkKind>) -> impl Iterator<Item = LinkKind> {
    let rest = LinkKind::LISTED.iter().copied().filter(move |k| Some(*k) != first);
    first.into_iter().chain(rest)
}

/// The kind of link that is tried first with a rank of the world.
pub(super) fn likely(
    ways: &Ways,
    transports: &Transports,
    first: Option<LinkKind>,
    rank: usize,
) -> Option<LinkKind> {
    let pair = Pair::new(&ways.cards, ways.me, rank, 0)?;
    order(first).find(|kind| {
        let transport = transports.get(*kind).filter(|_| pair.theirs.links.has(*kind));
        transport.is_some_and(|t| t.leads(&pair).is_ok())
    })
}

/// Ranks that are still waited for; `None`: nobody.
type MissingRanks = Result<Option<Vec<usize>>, MeshError>;

/// A wait for other members: what ends it, and what is then said of whom.
struct Opening<'a> {
    group: &'a OpenedGroup,
    until: Instant,
    begun: Instant,
    /// Time limit from each member that comes, while the job's first group is opened: on a crowded host hundreds of them take long.
    renewed: Option<Duration>,
    /// Woken with the group's own waker, which the engine drains; `None` where there is no engine yet.
    waker: Option<&'a Waker>,
}

impl Opening<'_> {
    fn waker_fd(&self) -> BorrowedFd<'_> {
        self.waker.map_or_else(|| self.group.status.waker_fd(), Waker::fd)
    }

    fn drain(&self) {
        self.waker.map_or_else(|| self.group.status.drain(), Waker::drain);
    }

    /// Wait until all members have opened the group.
    fn gather(&mut self) -> Result<(), MeshError> {
        let status = &self.group.status;
        let mut came = 0;
        self.wait_until(&mut |opening| {
            let now = status.links().entered();
            if now > came {
                came = now;
                opening.renew();
            }
            let missing = || opening.group.others().filter(|r| !status.links().has_entered(*r));
            // Who has left had come.
            if let Some(rank) = missing().find(|r| status.has_left(*r)) {
                return Err(opening.explained(rank, "left before the group was complete".into()));
            }
            if now + 1 >= opening.group.members.len() {
                return Ok(None);
            }
            Ok(Some(missing().collect()))
        })
    }

    fn link_all(&mut self, makers: &Makers) -> Result<Links, MeshError> {
        let group = self.group;
        makers.want(group.group_id, &group.others().collect::<Vec<_>>());
        let mut links: Links = group.members.iter().map(|_| None).collect();
        self.until = Instant::now() + group.limit;
        let limit = group.limit;
        self.wait_until(&mut |opening| {
            for (rank, link) in group.status.links().take() {
                opening.until = Instant::now() + limit;
                if let Some(place) = links.get_mut(rank) {
                    *place = Some(link);
                }
            }
            let missing: Vec<usize> =
                group.others().filter(|r| matches!(links.get(*r), Some(None))).collect();
            if let Some(rank) = missing.iter().find(|r| group.status.links().is_ruled_out(**r)) {
                return Err(opening.explained(*rank, "left before the group was complete".into()));
            }
            Ok(Some(missing).filter(|m| !m.is_empty()))
        })?;
        Ok(links)
    }

    /// Until `missing` finds nobody.
    fn wait_until(&mut self, missing: &mut dyn FnMut(&mut Self) -> MissingRanks) -> Result<(), MeshError> {
        loop {
            self.drain();
            let missing = missing(self)?;
            if let Some(f) = self.group.status.failure() {
                return Err(MeshError { error: self.failed(f), news: None });
            }
            if let Some(error) = self.failed_above() {
                return Err(self.unable(error));
            }
            let Some(missing) = missing else { return Ok(()) };
            if Instant::now() >= self.until {
                return Err(self.late(&missing));
            }
            let above = self.group.status.above().map(|w| w.waker_fd());
            let wakers = [self.waker_fd()].into_iter().chain(above);
            let mut fds: Vec<_> = wakers.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            // WAIT(until): members that come, to the join deadline
            poll_joining(&mut fds, Some(self.until)).map_err(|e| self.unable(e))?;
        }
    }

    /// The group that is being split has failed, so some of its members may never come.
    fn failed_above(&self) -> Option<Error> {
        let above = self.group.status.above().filter(|_| self.waker.is_none())?;
        above.drain();
        let f = above.failure()?;
        let words = format!("the group that was being split failed: its rank {} {}", f.culprit, f.cause);
        Some(JoinError::new(words).of([f.culprit]).because(JoinCause::Ended).into())
    }

    /// Work on a link begins, which has the whole limit.
    fn begin(&mut self) {
        self.begun = Instant::now();
        self.until = self.begun + self.group.limit;
    }

    /// Things go on.
    fn renew(&mut self) {
        if let Some(limit) = self.renewed {
            self.until = self.until.max(Instant::now() + limit);
        }
    }
}

/// When a link breaks while it is made, a death that explains it may be known this much later.
const EXPLANATION: Duration = Duration::from_millis(250);

/// An error, and what the other members must hear if they do not know it yet.
pub(in crate::links) struct MeshError {
    pub(super) error: Error,
    pub(in crate::links) news: Option<Failure>,
}

impl Opening<'_> {
    /// Returns the error of `rank`'s link; but if `rank` has died or the group has failed, that is the reason.
    pub(super) fn explained(&self, rank: usize, cause: String) -> MeshError {
        let until = (Instant::now() + EXPLANATION).min(self.until);
        while self.group.status.failure().is_none() && Instant::now() < until {
            self.drain();
            if self.group.status.failure().is_some() {
                break;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.waker_fd(), PollFlags::IN)];
            // WAIT(until): word of whose fault it was, to the join deadline at most
            if poll_until(&mut fds, Some(until)).is_err() {
                break;
            }
        }
        match self.group.status.failure() {
            Some(f) => MeshError { error: self.failed(f), news: None },
            None => self.own(rank, cause),
        }
    }

    pub(super) fn missed(&self, rank: usize, at: &str, miss: Miss) -> MeshError {
        match miss {
            Miss::Stop(error) if self.group.status.failure().is_some() => MeshError { error, news: None },
            Miss::Stop(error) => self.unable(error),
            miss => {
                let me = self.group.peer(self.group.mine);
                self.explained(rank, format!("could not be reached from {me} at {at}: {miss}"))
            }
        }
    }

    pub(super) fn late(&self, missing: &[usize]) -> MeshError {
        if let Some(error) = self.group.control.lacked() {
            return self.unable(error);
        }
        let waited = seconds(self.begun.elapsed());
        let names: Vec<String> = missing.iter().map(|r| self.group.peer(*r).to_string()).collect();
        let first = missing.first().copied().unwrap_or(self.group.mine);
        let mut failed = self.own(first, format!("did not come to the group within {waited}"));
        let why = JoinError::new(format!(
            "rank {} waited {waited} for {} to come to the group; do all of its ranks make this call?",
            self.group.mine,
            names.join(", ")
        ));
        failed.error = why.of(missing.iter().copied()).because(JoinCause::Absent).into();
        failed
    }

    /// This rank lacks something itself.
    pub(super) fn unable(&self, error: Error) -> MeshError {
        let cause = error.to_string();
        let failure = Failure::reported(self.group.mine, cause);
        MeshError { error, news: Some(failure) }
    }

    /// A failure that this rank has found.
    pub(super) fn own(&self, culprit: usize, cause: String) -> MeshError {
        let failure = Failure::lost(culprit, self.group.mine, cause);
        MeshError { error: self.failed(&failure), news: Some(failure) }
    }

    pub(super) fn failed(&self, f: &Failure) -> Error {
        let peers: Vec<_> = (0..self.group.members.len()).map(|r| self.group.peer(r)).collect();
        f.error(self.group.mine, &peers, None)
    }
}
