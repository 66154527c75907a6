//! Position of the outgoing stream: which bytes the next frame has, and over which connection it goes.

use super::{
    Route,
    frame::{FRAME, FrameRoute, SMALL},
};

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
    /// The number of the next frame to be made.
    number: u64,
    /// Connection at which that is looked for.
    place: FrameRoute,
    /// Connection of the frames of the message that leaves, but for its first.
    rest: FrameRoute,
    /// The connection of the frames that leave.
    pub(super) turn: usize,
    route: Route,
    cutting: CutLengths,
}

impl Outbound {
    pub(super) fn new(route: Route, cutting: CutLengths) -> Self {
        let turn = route.connection(FrameRoute::Home);
        Self { number: 0, place: FrameRoute::Home, rest: FrameRoute::Home, turn, route, cutting }
    }

    /// A message of `len` bytes begins; whether it goes aside.
    pub(super) fn begin(&mut self, len: usize) -> bool {
        let is_long = self.route.connections > 1 && len >= self.cutting.long;
        self.rest = if is_long { FrameRoute::Aside } else { FrameRoute::Home };
        is_long
    }

    /// Returns true if one connection carries all long messages of this direction, and none of the other.
    pub(super) fn is_narrow(&self) -> bool {
        self.route.is_narrow()
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
