//! The devices and peer connections of this process: one of each device, whatever number of groups and worlds use it.
//!
//! Everything is under one lock, held for microseconds. A thread of its own does what nobody waits for, and wakes those that
//! sleep: it polls the descriptors of devices and connections, so that a sleeper is woken by what is meant for it alone.

mod attend;
mod rail;

pub(super) use attend::{Handle, TICK};
pub(super) use rail::{Held, Rails, Slots};

use super::{
    path::{QUEUE_PAIRS, QueuePair, RdmaPath},
    peer_connection::PeerConnection,
};
use crate::{
    sync::lock,
    sys::{
        Waker, at_exit,
        verbs::{Depth, QueueService},
    },
};
use attend::{attend, settle_all};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Mutex, MutexGuard, Once, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Instant,
};

#[derive(Debug)]
pub(super) struct Driver {
    pub(super) rails: Rails,
    pub(super) peers: BTreeMap<u64, PeerConnection>,
    next: u64,
    /// The thread runs.
    attended: bool,
    /// When the thread last looked at what is slow.
    slow: Option<Instant>,
    ports: Option<Instant>,
}

static DRIVER: Mutex<Driver> = Mutex::new(Driver {
    rails: Rails(Vec::new()),
    peers: BTreeMap::new(),
    next: 0,
    attended: false,
    slow: None,
    ports: None,
});

pub(super) fn driver() -> MutexGuard<'static, Driver> {
    lock(&DRIVER)
}

/// Returns true if this is the process that opened the devices. A forked child must not even wait for the lock, which another thread may have
/// held.
pub(super) fn is_ours() -> bool {
    OWNER.load(Ordering::Acquire) == std::process::id()
}

static OWNER: AtomicU32 = AtomicU32::new(0);

/// Wakes the thread.
fn waker() -> io::Result<&'static Waker> {
    static WAKER: OnceLock<Waker> = OnceLock::new();
    match WAKER.get() {
        Some(waker) => Ok(waker),
        None => Waker::new().map(|waker| WAKER.get_or_init(|| waker)),
    }
}

impl Driver {
    /// Drops a parent's devices and connections: they are not this process's, nor are its threads.
    fn own(&mut self) {
        if !is_ours() {
            std::mem::forget(std::mem::take(&mut self.rails.0));
            std::mem::forget(std::mem::take(&mut self.peers));
            self.attended = false;
            OWNER.store(std::process::id(), Ordering::Release);
        }
    }

    /// Begin a peer connection; its number.
    pub(super) fn add(&mut self, peer_connection: PeerConnection) -> io::Result<u64> {
        self.own();
        let id = self.next;
        self.next += 1;
        self.peers.insert(id, peer_connection);
        self.attend().inspect_err(|_| drop(self.peers.remove(&id)))?;
        Ok(id)
    }

    /// Start the thread unless it runs.
    fn attend(&mut self) -> io::Result<()> {
        if self.attended {
            waker()?.wake();
            return Ok(());
        }
        let waker = waker()?;
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // Without it a peer may miss the last frames of a process that exits without dropping its groups.
            let _ = at_exit(settle_all);
        });
        thread::Builder::new().name("comity-rdma".into()).spawn(move || attend(waker))?;
        self.attended = true;
        Ok(())
    }

    /// Make the queue pairs of a path of a peer connection, not connected yet; the path's place.
    pub(super) fn make(
        &mut self,
        peer_connection: u64,
        held: &Held,
        service: QueueService,
        slots: &Slots,
        (id, equal_frames, there): (u8, bool, String),
    ) -> Result<usize, String> {
        let rail = self.rails.0.get_mut(held.rail).and_then(Option::as_mut).ok_or("the device is closed")?;
        let owner = self.peers.get_mut(&peer_connection).ok_or("the peer connection is gone")?;
        let full =
            |what: &str| format!("{} ({}): {what}; fewer ranks or cables fit on it", held.name, held.at);
        let region = rail.room(slots.bytes()).ok_or_else(|| full(&rail.is_full()))?;
        if rail.owed + slots.completions() > rail.device.completions() {
            return Err(full("its completion queue has no room"));
        }
        let mut queues = [0; QUEUE_PAIRS];
        for (kind, queue) in queues.iter_mut().enumerate() {
            match rail.device.create(service, slots.qps[kind]) {
                Ok(number) => *queue = number,
                Err(t) => {
                    if kind > 0 {
                        rail.device.destroy(queues[0]);
                    }
                    return Err(t.to_string());
                }
            }
        }
        rail.regions.push(region);
        rail.owed += slots.completions();
        let place = owner.paths.len();
        let mut at = region.0;
        let qps = [0, 1].map(|kind| {
            let Depth { slots, bytes } = slots.qps[kind];
            let qp = QueuePair::new(queues[kind], at, slots, bytes);
            at += 2 * slots * bytes;
            rail.qps.insert(queues[kind], (peer_connection, place, kind));
            qp
        });
        let name = format!("{} ({}) to {there}", held.name, held.at);
        let path = RdmaPath::new(id, held.rail, region, qps, service, equal_frames, name);
        if rail.used > region.0 {
            path.blank(rail.device.slab());
        }
        rail.used = rail.used.max(region.0 + region.1);
        owner.paths.push(path);
        Ok(place)
    }

    /// Give a path's queue pairs back. Its place stays, so that those of others do.
    pub(super) fn unmake(&mut self, peer_connection: u64, path: usize, slots: &Slots) {
        let Some(w) = self.peers.get_mut(&peer_connection).and_then(|e| e.paths.get_mut(path)) else {
            return;
        };
        w.up = false;
        let Some(rail) = self.rails.0.get_mut(w.rail).and_then(Option::as_mut) else { return };
        rail.clear(w, slots);
    }

    /// End a peer connection, whatever is under way.
    pub(super) fn remove(&mut self, peer_connection: u64, slots: &Slots) {
        let Some(gone) = self.peers.remove(&peer_connection) else { return };
        for w in &gone.paths {
            if let Some(rail) = self.rails.0.get_mut(w.rail).and_then(Option::as_mut) {
                rail.clear(w, slots);
            }
        }
        if let Ok(waker) = waker() {
            waker.wake();
        }
    }

    /// Take what the devices have done, and what peers say.
    pub(super) fn pump(&mut self, peer_connection: u64) {
        // What an ended peer has sent is in its place by the time that its end is known.
        if let Some(e) = self.peers.get_mut(&peer_connection) {
            e.listen();
        }
        // WAIT: its own poll, a look that never sleeps
        self.poll();
    }

    /// Pumps as [`pump`](Self::pump), where only frames are worth a look.
    pub(super) fn poll(&mut self) {
        for i in 0..self.rails.0.len() {
            self.poll_rail(i);
        }
    }

    fn poll_rail(&mut self, i: usize) {
        loop {
            let Some(rail) = self.rails.0.get_mut(i).and_then(Option::as_mut) else { return };
            let mut done = std::mem::take(&mut rail.done);
            done.clear();
            // WAIT: a look that never sleeps
            let polled = rail.device.poll(&mut done);
            for c in &done {
                let Some(rail) = self.rails.0.get_mut(i).and_then(Option::as_mut) else { return };
                let Some(&(peer_connection, path, qp)) = rail.qps.get(&c.queue) else { continue };
                if let Some(peer_connection) = self.peers.get_mut(&peer_connection) {
                    peer_connection.completed(&mut self.rails, path, qp, *c);
                }
            }
            let more = done.len() == 32;
            if let Some(rail) = self.rails.0.get_mut(i).and_then(Option::as_mut) {
                rail.done = done;
            }
            if let Err(t) = polled {
                return self.fail_rail(i, &t.to_string());
            }
            if !more {
                return;
            }
        }
    }

    /// Whatever goes over this device is cut off.
    fn fail_rail(&mut self, rail: usize, words: &str) {
        for peer_connection in self.peers.values_mut() {
            if let Some(w) = peer_connection.paths.iter().find(|w| w.rail == rail && w.up) {
                let words = format!("is cut off: the RDMA path {}: {words}", w.name);
                peer_connection.fail(words);
            }
        }
    }

    /// Someone is about to sleep until this peer connection has news.
    pub(super) fn expect(&mut self, peer_connection: u64) {
        let rails: Vec<usize> = self
            .peers
            .get(&peer_connection)
            .map_or_else(Vec::new, |e| e.paths.iter().map(|w| w.rail).collect());
        let mut without = false;
        for i in rails {
            let Some(rail) = self.rails.0.get_mut(i).and_then(Option::as_mut) else { continue };
            without |= rail.events.is_none();
            if let Err(t) = rail.device.announce() {
                self.fail_rail(i, &t.to_string());
            }
        }
        if without && let Ok(waker) = waker() {
            waker.wake();
        }
    }
}
