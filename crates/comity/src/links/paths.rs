//! Looks after links that go on over another path when theirs is cut: a thread that is there while there are such links.
//!
//! It looks ten times a second. What a link lacks it has made by the thread of its group.

use super::maker::Makers;
use crate::{
    sync::{lock, lock_soon},
    sys::{Waker, poll_until},
    transport::Transports,
};
use rustix::event::{PollFd, PollFlags};
use std::{
    io,
    sync::{Arc, Mutex, Weak},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Between two looks.
const PATHS_LOOK: Duration = Duration::from_millis(100);
/// Between two looks, while a group is to be left as soon as all has come.
const LEAVING_LOOK: Duration = Duration::from_millis(5);

/// Runs the thread that looks after links with a second path, while there are such links.
#[derive(Debug)]
pub(super) struct Paths {
    makers: Weak<Makers>,
    state: Mutex<PathsState>,
}

#[derive(Debug, Default)]
struct PathsState {
    /// Wakes the thread, while there is one.
    running: Option<Arc<Waker>>,
    thread: Option<JoinHandle<()>>,
    is_over: bool,
}

impl Paths {
    pub(super) fn new(makers: Weak<Makers>) -> Arc<Self> {
        Arc::new(Self { makers, state: Mutex::default() })
    }

    /// A link was made: look after it, if it is one of those.
    pub(super) fn attend(self: &Arc<Self>, transports: &Arc<Transports>) {
        let mut state = lock(&self.state);
        if state.is_over || state.running.is_some() || !has_any(transports) {
            return;
        }
        let started = Waker::new().and_then(|waker| {
            let waker = Arc::new(waker);
            let (own, all, until) = (Arc::clone(self), Arc::clone(transports), Arc::clone(&waker));
            let named = thread::Builder::new().name("comity-paths".into());
            let thread = named.spawn(move || own.serve(&all, &until))?;
            io::Result::Ok((waker, thread))
        });
        match started {
            Ok((waker, thread)) => (state.running, state.thread) = (Some(waker), Some(thread)),
            Err(e) => tracing::warn!(%e, "no thread that looks after paths: a link ends when its own is cut"),
        }
    }

    // WAIT(is_over): a thread of ours, which is woken when it is to stop
    fn serve(&self, transports: &Transports, waker: &Waker) {
        loop {
            waker.drain();
            let makers = self.makers.upgrade();
            for (group_id, rank) in transports.iter().filter_map(|(_, t)| t.tend()).flatten() {
                makers.iter().for_each(|makers| makers.mend(group_id, rank));
            }
            let is_leaving = makers.as_ref().is_some_and(|makers| makers.leave_due());
            let mut state = lock(&self.state);
            // Whoever makes a link or leaves a group from now on sees that nobody looks.
            let is_needed =
                || makers.as_ref().is_some_and(|makers| makers.is_leaving()) || has_any(transports);
            if state.is_over || !is_needed() {
                state.running = None;
                return;
            }
            drop(state);
            drop(makers);
            let pause = if is_leaving { LEAVING_LOOK } else { PATHS_LOOK };
            let mut fds = [PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
            if poll_until(&mut fds, Some(Instant::now() + pause)).is_err() {
                thread::sleep(pause);
            }
        }
    }

    /// A group is to be left: look sooner. Whether somebody looks.
    pub(super) fn hasten(&self) -> bool {
        let Some(state) = lock_soon(&self.state) else { return false };
        if let Some(waker) = &state.running {
            waker.wake();
        }
        state.running.is_some() && !state.is_over
    }

    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.is_over = true;
        if let Some(waker) = &state.running {
            waker.wake();
        }
        let thread = state.thread.take();
        drop(state);
        if let Some(thread) = thread.filter(|t| t.thread().id() != thread::current().id()) {
            // WAIT(end): a thread of ours, which is told to stop
            let _ = thread.join();
        }
    }
}

fn has_any(transports: &Transports) -> bool {
    transports.iter().any(|(_, t)| t.is_tended())
}
