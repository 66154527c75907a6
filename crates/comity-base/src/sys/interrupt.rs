//! Interruption of a thread that waits in a call, or for the ranks to meet: a question that it asks now and then.

use super::poll_until;
use crate::{Error, JoinCause, JoinError, Result};
use rustix::event::PollFd;
use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

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

    #[test]
    fn a_thread_without_the_wish_is_not_asked() {
        let mut asking = Asking::new();
        assert_eq!(asking.ask(), None);
        assert_eq!(asking.nap(Duration::from_millis(500)), Duration::from_millis(500));
    }
}
