//! A cable, or a path through a switch: queue pairs, their slots, and the frames under way in them.
//!
//! Limits on sends in a queue pair, and the frames that must come: counts alone, no device.
//!
//! Header of every slot.
//!
//! ```text
//!   0 magic, version   8 epoch            16 group id         24 offset in the stream
//!  32 number in queue pair  40 taken in stream  48 given, by queue pair   56 length      60 CRC32C
//! ```
//!
//! The checksum covers the header and the payload: a provider without acknowledgements promises no integrity.

use super::driver::Rails;
use crate::sys::verbs::{QueueService, Slab};
use comity_kernel::Crc32c;
use std::collections::{BTreeMap, VecDeque};

/// Marks the completion of a receive; the slot is in the lower half.
pub(super) const RECEIVE: u64 = 1 << 63;

/// The queue pair of short frames, and that of long ones.
pub(super) const QUEUE_PAIRS: usize = 2;
pub(super) const SMALL: usize = 0;
pub(super) const BULK: usize = 1;

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) queue: u32,
    /// Offset of its slots in the slab: those to send from, then those to receive in.
    pub(super) at: usize,
    pub(super) slots: usize,
    pub(super) bytes: usize,
    /// Receives that the queue took at first, which may be fewer than there are slots: no others are ever posted.
    pub(super) posted: usize,
    pub(super) out: Out,
    pub(super) inn: In,
    /// Receives that the queue had no room for.
    pub(super) unposted: Vec<usize>,
    /// Slots that hold bytes which nobody has taken.
    pub(super) held: usize,
    pub(super) heard: bool,
}

impl QueuePair {
    pub(super) fn new(queue: u32, at: usize, slots: usize, bytes: usize) -> Self {
        let out = Out::new(slots, 0);
        let inn = In::default();
        Self { queue, at, slots, bytes, posted: 0, out, inn, unposted: Vec::new(), held: 0, heard: false }
    }

    /// Returns true if the peer must be told now of receives that were posted again: before it runs out of those that it knows of.
    pub(super) fn is_due(&self) -> bool {
        self.inn.untold() >= (self.posted as u64 / 4).max(1)
    }

    /// Returns true if one more slot that nobody empties would leave too few to receive in.
    pub(super) fn is_crowded(&self) -> bool {
        (self.held + 1) * 4 > self.posted * 3
    }

    pub(super) fn send_at(&self, slot: usize) -> usize {
        self.at + slot * self.bytes
    }

    pub(super) fn receive_at(&self, slot: usize) -> usize {
        self.at + (self.slots + slot) * self.bytes
    }
}

/// A cable, or a path through a switch: a queue pair of each kind.
#[derive(Debug)]
pub(super) struct RdmaPath {
    /// The same on both ends: how many were tried before it.
    pub(super) id: u8,
    pub(super) rail: usize,
    /// Its part of the rail's slab.
    pub(super) region: (usize, usize),
    pub(super) qps: [QueuePair; QUEUE_PAIRS],
    pub(super) service: QueueService,
    /// Name in errors: the device and address here, the address there.
    pub(super) name: String,
    pub(super) equal_frames: bool,
    /// Both ends have heard the other's first frames.
    pub(super) up: bool,
    /// Reason for which it will not come up.
    pub(super) error: Option<String>,
    /// Number of sent frames that the peer was told, and the number sent at the last look.
    pub(super) told: [u64; QUEUE_PAIRS],
    pub(super) looked: [u64; QUEUE_PAIRS],
    /// Number of frames that the peer claims to have sent, while some are missing.
    pub(super) claimed: Option<Claim<QUEUE_PAIRS>>,
}

impl RdmaPath {
    pub(super) fn new(
        id: u8,
        rail: usize,
        region: (usize, usize),
        qps: [QueuePair; QUEUE_PAIRS],
        service: QueueService,
        equal_frames: bool,
        name: String,
    ) -> Self {
        let told = [0; QUEUE_PAIRS];
        let looked = [0; QUEUE_PAIRS];
        let up = false;
        let error = None;
        let claimed = None;
        Self { id, rail, region, qps, service, name, equal_frames, up, error, told, looked, claimed }
    }

    /// Let nothing remain of what an earlier path sent from here: where all of a slot is sent, this one's peer would get it.
    pub(super) fn blank(&self, slab: &Slab) {
        let qp = &self.qps[BULK];
        if self.equal_frames {
            for slot in 0..qp.slots {
                // SAFETY: the region is this path's, which has posted nothing yet.
                unsafe { slab.write(qp.send_at(slot), &vec![0; qp.bytes]) };
            }
        }
    }

    /// Post every receive; how many the queues took.
    pub(super) fn post_all(&mut self, rails: &mut Rails) -> Result<[u32; QUEUE_PAIRS], String> {
        let mut counts = [0; QUEUE_PAIRS];
        for (kind, count) in counts.iter_mut().enumerate() {
            for slot in 0..self.qps[kind].slots {
                if !self.post(rails, kind, slot)? {
                    break;
                }
                *count += 1;
            }
            if *count == 0 {
                return Err(format!("{}: no receive could be posted", self.name));
            }
            self.qps[kind].posted = *count as usize;
        }
        Ok(counts)
    }

    /// The peer has posted so many at first.
    pub(super) fn posted(&mut self, counts: [u32; QUEUE_PAIRS]) {
        for (qp, count) in self.qps.iter_mut().zip(counts) {
            qp.out = Out::new(qp.slots, count as usize);
        }
    }

    pub(super) fn post(&mut self, rails: &mut Rails, kind: usize, slot: usize) -> Result<bool, String> {
        let qp = &self.qps[kind];
        let at = qp.receive_at(slot);
        let id = RECEIVE | slot as u64;
        let device = rails.device(self.rail).ok_or("the device is closed")?;
        device.receive(qp.queue, id, at, qp.bytes).map_err(|t| t.to_string())
    }

    /// Let a slot receive again.
    pub(super) fn give(&mut self, rails: &mut Rails, kind: usize, slot: usize) -> Result<(), String> {
        self.qps[kind].unposted.push(slot);
        while let Some(&slot) = self.qps[kind].unposted.last() {
            // A queue that is full takes it later.
            if !self.post(rails, kind, slot)? {
                break;
            }
            let qp = &mut self.qps[kind];
            qp.unposted.pop();
            qp.inn.given += 1;
        }
        Ok(())
    }

    /// Send one frame, if a slot and a credit are there.
    pub(super) fn send(
        &mut self,
        rails: &mut Rails,
        kind: usize,
        header: FrameHeader,
        head: &[u8],
        body: &[u8],
    ) -> Result<bool, String> {
        let given = self.given();
        let qp = &mut self.qps[kind];
        if qp.out.room() == 0 {
            return Ok(false);
        }
        let (slot, number) = qp.out.next();
        let at = qp.send_at(slot);
        let header = FrameHeader { number, given, ..header };
        let device = rails.device(self.rail).ok_or("the device is closed")?;
        let slab = device.slab();
        // SAFETY: the slot's last send has completed, or `room` would not have counted it; only this thread, under the driver's lock,
        // writes to slots that are not posted.
        unsafe {
            slab.write(at, &header.encode(head, body));
            slab.write(at + HEADER, head);
            slab.write(at + HEADER + head.len(), body);
        }
        let whole = self.equal_frames && kind == BULK;
        let len = if whole { qp.bytes } else { HEADER + head.len() + body.len() };
        if !device.send(qp.queue, number, at, len).map_err(|t| t.to_string())? {
            return Ok(false);
        }
        qp.out.sent += 1;
        self.qps.iter_mut().for_each(|l| l.inn.told());
        Ok(true)
    }

    /// Send the frame that proves a queue pair.
    pub(super) fn greet(&mut self, rails: &mut Rails, epoch: u64) -> Result<(), String> {
        for kind in [SMALL, BULK] {
            let header =
                FrameHeader { epoch, group_id: HELLO, at: 0, number: 0, taken: 0, given: [0; 2], len: 0 };
            if !self.send(rails, kind, header, &[], &[])? {
                return Err(format!("{}: no room for the first frame", self.name));
            }
        }
        Ok(())
    }

    pub(super) fn is_heard(&self) -> bool {
        self.qps.iter().all(|l| l.heard)
    }

    /// Returns true if the peer's claim is met.
    pub(super) fn is_complete(&self) -> bool {
        self.claimed.as_ref().is_none_or(|claim| claim.is_met(self.came()))
    }

    /// Receives posted again, as frames and messages tell them.
    pub(super) fn given(&self) -> [u32; QUEUE_PAIRS] {
        self.qps.each_ref().map(|l| l.inn.given as u32)
    }

    /// Frames that came.
    pub(super) fn came(&self) -> [u64; QUEUE_PAIRS] {
        self.qps.each_ref().map(|l| l.inn.due)
    }

    pub(super) fn sent(&self) -> [u64; QUEUE_PAIRS] {
        self.qps.each_ref().map(|l| l.out.sent)
    }
}

/// Room in a queue pair towards the peer: a frame needs a slot here that has completed and a receive there that was posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    slots: u64,
    /// Receives that the peer posts at first.
    posted: u64,
    sent: u64,
    completed: u64,
    /// Number of receives that the peer has posted again.
    given: u64,
}

/// The peer says that it has given more than it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess;

impl Out {
    pub(super) fn new(slots: usize, posted: usize) -> Self {
        Self { slots: slots as u64, posted: posted as u64, sent: 0, completed: 0, given: 0 }
    }

    /// Returns the number of frames that can go now.
    pub(super) fn room(&self) -> u64 {
        let here = self.slots - (self.sent - self.completed);
        let there = self.posted + self.given - self.sent;
        here.min(there)
    }

    /// The slot for the next frame, and the frame's number.
    pub(super) fn next(&self) -> (usize, u64) {
        ((self.sent % self.slots) as usize, self.sent)
    }

    /// Counts a completion; they come in order.
    pub(super) fn completed(&mut self) {
        self.completed = (self.completed + 1).min(self.sent);
    }

    /// Returns true if all sends have completed.
    pub(super) fn is_done(&self) -> bool {
        self.completed == self.sent
    }

    /// The peer has posted so many again, modulo 2^32; whether that is news. Word may come by two ways: the older is no news.
    pub(super) fn credit(&mut self, given: u32) -> Result<bool, Excess> {
        let more = given.wrapping_sub(self.given as u32);
        if more == 0 || more > u32::MAX / 2 {
            return Ok(false);
        }
        let given = self.given + u64::from(more);
        if given > self.sent {
            return Err(Excess);
        }
        self.given = given;
        Ok(true)
    }
}

/// Frames received in a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct In {
    due: u64,
    /// Number of receives that were posted again.
    given: u64,
    /// Number of those that the peer was told.
    told: u64,
}

/// Another frame came than was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) due: u64,
}

impl In {
    pub(super) fn arrived(&mut self, number: u64) -> Result<(), Gap> {
        if number != self.due {
            return Err(Gap { due: self.due });
        }
        self.due += 1;
        Ok(())
    }

    /// Returns the number of reposted receives that the peer does not know of.
    pub(super) fn untold(&self) -> u64 {
        self.given - self.told
    }

    pub(super) fn told(&mut self) {
        self.told = self.given;
    }
}

/// Frames that the peer says have left it. Where nothing is acknowledged, a loss at the end of a burst shows in nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<const N: usize> {
    counts: [u64; N],
    /// Counts at the last look.
    came: [u64; N],
    /// Looks since any of it came. Not the time: a process that was paused for seconds finds on its first look what came meanwhile.
    quiet: u32,
}

impl<const N: usize> Claim<N> {
    pub(super) fn new(counts: [u64; N], came: [u64; N]) -> Self {
        Self { counts, came, quiet: 0 }
    }

    pub(super) fn is_met(&self, came: [u64; N]) -> bool {
        came.iter().zip(self.counts).all(|(came, count)| *came >= count)
    }

    /// Look, with what has come until now; whether the rest is lost.
    pub(super) fn look(&mut self, came: [u64; N], most: u32) -> bool {
        if came != self.came {
            self.came = came;
            self.quiet = 0;
        } else {
            self.quiet += 1;
        }
        self.quiet >= most && !self.is_met(came)
    }

    /// Returns the number of frames claimed, in all.
    pub(super) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The frames of one group from one peer, put in order. `P` is where a payload lies.
#[derive(Debug)]
pub(super) struct FrameOrder<P> {
    /// The offset after the last of `ready`.
    next: u64,
    pub(super) ready: VecDeque<(P, usize)>,
    /// By offset: those that came before their turn, over another queue pair.
    early: BTreeMap<u64, (P, usize)>,
    /// Bytes that were used up.
    pub(super) taken: u64,
    told: u64,
    /// End of the stream, once the peer has announced it.
    pub(super) end: Option<u64>,
}

/// Bytes came twice, or past the end, or more than were allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overlap;

impl<P> FrameOrder<P> {
    pub(super) fn new() -> Self {
        Self { next: 0, ready: VecDeque::new(), early: BTreeMap::new(), taken: 0, told: 0, end: None }
    }

    /// `len` bytes came whose first has the offset `at`; whether more is ready now. No more than `window` bytes may lie here.
    pub(super) fn arrive(&mut self, at: u64, piece: P, len: usize, window: u64) -> Result<bool, Overlap> {
        let end = at.checked_add(len as u64).ok_or(Overlap)?;
        let beyond = self.early.range(at..).next().is_some_and(|(other, _)| *other < end);
        let before = self.early.range(..=at).next_back().is_some_and(|(o, (_, n))| o + *n as u64 > at);
        let past = self.end.is_some_and(|e| end > e) || end - self.taken.min(end) > window;
        if len == 0 || at < self.next || beyond || before || past {
            return Err(Overlap);
        }
        self.early.insert(at, (piece, len));
        let was = self.next;
        while let Some(entry) = self.early.first_entry().filter(|e| *e.key() == self.next) {
            let (piece, len) = entry.remove();
            self.next += len as u64;
            self.ready.push_back((piece, len));
        }
        Ok(self.next > was)
    }

    /// The peer puts no more than `total` bytes.
    pub(super) fn end(&mut self, total: u64) -> Result<(), Overlap> {
        let last = self.early.last_key_value().map_or(self.next, |(at, (_, n))| at + *n as u64);
        if total < last || self.end.is_some_and(|e| e != total) {
            return Err(Overlap);
        }
        self.end = Some(total);
        Ok(())
    }

    /// Returns true if everything up to the end has come and was fetched.
    pub(super) fn is_over(&self) -> bool {
        self.ready.is_empty() && self.end == Some(self.next)
    }

    /// Returns the number of used bytes that the peer does not know of.
    pub(super) fn untold(&self) -> u64 {
        self.taken - self.told
    }

    pub(super) fn told(&mut self) {
        self.told = self.taken;
    }
}

/// A payload begins on a cache line of its own.
pub(super) const HEADER: usize = 64;
const MAGIC: [u8; 8] = *b"comity\x01\0";
/// Offset of the checksum, which covers everything before it.
const SUM: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// Drawn when the peer connection was made: what an earlier one sent is not taken for this one's.
    pub(super) epoch: u64,
    /// The group, or [`HELLO`].
    pub(super) group_id: u64,
    /// The place of the first byte in the group's stream.
    pub(super) at: u64,
    /// Number of earlier frames in this queue pair.
    pub(super) number: u64,
    /// Number of bytes of the group's other stream that its sender has taken.
    pub(super) taken: u64,
    /// Number of receives of each queue pair of this path that the sender has posted again, modulo 2^32.
    pub(super) given: [u32; 2],
    pub(super) len: u32,
}

/// In place of a group: the first frame of a queue pair, which proves that the path leads where it should.
pub(super) const HELLO: u64 = u64::MAX;

/// Fault of a slot that is no valid frame of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Not a frame, or one of another version.
    Foreign,
    Sum,
    /// A frame of a peer connection that is over.
    Stale,
}

impl FrameHeader {
    /// The header's bytes, for a payload that is these two parts.
    pub(super) fn encode(&self, head: &[u8], body: &[u8]) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        let given = u64::from(self.given[0]) | u64::from(self.given[1]) << 32;
        let words = [self.epoch, self.group_id, self.at, self.number, self.taken, given];
        out[..8].copy_from_slice(&MAGIC);
        for (place, word) in out[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out[56..SUM].copy_from_slice(&self.len.to_le_bytes());
        let sum = sum(&out[..SUM], head, body);
        out[SUM..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The header of what lies in a slot, once all of it is found to be right; its payload follows.
    pub(super) fn decode(slot: &[u8], epoch: u64) -> Result<Self, Damage> {
        let (head, payload) = slot.split_at_checked(HEADER).ok_or(Damage::Foreign)?;
        if head[..8] != MAGIC {
            return Err(Damage::Foreign);
        }
        let word = |i: usize| head[8 * i..8 * i + 8].iter().rev().fold(0, |w: u64, b| w << 8 | u64::from(*b));
        let half = |at: usize| head[at..at + 4].iter().rev().fold(0, |w: u32, b| w << 8 | u32::from(*b));
        let len = half(56);
        let payload = payload.get(..len as usize).ok_or(Damage::Sum)?;
        if sum(&head[..SUM], payload, &[]) != half(SUM) {
            return Err(Damage::Sum);
        }
        if word(1) != epoch {
            return Err(Damage::Stale);
        }
        Ok(Self {
            epoch,
            group_id: word(2),
            at: word(3),
            number: word(4),
            taken: word(5),
            given: [half(48), half(52)],
            len,
        })
    }
}

fn sum(header: &[u8], head: &[u8], body: &[u8]) -> u32 {
    let mut sum = Crc32c::new();
    for part in [header, head, body] {
        sum.update(part);
    }
    sum.value()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_hears_of_receives_before_it_has_none_left() {
        for posted in 1..=64 {
            let mut qp = QueuePair::new(1, 0, 64, 4096);
            qp.posted = posted;
            while !qp.is_crowded() {
                qp.held += 1;
            }
            assert!(qp.held < posted, "{posted}");
            // All have been filled, and those that nobody holds were posted again.
            (qp.held..posted).for_each(|_| qp.inn.given += 1);
            assert!(qp.is_due(), "{posted}");
        }
    }

    #[test]
    fn whole_slots_take_nothing_of_an_earlier_path_along() {
        for equal in [true, false] {
            let slab = Slab::new(64 << 10).unwrap();
            // SAFETY: one thread, and no device.
            unsafe { slab.write(0, &vec![7; slab.len()]) };
            let qps = [QueuePair::new(1, 0, 2, 4096), QueuePair::new(2, 16 << 10, 2, 8192)];
            let path = RdmaPath::new(0, 0, (0, 48 << 10), qps, QueueService::Unreliable, equal, "w".into());
            path.blank(&slab);
            let long = (16 << 10)..(32 << 10);
            for i in 0..slab.len() {
                let blank = equal && long.contains(&i);
                // SAFETY: as above.
                assert_eq!(unsafe { slab.bytes(i, 1) }, [if blank { 0 } else { 7 }], "{i}");
            }
        }
    }
}

#[cfg(test)]
mod flow_tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_queue_pair_sends_what_the_peer_has_posted() {
        let mut out = Out::new(4, 3);
        for i in 0..3 {
            assert_eq!((out.room(), out.next()), (3 - i, (i as usize, i)));
            out.sent += 1;
        }
        assert_eq!(out.room(), 0);
        out.completed();
        assert_eq!(out.room(), 0, "completed here, not posted there");
        assert_eq!(out.credit(1), Ok(true));
        assert_eq!(out.room(), 1);
        assert_eq!(out.credit(1), Ok(false));
        assert_eq!(out.credit(0), Ok(false), "older word");
        assert_eq!(out.credit(4), Err(Excess));
        out.sent += 1;
        assert_eq!(out.next(), (0, 4));
        assert!(!out.is_done());
        (0..3).for_each(|_| out.completed());
        assert!(out.is_done());
    }

    #[test]
    fn counts_of_credits_wrap() {
        let mut out = Out {
            sent: u64::from(u32::MAX) + 5,
            completed: 0,
            given: u64::from(u32::MAX),
            slots: 1 << 40,
            posted: 9,
        };
        assert_eq!(out.credit(3), Ok(true));
        assert_eq!(out.given, u64::from(u32::MAX) + 4);
    }

    #[test]
    fn a_gap_and_a_repetition_are_found() {
        let mut qp = In::default();
        assert_eq!((qp.arrived(0), qp.arrived(1)), (Ok(()), Ok(())));
        assert_eq!((qp.arrived(1), qp.arrived(3)), (Err(Gap { due: 2 }), Err(Gap { due: 2 })));
        qp.given += 1;
        assert_eq!((qp.untold(), qp.given), (1, 1));
        qp.told();
        assert_eq!(qp.untold(), 0);
    }

    #[test]
    fn a_claim_is_lost_after_so_many_looks_at_which_nothing_came() {
        let mut claim = Claim::new([5, 2], [1, 2]);
        assert_eq!(claim.total(), 7);
        assert!((0..2).all(|_| !claim.look([1, 2], 3)));
        // Each frame begins the wait anew, whichever the queue pair.
        assert!(!claim.look([4, 2], 3) && !claim.look([4, 2], 3) && !claim.look([4, 3], 3));
        assert!((0..2).all(|_| !claim.look([4, 3], 3)) && claim.look([4, 3], 3));
        // What is there is not lost, however long ago it came.
        assert!(!claim.is_met([4, 3]) && claim.is_met([5, 3]));
        assert!((0..9).all(|_| !claim.look([5, 3], 3)));
    }

    proptest! {
        #[test]
        fn pieces_come_out_in_order(lens in prop::collection::vec(1usize..50, 1..40), seed: u64) {
            let mut pieces = Vec::new();
            let mut at = 0u64;
            for len in &lens {
                pieces.push((at, *len));
                at += *len as u64;
            }
            // Two queue pairs, each in order, mixed at random.
            let mut input = seed;
            let mut qps = [VecDeque::new(), VecDeque::new()];
            for p in &pieces {
                input = input.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                qps[(input >> 40) as usize % 2].push_back(*p);
            }
            let mut order = FrameOrder::new();
            let mut out = Vec::new();
            while qps.iter().any(|l| !l.is_empty()) {
                input = input.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let Some((at, len)) = qps[(input >> 33) as usize % 2].pop_front() else { continue };
                order.arrive(at, at, len, 1 << 20).unwrap();
                prop_assert_eq!(order.arrive(at, at, len, 1 << 20), Err(Overlap), "twice");
                while let Some((piece, len)) = order.ready.pop_front() {
                    out.push((piece, len));
                    order.taken += len as u64;
                }
            }
            prop_assert_eq!(&out, &pieces);
            prop_assert_eq!(order.taken, at);
            prop_assert!(!order.is_over() && order.end(at.wrapping_sub(1)).is_err());
            prop_assert_eq!(order.end(at), Ok(()));
            prop_assert!(order.is_over());
            prop_assert_eq!(order.arrive(at, at, 1, 1 << 20), Err(Overlap), "past the end");
        }

        #[test]
        fn no_more_than_the_window_is_kept(window in 1u64..100, len in 1usize..200) {
            let mut order = FrameOrder::new();
            prop_assert_eq!(order.arrive(0, (), len, window).is_ok(), len as u64 <= window);
        }
    }
}

#[cfg(test)]
mod frame_tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn header()(epoch: u64, group_id: u64, at: u64, number: u64, taken: u64, given: [u32; 2]) -> FrameHeader {
            FrameHeader { epoch, group_id, at, number, taken, given, len: 0 }
        }
    }

    proptest! {
        #[test]
        fn frames_round_trip_and_a_changed_bit_is_found(
            h in header(), payload in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..300, bit in 0usize..3000, tail in 0usize..64,
        ) {
            let h = FrameHeader { len: payload.len() as u32, ..h };
            let (head, body) = payload.split_at(cut.min(payload.len()));
            let mut slot = h.encode(head, body).to_vec();
            slot.extend(&payload);
            let whole = slot.len();
            // What lies behind it in the slot is nothing to it.
            slot.extend(vec![0xaa; tail]);
            prop_assert_eq!(FrameHeader::decode(&slot, h.epoch), Ok(h));
            prop_assert_eq!(FrameHeader::decode(&slot, h.epoch ^ 1), Err(Damage::Stale));
            slot[bit / 8 % whole] ^= 1 << (bit % 8);
            prop_assert!(FrameHeader::decode(&slot, h.epoch).is_err());
        }

        #[test]
        fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 8 { bytes[..8].copy_from_slice(&MAGIC) }
            prop_assert!(FrameHeader::decode(&bytes, 0).is_err());
        }
    }
}
