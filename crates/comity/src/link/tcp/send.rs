//! The sending half: bytes from the caller's memory straight into the system's, in frames.

use super::{
    CHUNK,
    frame::{FRAME, HEADER, SMALL, header},
    socket::send,
};
use crate::link::LinkError;
use std::{io::IoSlice, net::TcpStream};

/// A frame that has a header but is not yet wholly with the system.
#[derive(Debug)]
struct Open {
    header: [u8; HEADER],
    header_sent: usize,
    left: usize,
}

/// Where the outgoing stream stands.
#[derive(Debug, Default)]
pub(super) struct Sender {
    /// The number of the open frame, or else of the next.
    number: u64,
    /// The connection that it travels on.
    pub(super) turn: usize,
    open: Option<Open>,
}

impl Sender {
    /// Hand a prefix of `head` and `body` to the system; how many bytes of them.
    pub(super) fn put(
        &mut self,
        sockets: &[TcpStream],
        head: &[u8],
        body: &[u8],
    ) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        let mut accepted = 0;
        while accepted < total && accepted < CHUNK {
            let Some(socket) = sockets.get(self.turn) else { break };
            let number = self.number;
            // The whole frame is at hand when it opens, so its checksum can travel in front.
            let open = self.open.get_or_insert_with(|| {
                // A large message's head goes in a frame of its own, which is small: what decides where the rest belongs is
                // not believed before it has been checked.
                let alone =
                    accepted < head.len() && head.len() - accepted <= SMALL && total - accepted > SMALL;
                let left = if alone { head.len() - accepted } else { FRAME.min(total - accepted) };
                Open { header: header(number, window(head, body, accepted, left)), header_sent: 0, left }
            });
            let [h, b] = window(head, body, accepted, open.left);
            let start = &open.header[open.header_sent..];
            let asked = start.len() + h.len() + b.len();
            // A head leaves with what follows it.
            let more = b.is_empty() && accepted + h.len() < total && sockets.len() == 1;
            let sent = send(socket, &[IoSlice::new(start), IoSlice::new(h), IoSlice::new(b)], more)?;
            let of_header = sent.min(start.len());
            open.header_sent += of_header;
            open.left -= sent - of_header;
            accepted += sent - of_header;
            if open.left == 0 {
                self.open = None;
                self.number += 1;
                self.turn = (self.turn + 1) % sockets.len();
            }
            if sent < asked {
                break;
            }
        }
        Ok(accepted)
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
