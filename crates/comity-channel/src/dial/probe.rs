//! The addresses that take a connection, found side by side.

use super::{
    DialLimits, Miss, Target,
    race::{STAGGER, connect},
};
use rustix::event::PollFlags;
use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Addresses that are tried at a time: a process may have few descriptors.
const AT_A_TIME: usize = 256;
/// A host on the same link answers in less, unless the system itself has no turn.
const PROBE: Duration = Duration::from_millis(100);

/// The indices of those `targets` that take a connection within `limit`, and soon after the first of them.
pub fn answering(targets: &[Target], patience: &DialLimits<'_>, limit: Duration) -> Result<Vec<usize>, Miss> {
    let mut until = patience.until.min(Instant::now() + limit);
    let mut open = Vec::new();
    for (i, target) in targets.iter().enumerate().take(AT_A_TIME) {
        match connect(target) {
            Ok(socket) => open.push((i, socket)),
            // Those that are open are enough.
            Err(Miss::Stop(_)) if !open.is_empty() => break,
            Err(miss @ Miss::Stop(_)) => return Err(miss),
            Err(_) => {}
        }
    }
    let mut found = Vec::new();
    while !open.is_empty() && Instant::now() < until {
        // WAIT(until): connections: three seconds at most
        let done = patience.poll(open.iter().map(|(_, s)| (s.as_fd(), PollFlags::OUT)), Some(until));
        let mut done = done.map_err(Miss::Stop)?.into_iter();
        open.retain(|(i, socket)| {
            let is_done = done.next() == Some(true);
            if is_done && matches!(socket.take_error(), Ok(None)) && socket.peer_addr().is_ok() {
                found.push(*i);
            }
            !is_done
        });
        if !found.is_empty() {
            until = until.min(Instant::now() + STAGGER);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The indices of those `targets` on links of this host that take a connection at once.
pub fn probe(targets: &[Target], patience: &DialLimits<'_>) -> Result<Vec<usize>, Miss> {
    let mut found = Vec::new();
    for (turn, some) in targets.chunks(AT_A_TIME).enumerate() {
        let answered = answering(some, patience, PROBE)?;
        found.extend(answered.into_iter().map(|i| turn * AT_A_TIME + i));
    }
    Ok(found)
}
