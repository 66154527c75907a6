//! When links are made: each group has a thread for that while it has some to make.
//!
//! No thread that makes calls makes links. So a link is made with a rank that computes, too. A rank that waits in a call goes on to look at
//! failures, limits and what others say. The thread ends when nothing is left to make.

use super::{
    mesh::{Linking, Opened},
    paths::Paths,
};
use crate::{
    control::LinkDesk,
    status::Failure,
    sync::{lock, lock_soon},
    sys::Waker,
    transport::{AddressBook, Candidate, Card, Owed},
};
use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, Weak},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// In a job that allows any silence: after how long a silent path counts as cut, and after how long it is given up.
const ANY_SILENCE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// Time beyond that for which a group is not left: until the path is seen to be cut, and until another one is found.
const SEEN: Duration = Duration::from_millis(300);
const FOUND: Duration = Duration::from_secs(1);
/// Between two looks of a process that leaves whether all has come.
const LAST_LOOK: Duration = Duration::from_millis(2);

/// The groups of a process whose links can be made.
#[derive(Debug)]
pub(super) struct Makers {
    /// None when the process leaves.
    open: Mutex<Option<HashMap<u64, Maker>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Looks after links that last.
    paths: Arc<Paths>,
    me: usize,
    book: Arc<AddressBook>,
    cards: Arc<[Card]>,
}

/// A group whose links can be made.
#[derive(Debug)]
struct Maker {
    group: Arc<Opened>,
    state: Arc<Mutex<MakerState>>,
    /// The group is left as soon as what was sent has come; since when.
    leaving: Option<Instant>,
}

#[derive(Debug, Default)]
struct MakerState {
    /// Ranks that this rank wants links to and the thread has not seen.
    wanted: Vec<usize>,
    /// Ranks whose links want other connections.
    mending: Vec<usize>,
    /// By rank, as the thread left it; the thread has it while it runs.
    made: Vec<bool>,
    /// Wakes the thread, while there is one.
    running: Option<Arc<Waker>>,
    /// Something came since the thread last looked.
    is_asked: bool,
    /// The group is left, or has failed.
    is_over: bool,
}

impl Makers {
    pub(super) fn new(me: usize, book: Arc<AddressBook>, cards: Arc<[Card]>) -> Arc<Self> {
        Arc::new_cyclic(|makers| Self {
            open: Mutex::new(Some(HashMap::new())),
            threads: Mutex::default(),
            paths: Paths::new(Weak::clone(makers)),
            me,
            book,
            cards,
        })
    }

    /// Links of this group may be made from now on.
    pub(super) fn add(&self, group: &Arc<Opened>) {
        let state = MakerState { made: vec![false; group.members.len()], ..MakerState::default() };
        let state = Arc::new(Mutex::new(state));
        let maker = Maker { group: Arc::clone(group), state, leaving: None };
        if let Some(open) = &mut *lock(&self.open) {
            open.insert(group.group_id, maker);
        }
    }

    /// No more links are made in it.
    pub(super) fn forget(&self, group_id: u64) {
        let maker = lock(&self.open).as_mut().and_then(|open| open.remove(&group_id));
        if let Some(maker) = maker {
            maker.end();
            maker.group.mesh.transports.iter().for_each(|(_, t)| t.forgive(group_id));
        }
    }

    /// Returns true if a group is left later. Such a group is looked after here: where the path of its last bytes is cut, they take another one.
    pub(super) fn leaves_later(&self, group_id: u64) -> bool {
        let mark = |leaving: Option<Instant>| {
            if let Some(maker) = lock(&self.open).as_mut().and_then(|open| open.get_mut(&group_id)) {
                maker.leaving = leaving.filter(|_| !maker.owed().is_empty());
                return maker.leaving.is_some();
            }
            false
        };
        if !mark(Some(Instant::now())) {
            return false;
        }
        let is_seen_to = self.paths.hasten();
        if !is_seen_to {
            mark(None);
        }
        is_seen_to
    }

    /// Returns true if groups are to be left later.
    pub(super) fn is_leaving(&self) -> bool {
        lock(&self.open).as_ref().is_some_and(|open| open.values().any(|m| m.leaving.is_some()))
    }

    /// Leave the groups whose last bytes have come, or will not come. Returns true if there are others.
    pub(super) fn leave_due(&self) -> bool {
        let open = lock(&self.open);
        let makers = open.iter().flatten().filter_map(|(id, maker)| Some((*id, maker, maker.leaving?)));
        let (due, others): (Vec<_>, Vec<_>) = makers.partition(|(_, maker, since)| maker.may_leave(*since));
        let is_leaving = !others.is_empty();
        let due: Vec<_> = due.into_iter().map(|(id, maker, _)| (id, Arc::clone(&maker.group))).collect();
        drop(open);
        for (group_id, group) in due {
            self.forget(group_id);
            group.mesh.control.leave(group_id, true);
        }
        is_leaving
    }

    /// Make links to these ranks of a group.
    pub(super) fn want(&self, group_id: u64, ranks: &[usize]) {
        if let Some(open) = &*lock(&self.open)
            && let Some(maker) = open.get(&group_id)
        {
            self.start(maker, ranks, None);
        }
    }

    /// Make other connections for the link to this rank of the world.
    pub(super) fn mend(&self, group_id: u64, rank: usize) {
        if let Some(open) = &*lock(&self.open)
            && let Some(maker) = open.get(&group_id)
        {
            self.start(maker, &[], maker.group.members.iter().position(|m| *m == rank));
        }
    }

    /// Have the thread of a group look, with one that starts if there is none.
    fn start(&self, maker: &Maker, ranks: &[usize], mending: Option<usize>) {
        let mut state = lock(&maker.state);
        if state.is_over {
            return;
        }
        state.wanted.extend(ranks);
        state.mending.extend(mending);
        state.is_asked = true;
        if let Some(waker) = &state.running {
            return waker.wake();
        }
        let started = Waker::new().and_then(|waker| {
            let (waker, group, shared) =
                (Arc::new(waker), Arc::clone(&maker.group), Arc::clone(&maker.state));
            state.running = Some(Arc::clone(&waker));
            maker.group.status.links().wake_too(Some(Arc::clone(&waker)));
            let named = thread::Builder::new().name("comity-links".into());
            let paths = Arc::clone(&self.paths);
            named.spawn(move || serve(&group, &shared, &waker, &paths))
        });
        match started {
            Ok(thread) => {
                let mut threads = lock(&self.threads);
                threads.retain(|t| !t.is_finished());
                threads.push(thread);
            }
            Err(e) => {
                (state.running, state.is_over) = (None, true);
                let group = &maker.group;
                let failure = Failure::reported(group.mine, format!("cannot make links: {e}"));
                drop(state);
                group.mesh.control.abort(group.group_id, &failure);
                group.status.fail(failure);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn made_for_test(&self, group_id: u64) -> usize {
        let open = lock(&self.open);
        let maker = open.as_ref().and_then(|open| open.get(&group_id));
        maker.map_or(0, |m| m.group.status.links().kinds().into_iter().flatten().count())
    }

    /// End all of it.
    pub(super) fn end(&self) {
        while self.is_leaving() && self.paths.hasten() {
            // WAIT(is_leaving): last bytes that take another path: the detection limit and a second at most
            thread::sleep(LAST_LOOK);
        }
        self.paths.end();
        let open = lock(&self.open).take().unwrap_or_default();
        open.values().for_each(Maker::end);
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // WAIT(end): a thread of ours, which is told to stop
            let _ = thread.join();
        }
    }
}

impl LinkDesk for Makers {
    fn attend(&self, group_id: u64) {
        self.want(group_id, &[]);
    }

    fn paths(&self, rank: usize) -> Vec<SocketAddr> {
        let found = self.cards.get(rank).map(|card| self.book.candidates(card)).unwrap_or_default();
        found.all.into_iter().filter(Candidate::is_direct).map(|c| c.at).collect()
    }

    fn has_second(&self, rank: usize) -> bool {
        self.cards
            .get(self.me)
            .zip(self.cards.get(rank))
            .is_some_and(|(ours, theirs)| ours.shares_two(theirs))
    }

    fn relays(&self, rank: usize, ip: IpAddr) -> Vec<usize> {
        let has = |card: &Card| card.addrs.iter().any(|a| a.at.ip() == ip);
        let Some(card) = self.cards.get(rank).filter(|card| !has(card)) else { return Vec::new() };
        let others = self.cards.iter().enumerate();
        others.filter(|(_, other)| other.host_id != card.host_id && has(other)).map(|(r, _)| r).collect()
    }

    fn say_last(&self) {
        let begun = Instant::now();
        let stays = |maker: &Maker| !maker.group.status.is_in_call() && !maker.may_leave(begun);
        let owes =
            || lock_soon(&self.open).is_some_and(|open| open.iter().flat_map(HashMap::values).any(stays));
        // The first question is all of it where no link of this process lasts.
        while self.paths.hasten() && owes() {
            // WAIT(hasten): last bytes that take another path: the detection limit and a second at most
            thread::sleep(LAST_LOOK);
        }
    }
}

impl Maker {
    /// Ranks to which bytes are on their way that need this process.
    fn owed(&self) -> Vec<Owed> {
        let Opened { mesh, group_id, members, status, .. } = &*self.group;
        if status.failure().is_some() {
            return Vec::new();
        }
        let has_left = |peer| members.iter().position(|m| *m == peer).is_some_and(|r| status.has_left(r));
        let all = mesh.transports.iter().flat_map(|(_, t)| t.owes(*group_id));
        all.filter(|owed| !has_left(owed.peer)).collect()
    }

    /// Returns true if a group that was left at `since` need not stay.
    fn may_leave(&self, since: Instant) -> bool {
        let owed = self.owed();
        let limit = self.group.mesh.control.silence();
        let [patience, limit] = limit.map_or(ANY_SILENCE, |limit| [limit / 5, limit]);
        // What only waits until it is read there comes without this process.
        let long = if owed.iter().any(|o| o.is_cut) { limit + FOUND } else { patience + SEEN };
        owed.is_empty() || since.elapsed() >= long
    }

    fn end(&self) {
        let mut state = lock(&self.state);
        state.is_over = true;
        if let Some(waker) = &state.running {
            waker.wake();
        }
        drop(state);
        drop(self.group.status.links().take());
    }
}

/// The thread of one group.
fn serve(group: &Opened, state: &Mutex<MakerState>, waker: &Arc<Waker>, paths: &Arc<Paths>) {
    let mut made = std::mem::take(&mut lock(state).made);
    let is_over = || lock(state).is_over;
    let mut making = Linking::new(group, waker, &mut made, &is_over);
    let mut failed = None;
    let mut is_open = false;
    loop {
        let mut now = lock(state);
        if now.is_over || failed.is_some() || !is_open && !std::mem::take(&mut now.is_asked) {
            drop(making);
            now.is_over |= failed.is_some();
            (now.made, now.running) = (made, None);
            group.status.links().wake_too(None);
            break;
        }
        now.is_asked = false;
        let (wanted, mending) = (std::mem::take(&mut now.wanted), std::mem::take(&mut now.mending));
        drop(now);
        let gone_on = making.go_on(&wanted, &mending);
        paths.attend(&group.mesh.transports);
        match gone_on {
            Ok(open) => is_open = open,
            Err(e) => failed = Some(e),
        }
        // WAIT(wait): links being made, to the join deadline
        if is_open
            && failed.is_none()
            // What came while a link was made may have been woken for then.
            && !lock(state).is_asked
            && let Err(e) = making.wait()
        {
            failed = Some(e);
        }
    }
    if let Some(failure) = failed.and_then(|e| e.news) {
        // Who is told first could leave at once.
        group.mesh.control.abort(group.group_id, &failure);
        group.status.fail(failure);
    }
}
