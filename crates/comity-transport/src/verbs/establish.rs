//! Bringing the paths of a pair up, over the pair's authenticated connection.
//!
//! Both ends say what they have; choose alike which devices to try; make, connect and post; greet each other over each queue pair;
//! and keep the paths over which both were heard. Every failure is told to the other end, so both know the same in the end.
//!
//! Pairing of the devices of two ends that share a cable: guessed from addresses, proven by trying.

use super::{
    control_socket::{ControlMessage, ControlSocket, MAX_PATHS, Made, OfferedDevice, PostedReceives},
    driver::{Handle, Held, Slots, driver},
    path::{Excess, RdmaPath},
    peer_connection::PeerConnection,
};
use crate::{
    Result,
    channel::Stream,
    sys::verbs::{Abilities, Address, Depth, End, QueueService},
};
use std::{
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// Time limit for first frames. They need microseconds where the path is good; a process that is not scheduled for a while must not
/// lose its paths for it.
const GREETING: Duration = Duration::from_secs(8);
/// Between two looks at what no descriptor tells.
const SETUP_POLL: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Ours {
    /// The devices to use, in any order.
    pub(super) held: Vec<Arc<Held>>,
    /// Reason for which there are none, or fewer than named.
    pub(super) why: String,
    pub(super) slots: Slots,
    /// Nothing but this service.
    pub(super) only: Option<QueueService>,
    /// True if this end has the lower rank of the two.
    pub(super) lower: bool,
}

/// Waits until a descriptor is readable (true) or a time has come (false); an error ends the whole.
pub(crate) type WaitReadable<'a> = &'a dyn Fn(BorrowedFd<'_>, Instant) -> Result<bool>;

/// The peer connection, or why there is none; the other end knows the same.
pub(super) type EstablishResult = Result<Handle, String>;

/// Reason for which the whole ends.
enum Stop {
    /// For this process.
    Error(crate::Error),
    /// For this pair: the peer is gone, or the connection makes no sense.
    Peer(String),
}

pub(super) fn establish(
    stream: TcpStream,
    ours: Ours,
    until: Instant,
    wait: WaitReadable<'_>,
) -> Result<EstablishResult> {
    let control_socket = match ControlSocket::new(stream) {
        Ok(control_socket) => control_socket,
        Err(e) => return Ok(Err(format!("its connection cannot be used: {e}"))),
    };
    let stream = control_socket.stream().clone();
    let id = match driver().add(PeerConnection::new(control_socket)) {
        Ok(id) => id,
        Err(e) => return Ok(Err(format!("the thread that attends RDMA devices cannot be started: {e}"))),
    };
    let mut handle = Handle { id, fresh: true, _held: ours.held.clone() };
    let mut raising = Raising { id, stream, ours, until, wait };
    match raising.run() {
        Ok(()) => {
            handle.fresh = false;
            Ok(Ok(handle))
        }
        Err(Stop::Peer(why)) => Ok(Err(why)),
        Err(Stop::Error(e)) => Err(e),
    }
}

struct Raising<'a> {
    id: u64,
    stream: Arc<Stream>,
    ours: Ours,
    until: Instant,
    wait: WaitReadable<'a>,
}

struct Try {
    held: Arc<Held>,
    theirs: OfferedDevice,
    service: Result<QueueService, String>,
    /// Its number among those tried.
    id: u8,
    /// Numbers of the first packets of its queue pairs.
    firsts: [u32; 2],
    /// Its place in the peer connection, once made.
    place: Option<usize>,
}

impl Raising<'_> {
    fn run(&mut self) -> Result<(), Stop> {
        let (offer, epoch) = self.offer()?;
        self.say(&offer);
        let ControlMessage::Offer { epoch: theirs, slots, devices, why } = self.hear()? else {
            return Err(self.confused());
        };
        if slots != self.sizes() {
            return Err(Stop::Peer("its slots have other sizes".into()));
        }
        if let Some(peer_connection) = driver().peers.get_mut(&self.id) {
            peer_connection.epoch = epoch ^ theirs;
        }
        if self.ours.held.is_empty() || devices.is_empty() {
            let mine = if self.ours.held.is_empty() { self.ours.why.as_str() } else { "" };
            let words = [(mine, "here"), (why.as_str(), "there")];
            let words: Vec<_> =
                words.iter().filter(|(w, _)| !w.is_empty()).map(|(w, at)| format!("{at}: {w}")).collect();
            return Err(Stop::Peer(words.join("; ")));
        }
        let mut reasons = Vec::new();
        let mut made = Vec::new();
        let mut tried = Vec::new();
        loop {
            let here: Vec<Address> = self.ours.held.iter().map(|h| h.at).collect();
            let there: Vec<Address> = devices.iter().map(|d| d.at).collect();
            let lower = self.ours.lower;
            let next = match lower {
                true => pairing_round(&here, &there, &made, &tried),
                false => pairing_round(&there, &here, &made, &tried),
            };
            if next.is_empty() {
                break;
            }
            let tries: Vec<Try> = next
                .iter()
                .take(MAX_PATHS)
                .zip(tried.len()..)
                .map(|(&(a, b), id)| {
                    let (mine, other) = if lower { (a, b) } else { (b, a) };
                    let held = self.ours.held[mine].clone();
                    let theirs = devices[other].clone();
                    let service = self.service(&held, &theirs);
                    let firsts = [random()? as u32 & 0xff_ffff, random()? as u32 & 0xff_ffff];
                    Ok(Try { held, theirs, service, id: id as u8, firsts, place: None })
                })
                .collect::<Result<_, _>>()?;
            tried.extend(next.iter().copied());
            for (pair, out) in next.iter().zip(self.round(tries)?) {
                match out {
                    Ok(()) => made.push(*pair),
                    Err(why) => {
                        tracing::debug!(why, "an RDMA path that was tried did not come up");
                        reasons.push(why);
                    }
                }
            }
        }
        reasons.dedup();
        if made.is_empty() { Err(Stop::Peer(reasons.join("; "))) } else { Ok(()) }
    }

    fn sizes(&self) -> [u32; 4] {
        let [small, bulk] = self.ours.slots.qps;
        [small.slots, small.bytes, bulk.slots, bulk.bytes].map(|n| n as u32)
    }

    fn offer(&self) -> Result<(ControlMessage, u64), Stop> {
        let devices = self.ours.held.iter().take(MAX_PATHS).map(|h| OfferedDevice {
            name: h.name.clone(),
            at: h.at,
            abilities: Abilities {
                reliable: h.abilities.reliable && self.ours.only != Some(QueueService::Unreliable),
                unreliable: h.abilities.unreliable && self.ours.only != Some(QueueService::Reliable),
                ..h.abilities
            },
        });
        let epoch = random()?;
        let word = ControlMessage::Offer {
            epoch,
            slots: self.sizes(),
            devices: devices.collect(),
            why: self.ours.why.clone(),
        };
        Ok((word, epoch))
    }

    /// The service that both ends of a path have; reliable where it can be.
    fn service(&self, held: &Held, theirs: &OfferedDevice) -> Result<QueueService, String> {
        let allowed = |s| self.ours.only.is_none_or(|o| o == s);
        if held.abilities.reliable && theirs.abilities.reliable && allowed(QueueService::Reliable) {
            Ok(QueueService::Reliable)
        } else if held.abilities.unreliable
            && theirs.abilities.unreliable
            && allowed(QueueService::Unreliable)
        {
            Ok(QueueService::Unreliable)
        } else {
            Err(format!("{} here and {} there have no service in common (RC or UC)", held.name, theirs.name))
        }
    }

    /// Try paths, each between two devices; what became of each.
    fn round(&self, mut tries: Vec<Try>) -> Result<Vec<Result<(), String>>, Stop> {
        let made: Vec<Made> = tries.iter_mut().map(|t| self.make(t)).collect();
        self.say(&ControlMessage::Made(made.clone()));
        let ControlMessage::Made(theirs) = self.hear()? else { return Err(self.confused()) };
        let here = |why: &String| format!("here: {why}");
        let connected = |(i, t): (usize, &Try)| {
            let mine = made[i].as_ref().map_err(here)?;
            self.connect(t, mine, &of_peer(&theirs, i)?).map_err(|why| here(&why))
        };
        let posted: Vec<PostedReceives> = tries.iter().enumerate().map(connected).collect();
        self.say(&ControlMessage::Ready(posted.clone()));
        let ControlMessage::Ready(theirs) = self.hear()? else { return Err(self.confused()) };
        let greeted = |(i, t): (usize, &Try)| {
            posted[i].clone()?;
            self.greet(t, of_peer(&theirs, i)?)
        };
        let mut out: Vec<Result<(), String>> = tries.iter().enumerate().map(greeted).collect();
        self.await_greetings(&tries, &mut out)?;
        self.say(&ControlMessage::Heard(out.clone()));
        let ControlMessage::Heard(theirs) = self.hear()? else { return Err(self.confused()) };
        for (i, out) in out.iter_mut().enumerate() {
            if out.is_ok() {
                *out = of_peer(&theirs, i);
            }
            let mut driver = driver();
            match (tries[i].place, &out) {
                (Some(place), Ok(())) => {
                    if let Some(peer_connection) = driver.peers.get_mut(&self.id) {
                        peer_connection.established(place);
                    }
                }
                (Some(place), Err(_)) => driver.unmake(self.id, place),
                (None, _) => {}
            }
        }
        Ok(out)
    }

    fn make(&self, t: &mut Try) -> Made {
        let service = t.service.clone()?;
        let equal = t.held.abilities.equal_frames || t.theirs.abilities.equal_frames;
        let there = format!("{} ({})", t.theirs.at, t.theirs.name);
        let mut driver = driver();
        let place = driver.make(self.id, &t.held, service, &self.ours.slots, (t.id, equal, there))?;
        t.place = Some(place);
        let path = driver.peers.get(&self.id).and_then(|e| e.paths.get(place));
        let qps = &path.ok_or("the peer connection is gone")?.qps;
        Ok([0, 1].map(|k| End { number: qps[k].queue, first: t.firsts[k], at: t.held.at }))
    }

    fn connect(&self, t: &Try, mine: &[End; 2], theirs: &[End; 2]) -> PostedReceives {
        let (Some(place), Ok(service)) = (t.place, &t.service) else { return Err("it was not made".into()) };
        let mut driver = driver();
        for (mine, theirs) in mine.iter().zip(theirs) {
            let device = driver.rails.device(t.held.rail).ok_or("the device is closed")?;
            device.connect(mine.number, *service, mine.first, theirs).map_err(|t| t.to_string())?;
        }
        let (peer_connection, rails) = driver.reach(self.id).ok_or("the peer connection is gone")?;
        let path = peer_connection.paths.get_mut(place).ok_or("it was not made")?;
        path.post_all(rails)
    }

    /// The other end has posted: send it the first frames.
    fn greet(&self, t: &Try, posted: [u32; 2]) -> Result<(), String> {
        let mut driver = driver();
        let (peer_connection, rails) = driver.reach(self.id).ok_or("the peer connection is gone")?;
        let most = self.ours.slots.qps;
        if posted.iter().zip(most).any(|(p, Depth { slots, .. })| *p as usize > slots || *p == 0) {
            return Err(format!("{}: {:?}", t.theirs.name, Excess));
        }
        let epoch = peer_connection.epoch;
        let path = t.place.and_then(|p| peer_connection.paths.get_mut(p)).ok_or("it was not made")?;
        path.posted(posted);
        path.greet(rails, epoch)
    }

    /// Wait until the other end was heard on every path that may still come up, or for long enough. Whatever was not heard is an error.
    fn await_greetings(&self, tries: &[Try], out: &mut [Result<(), String>]) -> Result<(), Stop> {
        let until = (Instant::now() + GREETING).min(self.until);
        loop {
            let mut driver = driver();
            driver.pump(self.id);
            let Some(peer_connection) = driver.peers.get(&self.id) else {
                return Err(Stop::Peer("the peer connection is gone".into()));
            };
            let failed = peer_connection.error().map(|e| format!("the other end {}", e.0));
            let late = Instant::now() >= until;
            let mut waits = false;
            for (t, out) in tries.iter().zip(out.iter_mut()).filter(|(_, out)| out.is_ok()) {
                let path = t.place.and_then(|p| peer_connection.paths.get(p));
                let is_heard = path.is_some_and(RdmaPath::is_heard);
                if let Some(why) = path.and_then(|w| w.error.as_ref()) {
                    *out = Err(why.clone());
                } else if let Some(why) = failed.as_ref().filter(|_| !is_heard) {
                    *out = Err(why.clone());
                } else if late && !is_heard {
                    *out = Err(format!(
                        "nothing came from {} ({}) to {} ({}) within {GREETING:?}; are they on one cable or switch?",
                        t.theirs.name, t.theirs.at, t.held.name, t.held.at
                    ));
                }
                waits |= out.is_ok() && !is_heard;
            }
            if !waits {
                return Ok(());
            }
            drop(driver);
            self.nap(Instant::now() + SETUP_POLL)?;
        }
    }

    fn say(&self, word: &ControlMessage) {
        if let Some(peer_connection) = driver().peers.get_mut(&self.id) {
            peer_connection.control_socket.say(word);
        }
    }

    fn hear(&self) -> Result<ControlMessage, Stop> {
        loop {
            {
                let mut driver = driver();
                let Some(peer_connection) = driver.peers.get_mut(&self.id) else {
                    return Err(Stop::Peer("the peer connection is gone".into()));
                };
                peer_connection.listen();
                if let Some(word) = peer_connection.inbox.pop_front() {
                    return Ok(word);
                }
                if let Some(e) = peer_connection.error() {
                    return Err(Stop::Peer(format!("the other end {}", e.0)));
                }
            }
            let now = Instant::now();
            if now >= self.until {
                return Err(Stop::Peer("the other end does not answer".into()));
            }
            // The driver's thread may have read it first.
            self.nap(now + 10 * SETUP_POLL)?;
        }
    }

    fn nap(&self, until: Instant) -> Result<(), Stop> {
        // WAIT(until): the other end of a peer connection, to the join deadline
        (self.wait)(self.stream.as_fd(), until.min(self.until)).map(drop).map_err(Stop::Error)
    }

    fn confused(&self) -> Stop {
        Stop::Peer("the other end speaks out of turn".into())
    }
}

/// The peer's result for a path.
fn of_peer<T: Clone>(said: &[Result<T, String>], i: usize) -> Result<T, String> {
    let said = said.get(i).cloned().unwrap_or_else(|| Err("it tries fewer paths".into()));
    said.map_err(|why| format!("there: {why}"))
}

fn random() -> Result<u64, Stop> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| Stop::Error(crate::Error::os("drawing a number", e)))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The paths to try in this round, as places in the two lists, of those not `tried` yet between devices that are in none of `made`.
/// Both ends see the same lists and so choose alike: those with most of their addresses in common come first, and each device is in
/// one path at most.
fn pairing_round(
    lower: &[Address],
    higher: &[Address],
    made: &[(usize, usize)],
    tried: &[(usize, usize)],
) -> Vec<(usize, usize)> {
    let free = |a: usize, b: usize| !made.iter().any(|(x, y)| *x == a || *y == b) && !tried.contains(&(a, b));
    let mut all: Vec<(usize, usize)> = (0..lower.len())
        .flat_map(|a| (0..higher.len()).map(move |b| (a, b)))
        .filter(|(a, b)| free(*a, *b))
        .collect();
    all.sort_by_key(|&(a, b)| (std::cmp::Reverse(common(&lower[a], &higher[b])), a, b));
    let mut out: Vec<(usize, usize)> = Vec::new();
    for (a, b) in all {
        if !out.iter().any(|(x, y)| *x == a || *y == b) {
            out.push((a, b));
        }
    }
    out
}

/// Leading bits in common.
fn common(a: &Address, b: &Address) -> u32 {
    (u128::from_be_bytes(a.gid) ^ u128::from_be_bytes(b.gid)).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: [u8; 4]) -> Address {
        let mut gid = [0; 16];
        (gid[10], gid[11]) = (0xff, 0xff);
        gid[12..].copy_from_slice(&ip);
        Address { gid, ..Address::default() }
    }

    #[test]
    fn cables_are_guessed_from_their_networks_and_the_rest_is_tried() {
        let lower = [at([10, 0, 1, 1]), at([10, 0, 2, 1])];
        // Listed the other way round: by place both paths would be wrong.
        let higher = [at([10, 0, 2, 2]), at([10, 0, 1, 2])];
        assert_eq!(pairing_round(&lower, &higher, &[], &[]), [(0, 1), (1, 0)]);
        // One of the guesses was right; nothing is left for the others but each other.
        assert_eq!(pairing_round(&lower, &higher, &[(0, 1)], &[(0, 1), (1, 0)]), []);
        // Both were wrong.
        assert_eq!(pairing_round(&lower, &higher, &[], &[(0, 1), (1, 0)]), [(0, 0), (1, 1)]);
    }

    #[test]
    fn a_device_is_in_one_path() {
        let one = [at([10, 0, 0, 1])];
        let three = [at([10, 0, 0, 2]), at([10, 0, 0, 3]), at([10, 0, 0, 0])];
        assert_eq!(pairing_round(&one, &three, &[], &[]), [(0, 2)]);
        assert_eq!(pairing_round(&one, &three, &[(0, 2)], &[(0, 2)]), []);
        assert_eq!(pairing_round(&one, &[], &[], &[]), []);
    }
}
