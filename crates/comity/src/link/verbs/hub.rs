//! The devices and edges of this process: one of each device, whatever number of groups and worlds use it.
//!
//! Everything is under one lock, held for microseconds. A thread of its own does what nobody waits for, and wakes those that
//! sleep: it polls the descriptors of devices and connections, so that a sleeper is woken by what is meant for it alone.

use super::{
    edge::Edge,
    wire::{LANES, Lane, Wire},
};
use crate::{
    sync::lock,
    sys::{
        Bell, at_exit, poll_until,
        verbs::{Abilities, Address, Completion, Depth, Device, Service, Trouble},
    },
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The most registered memory of one device.
const SLAB: usize = 64 << 20;
/// Completions that one device may owe.
const COMPLETIONS: usize = 8192;
/// How often the thread looks at what no descriptor tells.
const TICK: Duration = Duration::from_millis(50);
/// How often it looks for those that sleep where a provider has no events, and for the last frames of a peer that leaves.
const LOOK: Duration = Duration::from_micros(200);
/// How often it asks whether ports are up.
const PORTS: Duration = Duration::from_millis(250);
/// How long the end of an edge waits for the peer to have got everything.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Slots of a wire, the same on both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) lanes: [Depth; LANES],
}

impl Slots {
    /// Short frames for latency; long ones large enough that the checks of a frame cost little.
    pub(super) const DEFAULT: Self =
        Self { lanes: [Depth { slots: 64, bytes: 4096 }, Depth { slots: 16, bytes: 128 << 10 }] };

    /// Bytes of a slab, for both directions.
    fn bytes(&self) -> usize {
        self.lanes.iter().map(|l| 2 * l.slots * l.bytes).sum()
    }

    fn completions(&self) -> usize {
        self.lanes.iter().map(|l| 2 * l.slots).sum()
    }
}

/// A device, and who uses what of it.
#[derive(Debug)]
struct Rail {
    device: Device,
    events: Option<Arc<OwnedFd>>,
    /// Edge, wire and lane by number of the queue pair.
    lanes: HashMap<u32, (u64, usize, usize)>,
    /// Parts of the slab in use.
    regions: Vec<(usize, usize)>,
    owed: usize,
    done: Vec<Completion>,
    /// Handles on it.
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

/// See the module.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) rails: Rails,
    pub(super) edges: BTreeMap<u64, Edge>,
    next: u64,
    /// The thread runs.
    attended: bool,
    /// When the thread last looked at what is slow.
    slow: Option<Instant>,
    ports: Option<Instant>,
}

static HUB: Mutex<Hub> = Mutex::new(Hub {
    rails: Rails(Vec::new()),
    edges: BTreeMap::new(),
    next: 0,
    attended: false,
    slow: None,
    ports: None,
});

pub(super) fn hub() -> MutexGuard<'static, Hub> {
    lock(&HUB)
}

/// Whether this is the process that opened the devices. A forked child must not even wait for the lock, which another thread may have
/// held.
pub(super) fn is_ours() -> bool {
    OWNER.load(Ordering::Acquire) == std::process::id()
}

static OWNER: AtomicU32 = AtomicU32::new(0);

/// Wakes the thread.
fn bell() -> io::Result<&'static Bell> {
    static BELL: OnceLock<Bell> = OnceLock::new();
    match BELL.get() {
        Some(bell) => Ok(bell),
        None => Bell::new().map(|bell| BELL.get_or_init(|| bell)),
    }
}

/// A device held open.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) rail: usize,
    pub(super) name: String,
    pub(super) at: Address,
    pub(super) abilities: Abilities,
}

impl Held {
    /// Open a device, or use it as it is open already; `peers` is how many others may be reached over it.
    pub(super) fn open(name: &str, peers: usize) -> Result<Self, Trouble> {
        let mut hub = hub();
        hub.own();
        let found = hub.rails.live().find(|(_, r)| r.device.name() == name).map(|(i, _)| i);
        let rail = match found {
            Some(rail) => rail,
            None => {
                let device = open(name, peers)?;
                let events = device.event_fd().and_then(|fd| fd.try_clone_to_owned().ok()).map(Arc::new);
                let new = Rail {
                    device,
                    events,
                    lanes: HashMap::new(),
                    regions: Vec::new(),
                    owed: 0,
                    done: Vec::new(),
                    users: 0,
                };
                match hub.rails.0.iter().position(Option::is_none) {
                    Some(i) => {
                        hub.rails.0[i] = Some(new);
                        i
                    }
                    None => {
                        hub.rails.0.push(Some(new));
                        hub.rails.0.len() - 1
                    }
                }
            }
        };
        let r = hub.rails.0[rail].as_mut().ok_or_else(|| Trouble::new(name, "", "it is closed", 0))?;
        r.users += 1;
        Ok(Self { rail, name: name.to_owned(), at: r.device.address(), abilities: r.device.abilities() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        let mut hub = hub();
        let Some(place) = hub.rails.0.get_mut(self.rail) else { return };
        if let Some(rail) = place {
            rail.users -= 1;
            if rail.users == 0 {
                *place = None;
            }
        }
    }
}

/// As much memory as may be needed, or as the system allows to be registered.
fn open(name: &str, peers: usize) -> Result<Device, Trouble> {
    let wire = Slots::DEFAULT.bytes();
    // Two cables to each.
    let mut slab = (2 * peers.max(1) * wire).min(SLAB / wire * wire).next_multiple_of(4096);
    loop {
        let no_memory = rustix::io::Errno::NOMEM.raw_os_error();
        match Device::open(name, slab, COMPLETIONS) {
            Err(t) if t.code == no_memory && t.step.contains("ibv_reg_mr") && slab / 2 >= wire => slab /= 2,
            out => return out,
        }
    }
}

impl Hub {
    /// What a parent had open is not this process's, nor are its threads.
    fn own(&mut self) {
        if !is_ours() {
            std::mem::forget(std::mem::take(&mut self.rails.0));
            std::mem::forget(std::mem::take(&mut self.edges));
            self.attended = false;
            OWNER.store(std::process::id(), Ordering::Release);
        }
    }

    /// Begin an edge; its number.
    pub(super) fn add(&mut self, edge: Edge) -> io::Result<u64> {
        self.own();
        let id = self.next;
        self.next += 1;
        self.edges.insert(id, edge);
        self.attend().inspect_err(|_| drop(self.edges.remove(&id)))?;
        Ok(id)
    }

    /// Start the thread unless it runs.
    fn attend(&mut self) -> io::Result<()> {
        if self.attended {
            bell()?.ring();
            return Ok(());
        }
        let bell = bell()?;
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // Without it a peer may miss the last frames of a process that exits without dropping its groups.
            let _ = at_exit(settle_all);
        });
        thread::Builder::new().name("comity-rdma".into()).spawn(move || attend(bell))?;
        self.attended = true;
        Ok(())
    }

    /// Make the queue pairs of a wire of an edge, not connected yet; the wire's place.
    pub(super) fn make(
        &mut self,
        edge: u64,
        held: &Held,
        service: Service,
        slots: &Slots,
        (id, equal_frames, there): (u8, bool, String),
    ) -> Result<usize, String> {
        let rail = self.rails.0.get_mut(held.rail).and_then(Option::as_mut).ok_or("the device is closed")?;
        let owner = self.edges.get_mut(&edge).ok_or("the edge is gone")?;
        let full =
            |what: &str| format!("{} ({}): {what}; fewer ranks or cables fit on it", held.name, held.at);
        let region =
            rail.room(slots.bytes()).ok_or_else(|| full("its 64 MiB of registered memory are in use"))?;
        if rail.owed + slots.completions() > rail.device.completions() {
            return Err(full("its completion queue has no room"));
        }
        let mut queues = [0; LANES];
        for (kind, queue) in queues.iter_mut().enumerate() {
            match rail.device.create(service, slots.lanes[kind]) {
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
        let place = owner.wires.len();
        let mut at = region.0;
        let lanes = [0, 1].map(|kind| {
            let Depth { slots, bytes } = slots.lanes[kind];
            let lane = Lane::new(queues[kind], at, slots, bytes);
            at += 2 * slots * bytes;
            rail.lanes.insert(queues[kind], (edge, place, kind));
            lane
        });
        let name = format!("{} ({}) to {there}", held.name, held.at);
        owner.wires.push(Wire::new(id, held.rail, region, lanes, service, equal_frames, name));
        Ok(place)
    }

    /// Give a wire's queue pairs back. Its place stays, so that those of others do.
    pub(super) fn unmake(&mut self, edge: u64, wire: usize, slots: &Slots) {
        let Some(w) = self.edges.get_mut(&edge).and_then(|e| e.wires.get_mut(wire)) else { return };
        w.up = false;
        let Some(rail) = self.rails.0.get_mut(w.rail).and_then(Option::as_mut) else { return };
        rail.clear(w, slots);
    }

    /// End an edge, whatever is under way.
    pub(super) fn remove(&mut self, edge: u64, slots: &Slots) {
        let Some(gone) = self.edges.remove(&edge) else { return };
        for w in &gone.wires {
            if let Some(rail) = self.rails.0.get_mut(w.rail).and_then(Option::as_mut) {
                rail.clear(w, slots);
            }
        }
        if let Ok(bell) = bell() {
            bell.ring();
        }
    }

    /// Take what the devices have done, and what peers say.
    pub(super) fn pump(&mut self, edge: u64) {
        // What an ended peer has sent is in its place by the time that its end is known.
        if let Some(e) = self.edges.get_mut(&edge) {
            e.listen();
        }
        self.poll();
    }

    /// As [`pump`](Self::pump), where only frames are worth a look.
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
            let polled = rail.device.poll(&mut done);
            for c in &done {
                let Some(rail) = self.rails.0.get_mut(i).and_then(Option::as_mut) else { return };
                let Some(&(edge, wire, lane)) = rail.lanes.get(&c.queue) else { continue };
                if let Some(edge) = self.edges.get_mut(&edge) {
                    edge.completed(&mut self.rails, wire, lane, *c);
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
        for edge in self.edges.values_mut() {
            if let Some(w) = edge.wires.iter().find(|w| w.rail == rail && w.up) {
                let words = format!("is cut off: the RDMA wire {}: {words}", w.name);
                edge.fail(words);
            }
        }
    }

    /// Someone is about to sleep until this edge has news.
    pub(super) fn expect(&mut self, edge: u64) {
        let rails: Vec<usize> =
            self.edges.get(&edge).map_or_else(Vec::new, |e| e.wires.iter().map(|w| w.rail).collect());
        let mut without = false;
        for i in rails {
            let Some(rail) = self.rails.0.get_mut(i).and_then(Option::as_mut) else { continue };
            without |= rail.events.is_none();
            if let Err(t) = rail.device.announce() {
                self.fail_rail(i, &t.to_string());
            }
        }
        if without && let Ok(bell) = bell() {
            bell.ring();
        }
    }

    /// One round of the thread; how long it may sleep.
    fn tick(&mut self) -> Duration {
        let now = Instant::now();
        let slow = self.slow.is_none_or(|t| now >= t + TICK);
        if slow {
            self.slow = Some(now);
        }
        for edge in self.edges.values_mut() {
            edge.listen();
        }
        let mut silent = false;
        for i in 0..self.rails.0.len() {
            let awaited = self.edges.values().any(|e| e.is_armed() && e.wires.iter().any(|w| w.rail == i));
            if let Some(rail) = self.rails.0.get_mut(i).and_then(Option::as_mut) {
                // Ask for the next event before the look that finds what came until now.
                rail.device.hush();
                if awaited && let Err(t) = rail.device.announce() {
                    self.fail_rail(i, &t.to_string());
                }
                silent |= awaited && self.rails.0[i].as_ref().is_some_and(|r| r.events.is_none());
            }
            self.poll_rail(i);
        }
        for edge in self.edges.values_mut() {
            edge.tick(&mut self.rails, now, slow);
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
        let leaving = self.edges.values().any(Edge::is_leaving);
        if silent || leaving { LOOK } else { TICK }
    }

    /// What the thread sleeps on: connections with whether there is something to send, and devices.
    fn sources(&mut self) -> (Vec<Connection>, Vec<Arc<OwnedFd>>) {
        let live = self.edges.values().filter(|e| e.side.over().is_none());
        let sides = live.map(|e| (e.side.stream().clone(), e.side.is_pending())).collect();
        (sides, self.rails.live().filter_map(|(_, r)| r.events.clone()).collect())
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

    fn clear(&mut self, w: &Wire, slots: &Slots) {
        let had = self.regions.len();
        self.regions.retain(|r| *r != w.region);
        if self.regions.len() == had {
            return;
        }
        self.owed -= slots.completions();
        for lane in &w.lanes {
            self.lanes.remove(&lane.queue);
            self.device.destroy(lane.queue);
        }
    }
}

/// The connection of an edge, and whether something waits to be sent on it.
type Connection = (Arc<TcpStream>, bool);

/// The thread: until there are no edges.
fn attend(bell: &Bell) {
    loop {
        let mut hub = hub();
        if hub.edges.is_empty() {
            hub.attended = false;
            return;
        }
        let nap = hub.tick();
        let (sides, events) = hub.sources();
        drop(hub);
        let mut fds = vec![PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
        for (stream, pending) in &sides {
            let write = if *pending { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN | write));
        }
        fds.extend(events.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
        // The descriptors are ours and open; if the system still refuses, do not spin.
        if poll_until(&mut fds, Some(Instant::now() + nap)).is_err() {
            thread::sleep(TICK);
        }
        bell.hush();
    }
}

/// An edge's handle. Dropping it lets the peer have what was sent, then ends the edge.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) id: u64,
    pub(super) slots: Slots,
    /// Nothing was promised to the peer yet.
    pub(super) fresh: bool,
    /// The devices that it uses.
    pub(super) _held: Vec<Arc<Held>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !is_ours() {
            return;
        }
        if !self.fresh {
            if let Some(edge) = hub().edges.get_mut(&self.id) {
                edge.part();
            }
            let until = Instant::now() + LAST_WORDS;
            loop {
                let mut hub = hub();
                hub.pump(self.id);
                if hub.edges.get(&self.id).is_none_or(Edge::is_done) || Instant::now() >= until {
                    break;
                }
                drop(hub);
                thread::sleep(LOOK);
            }
        }
        hub().remove(self.id, &self.slots);
    }
}

/// A process that exits without dropping its groups lets its peers have what was sent too.
extern "C" fn settle_all() {
    // A forked child shares the connections, but they are not its own.
    if !is_ours() {
        return;
    }
    let until = Instant::now() + LAST_WORDS;
    let mut said = false;
    loop {
        let mut hub = match HUB.try_lock() {
            Ok(hub) => hub,
            Err(TryLockError::Poisoned(e)) => PoisonError::into_inner(e),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return,
            Err(TryLockError::WouldBlock) => {
                thread::sleep(LOOK);
                continue;
            }
        };
        let ids: Vec<u64> = hub.edges.keys().copied().collect();
        for id in &ids {
            if let Some(edge) = hub.edges.get_mut(id).filter(|_| !said) {
                edge.part();
            }
            hub.pump(*id);
        }
        said = true;
        if hub.edges.values().all(Edge::is_done) || Instant::now() >= until {
            return;
        }
        drop(hub);
        thread::sleep(LOOK);
    }
}
