//! The receiving half of a link: where its stream stands, and the framing that makes bytes of it, which are lent where they lie or
//! received straight into their place.

use super::{
    CHUNK, Route,
    framing::{Unframing, unframing},
    inbound::Inbound,
};
use crate::{LinkError, SMALL_WANT, channel::Seal};
use std::net::TcpStream;

/// Bytes of several frames put together for a small want, in front of all others.
#[derive(Debug)]
struct Joint {
    bytes: [u8; SMALL_WANT],
    start: usize,
    end: usize,
}

impl Joint {
    fn new() -> Self {
        Self { bytes: [0; SMALL_WANT], start: 0, end: 0 }
    }

    fn ready(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Add what fits of `bytes`; how many.
    fn extend(&mut self, bytes: &[u8]) -> usize {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let n = bytes.len().min(self.bytes.len() - self.end);
        self.bytes[self.end..self.end + n].copy_from_slice(&bytes[..n]);
        self.end += n;
        n
    }
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) line: Inbound,
    pub(super) framing: Box<dyn Unframing>,
    joint: Joint,
}

impl Receiver {
    pub(super) fn new(route: Route, seals: Vec<Seal>) -> Self {
        Self { line: Inbound::new(route), framing: unframing(seals), joint: Joint::new() }
    }

    /// The bytes that lie ready without a gap, as [`gather`](Self::gather) left them.
    pub(super) fn ready(&self) -> &[u8] {
        if self.joint.is_empty() { &self.line.unread()[..self.framing.ready()] } else { self.joint.ready() }
    }

    /// Give back `n` of the ready bytes.
    pub(super) fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.ready().len());
        let n = n.min(self.ready().len());
        if self.joint.is_empty() { self.framing.advance(&mut self.line, n) } else { self.joint.start += n }
    }

    /// Make bytes ready: about `want`, and as many as the link's contract promises.
    pub(super) fn gather(&mut self, sockets: &[TcpStream], want: usize) -> Result<(), LinkError> {
        // An element must come whole, whatever is wanted.
        let least = if want <= SMALL_WANT { want.max(1) } else { size_of::<u64>() };
        loop {
            let run = self.framing.run(&mut self.line)?;
            let joint = self.joint.ready().len();
            if joint >= least || (joint == 0 && run >= least) {
                return Ok(());
            }
            if run > 0 && (joint > 0 || self.framing.ends_after(run)) {
                // What of the frame follows comes later.
                let n = self.joint.extend(&self.line.unread()[..run]);
                self.framing.advance(&mut self.line, n);
            } else if self.framing.read(&mut self.line, sockets, want)?.0 == 0 {
                return Ok(());
            }
        }
    }

    /// Move ready bytes to `dst`, and count them in `taken`: also those that came before an error.
    pub(super) fn take(
        &mut self,
        sockets: &[TcpStream],
        dst: &mut [u8],
        taken: &mut usize,
    ) -> Result<(), LinkError> {
        let end = dst.len().min(CHUNK);
        // A connection that gave less than was asked has no more.
        let mut drained = None;
        while *taken < end {
            let rest = &mut dst[*taken..];
            if self.joint.is_empty() {
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
            if !self.framing.read_for(&mut self.line, sockets, rest, taken)? {
                drained = Some(turn);
            }
        }
        Ok(())
    }
}
