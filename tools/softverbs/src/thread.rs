//! A thread that moves connections of which nobody polls the completion queue: sleepers on a completion channel, a peer that is waited
//! for, and the other end when both are in one process and the client looks at one queue at a time.
#![allow(unsafe_code, reason = "poll")]

use crate::world::World;
use libc::{POLLIN, POLLOUT, nfds_t, pollfd};
use std::{
    os::fd::AsRawFd,
    sync::{Mutex, Once, PoisonError},
    thread,
    time::Duration,
};

/// The connections of a queue polled this recently are moved by its polling.
const RECENT: Duration = Duration::from_millis(2);

pub(crate) fn start(world: &'static Mutex<World>) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let name = || thread::Builder::new().name("softverbs".into());
        if let Err(e) = name().spawn(move || serve(world)) {
            eprintln!("softverbs: connections move only while the client polls: {e}");
        }
    });
}

fn serve(world: &Mutex<World>) {
    loop {
        let mut fds = Vec::new();
        {
            let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
            if world.is_polled(RECENT) {
                drop(world);
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            world.progress_all();
            for pair in world.pairs.values() {
                let mut wait = |fd: i32, events| fds.push(pollfd { fd, events, revents: 0 });
                wait(pair.listener.as_raw_fd(), POLLIN);
                if let Some((stream, writes)) = pair.sender.waits_on() {
                    wait(stream.as_raw_fd(), if writes { POLLIN | POLLOUT } else { POLLIN });
                }
                let open = pair.incoming.iter().filter(|i| !i.blocked());
                open.for_each(|i| wait(i.stream.as_raw_fd(), POLLIN));
            }
        }
        // Not longer than a millisecond: timers of RC, and requests posted meanwhile.
        // SAFETY: a list of this length; a descriptor closed meanwhile is reported as such, and the list made anew.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as nfds_t, 1) };
    }
}
