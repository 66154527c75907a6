//! Positions of both streams. Of the outgoing one: which bytes the next frame has, and over which connection it goes. Of the incoming one:
//! what was read of each connection, and which of them brings the next frame.
//!
//! The receiving half of a link: where its stream stands, and the framing that makes bytes of it, which are lent where they lie or
//! received straight into their place.

use super::{
    CHUNK, Route,
    frame::{FRAME, FrameRoute, HEADER, SEALED_BATCH, SEALED_HEADER, SEALED_MOST, SMALL},
    framing::{Unframing, unframing},
};
use crate::{
    LinkError, SMALL_WANT,
    channel::Seal,
    socket::{Inbox, receive},
};
use std::{io::IoSliceMut, net::TcpStream, sync::Arc};

/// Bytes of the buffer of a connection.
const INBOX: usize = (256 << 10) + 2 * AHEAD;
/// Number of bytes to read beyond what was asked for, to get the next header, or a small message whole,
/// with the same call. What of it must be copied again is little.
pub(super) const AHEAD: usize = 4 << 10;

const _: () = assert!(SMALL + HEADER <= AHEAD && INBOX >= SEALED_MOST + SEALED_HEADER + AHEAD);
const _: () = assert!(INBOX >= SEALED_BATCH + AHEAD);

#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) sockets: Arc<[TcpStream]>,
    pub(super) inboxes: Vec<Inbox>,
    /// The number of the arriving frame, or else of the next.
    pub(super) number: u64,
    /// The connection that it travels on.
    pub(super) turn: usize,
    route: Route,
    /// Connection of the frame after the arriving one.
    pub(super) next: FrameRoute,
    pub(super) arrived: u64,
    pub(super) ended: bool,
}

impl Inbound {
    pub(super) fn new(sockets: Arc<[TcpStream]>, route: Route) -> Self {
        Self {
            sockets,
            inboxes: (0..route.connections).map(|_| Inbox::new(INBOX)).collect(),
            number: 0,
            turn: route.connection(FrameRoute::Home),
            route,
            next: FrameRoute::Home,
            arrived: 0,
            ended: false,
        }
    }

    /// Bytes in the inbox of the turn.
    pub(super) fn unread(&self) -> &[u8] {
        self.inboxes[self.turn].unread()
    }

    /// Its first `n` bytes, which are there.
    pub(super) fn front(&mut self, n: usize) -> &mut [u8] {
        self.inboxes[self.turn].front(n)
    }

    /// Its first `n` bytes are not needed any more.
    pub(super) fn pass(&mut self, n: usize) {
        self.inboxes[self.turn].pass(n);
    }

    /// The arriving frame has ended.
    pub(super) fn pass_frame(&mut self) {
        self.number += 1;
        self.turn = self.route.take(self.next);
    }

    /// Read into the `room` that the inbox of the turn makes: how many bytes came, of how many asked for.
    pub(super) fn read(
        &mut self,
        room: impl FnOnce(&mut Inbox) -> &mut [u8],
    ) -> Result<(usize, usize), LinkError> {
        if self.ended {
            return Ok((0, 0));
        }
        let inbox = &mut self.inboxes[self.turn];
        let room = room(inbox);
        let asked = room.len();
        let got = receive(&self.sockets[self.turn], &mut [IoSliceMut::new(room)])
            .inspect_err(|_| self.ended = true)?;
        inbox.grow(got);
        self.arrived += got as u64;
        Ok((got, asked))
    }

    /// The stream cannot go on: forget what has arrived beyond this point.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.inboxes.iter_mut().for_each(Inbox::clear);
    }

    /// Swallow what lies unread in the sockets, within bounds, before they are closed.
    pub(super) fn drain(&mut self) {
        const MOST: usize = 64 << 20;
        for (inbox, socket) in self.inboxes.iter_mut().zip(&*self.sockets) {
            let mut swallowed = 0;
            while swallowed < MOST {
                inbox.clear();
                match receive(socket, &mut [IoSliceMut::new(inbox.room(INBOX))]) {
                    Ok(n) if n > 0 => swallowed += n,
                    _ => break,
                }
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) line: Inbound,
    pub(super) framing: Box<dyn Unframing>,
    /// Bytes of several frames put together for a small want, in front of all others.
    joint: Inbox,
}

impl Receiver {
    pub(super) fn new(sockets: Arc<[TcpStream]>, route: Route, seals: Vec<Seal>) -> Self {
        Self { line: Inbound::new(sockets, route), framing: unframing(seals), joint: Inbox::new(SMALL_WANT) }
    }

    /// The bytes that lie ready without a gap, as [`gather`](Self::gather) left them.
    pub(super) fn ready(&self) -> &[u8] {
        if self.joint.unread().is_empty() {
            &self.line.unread()[..self.framing.ready()]
        } else {
            self.joint.unread()
        }
    }

    /// Give back `n` of the ready bytes.
    pub(super) fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.ready().len());
        let n = n.min(self.ready().len());
        if self.joint.unread().is_empty() {
            self.framing.advance(&mut self.line, n)
        } else {
            self.joint.pass(n)
        }
    }

    /// Make bytes ready: about `want`, and as many as the link's contract promises.
    pub(super) fn gather(&mut self, want: usize) -> Result<(), LinkError> {
        // An element must come whole, whatever is wanted.
        let least = if want <= SMALL_WANT { want.max(1) } else { size_of::<u64>() };
        loop {
            let run = self.framing.run(&mut self.line)?;
            let joint = self.joint.unread().len();
            if joint >= least || (joint == 0 && run >= least) {
                return Ok(());
            }
            if run > 0 && (joint > 0 || self.framing.ends_after(run)) {
                // What of the frame follows comes later.
                let n = self.joint.extend(&self.line.unread()[..run]);
                self.framing.advance(&mut self.line, n);
            } else if self.framing.read(&mut self.line, want)?.0 == 0 {
                return Ok(());
            }
        }
    }

    /// Move ready bytes to `dst`, and count them in `taken`: also those that came before an error.
    pub(super) fn take(&mut self, dst: &mut [u8], taken: &mut usize) -> Result<(), LinkError> {
        let end = dst.len().min(CHUNK);
        // A connection that gave less than was asked has no more.
        let mut drained = None;
        while *taken < end {
            let rest = &mut dst[*taken..];
            if self.joint.unread().is_empty() {
                if let Some(n) = self.framing.take_whole(&mut self.line, rest)? {
                    *taken += n;
                    continue;
                }
                self.framing.run(&mut self.line)?;
            }
            let ready = self.ready();
            if !ready.is_empty() {
                let n = ready.len().min(rest.len());
                rest[..n].copy_from_slice(&ready[..n]);
                self.consume(n);
                *taken += n;
                continue;
            }
            let turn = self.line.turn;
            if self.line.ended || drained == Some(turn) {
                break;
            }
            if !self.framing.read_for(&mut self.line, rest, taken)? {
                drained = Some(turn);
            }
        }
        Ok(())
    }
}

/// Lengths at which messages are shared among connections, and cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct CutLengths {
    /// Messages this long go aside.
    long: usize,
    /// The longest frame.
    most: usize,
}

impl CutLengths {
    /// Lengths for a pair on one host, or on hosts near each other.
    pub(super) const NEAR: Self = Self { long: 128 << 10, most: FRAME };
    /// Lengths for a pair whose every round trip counts. A fresh connection sends ten packets before it waits for an answer: a frame of them.
    pub(super) const FAR: Self = Self { long: FAR_FRAME, most: FAR_FRAME };
}

/// The longest frame to a far peer.
const FAR_FRAME: usize = 14 << 10;
/// Bytes in the first frame of such a message that has no head, where the one before it was short.
pub(super) const FIRST: usize = 64;

/// A frame to be made: of so many bytes, for this connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) number: u64,
    pub(super) len: usize,
    pub(super) turn: usize,
    pub(super) next: FrameRoute,
    /// It carries nothing but the head of a message.
    pub(super) is_head: bool,
}

#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) sockets: Arc<[TcpStream]>,
    /// The number of the next frame to be made.
    number: u64,
    /// Connection at which that is looked for.
    place: FrameRoute,
    /// Connection of the frames of the message that leaves, but for its first.
    rest: FrameRoute,
    /// The connection of the frames that leave.
    pub(super) turn: usize,
    pub(super) route: Route,
    cutting: CutLengths,
}

impl Outbound {
    pub(super) fn new(sockets: Arc<[TcpStream]>, route: Route, cutting: CutLengths) -> Self {
        let turn = route.connection(FrameRoute::Home);
        Self { sockets, number: 0, place: FrameRoute::Home, rest: FrameRoute::Home, turn, route, cutting }
    }

    /// A message of `len` bytes begins; whether it goes aside.
    pub(super) fn begin(&mut self, len: usize) -> bool {
        let is_long = self.route.connections > 1 && len >= self.cutting.long;
        self.rest = if is_long { FrameRoute::Aside } else { FrameRoute::Home };
        is_long
    }

    /// The connection of the next frame that goes aside.
    pub(super) fn aside(&self) -> usize {
        self.route.connection(FrameRoute::Aside)
    }

    /// The connection of the next frame.
    pub(super) fn next_turn(&self) -> usize {
        self.route.connection(self.place)
    }

    /// Returns true if the next frame goes over the connection for long messages.
    pub(super) fn is_there(&self) -> bool {
        self.next_turn() == self.aside()
    }

    /// The next frame, of `total` bytes that are at hand, `head` of them a head. A large message's head has one of its own: what
    /// decides where the rest belongs is not believed before it has been checked, and the cipher finds the rest in one piece.
    pub(super) fn cut(&self, head: usize, total: usize, most: usize, small: usize) -> Cut {
        // The reader is told by this frame where the others are.
        let is_turn = self.rest == FrameRoute::Aside && !self.is_there();
        let is_head = (1..=SMALL).contains(&head) && (is_turn || total > small);
        let len = match is_turn {
            _ if is_head => head,
            true => FIRST.min(total),
            false => most.min(self.cutting.most).min(total),
        };
        Cut { number: self.number, len, turn: self.next_turn(), next: self.rest, is_head }
    }

    /// `cut` is made.
    pub(super) fn pass(&mut self, cut: &Cut) {
        self.number += 1;
        self.turn = self.route.take(self.place);
        self.place = cut.next;
    }
}

/// The bytes of `head` followed by `body` from `from` on, at most `len`.
pub(super) fn window<'a>(head: &'a [u8], body: &'a [u8], from: usize, len: usize) -> [&'a [u8]; 2] {
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
