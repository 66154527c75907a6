//! Waits of a thread: a descriptor that one thread makes readable to wake another from `poll` (an eventfd on Linux, a pipe elsewhere), and the
//! interruption of a thread that waits in a call, or for the ranks to meet: a question that it asks now and then.

use crate::{Error, JoinCause, JoinError, Result};
use rustix::{
    event::{PollFd, Timespec},
    io::{read, write},
};
use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// Wakes a thread that sleeps in `poll`.
#[derive(Debug)]
pub struct Waker {
    rx: OwnedFd,
    #[cfg(not(target_os = "linux"))]
    tx: OwnedFd,
}

impl Waker {
    /// Makes a waker that wakes nobody yet.
    #[cfg(target_os = "linux")]
    pub fn new() -> io::Result<Self> {
        use crate::sys::refused;
        use rustix::event::{EventfdFlags, eventfd};
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self { rx: fd.map_err(|e| refused("eventfd", "to wake its threads", e))? })
    }

    /// Makes a waker that wakes nobody yet.
    #[cfg(not(target_os = "linux"))]
    pub fn new() -> io::Result<Self> {
        use rustix::{
            fs::{OFlags, fcntl_getfl, fcntl_setfl},
            io::{FdFlags, fcntl_setfd},
        };
        let (rx, tx) = rustix::pipe::pipe()?;
        for fd in [&rx, &tx] {
            fcntl_setfd(fd, FdFlags::CLOEXEC)?;
            fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        }
        Ok(Self { rx, tx })
    }

    /// Make [`fd`](Self::fd) readable. A full counter or pipe is readable already.
    #[inline]
    pub fn wake(&self) {
        #[cfg(target_os = "linux")]
        let _ = write(&self.rx, &1u64.to_ne_bytes());
        #[cfg(not(target_os = "linux"))]
        let _ = write(&self.tx, &[1]);
    }

    /// Take past wakes.
    #[inline]
    pub fn drain(&self) {
        let mut b = [0u8; 64];
        while matches!(read(&self.rx, &mut b), Ok(64)) {}
    }

    /// Returns the descriptor to poll for readable.
    #[inline]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.rx.as_fd()
    }
}

/// Wait until one of `fds` is ready or `until` passes; how many are ready. `None` waits for ever.
pub fn poll_until(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<usize> {
    loop {
        let left = until.map(|u| u.saturating_duration_since(Instant::now()));
        // A span that does not fit is as good as for ever.
        let left = left.and_then(|l| Timespec::try_from(l).ok());
        // WAIT(until): to the deadline of who calls
        match rustix::event::poll(fds, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            r => return Ok(r?),
        }
    }
}

/// Interval at which a waiting call asks.
const EVERY: Duration = Duration::from_millis(100);

/// A question that a waiting call asks: why it is to be given up, or `None` to go on waiting. See [`interrupt_with`].
///
/// ```
/// let ask: comity::Interrupt = || None;
/// assert_eq!(ask(), None);
/// ```
pub type Interrupt = fn() -> Option<String>;

thread_local! {
    static ASK: Cell<Option<Interrupt>> = const { Cell::new(None) };
}

/// True once any thread has had a question: where none had, no call looks at `ASK`, which in a shared library is a call.
static ANY: AtomicBool = AtomicBool::new(false);

/// Have calls in which this thread waits ask `ask` about ten times a second whether to give up; `None` for never.
///
/// This is for bindings to languages whose signal handlers run only when their interpreter does. The words that `ask` returns end
/// the group on every rank, as those of [`Group::abort`](../comity/struct.Group.html#method.abort) do, and the call fails with
/// [`ErrorKind::Aborted`](crate::ErrorKind::Aborted). Where the ranks still meet ([`init`](../comity/fn.init.html), [`Config::connect`](../comity/struct.Config.html#method.connect)),
/// this rank gives up joining: it fails with [`ErrorKind::Join`](crate::ErrorKind::Join), holds nothing any more, and may try again. Not asked while the
/// thread waits for an earlier call of the same group on another thread, and not for background work, which has threads of its own.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static CTRL_C: AtomicBool = AtomicBool::new(false); // your signal handler sets it
/// comity::interrupt_with(Some(|| CTRL_C.load(Ordering::Relaxed).then(|| "interrupted by the user".into())));
/// comity::Group::single().barrier()?;
/// comity::interrupt_with(None);
/// # Ok::<(), comity::Error>(())
/// ```
pub fn interrupt_with(ask: Option<Interrupt>) {
    ANY.fetch_or(ask.is_some(), Ordering::Relaxed);
    ASK.set(ask);
}

#[inline]
fn question() -> Option<Interrupt> {
    /// Not inlined: the compiler would take the address of `ASK` before it is needed.
    #[inline(never)]
    fn own() -> Option<Interrupt> {
        ASK.get()
    }
    // A thread that has a question has written this itself.
    if ANY.load(Ordering::Relaxed) { own() } else { None }
}

/// An error if this thread is to give up joining.
pub fn give_up() -> Result<()> {
    match question().and_then(|ask| ask()) {
        Some(why) => Err(JoinError::new(why).because(JoinCause::GaveUp).into()),
        None => Ok(()),
    }
}

/// The longest sleep of a thread that joins, of at most `left`, before it [asks](give_up) again.
#[inline]
pub fn nap(left: Duration) -> Duration {
    Asking::new().nap(left)
}

/// Poll as [`poll_until`] does, by a thread that joins: an error if it is to give up.
pub fn poll_joining(fds: &mut [PollFd<'_>], until: Option<Instant>) -> Result<usize> {
    loop {
        let now = Instant::now();
        let slice = question().map(|_| now + EVERY);
        // WAIT(until): to the deadline of who calls
        let ready = poll_until(fds, until.into_iter().chain(slice).min());
        let ready = ready.map_err(|e| Error::os("waiting for another rank", e))?;
        give_up()?;
        if ready > 0 || until.is_some_and(|until| Instant::now() >= until) {
            return Ok(ready);
        }
    }
}

/// Questions of a call.
#[derive(Debug)]
pub struct Asking {
    ask: Option<Interrupt>,
    /// When it was asked last; at first, when this thread looked first. The clock is not read for a call that does not wait.
    last: Option<Instant>,
}

impl Asking {
    #[allow(clippy::new_without_default)] // The answer is this thread's.
    #[inline]
    pub fn new() -> Self {
        Self { ask: question(), last: None }
    }

    /// The longest sleep between two questions.
    #[inline]
    pub fn nap(&self, most: Duration) -> Duration {
        if self.ask.is_some() { most.min(EVERY) } else { most }
    }

    /// Returns the reason to give up. Reads the clock, so it is for a thread that would sleep otherwise, or asks seldom.
    #[inline]
    pub fn ask(&mut self) -> Option<String> {
        let ask = self.ask?;
        let now = Instant::now();
        let last = *self.last.get_or_insert(now);
        if now.duration_since(last) < EVERY {
            return None;
        }
        self.last = Some(now);
        ask()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(b: &Waker) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(b.fd(), PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn wakes_until_drained() {
        let b = Waker::new().unwrap();
        assert!(!is_readable(&b));
        b.wake();
        b.wake();
        assert!(is_readable(&b));
        b.drain();
        assert!(!is_readable(&b));
    }
}

#[cfg(test)]
mod interrupt_tests {
    use super::*;

    #[test]
    fn a_thread_without_the_wish_is_not_asked() {
        let mut asking = Asking::new();
        assert_eq!(asking.ask(), None);
        assert_eq!(asking.nap(Duration::from_millis(500)), Duration::from_millis(500));
    }
}
