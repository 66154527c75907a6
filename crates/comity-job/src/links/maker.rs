//! When links are made: each group has a thread for that while it has some to make.
//!
//! ```text
//!   want(group, ranks)  ->  Makers  --- no thread yet: starts it; else wakes it --->  serve: Linking::go_on, then sleep, until nothing is left
//!   a connection or a wish of another rank came (LinkDesk::attend)  ---^                 |
//!                                                    a link: GroupStatus::link_is_made <-+-> an error: the group fails, the others are told
//! ```
//! No thread that makes calls makes links. So a link is made with a rank that computes, too. A rank that waits in a call goes on to look at
//! failures, limits and what others say. The thread ends when nothing is left to make.

use super::mesh::{Linking, OpenedGroup};
use crate::{control::LinkDesk, status::Failure, sync::lock, sys::Waker, transport::Card};
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

/// The groups of a process whose links can be made.
#[derive(Debug)]
pub(super) struct Makers {
    /// None when the process leaves.
    open: Mutex<Option<HashMap<u64, Maker>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    cards: Arc<[Card]>,
}

/// A group whose links can be made.
#[derive(Debug)]
struct Maker {
    group: Arc<OpenedGroup>,
    state: Arc<Mutex<MakerState>>,
}

#[derive(Debug, Default)]
struct MakerState {
    /// Ranks that this rank wants links to and the thread has not seen.
    wanted: Vec<usize>,
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
    pub(super) fn new(cards: Arc<[Card]>) -> Arc<Self> {
        Arc::new(Self { open: Mutex::new(Some(HashMap::new())), threads: Mutex::default(), cards })
    }

    /// Links of this group may be made from now on.
    pub(super) fn add(&self, group: &Arc<OpenedGroup>) {
        let state = MakerState { made: vec![false; group.members.len()], ..MakerState::default() };
        let state = Arc::new(Mutex::new(state));
        let maker = Maker { group: Arc::clone(group), state };
        if let Some(open) = &mut *lock(&self.open) {
            open.insert(group.group_id, maker);
        }
    }

    pub(super) fn forget(&self, group_id: u64) {
        let maker = lock(&self.open).as_mut().and_then(|open| open.remove(&group_id));
        if let Some(maker) = maker {
            maker.end();
        }
    }

    /// Make links to these ranks of a group.
    pub(super) fn want(&self, group_id: u64, ranks: &[usize]) {
        if let Some(open) = &*lock(&self.open)
            && let Some(maker) = open.get(&group_id)
        {
            self.start(maker, ranks);
        }
    }

    /// Have the thread of a group look, with one that starts if there is none.
    fn start(&self, maker: &Maker, ranks: &[usize]) {
        let mut state = lock(&maker.state);
        if state.is_over {
            return;
        }
        state.wanted.extend(ranks);
        state.is_asked = true;
        if let Some(waker) = &state.running {
            return waker.wake();
        }
        let started = Waker::new().and_then(|waker| {
            let waker = Arc::new(waker);
            let group = Arc::clone(&maker.group);
            let shared = Arc::clone(&maker.state);
            state.running = Some(Arc::clone(&waker));
            maker.group.status.links().wake_too(Some(Arc::clone(&waker)));
            let named = thread::Builder::new().name("comity-links".into());
            named.spawn(move || serve(&group, &shared, &waker))
        });
        match started {
            Ok(thread) => {
                let mut threads = lock(&self.threads);
                threads.retain(|t| !t.is_finished());
                threads.push(thread);
            }
            Err(e) => {
                state.running = None;
                state.is_over = true;
                let group = &maker.group;
                let failure = Failure::reported(group.mine, format!("cannot make links: {e}"));
                drop(state);
                group.control.abort(group.group_id, &failure);
                group.status.fail(failure);
            }
        }
    }

    pub(super) fn made_for_test(&self, group_id: u64) -> usize {
        let open = lock(&self.open);
        let maker = open.as_ref().and_then(|open| open.get(&group_id));
        maker.map_or(0, |m| m.group.status.links().kinds().into_iter().flatten().count())
    }

    pub(super) fn end(&self) {
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

    fn relays(&self, rank: usize, ip: IpAddr) -> Vec<usize> {
        let has = |card: &Card| card.addrs.iter().any(|a| a.at.ip() == ip);
        let Some(card) = self.cards.get(rank).filter(|card| !has(card)) else { return Vec::new() };
        let others = self.cards.iter().enumerate();
        others.filter(|(_, other)| other.host_id != card.host_id && has(other)).map(|(r, _)| r).collect()
    }
}

impl Maker {
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

fn serve(group: &OpenedGroup, state: &Mutex<MakerState>, waker: &Arc<Waker>) {
    let mut made = std::mem::take(&mut lock(state).made);
    let is_over = || lock(state).is_over;
    let mut making = Linking::new(group, waker, &mut made, &is_over);
    let mut failed = None;
    let mut is_open = false;
    loop {
        let mut now = lock(state);
        if now.is_over || failed.is_some() || !is_open && !std::mem::take(&mut now.is_asked) {
            drop(making);
            // That this rank leaves ends what it waits for, and is no failure.
            failed = failed.filter(|_| !now.is_over);
            now.is_over |= failed.is_some();
            now.made = made;
            now.running = None;
            group.status.links().wake_too(None);
            break;
        }
        now.is_asked = false;
        let wanted = std::mem::take(&mut now.wanted);
        drop(now);
        match making.go_on(&wanted) {
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
        group.control.abort(group.group_id, &failure);
        group.status.fail(failure);
    }
}
