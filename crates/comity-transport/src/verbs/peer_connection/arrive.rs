//! Arrivals at a peer connection: frames from the devices, and messages on the control socket.

use super::{
    GroupStream, PayloadPlace, PeerConnection,
    stream::{BOTH, RECV, SEND, WINDOW},
};
use crate::{
    sys::verbs::{Completion, Slab},
    verbs::{
        control_socket::ControlMessage,
        driver::Rails,
        flow::Claim,
        frame::{Damage, FrameHeader, HEADER, HELLO},
        path::RECEIVE,
    },
};
use std::sync::Arc;

impl PeerConnection {
    /// A device has done something for a queue pair of this peer connection.
    pub(in crate::verbs) fn completed(
        &mut self,
        rails: &mut Rails,
        path: usize,
        qp: usize,
        done: Completion,
    ) {
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
    pub(in crate::verbs) fn listen(&mut self) {
        self.control_socket.flush();
        self.control_socket.fill();
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

fn over(name: &str) -> String {
    format!("over the RDMA path {name}")
}
