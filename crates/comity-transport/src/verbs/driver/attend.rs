//! The thread that does what nobody waits for, and the last words of peer connections and of the process.

use super::{DRIVER, Driver, Held, Slots, driver, is_ours};
use crate::{
    sys::{Waker, poll_until},
    verbs::peer_connection::PeerConnection,
};
use rustix::event::{PollFd, PollFlags};
use std::{
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, PoisonError, TryLockError},
    thread,
    time::{Duration, Instant},
};

/// Interval at which the thread checks for events that no descriptor tells.
pub(in crate::verbs) const TICK: Duration = Duration::from_millis(50);
/// Interval at which it looks for sleepers where a provider has no events, and for the last frames of a peer that leaves.
const DEVICE_POLL: Duration = Duration::from_micros(200);
/// Interval at which it asks whether ports are up.
const PORTS: Duration = Duration::from_millis(250);
/// Time for which the end of a peer connection waits for the peer to have got everything. Tests that nothing is lost must not depend on a quiet machine.
const LAST_WORDS: Duration = Duration::from_millis(if cfg!(test) { 20_000 } else { 500 });

impl Driver {
    /// Runs a round of the thread. Returns the time for which it may sleep.
    fn tick(&mut self) -> Duration {
        let now = Instant::now();
        let slow = self.slow.is_none_or(|t| now >= t + TICK);
        if slow {
            self.slow = Some(now);
        }
        for peer_connection in self.peers.values_mut() {
            peer_connection.listen();
        }
        let mut silent = false;
        for i in 0..self.rails.0.len() {
            let awaited = self.peers.values().any(|e| e.is_armed() && e.paths.iter().any(|w| w.rail == i));
            if let Some(rail) = self.rails.0.get_mut(i).and_then(Option::as_mut) {
                // Ask for the next event before the look that finds what came until now.
                rail.device.drain();
                if awaited && let Err(t) = rail.device.announce() {
                    self.fail_rail(i, &t.to_string());
                }
                silent |= awaited && self.rails.0[i].as_ref().is_some_and(|r| r.events.is_none());
            }
            self.poll_rail(i);
        }
        for peer_connection in self.peers.values_mut() {
            peer_connection.tick(&mut self.rails, slow);
        }
        if self.ports.is_none_or(|t| now >= t + PORTS) {
            self.ports = Some(now);
            for i in 0..self.rails.0.len() {
                let up = self.rails.device(i).map(|d| d.is_up());
                match up {
                    None | Some(Ok(true)) => {}
                    Some(Ok(false)) => self.fail_rail(i, "the port is down"),
                    Some(Err(t)) => self.fail_rail(i, &t.to_string()),
                }
            }
        }
        let leaving = self.peers.values().any(PeerConnection::is_leaving);
        if silent || leaving { DEVICE_POLL } else { TICK }
    }

    /// Returns the descriptors that the thread sleeps on: connections, each with whether there is something to send, and devices.
    fn sources(&mut self) -> (Vec<Connection>, Vec<Arc<OwnedFd>>) {
        let live = self.peers.values().filter(|e| e.control_socket.over().is_none());
        let sides =
            live.map(|e| (e.control_socket.stream().clone(), e.control_socket.is_pending())).collect();
        (sides, self.rails.live().filter_map(|(_, r)| r.events.clone()).collect())
    }
}

/// The control socket of a peer connection, and whether something waits to be sent on it.
type Connection = (Arc<TcpStream>, bool);

/// The thread: until there are no peer connections.
// WAIT(nap): the thread that attends devices: 50 ms at most
pub(super) fn attend(waker: &Waker) {
    loop {
        let mut driver = driver();
        if driver.peers.is_empty() {
            driver.attended = false;
            return;
        }
        let nap = driver.tick();
        let (sides, events) = driver.sources();
        drop(driver);
        let mut fds = vec![PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
        for (stream, pending) in &sides {
            let write = if *pending { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN | write));
        }
        fds.extend(events.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
        // The descriptors are ours and open; if the system still refuses, do not spin.
        if poll_until(&mut fds, Some(Instant::now() + nap)).is_err() {
            thread::sleep(TICK);
        }
        waker.drain();
    }
}

/// A peer connection's handle. Dropping it lets the peer have what was sent, then ends the peer connection.
#[derive(Debug)]
pub(in crate::verbs) struct Handle {
    pub(in crate::verbs) id: u64,
    pub(in crate::verbs) slots: Slots,
    /// Nothing was promised to the peer yet.
    pub(in crate::verbs) fresh: bool,
    /// The devices that it uses.
    pub(in crate::verbs) _held: Vec<Arc<Held>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        if !self.fresh {
            if let Some(peer_connection) = driver().peers.get_mut(&self.id) {
                peer_connection.part();
            }
            let until = Instant::now() + LAST_WORDS;
            loop {
                let mut driver = driver();
                driver.pump(self.id);
                if driver.peers.get(&self.id).is_none_or(PeerConnection::is_done) || Instant::now() >= until {
                    break;
                }
                drop(driver);
                // WAIT(until): the end of a peer connection: 500 ms at most
                thread::sleep(DEVICE_POLL);
            }
        }
        driver().remove(self.id, &self.slots);
    }
}

/// A process that exits without dropping its groups lets its peers have what was sent too.
// WAIT(until): the end of a process: 500 ms at most
pub(super) extern "C" fn settle_all() {
    // A forked child shares the connections, but they are not its own.
    if !is_ours() {
        return;
    }
    let until = Instant::now() + LAST_WORDS;
    let mut said = false;
    loop {
        let mut driver = match DRIVER.try_lock() {
            Ok(driver) => driver,
            Err(TryLockError::Poisoned(e)) => PoisonError::into_inner(e),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return,
            Err(TryLockError::WouldBlock) => {
                thread::sleep(DEVICE_POLL);
                continue;
            }
        };
        let ids: Vec<u64> = driver.peers.keys().copied().collect();
        for id in &ids {
            if let Some(peer_connection) = driver.peers.get_mut(id).filter(|_| !said) {
                peer_connection.part();
            }
            driver.pump(*id);
        }
        said = true;
        if driver.peers.values().all(PeerConnection::is_done) || Instant::now() >= until {
            return;
        }
        drop(driver);
        thread::sleep(DEVICE_POLL);
    }
}
