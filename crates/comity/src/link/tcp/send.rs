//! The sending half: bytes from the caller's memory straight into the system's, in frames; where they are sealed, through one
//! buffer in which they are encrypted.

use super::{
    CHUNK, Ways,
    courier::{Courier, Couriers, PARCELS, PIECE},
    frame::{
        self, FRAME, HEADER, SEALED_BATCH, SEALED_FRAME, SEALED_HEADER, SEALED_MOST, SEALED_SMALL, SMALL,
        header,
    },
    socket::send,
};
use crate::{link::LinkError, seal::Seal};
use std::{collections::VecDeque, io::IoSlice, net::TcpStream, sync::Arc};

/// A courier is for messages this long while there is something to receive, too,
const LONG: usize = 128 << 10;
/// and else for those,
const LONGER: usize = 4 << 20;
/// if as much of them is offered at once,
const CARRIED: usize = 64 << 10;
/// so many parcels between two looks at what has come.
const PIECES: usize = 2;

/// A frame that has a header but is not yet wholly with the system.
#[derive(Debug)]
struct Open {
    header: [u8; HEADER],
    header_sent: usize,
    left: usize,
}

impl Open {
    /// `n` more bytes are with the system; how many of them are the header's.
    fn pass_header(&mut self, n: usize) -> usize {
        let of_header = n.min(HEADER - self.header_sent);
        self.header_sent += of_header;
        of_header
    }
}

/// Where the outgoing stream stands.
#[derive(Debug, Default)]
pub(super) struct Sender {
    /// The number of the open frame, or else of the next; sealed frames have theirs already.
    number: u64,
    /// The connection that it travels on.
    pub(super) turn: usize,
    /// The connections that carry what leaves.
    ways: Ways,
    open: Option<Open>,
    /// The frame that leaves together with the open one.
    next: Option<Open>,
    /// One per connection; none where frames travel in the clear.
    seals: Vec<Seal>,
    /// Holds the sealed frames that are not yet wholly with the system, or earlier ones.
    sealed: Box<[u8]>,
    /// Where they end in it.
    sealed_end: usize,
    /// How much of them is with the system.
    sent: usize,
    /// Where each that is not wholly with the system ends, and how many bytes it carries.
    leaving: VecDeque<(usize, usize)>,
    /// Bytes of sealed frames that are with the system, but were not accepted yet; the courier's too.
    gone: usize,
    /// Sends large transfers, where there may be so many and one connection carries all that leaves.
    pub(super) courier: Option<Courier>,
    couriers: Option<Arc<Couriers>>,
    /// Bytes of each parcel that it has.
    parcels: VecDeque<usize>,
    /// The message that leaves is one for it.
    is_long: bool,
}

impl Sender {
    /// Over so many connections, of which `ways` are used.
    pub(super) fn new(
        connections: usize,
        ways: Ways,
        seals: Vec<Seal>,
        couriers: Option<Arc<Couriers>>,
    ) -> Self {
        let is_alone = ways.count(connections) == 1;
        let room = match is_alone {
            _ if seals.is_empty() => 0,
            // And a head's frame.
            true => SEALED_HEADER + SMALL + SEALED_BATCH,
            false => SEALED_HEADER + SEALED_MOST,
        };
        // What also carries the other direction is better left to one thread.
        let couriers = couriers.filter(|_| is_alone && ways != Ways::All);
        Self { turn: ways.first(), ways, seals, sealed: vec![0; room].into(), couriers, ..Self::default() }
    }

    /// Whether a courier has parcels.
    pub(super) fn is_carried(&self) -> bool {
        !self.parcels.is_empty()
    }

    /// Hand a prefix of `head` and `body` to the system; how many bytes of them.
    pub(super) fn put(
        &mut self,
        sockets: &[TcpStream],
        head: &[u8],
        body: &[u8],
    ) -> Result<usize, LinkError> {
        if self.courier.is_some() && self.is_for_courier(head.len() + body.len()) {
            return self.put_carried(head, body);
        }
        if !self.seals.is_empty() {
            return self.put_sealed(sockets, head, body);
        }
        let total = head.len() + body.len();
        let mut accepted = 0;
        while accepted < total && accepted < CHUNK {
            let Some(socket) = sockets.get(self.turn) else { break };
            let number = self.number;
            // The whole frame is at hand when it opens, so its checksum can travel in front.
            let frame = |number, from: usize, left| Open {
                header: header(number, window(head, body, from, left)),
                header_sent: 0,
                left,
            };
            let open = self.open.get_or_insert_with(|| {
                // A large message's head goes in a frame of its own, which is small: what decides where the rest belongs is
                // not believed before it has been checked.
                let alone = head.len().saturating_sub(accepted);
                if alone == 0 || alone > SMALL || total - accepted <= SMALL {
                    return frame(number, accepted, FRAME.min(total - accepted));
                }
                if self.ways.count(sockets.len()) == 1 {
                    // It leaves in one go with the frame behind it.
                    let behind = accepted + alone;
                    self.next = Some(frame(number + 1, behind, FRAME.min(total - behind)));
                }
                frame(number, accepted, alone)
            });
            let [h, b] = window(head, body, accepted, open.left);
            let start = &open.header[open.header_sent..];
            let (start2, [h2, b2]) = match &self.next {
                Some(next) if h.len() + b.len() == open.left => {
                    (&next.header[..], window(head, body, accepted + open.left, next.left))
                }
                _ => (&[][..], [&[][..]; 2]),
            };
            let parts = [start, h, b, start2, h2, b2];
            let asked: usize = parts.iter().map(|p| p.len()).sum();
            let sent = send(socket, &parts.map(IoSlice::new))?;
            let mut rest = sent;
            while let Some(open) = &mut self.open {
                rest -= open.pass_header(rest);
                let n = rest.min(open.left);
                open.left -= n;
                accepted += n;
                rest -= n;
                if open.left > 0 {
                    break;
                }
                self.open = self.next.take();
                self.number += 1;
                self.turn = self.ways.next(self.turn, sockets.len());
            }
            if sent < asked {
                break;
            }
        }
        Ok(accepted)
    }

    /// As [`put`](Self::put). The peer can open a frame only whole, so none of it is accepted before all of it is with the
    /// system; until then the same bytes are offered again, perhaps fewer at a time than the frame has.
    fn put_sealed(&mut self, sockets: &[TcpStream], head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        let (mut accepted, mut is_full) = (0, false);
        while accepted < total && accepted < CHUNK {
            if self.gone > 0 {
                let n = self.gone.min(total - accepted);
                self.gone -= n;
                accepted += n;
                continue;
            }
            if is_full {
                break;
            }
            if self.leaving.is_empty() {
                self.seal_next(self.ways.count(sockets.len()), head, body, accepted)?;
            }
            let Some(socket) = sockets.get(self.turn) else { break };
            self.sent += send(socket, &[IoSlice::new(&self.sealed[self.sent..self.sealed_end])])?;
            is_full = self.sent < self.sealed_end;
            while let Some(&(end, text)) = self.leaving.front()
                && end <= self.sent
            {
                self.leaving.pop_front();
                self.gone += text;
            }
            if !is_full {
                self.turn = self.ways.next(self.turn, sockets.len());
            }
        }
        Ok(accepted)
    }

    /// See [`Link::announce`](crate::link::Link::announce).
    pub(super) fn announce(&mut self, sockets: &[TcpStream], len: usize, is_busy: bool) {
        self.is_long = self.couriers.is_some() && len >= if is_busy { LONG } else { LONGER };
        if !self.is_long {
            return;
        }
        if let Some(courier) = &self.courier {
            courier.rouse();
        } else if let Some((socket, couriers)) = sockets.get(self.turn).zip(self.couriers.as_ref()) {
            // Others keep theirs as long as their links live; the next message asks again.
            self.courier = Courier::start(socket, couriers).unwrap_or_else(|e| {
                tracing::debug!(%e, "no thread to send with");
                None
            });
        }
    }

    /// Whether the courier is to have what is offered, `total` bytes.
    fn is_for_courier(&self, total: usize) -> bool {
        if self.is_carried() || (self.gone > 0 && self.seals.is_empty()) {
            return true;
        }
        // What was begun without it ends without it.
        self.is_long && total >= CARRIED && self.open.is_none() && self.leaving.is_empty() && self.gone == 0
    }

    /// As [`put`](Self::put), by the courier. Parcels hold frames beyond what was accepted, of bytes that are offered again.
    fn put_carried(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        let Some(courier) = &mut self.courier else { return Ok(0) };
        for _ in 0..courier.went()? {
            self.gone += self.parcels.pop_front().unwrap_or_default();
        }
        let accepted = self.gone.min(total);
        self.gone -= accepted;
        let mut at = accepted + self.gone + self.parcels.iter().sum::<usize>();
        for _ in 0..PIECES {
            if at >= total || self.parcels.len() == PARCELS {
                break;
            }
            let (number, seal, from) = (&mut self.number, self.seals.get(self.turn), at);
            courier.hand(|place| {
                let mut end = 0;
                while at < total {
                    let alone = head.len().saturating_sub(at);
                    let is_apart = (1..=SMALL).contains(&alone) && total - at > SMALL;
                    let parts = window(head, body, at, if is_apart { alone } else { PIECE });
                    end += match seal {
                        Some(seal) => frame::seal(&mut place[end..], *number, parts, seal)?,
                        None => frame::copy(&mut place[end..], *number, parts),
                    };
                    at += parts[0].len() + parts[1].len();
                    *number += 1;
                    if !is_apart {
                        break;
                    }
                }
                Ok(end)
            })?;
            self.parcels.push_back(at - from);
        }
        Ok(accepted)
    }

    /// Fill the buffer with the frames that begin `accepted` bytes into `head` and `body`; one, if the next travels on another connection.
    /// A large message's head has one of its own, so that the cipher finds the rest in one piece where the caller has it.
    fn seal_next(
        &mut self,
        connections: usize,
        head: &[u8],
        body: &[u8],
        accepted: usize,
    ) -> Result<(), LinkError> {
        let Some(seal) = self.seals.get(self.turn) else { return Ok(()) };
        let total = head.len() + body.len();
        let (most, frames) = if connections == 1 { (SEALED_FRAME, usize::MAX) } else { (SEALED_MOST, 1) };
        let mut at = accepted;
        (self.sent, self.sealed_end) = (0, 0);
        while at < total && self.leaving.len() < frames {
            let alone = head.len().saturating_sub(at);
            let is_apart = (1..=SMALL).contains(&alone) && total - at > SEALED_SMALL;
            let parts = window(head, body, at, if is_apart { alone } else { most });
            let n = parts[0].len() + parts[1].len();
            let place = &mut self.sealed[self.sealed_end..];
            if place.len() < SEALED_HEADER + n {
                break;
            }
            self.sealed_end += frame::seal(place, self.number, parts, seal)?;
            self.leaving.push_back((self.sealed_end, n));
            self.number += 1;
            at += n;
        }
        Ok(())
    }
}

/// The bytes of `head` followed by `body` from `from` on, at most `len`.
fn window<'a>(head: &'a [u8], body: &'a [u8], from: usize, len: usize) -> [&'a [u8]; 2] {
    let h = &head[from.min(head.len())..];
    let h = &h[..len.min(h.len())];
    let b = &body[from.saturating_sub(head.len()).min(body.len())..];
    [h, &b[..(len - h.len()).min(b.len())]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_window_is_a_slice_of_both(head: Vec<u8>, body: Vec<u8>, from in 0usize..300, len in 0usize..300) {
            let all = [head.clone(), body.clone()].concat();
            let from = from.min(all.len());
            let [h, b] = window(&head, &body, from, len);
            prop_assert_eq!([h, b].concat(), &all[from..(from + len).min(all.len())]);
        }
    }
}
