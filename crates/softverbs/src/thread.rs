//! A thread that moves connections while nobody polls: sleepers on a completion channel, and a peer that is waited for.

use crate::world::World;
use libc::{POLLIN, POLLOUT, nfds_t, pollfd};
use std::{
    os::fd::AsRawFd,
    sync::{
        Mutex, Once, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A client that polled this recently moves its connections itself.
const RECENT: Duration = Duration::from_millis(2);

static POLLED: AtomicU64 = AtomicU64::new(0);
/// A client may sleep until a completion.
static ARMED: AtomicBool = AtomicBool::new(false);

fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// The client polls.
pub(crate) fn polled() {
    POLLED.store(now().as_micros() as u64, Ordering::Relaxed);
}

/// The client is about to sleep.
pub(crate) fn armed() {
    ARMED.store(true, Ordering::Relaxed);
}

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
        let last = Duration::from_micros(POLLED.load(Ordering::Relaxed));
        if !ARMED.load(Ordering::Relaxed) && now().saturating_sub(last) < RECENT {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        let mut fds = Vec::new();
        {
            let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
            world.progress_all();
            ARMED.store(world.host.queues.values().any(|q| q.armed.is_some()), Ordering::Relaxed);
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
