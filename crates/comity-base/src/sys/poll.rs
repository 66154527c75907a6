//! `poll` with a deadline, deaf to signals.

use rustix::event::{PollFd, Timespec};
use std::{io, time::Instant};

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
