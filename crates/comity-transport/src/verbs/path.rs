//! A cable, or a path through a switch: queue pairs, their slots, and the frames under way in them.

use super::{
    driver::Rails,
    flow::{Claim, In, Out},
    frame::{FrameHeader, HEADER, HELLO},
};
use crate::sys::verbs::{QueueService, Slab};

/// Marks the completion of a receive; the slot is in the lower half.
pub(super) const RECEIVE: u64 = 1 << 63;

/// The queue pair of short frames, and that of long ones.
pub(super) const QUEUE_PAIRS: usize = 2;
pub(super) const SMALL: usize = 0;
pub(super) const BULK: usize = 1;

/// A queue pair and its slots.
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
            qp.inn.give();
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
        let given = [self.qps[SMALL].inn.given(), self.qps[BULK].inn.given()];
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
        qp.out.sent();
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

    /// Frames that came.
    pub(super) fn came(&self) -> [u64; QUEUE_PAIRS] {
        [self.qps[SMALL].inn.count(), self.qps[BULK].inn.count()]
    }

    pub(super) fn sent(&self) -> [u64; QUEUE_PAIRS] {
        [self.qps[SMALL].out.count(), self.qps[BULK].out.count()]
    }
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
            (qp.held..posted).for_each(|_| qp.inn.give());
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
