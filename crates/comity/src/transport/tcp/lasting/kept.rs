//! What was sent and may not have come: the end of the outgoing stream, up to where the other system is known to have it.
//!
//! TCP tells how many bytes the other system has acknowledged, and those its process can read even when the path is cut. So no word of
//! the other process is needed, and nothing is on the wire for it: a mark says what each connection must have acknowledged before the
//! stream has come up to there.

use crate::sys::delivery;
use std::{collections::VecDeque, net::TcpStream, os::fd::AsFd};

/// Bytes between two marks, and between two looks at what has come.
const STRIDE: usize = 256 << 10;

/// The stream has come up to `position` when each connection has so many bytes acknowledged.
#[derive(Debug)]
struct Mark {
    position: u64,
    acknowledged: Vec<u64>,
}

/// Keeps the bytes that were sent until the other system has acknowledged them, to send them again over another path.
#[derive(Debug, Default)]
pub(super) struct Kept {
    bytes: VecDeque<u8>,
    /// Where the first of them stands in the stream.
    first: u64,
    marks: VecDeque<Mark>,
    /// The length at which to look next.
    look: usize,
}

impl Kept {
    pub(super) fn new() -> Self {
        Self { look: 2 * STRIDE, ..Self::default() }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Where the stream ends.
    pub(super) fn end(&self) -> u64 {
        self.first + self.bytes.len() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes from `at` on, in two pieces.
    pub(super) fn from(&self, at: usize) -> [&[u8]; 2] {
        let (a, b) = self.bytes.as_slices();
        [a.get(at..).unwrap_or_default(), b.get(at.saturating_sub(a.len())..).unwrap_or_default()]
    }

    /// The first `n` bytes of `head` and `body` were sent.
    pub(super) fn push(&mut self, head: &[u8], body: &[u8], n: usize) {
        let of_head = n.min(head.len());
        self.bytes.extend(&head[..of_head]);
        self.bytes.extend(&body[..n - of_head]);
    }

    /// What is kept goes over other connections: nothing is known of what those have acknowledged.
    pub(super) fn go_elsewhere(&mut self) {
        self.marks.clear();
        self.look = self.bytes.len() + STRIDE;
    }

    /// Forget what has come, where it is time to look.
    pub(super) fn look(&mut self, sockets: &[TcpStream]) {
        if self.bytes.len() < self.look {
            return;
        }
        self.trim(sockets);
        // Two strides at least: one waits for the next mark, one is under way.
        self.look = self.bytes.len().max(STRIDE) + STRIDE;
    }

    /// Forget what has come. All that is kept has been handed to these.
    pub(super) fn trim(&mut self, sockets: &[TcpStream]) {
        let now: Option<Vec<_>> = sockets.iter().map(|s| delivery(s.as_fd())).collect();
        let Some(now) = now else { return };
        let mut come = None;
        if now.iter().all(|d| d.waiting == 0) {
            come = Some(self.end());
            self.marks.clear();
        }
        while let Some(mark) = self.marks.front()
            && mark.acknowledged.iter().zip(&now).all(|(due, d)| d.acknowledged >= *due)
        {
            come = Some(mark.position);
            self.marks.pop_front();
        }
        if let Some(position) = come {
            let n = usize::try_from(position - self.first).unwrap_or_default();
            self.bytes.drain(..n);
            self.first = position;
        }
        let position = self.end();
        if self.marks.back().is_none_or(|m| m.position < position) && position > self.first {
            let acknowledged = now.iter().map(|d| d.acknowledged + d.waiting).collect();
            self.marks.push_back(Mark { position, acknowledged });
        }
    }
}
