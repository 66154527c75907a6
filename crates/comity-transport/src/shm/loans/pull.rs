//! Reading a peer's own memory: from which length on, and the number that proves that it can be read.

use super::{Board, DENIED, MAPPED, REFUSED};
use crate::{Stays, sys::PeerMemory};
use std::{io, os::unix::net::UnixStream, sync::atomic::Ordering};

/// Messages that are read in the sender's own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::shm) enum Pull {
    #[default]
    None,
    /// Messages with [`Stays::Pulled`] or [`Stays::AtOnce`].
    WherePays,
    /// All from so many bytes on.
    From(usize),
}

impl Pull {
    pub(super) fn takes(self, len: usize, stays: Stays) -> bool {
        match self {
            Self::None => false,
            Self::WherePays => matches!(stays, Stays::Pulled | Stays::AtOnce),
            Self::From(least) => len >= least,
        }
    }
}

/// A number that nobody guesses, at a place in this process's memory that does not move.
#[derive(Debug)]
pub(super) struct Nonce(Box<[u8; 16]>);

impl Nonce {
    /// None where the system gives no random numbers.
    pub(super) fn new() -> Option<Self> {
        let mut number = Box::new([0; 16]);
        getrandom::fill(number.as_mut()).ok()?;
        Some(Self(number))
    }

    /// Show the peer where it is.
    pub(super) fn show(&self, board: &Board) {
        for (word, part) in board.lender.0.nonce.iter().zip(self.0.as_chunks().0) {
            word.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
        }
        board.lender.0.nonce_at.store(self.0.as_ptr() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
thread_local! {
    /// True if this thread may not read any more.
    pub(super) static NO_READS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Copy bytes of a message from the peer's memory ([`PeerMemory::read`]).
pub(in crate::shm) fn read(peer: PeerMemory, at: u64, dst: &mut [u8]) -> io::Result<usize> {
    #[cfg(test)]
    if NO_READS.get() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    peer.read(at, dst)
}

/// The memory of the peer over whose socket it asked, if the number that it shows is there; else what to answer.
pub(super) fn try_to_read(board: &Board, waker: &UnixStream, pull: Pull) -> Result<PeerMemory, u8> {
    if pull == Pull::None {
        return Err(REFUSED);
    }
    let shown = board.lender.0.nonce.each_ref().map(|w| w.load(Ordering::Relaxed).to_ne_bytes());
    let at = board.lender.0.nonce_at.load(Ordering::Relaxed);
    let mut there = [0; 16];
    let read = PeerMemory::of(waker).and_then(|peer| peer.read(at, &mut there).map(|n| (peer, n)));
    match read {
        Ok((peer, 16)) if there == *shown.as_flattened() => Ok(peer),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(DENIED),
        _ => Err(REFUSED),
    }
}

/// The answer that stands for what was found.
pub(super) fn answer(found: &Result<PeerMemory, u8>) -> u8 {
    found.as_ref().map_or_else(|no| *no, |_| MAPPED)
}
