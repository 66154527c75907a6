//! All that two processes have between them: paths, and the streams of their groups over them.
//!
//! No thread and no lock of its own: [`driver`](mod@super::driver) calls it, for those that put and take, and for what the devices report.

use super::{
    control_socket::{ControlMessage, ControlSocket},
    driver::{Rails, TICK},
    path::{
        BULK, Claim, Damage, FrameHeader, FrameOrder, HEADER, HELLO, QueuePair, RECEIVE, RdmaPath, SMALL,
    },
};
use crate::{
    Interest, LinkError,
    sys::{
        Waker,
        verbs::{Completion, QueueService, Slab},
    },
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// Bytes accepted in one call. More would starve the other direction.
const MOST: usize = 512 << 10;
/// Slow ticks at which nothing came, after which frames are lost that the peer says have left it.
const LOSS: u32 = 40;

/// The paths between this process and one other, and the groups' streams over them.
#[derive(Debug)]
pub(super) struct PeerConnection {
    pub(super) epoch: u64,
    pub(super) control_socket: ControlSocket,
    pub(super) paths: Vec<RdmaPath>,
    streams: HashMap<u64, GroupStream>,
    /// Control messages of the peer while paths are made.
    pub(super) inbox: VecDeque<ControlMessage>,
    error: Option<LinkError>,
    /// First path to look at for room.
    turn: usize,
    /// The peer ends, and waits for word that all has come.
    bye: bool,
    /// The peer has all that was sent.
    pub(super) settled: bool,
}

impl PeerConnection {
    pub(super) fn new(control_socket: ControlSocket) -> Self {
        Self {
            epoch: 0,
            control_socket,
            paths: Vec::new(),
            streams: HashMap::new(),
            inbox: VecDeque::new(),
            error: None,
            turn: 0,
            bye: false,
            settled: false,
        }
    }

    pub(super) fn error(&self) -> Option<&LinkError> {
        self.error.as_ref()
    }

    /// Keep the first error, and tell everyone.
    pub(super) fn fail(&mut self, words: String) {
        if self.error.is_none() {
            tracing::debug!(words, "an RDMA peer connection failed");
            self.error = Some(LinkError(words));
            self.streams.values().for_each(|s| s.wake(BOTH));
        }
    }

    /// Fails as [`fail`](Self::fail), for a reason that the peer cannot know, and tells it.
    fn fail_both(&mut self, words: String) {
        if self.error.is_none() {
            self.control_socket.say(&ControlMessage::Failed(words.clone()));
        }
        self.fail(words);
    }

    /// Both ends have heard each other on this path.
    pub(super) fn established(&mut self, path: usize) {
        let Some(w) = self.paths.get_mut(path) else { return };
        w.up = true;
        tracing::debug!(path = w.name, service = %w.service, "an RDMA path is up");
        if let Some(why) = w.error.take() {
            self.fail_both(format!("is cut off: the RDMA path {why}"));
        }
    }

    /// Returns true if a link sleeps on it.
    pub(super) fn is_armed(&self) -> bool {
        self.streams.values().any(|s| s.armed.recv || s.armed.send)
    }

    /// Returns true if the peer waits for the last frames to come.
    pub(super) fn is_leaving(&self) -> bool {
        self.bye
    }

    /// Begin a group's stream, or go on with one that the peer has begun. False if it is open already.
    pub(super) fn open(&mut self, group_id: u64, waker: Arc<Waker>) -> bool {
        let stream = self.streams.entry(group_id).or_insert_with(GroupStream::new);
        let new = stream.waker.is_none() && !stream.gone;
        if new {
            stream.waker = Some(waker);
        }
        new
    }

    /// The link of a group is gone: the peer may put no more, and gets what was accepted.
    pub(super) fn close(&mut self, rails: &mut Rails, group_id: u64) {
        let Some(stream) = self.streams.get_mut(&group_id) else { return };
        stream.waker = None;
        stream.armed = Interest::default();
        stream.gone = true;
        let total = stream.put;
        self.control_socket.say(&ControlMessage::End { group_id, total });
        self.discard(rails, group_id);
    }

    /// Give up what lies here of a stream whose link is gone.
    fn discard(&mut self, rails: &mut Rails, group_id: u64) {
        while let Some((place, len)) = self.streams.get_mut(&group_id).and_then(|s| s.order.ready.pop_front())
        {
            self.release(rails, group_id, place, len);
        }
        self.forget(group_id);
    }

    /// A stream that both ends have ended is over once all of it has come.
    fn forget(&mut self, group_id: u64) {
        if self.streams.get(&group_id).is_some_and(|s| s.gone && s.order.is_over()) {
            self.streams.remove(&group_id);
        }
    }

    pub(super) fn arm(&mut self, group_id: u64, interest: Interest) {
        if let Some(stream) = self.streams.get_mut(&group_id) {
            stream.armed = interest;
        }
    }

    /// Accept a prefix of `head` followed by `body`; how many bytes in all ([`Link::put`](crate::Link::put)).
    pub(super) fn put(
        &mut self,
        rails: &mut Rails,
        group_id: u64,
        head: &[u8],
        body: &[u8],
    ) -> Result<usize, LinkError> {
        let Some(stream) = self.streams.get(&group_id) else { return Err(closed()) };
        if let Some(e) = &self.error {
            return Err(e.clone());
        }
        if stream.order.end.is_some() {
            return Err(closed());
        }
        let most = (head.len() + body.len()).min(MOST);
        let mut n = 0;
        while n < most {
            match self.put_one(
                rails,
                group_id,
                head.get(n..).unwrap_or_default(),
                &body[n.saturating_sub(head.len())..],
            ) {
                Ok(0) => break,
                Ok(m) => n += m,
                Err(words) => {
                    self.fail_both(format!("cannot be sent to: {words}"));
                    return Err(self.error.clone().unwrap_or_else(closed));
                }
            }
        }
        Ok(n)
    }

    /// Puts a frame. Returns the number of bytes that went.
    fn put_one(
        &mut self,
        rails: &mut Rails,
        group_id: u64,
        head: &[u8],
        body: &[u8],
    ) -> Result<usize, String> {
        let Some(stream) = self.streams.get_mut(&group_id) else { return Ok(0) };
        let open = usize::try_from(stream.allowed - stream.put).unwrap_or(usize::MAX);
        let want = (head.len() + body.len()).min(open);
        // Where all of a slot is sent, half of it must be worth it.
        let kind_of = |w: &RdmaPath| {
            let least = w.qps[BULK].bytes / if w.equal_frames { 2 } else { 8 };
            if want >= least { BULK } else { SMALL }
        };
        let count = self.paths.len();
        let ups = (0..count).map(|i| (self.turn + i) % count).filter(|i| self.paths[*i].up);
        let Some(best) = ups.max_by_key(|i| {
            let w = &self.paths[*i];
            let qp = &w.qps[kind_of(w)];
            qp.out.room() * qp.bytes as u64
        }) else {
            return Ok(0);
        };
        let path = &mut self.paths[best];
        let kind = kind_of(path);
        let n = want.min(path.qps[kind].bytes - HEADER);
        if n == 0 {
            return Ok(0);
        }
        let head = &head[..head.len().min(n)];
        let body = &body[..n - head.len()];
        let at = stream.put;
        let taken = stream.order.taken;
        let header =
            FrameHeader { epoch: self.epoch, group_id, at, number: 0, taken, given: [0; 2], len: n as u32 };
        if !path.send(rails, kind, header, head, body)? {
            return Ok(0);
        }
        stream.put += n as u64;
        stream.order.told();
        self.turn = (best + 1) % count;
        Ok(n)
    }

    /// The next piece of a group's stream; an error only after the last.
    pub(super) fn fetch(&mut self, group_id: u64) -> Result<Option<(PayloadPlace, usize)>, LinkError> {
        let Some(stream) = self.streams.get_mut(&group_id) else { return Err(closed()) };
        if let Some(piece) = stream.order.ready.pop_front() {
            return Ok(Some(piece));
        }
        if stream.order.is_over() {
            return Err(closed());
        }
        self.error.clone().map_or(Ok(None), Err)
    }

    /// A piece was used up.
    pub(super) fn release(&mut self, rails: &mut Rails, group_id: u64, place: PayloadPlace, len: usize) {
        if let Some(stream) = self.streams.get_mut(&group_id) {
            stream.order.taken += len as u64;
            if stream.order.untold() >= WINDOW / 4 {
                self.control_socket.say(&ControlMessage::Taken { group_id, taken: stream.order.taken });
                stream.order.told();
            }
        }
        self.free(rails, place);
    }

    fn free(&mut self, rails: &mut Rails, place: PayloadPlace) {
        let PayloadPlace::Slot { path, qp, slot, .. } = place else { return };
        if let Some(w) = self.paths.get_mut(path) {
            w.qps[qp].held -= 1;
        }
        self.give(rails, path, qp, slot);
    }

    fn give(&mut self, rails: &mut Rails, path: usize, qp: usize, slot: usize) {
        let Some(w) = self.paths.get_mut(path) else { return };
        if let Err(words) = w.give(rails, qp, slot) {
            return self.fail_both(format!("cannot be heard: {words}"));
        }
        if w.qps.iter().any(QueuePair::is_due) {
            let given = w.given();
            w.qps.iter_mut().for_each(|l| l.inn.told());
            self.control_socket.say(&ControlMessage::Given { path: w.id, given });
        }
    }

    /// Tell the peer that this end goes, and what it must have got.
    pub(super) fn part(&mut self) {
        for w in &self.paths {
            self.control_socket.say(&ControlMessage::Sent { path: w.id, count: w.sent() });
        }
        self.control_socket.say(&ControlMessage::Bye);
    }

    /// Does the work that nobody waits for: posts receives that had no room, announces the last frames of a burst, and checks that the peer's came.
    pub(super) fn tick(&mut self, rails: &mut Rails, slow: bool) {
        for i in 0..self.paths.len() {
            for kind in [SMALL, BULK] {
                if let Some(slot) = self.paths[i].qps[kind].unposted.pop() {
                    self.give(rails, i, kind, slot);
                }
            }
            let w = &mut self.paths[i];
            if w.is_complete() {
                w.claimed = None;
            }
            let came = w.came();
            if slow
                && w.service == QueueService::Unreliable
                && let Some(claim) = &mut w.claimed
                && claim.look(came, LOSS)
            {
                let words = format!(
                    "lost frames over the RDMA path {}: {} of {} came, and no other within {:?}",
                    w.name,
                    came.iter().sum::<u64>(),
                    claim.total(),
                    LOSS * TICK
                );
                return self.fail_both(words);
            }
            if slow {
                let sent = w.sent();
                // What has not left yet may wait here for as long as this process is paused.
                let left = w.qps.iter().all(|l| l.out.is_done());
                if left && sent == w.looked && sent != w.told && w.service == QueueService::Unreliable {
                    w.told = sent;
                    self.control_socket.say(&ControlMessage::Sent { path: w.id, count: sent });
                }
                w.looked = sent;
            }
        }
        if self.bye && self.paths.iter().all(RdmaPath::is_complete) {
            self.bye = false;
            self.control_socket.say(&ControlMessage::All);
        }
    }

    /// Returns true if all sends have left.
    pub(super) fn is_done(&self) -> bool {
        let qps = || self.paths.iter().flat_map(|w| &w.qps);
        self.error.is_some() || self.settled && qps().all(|l| l.out.is_done())
    }

    /// A device has done something for a queue pair of this peer connection.
    pub(super) fn completed(&mut self, rails: &mut Rails, path: usize, qp: usize, done: Completion) {
        let Some(w) = self.paths.get_mut(path) else { return };
        let receive = done.id & RECEIVE != 0;
        if done.status != 0 {
            // What follows the first is only flushed.
            if self.error.is_none() {
                let words = rails.device(w.rail).map_or_else(String::new, |d| d.status(done.status));
                let what = if receive { "a receive" } else { "a send" };
                if !w.up {
                    // It was only tried.
                    w.error.get_or_insert_with(|| format!("{}: {what} ended with {words}", w.name));
                    return;
                }
                let name = w.name.clone();
                self.fail_both(format!("is cut off: {what} on the RDMA path {name} ended with {words}"));
            }
            return;
        }
        if !receive {
            w.qps[qp].out.completed();
            return self.streams.values().for_each(|s| s.wake(SEND));
        }
        let slot = (done.id & !RECEIVE) as usize;
        if let Err(words) = self.arrived(rails, path, qp, slot, done.bytes) {
            self.fail_both(words);
        }
    }

    /// A frame lies in this slot.
    fn arrived(
        &mut self,
        rails: &mut Rails,
        path: usize,
        qp: usize,
        slot: usize,
        bytes: usize,
    ) -> Result<(), String> {
        let epoch = self.epoch;
        let w = self.paths.get_mut(path).ok_or("has no such path")?;
        let l = &mut w.qps[qp];
        if slot >= l.slots || bytes > l.bytes {
            return Err(format!("sent what fits no slot {}", over(&w.name)));
        }
        let at = l.receive_at(slot);
        let slab = rails.device(w.rail).ok_or("is cut off: the device is closed")?.slab().clone();
        // SAFETY: the receive in this slot has completed and none is posted again before the slot is given back; both happen under
        // the driver's lock, by this thread.
        let found = FrameHeader::decode(unsafe { slab.bytes(at, bytes) }, epoch);
        let header = found.map_err(|damage| match damage {
            Damage::Sum => {
                format!("sent a frame that was damaged on its way {}: its checksum is wrong", over(&w.name))
            }
            Damage::Foreign => format!("sent what is no frame of Comity {}", over(&w.name)),
            Damage::Stale => format!("sent a frame of an earlier connection {}", over(&w.name)),
        })?;
        l.inn.arrived(header.number).map_err(|gap| {
            let name = over(&w.name);
            let due = gap.due;
            let came = header.number;
            match came > due {
                true => format!("lost a frame {name}: number {came} came where {due} was due"),
                false => format!("sent a frame twice {name}: number {came} came where {due} was due"),
            }
        })?;
        self.credit(path, header.given)?;
        if header.group_id == HELLO {
            self.paths[path].qps[qp].heard = true;
            self.give(rails, path, qp, slot);
            return Ok(());
        }
        self.deliver(rails, (path, qp, slot), at, slab, &header)
    }

    /// The peer gave slots back.
    fn credit(&mut self, path: usize, given: [u32; 2]) -> Result<(), String> {
        let w = &mut self.paths[path];
        let mut room = false;
        for (l, given) in w.qps.iter_mut().zip(given) {
            let news = l.out.credit(given);
            room |= news.map_err(|_| format!("gave back more slots than it had {}", over(&w.name)))?;
        }
        if room {
            self.streams.values().for_each(|s| s.wake(SEND));
        }
        Ok(())
    }

    /// A frame's bytes go to the stream of its group, from the slot or copied out of it.
    fn deliver(
        &mut self,
        rails: &mut Rails,
        (path, qp, slot): (usize, usize, usize),
        at: usize,
        slab: Arc<Slab>,
        header: &FrameHeader,
    ) -> Result<(), String> {
        let l = &mut self.paths[path].qps[qp];
        // A group that does not take its bytes must not keep the slots from the others.
        let crowded = l.is_crowded();
        let len = header.len as usize;
        let place = if crowded {
            // SAFETY: as above; the length was checked with the sum.
            PayloadPlace::Heap(unsafe { slab.bytes(at + HEADER, len) }.to_vec())
        } else {
            l.held += 1;
            PayloadPlace::Slot { path, qp, slot, at: at + HEADER, slab }
        };
        let stream = self.streams.entry(header.group_id).or_insert_with(GroupStream::new);
        let gone = stream.gone;
        let fits = |_| format!("sent bytes twice, or more than it may {}", over(&self.paths[path].name));
        let allowed = header.taken;
        let news = stream.order.arrive(header.at, place, len, WINDOW).map_err(fits)?;
        stream.allow(allowed)?;
        if news {
            stream.wake(RECV);
        }
        if crowded {
            self.give(rails, path, qp, slot);
        }
        if gone {
            self.discard(rails, header.group_id);
        }
        Ok(())
    }

    /// Read what the peer says on the control socket.
    pub(super) fn listen(&mut self) {
        self.control_socket.go_on();
        loop {
            match self.control_socket.next() {
                Ok(Some(word)) => {
                    if let Err(words) = self.hear(word) {
                        return self.fail(words);
                    }
                }
                Ok(None) => break,
                Err(_) => return self.fail("broke the protocol of its control socket".into()),
            }
        }
        if let Some(over) = self.control_socket.over().map(str::to_owned) {
            self.settled = true;
            self.fail(over);
        }
    }

    fn hear(&mut self, word: ControlMessage) -> Result<(), String> {
        let excess = || "gave back more slots than it had".to_owned();
        match word {
            ControlMessage::Given { path, given } => {
                let Some(w) = self.paths.iter_mut().find(|w| w.id == path) else { return Ok(()) };
                for (l, given) in w.qps.iter_mut().zip(given) {
                    l.out.credit(given).map_err(|_| excess())?;
                }
                self.streams.values().for_each(|s| s.wake(SEND));
            }
            ControlMessage::Taken { group_id, taken } => {
                if let Some(stream) = self.streams.get_mut(&group_id) {
                    stream.allow(taken)?;
                }
            }
            ControlMessage::End { group_id, total } => {
                let stream = self.streams.entry(group_id).or_insert_with(GroupStream::new);
                stream.order.end(total).map_err(|_| "ended a stream before its last byte".to_owned())?;
                stream.wake(BOTH);
                self.forget(group_id);
            }
            ControlMessage::Sent { path, count } => {
                if let Some(w) = self.paths.iter_mut().find(|w| w.id == path) {
                    w.claimed = Some(Claim::new(count, w.came()));
                }
            }
            ControlMessage::Bye => self.bye = true,
            ControlMessage::All => self.settled = true,
            ControlMessage::Failed(words) => return Err(format!("reported that this rank {words}")),
            word @ (ControlMessage::Offer { .. }
            | ControlMessage::Made(_)
            | ControlMessage::Ready(_)
            | ControlMessage::Heard(_)) => {
                // A handshake has fewer.
                if self.inbox.len() < 64 {
                    self.inbox.push_back(word);
                }
            }
        }
        Ok(())
    }
}

fn closed() -> LinkError {
    LinkError("closed its connection".into())
}

fn over(name: &str) -> String {
    format!("over the RDMA path {name}")
}

/// Bytes that one group may have unread here from one peer: what a group that is not served can keep of this process's memory.
const WINDOW: u64 = 4 << 20;

#[derive(Debug)]
pub(super) enum PayloadPlace {
    /// In the slot where the device put them.
    Slot { path: usize, qp: usize, slot: usize, at: usize, slab: Arc<Slab> },
    /// Moved out of the way.
    Heap(Vec<u8>),
}

#[derive(Debug)]
struct GroupStream {
    put: u64,
    allowed: u64,
    order: FrameOrder<PayloadPlace>,
    /// Rung when an armed link should look; there is none before the group is open here, and after its link is gone.
    waker: Option<Arc<Waker>>,
    armed: Interest,
    gone: bool,
}

impl GroupStream {
    fn new() -> Self {
        let armed = Interest::default();
        Self { put: 0, allowed: WINDOW, order: FrameOrder::new(), waker: None, armed, gone: false }
    }

    fn wake(&self, what: Interest) {
        let wanted = self.armed.recv && what.recv || self.armed.send && what.send;
        if let Some(waker) = self.waker.as_ref().filter(|_| wanted) {
            waker.wake();
        }
    }

    /// The peer has taken so many bytes in all.
    fn allow(&mut self, taken: u64) -> Result<(), String> {
        if taken > self.put {
            return Err("took more bytes than were sent".into());
        }
        if taken + WINDOW > self.allowed {
            self.allowed = taken + WINDOW;
            self.wake(SEND);
        }
        Ok(())
    }
}

const RECV: Interest = Interest { recv: true, send: false };
const SEND: Interest = Interest { recv: false, send: true };
const BOTH: Interest = Interest { recv: true, send: true };
