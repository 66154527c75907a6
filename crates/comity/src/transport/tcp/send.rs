//! The sending half: bytes from the caller's memory straight into the system's, in frames; where they are sealed, through one
//! buffer in which they are encrypted. What a courier sends is copied, or encrypted, into its parcels.

use super::{
    CHUNK, Route,
    courier::{Courier, Couriers, PARCELS, PIECE},
    frame::{
        self, FRAME, HEADER, Place, SEALED_BATCH, SEALED_FRAME, SEALED_HEADER, SEALED_SMALL, SMALL, header,
    },
    socket::send,
};
use crate::{channel::Seal, transport::LinkError};
use std::{collections::VecDeque, io::IoSlice, net::TcpStream, sync::Arc};

/// Messages this long go aside. A courier has them while there is something to receive too, for alone sending is done sooner without;
const LONG: usize = 128 << 10;
/// and if as much of them is offered at once;
const CARRIED: usize = 64 << 10;
/// so many parcels between two looks at what has come.
const PIECES: usize = 2;
/// Bytes in the first frame of such a message that has no head, where the one before it was short.
const FIRST: usize = 64;

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

/// A frame to be made: of so many bytes, for this connection.
#[derive(Clone, Copy, Debug)]
struct Cut {
    number: u64,
    len: usize,
    turn: usize,
    next: Place,
    /// It carries nothing but the head of a message.
    is_head: bool,
}

/// Where the outgoing stream stands.
#[derive(Debug)]
pub(super) struct Sender {
    /// The number of the next frame to be made.
    number: u64,
    /// Where that is looked for.
    place: Place,
    /// Where the frames of the message that leaves go, but for its first.
    rest: Place,
    /// The connection of the frames that leave.
    pub(super) turn: usize,
    route: Route,
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
    /// Sends long messages, where there may be so many and one connection carries all of them.
    pub(super) courier: Option<Courier>,
    couriers: Option<Arc<Couriers>>,
    /// Bytes of each parcel that it has.
    parcels: VecDeque<usize>,
    /// The message that leaves is one for it.
    is_long: bool,
    /// Bytes of it in a parcel.
    piece: usize,
}

impl Sender {
    pub(super) fn new(route: Route, seals: Vec<Seal>, couriers: Option<Arc<Couriers>>) -> Self {
        // And a head's frame.
        let room = if seals.is_empty() { 0 } else { SEALED_HEADER + SMALL + SEALED_BATCH };
        Self {
            number: 0,
            place: Place::Home,
            rest: Place::Home,
            turn: route.connection(Place::Home),
            open: None,
            next: None,
            seals,
            sealed: vec![0; room].into(),
            sealed_end: 0,
            sent: 0,
            leaving: VecDeque::new(),
            gone: 0,
            courier: None,
            // What also carries the other direction is better left to one thread.
            couriers: couriers.filter(|_| route.is_narrow()),
            parcels: VecDeque::new(),
            is_long: false,
            piece: PIECE,
            route,
        }
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
        let total = head.len() + body.len();
        if self.courier.is_none() || !self.is_for_courier(total) {
            return self.put_own(sockets, head, body);
        }
        if self.is_carried() || self.is_there() {
            return self.put_carried(head, body);
        }
        // The first frame goes where there is no courier.
        let (first, rest) = body.split_at(if head.is_empty() { FIRST.min(body.len()) } else { 0 });
        let n = self.put_own(sockets, head, first)?;
        Ok(n + if n == head.len() + first.len() { self.put_carried(&[], rest)? } else { 0 })
    }

    /// Whether the next frame goes over the connection for long messages.
    fn is_there(&self) -> bool {
        self.route.connection(self.place) == self.route.connection(Place::Aside)
    }

    /// As [`put`](Self::put), without a courier.
    fn put_own(&mut self, sockets: &[TcpStream], head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        if self.seals.is_empty() {
            self.put_clear(sockets, head, body)
        } else {
            self.put_sealed(sockets, head, body)
        }
    }

    /// The next frame, of `total` bytes that are at hand, `head` of them a head. A large message's head has one of its own: what
    /// decides where the rest belongs is not believed before it has been checked, and the cipher finds the rest in one piece.
    fn cut(&self, head: usize, total: usize, most: usize, small: usize) -> Cut {
        // The reader is told by this frame where the others are.
        let is_turn = self.rest == Place::Aside && !self.is_there();
        let is_head = (1..=SMALL).contains(&head) && (is_turn || total > small);
        let len = match is_turn {
            _ if is_head => head,
            true => FIRST.min(total),
            false => most.min(total),
        };
        let turn = self.route.connection(self.place);
        Cut { number: self.number, len, turn, next: self.rest, is_head }
    }

    /// `cut` is made.
    fn pass(&mut self, cut: &Cut) {
        self.number += 1;
        self.turn = self.route.take(self.place);
        self.place = cut.next;
    }

    fn put_clear(&mut self, sockets: &[TcpStream], head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        let mut accepted = 0;
        while accepted < total && accepted < CHUNK {
            if self.open.is_none() {
                // The whole frame is at hand when it opens, so its checksum can travel in front.
                let open = |cut: Cut, from| Open {
                    header: header(cut.number, window(head, body, from, cut.len), cut.next),
                    header_sent: 0,
                    left: cut.len,
                };
                let cut = self.cut(head.len().saturating_sub(accepted), total - accepted, FRAME, SMALL);
                self.pass(&cut);
                self.open = Some(open(cut, accepted));
                let behind = accepted + cut.len;
                if cut.is_head && behind < total && self.route.connection(self.place) == self.turn {
                    // It leaves in one go with the frame behind it.
                    let second = self.cut(0, total - behind, FRAME, SMALL);
                    self.pass(&second);
                    self.next = Some(open(second, behind));
                }
            }
            let Some((open, socket)) = self.open.as_ref().zip(sockets.get(self.turn)) else { break };
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
            }
            if sent < asked {
                break;
            }
        }
        Ok(accepted)
    }

    /// As [`put_clear`](Self::put_clear). The peer can open a frame only whole, so none of it is accepted before all of it is with the
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
                self.seal_next(head, body, accepted)?;
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
        }
        Ok(accepted)
    }

    /// See [`Link::announce`](crate::transport::Link::announce).
    pub(super) fn announce(&mut self, sockets: &[TcpStream], len: usize, is_busy: bool) {
        let is_aside = self.route.connections > 1 && len >= LONG;
        self.rest = if is_aside { Place::Aside } else { Place::Home };
        self.is_long = is_aside && is_busy && self.couriers.is_some();
        if !self.is_long {
            return;
        }
        // The peer begins when the first parcel is there; of a longer message that is a small part in any case.
        self.piece = if len < PARCELS * PIECE { PIECE / 2 } else { PIECE };
        if let Some(courier) = &self.courier {
            courier.rouse();
        } else if let Some((socket, couriers)) =
            sockets.get(self.route.connection(Place::Aside)).zip(self.couriers.as_ref())
        {
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
            if at >= total || self.parcels.len() == PARCELS || !self.is_there() {
                break;
            }
            let mut cuts = [None; 2];
            let mut len = 0;
            for place in &mut cuts {
                let behind = at + len;
                if behind < total {
                    let cut = self.cut(head.len().saturating_sub(behind), total - behind, self.piece, SMALL);
                    self.pass(&cut);
                    *place = Some((cut, window(head, body, behind, cut.len)));
                    len += cut.len;
                    if !cut.is_head {
                        break;
                    }
                }
            }
            let (seal, Some(courier)) = (self.seals.get(self.turn), &mut self.courier) else { break };
            courier.hand(|room| {
                let mut end = 0;
                for (cut, parts) in cuts.into_iter().flatten() {
                    end += match seal {
                        Some(seal) => frame::seal(&mut room[end..], cut.number, parts, cut.next, seal)?,
                        None => frame::copy(&mut room[end..], cut.number, parts, cut.next),
                    };
                }
                Ok(end)
            })?;
            at += len;
            self.parcels.push_back(len);
        }
        Ok(accepted)
    }

    /// Fill the buffer with the frames that begin `accepted` bytes into `head` and `body` and travel on one connection.
    fn seal_next(&mut self, head: &[u8], body: &[u8], accepted: usize) -> Result<(), LinkError> {
        let total = head.len() + body.len();
        let mut at = accepted;
        (self.sent, self.sealed_end) = (0, 0);
        while at < total {
            let cut = self.cut(head.len().saturating_sub(at), total - at, SEALED_FRAME, SEALED_SMALL);
            let room = &mut self.sealed[self.sealed_end..];
            let is_other = !self.leaving.is_empty() && cut.turn != self.turn;
            let Some(seal) = self.seals.get(cut.turn) else { break };
            if is_other || room.len() < SEALED_HEADER + cut.len {
                break;
            }
            let parts = window(head, body, at, cut.len);
            self.sealed_end += frame::seal(room, cut.number, parts, cut.next, seal)?;
            self.leaving.push_back((self.sealed_end, cut.len));
            self.pass(&cut);
            at += cut.len;
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
