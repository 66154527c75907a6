//! A piece of a peer's own memory, copied here to be combined from.

use super::super::SMALL_WANT;
use crate::sys::PeerMemory;
use std::io;

/// Bytes copied at once: they stay in the second-level cache, also beside those of other links.
const MOST: usize = 128 << 10;

/// A copy of some bytes of a peer.
#[derive(Debug, Default)]
pub(super) struct Piece {
    bytes: Vec<u8>,
    /// The address there of its first byte.
    at: u64,
    len: usize,
}

impl Piece {
    /// Returns the number of bytes to fetch from address `at` on, of `left` in all, so that at least `want` are here; none if they are. No
    /// more than [`SMALL_WANT`] have to come at once.
    pub(super) fn lacks(&self, at: u64, left: usize, want: usize) -> Option<usize> {
        let is_here = self.bytes(at, left).len() >= want.clamp(1, SMALL_WANT).min(left);
        (!is_here).then_some(left.min(MOST))
    }

    /// Have the `n` bytes that lie at address `at` there.
    pub(super) fn fetch(&mut self, peer: PeerMemory, at: u64, n: usize) -> io::Result<()> {
        self.bytes.resize(MOST, 0);
        self.at = at;
        self.len = 0;
        while self.len < n {
            self.len += super::pull::read(peer, at + self.len as u64, &mut self.bytes[self.len..n])?;
        }
        Ok(())
    }

    /// Keep those from address `at` on, and have `more` behind them.
    pub(super) fn append(&mut self, at: u64, left: usize, more: &[u8]) {
        let kept = self.bytes(at, left).to_vec();
        self.at = at;
        self.len = kept.len() + more.len();
        self.bytes.clear();
        self.bytes.extend(kept);
        self.bytes.extend(more);
    }

    /// Returns the bytes that were fetched from address `at` on, `left` at most.
    pub(super) fn bytes(&self, at: u64, left: usize) -> &[u8] {
        let fetched = &self.bytes[..self.len];
        let begin = at.checked_sub(self.at).map_or(self.len, |n| self.len.min(n as usize));
        &fetched[begin..self.len.min(begin + left)]
    }

    /// Discards the copy: another loan may lie at the same address.
    pub(super) fn discard(&mut self) {
        self.len = 0;
    }
}
