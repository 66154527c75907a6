//! The devices and peer connections of this process: one of each device, whatever number of groups and worlds use it.
//!
//! Everything is under one lock, held for microseconds. A thread of its own does what nobody waits for, and wakes those that
//! sleep: it polls the descriptors of devices and connections, so that a sleeper is woken by what is meant for it alone.
//!
//! The thread that does what nobody waits for, and the last words of peer connections and of the process.

use super::{
    path::{QUEUE_PAIRS, QueuePair, RdmaPath},
    peer_connection::PeerConnection,
};
use crate::{
    channel::Stream,
    sync::lock,
    sys::{
        Waker, at_exit, poll_until,
        verbs::{Abilities, Address, Completion, Depth, Device, DeviceError, DeviceStep, QueueService},
    },
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{BTreeMap, HashMap},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

#[derive(Debug)]
pub(super) struct Driver {
    pub(super) rails: Rails,
    pub(super) peers: BTreeMap<u64, PeerConnection>,
    next: u64,
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

    /// A peer connection, and the devices that it goes over.
    pub(super) fn reach(&mut self, id: u64) -> Option<(&mut PeerConnection, &mut Rails)> {
        Some((self.peers.get_mut(&id)?, &mut self.rails))
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
        let completions: usize = slots.qps.iter().map(|l| 2 * l.slots).sum();
        if rail.owed + completions > rail.device.completions() {
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
        rail.owed += completions;
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
    pub(super) fn unmake(&mut self, peer_connection: u64, path: usize) {
        let Some(w) = self.peers.get_mut(&peer_connection).and_then(|e| e.paths.get_mut(path)) else {
            return;
        };
        w.up = false;
        let Some(rail) = self.rails.0.get_mut(w.rail).and_then(Option::as_mut) else { return };
        rail.clear(w);
    }

    /// End a peer connection, whatever is under way.
    pub(super) fn remove(&mut self, peer_connection: u64) {
        let Some(gone) = self.peers.remove(&peer_connection) else { return };
        for w in &gone.paths {
            if let Some(rail) = self.rails.0.get_mut(w.rail).and_then(Option::as_mut) {
                rail.clear(w);
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

/// The most registered memory of one device.
const SLAB: usize = 64 << 20;
/// Completions that one device may owe.
const COMPLETIONS: usize = 8192;

/// Slots of a path, the same on both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) qps: [Depth; QUEUE_PAIRS],
}

impl Slots {
    /// Short frames for latency; long ones large enough that the checks of a frame cost little.
    pub(super) const DEFAULT: Self =
        Self { qps: [Depth { slots: 64, bytes: 4096 }, Depth { slots: 16, bytes: 128 << 10 }] };

    /// Bytes of a slab, for both directions.
    fn bytes(&self) -> usize {
        self.qps.iter().map(|l| 2 * l.slots * l.bytes).sum()
    }
}

/// A device, and who uses what of it.
#[derive(Debug)]
struct Rail {
    device: Device,
    events: Option<Arc<OwnedFd>>,
    /// Peer connection, path and queue pair by number of the queue pair.
    qps: HashMap<u32, (u64, usize, usize)>,
    /// Parts of the slab in use.
    regions: Vec<(usize, usize)>,
    /// Bytes of the slab that were ever in use, from its beginning: the rest is zeros.
    used: usize,
    owed: usize,
    done: Vec<Completion>,
    users: usize,
}

/// The open devices, by place.
#[derive(Debug)]
pub(super) struct Rails(Vec<Option<Rail>>);

impl Rails {
    pub(super) fn device(&mut self, rail: usize) -> Option<&mut Device> {
        Some(&mut self.0.get_mut(rail)?.as_mut()?.device)
    }

    fn live(&mut self) -> impl Iterator<Item = (usize, &mut Rail)> {
        self.0.iter_mut().enumerate().filter_map(|(i, r)| Some((i, r.as_mut()?)))
    }
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) rail: usize,
    pub(super) name: String,
    pub(super) at: Address,
    pub(super) abilities: Abilities,
}

impl Held {
    /// Open a device, or use it as it is open already; `peers` is how many others may be reached over it.
    pub(super) fn open(name: &str, peers: usize) -> Result<Self, DeviceError> {
        let mut driver = driver();
        driver.own();
        let found = driver.rails.live().find(|(_, r)| r.device.name() == name).map(|(i, _)| i);
        let rail = match found {
            Some(rail) => rail,
            None => {
                let device = open(name, peers)?;
                let events = device.event_fd().and_then(|fd| fd.try_clone_to_owned().ok()).map(Arc::new);
                let new = Rail {
                    device,
                    events,
                    qps: HashMap::new(),
                    regions: Vec::new(),
                    used: 0,
                    owed: 0,
                    done: Vec::new(),
                    users: 0,
                };
                let rails = &mut driver.rails.0;
                let place = rails.iter().position(Option::is_none).unwrap_or(rails.len());
                rails.resize_with(rails.len().max(place + 1), || None);
                rails[place] = Some(new);
                place
            }
        };
        let r = driver.rails.0[rail].as_mut().ok_or_else(|| DeviceError::new(name, "", "it is closed", 0))?;
        r.users += 1;
        Ok(Self { rail, name: name.to_owned(), at: r.device.address(), abilities: r.device.abilities() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        let mut driver = driver();
        let Some(place) = driver.rails.0.get_mut(self.rail) else { return };
        if let Some(rail) = place {
            rail.users -= 1;
            if rail.users == 0 {
                *place = None;
            }
        }
    }
}

/// Opens a device with as much memory as may be needed, or as the system allows to be registered.
fn open(name: &str, peers: usize) -> Result<Device, DeviceError> {
    let path = Slots::DEFAULT.bytes();
    // Two cables to each.
    let mut slab = (2 * peers.max(1) * path).min(SLAB / path * path);
    loop {
        let no_memory = rustix::io::Errno::NOMEM.raw_os_error();
        match Device::open(name, slab, COMPLETIONS) {
            Err(DeviceError { code, step: DeviceStep::Register(_), .. })
                if code == no_memory && slab / 2 >= path =>
            {
                slab /= 2;
            }
            out => return out,
        }
    }
}

impl Rail {
    /// Unused memory of the slab.
    fn room(&mut self, len: usize) -> Option<(usize, usize)> {
        self.regions.sort_unstable();
        let mut at = 0;
        for (start, n) in &self.regions {
            if start - at >= len {
                break;
            }
            at = start + n;
        }
        self.device.slab().holds(at, len).then_some((at, len))
    }

    fn is_full(&self) -> String {
        let mib = self.device.slab().len() as f64 / f64::from(1 << 20);
        format!("all {mib:.1} MiB that were registered for the group that opened it first are in use")
    }

    fn clear(&mut self, w: &RdmaPath) {
        let had = self.regions.len();
        self.regions.retain(|r| *r != w.region);
        if self.regions.len() == had {
            return;
        }
        for qp in &w.qps {
            self.owed -= 2 * qp.slots;
            self.qps.remove(&qp.queue);
            self.device.destroy(qp.queue);
        }
    }
}

/// Interval at which the thread checks for events that no descriptor tells.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// Interval at which it looks for sleepers where a provider has no events, and for the last frames of a peer that leaves.
const DEVICE_POLL: Duration = Duration::from_micros(200);
/// Interval at which it asks whether ports are up.
const PORTS: Duration = Duration::from_millis(250);
/// Time for which the end of a peer connection waits for the peer to have got everything. Tests that nothing is lost must not depend on a quiet machine.
const LAST_WORDS: Duration = Duration::from_millis(if cfg!(test) { 20_000 } else { 500 });

/// The control socket of a peer connection, and whether something waits to be sent on it.
type Connection = (Arc<Stream>, bool);

/// The thread: until there are no peer connections.
// WAIT(nap): the thread that attends devices: 50 ms at most
fn attend(waker: &Waker) {
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
pub(super) struct Handle {
    pub(super) id: u64,
    /// Nothing was promised to the peer yet.
    pub(super) fresh: bool,
    pub(super) _held: Vec<Arc<Held>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        if !self.fresh {
            settle(|id| id == self.id);
        }
        driver().remove(self.id);
    }
}

/// A process that exits without dropping its groups lets its peers have what was sent too.
extern "C" fn settle_all() {
    // A forked child shares the connections, but they are not its own.
    if is_ours() {
        settle(|_| true);
    }
}

/// Let peers have what was sent over these connections.
// WAIT(until): the end of a peer connection, or of the process: 500 ms at most
fn settle(is_wanted: impl Fn(u64) -> bool) {
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
        let ids: Vec<u64> = driver.peers.keys().copied().filter(|id| is_wanted(*id)).collect();
        for id in &ids {
            if let Some(peer_connection) = driver.peers.get_mut(id).filter(|_| !said) {
                peer_connection.part();
            }
            driver.pump(*id);
        }
        said = true;
        let is_done = |id: &u64| driver.peers.get(id).is_none_or(PeerConnection::is_done);
        if ids.iter().all(is_done) || Instant::now() >= until {
            return;
        }
        drop(driver);
        thread::sleep(DEVICE_POLL);
    }
}
