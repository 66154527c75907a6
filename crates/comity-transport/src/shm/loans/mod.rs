//! Messages that the peer reads where they lie: their bytes do not go through the ring.
//!
//! ```text
//!   lender                                            borrower
//!   descriptor of the region --- waker's socket --->  maps it to read, once; answers on the board
//!   loan { after byte 812 of the ring, region 3,
//!          offset, length } ------- the board ----->  when it has read the ring so far: reads there, straight to its place
//!   keeps those bytes as they are                     still standing? then: so many returned
//!            <------------- the board --------------
//! ```
//! A message is lent if its caller can leave it where it is (`stays`), it is long, and it lies in a region that the peer has mapped. The
//! first message from a region goes through the ring, for the peer has yet to map it.
//!
//! If both ends want that ([`Pull`]), a message outside of every region is lent too: the loan names an address, and the peer has the system read
//! there, straight to its place or, to combine it, into [`Piece`](borrower::Piece) a piece at a time. Before the first such loan the peer reads a
//! random number there, which shows that it is allowed to and that it reads the right process. By default that is done
//! as long as it is quicker than the ring (`speed`).
//!
//! A caller that cannot wait for a reader has its message offered: lent for a moment, and copied unless the peer has begun (`offer`).
//!
//! A process may lose the permission to read another's memory while a loan stands (`aside`).
//!
//! A lender that gives up says so on the board (`revoked`) before its caller may write to the bytes again. The borrower looks after it
//! has read and before it believes what it read: the same order as of a sequence lock.
//!
//! A loan that lasts only if the borrower begins to read at once.
//!
//! ```text
//!   lender                                        borrower
//!   shows the loan, OFFERED                       comes to it: CLAIMED, and reads
//!   nobody comes: WITHDRAWN, unless CLAIMED       finds it WITHDRAWN: its bytes come through the ring
//! ```
//! Both sides change one word, so that one of the two is first.

mod aside;
mod borrower;
mod lender;
mod speed;

use super::{LinkError, ring::CachePadded};
use crate::{
    Stays,
    sync::{AtomicU8, AtomicU32, AtomicU64},
    sys::PeerMemory,
};
pub(super) use aside::ASIDE;
pub(super) use borrower::{Borrower, Lies, Loan};
pub(super) use lender::Lender;
pub(super) use speed::{By, MeasuredCopy};
use std::{io, os::unix::net::UnixStream, sync::atomic::Ordering, time::Duration};

/// Shorter messages go through the ring.
const LEAST_LOAN: usize = 64 << 10;
/// Shortest message, in bytes, that is lent when loans are known to gain, or only if the peer reads it at once. Models are small.
const LEAST_GAIN: usize = if cfg!(loom) { 64 } else { 16 << 10 };
/// Time limit for the peer to begin with those: its way to them, some times over. Tests run beside others.
const MOMENT: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_micros(2) };
/// Time for which bytes that the system could read are taken to be readable: other memory does not come to lie there that soon. At most so many.
const KNOWN: Duration = Duration::from_millis(1);
const MOST_KNOWN: usize = 4;
/// Most messages that are not offered after none was claimed at once.
const MOST_PASSED: u32 = 64;
/// A piece of a message that is not its last is at least that long, and a multiple of [`WHOLE`].
const LEAST_PIECE: usize = 16 << 10;
/// A piece ends between two elements.
const WHOLE: usize = 64;
/// Bytes read before they are returned, at most.
const RETURN: u64 = 64 << 10;
const LOANS: usize = if cfg!(loom) { 2 } else { 64 };
/// Regions that a peer maps at once. Messages in others go through the ring.
const REGIONS: usize = if cfg!(loom) { 1 } else { 256 };
/// The byte that carries a region's descriptor over the waker's socket.
pub(super) const REGION: u8 = b'R';
/// The byte there that asks the peer to try to read this process's own memory.
pub(super) const OWN: u8 = b'O';

/// The byte there that carries the descriptor of memory for lanes.
pub(super) const STAGE: u8 = b'S';

/// Answers of the borrower about a region, or about the lender's own memory.
const NONE: u8 = 0;
const MAPPED: u8 = 1;
const REFUSED: u8 = 2;
/// It might read what it may not, once the lender allows it.
const DENIED: u8 = 3;
/// In place of a region: the lender's own memory, and an address in it.
const ADDRESS: u64 = u64::MAX;
/// In place of a length: the region is to be unmapped.
const FORGET: u64 = 0;

#[derive(Debug, Default)]
struct LenderWords {
    /// Loans shown so far.
    shown: AtomicU64,
    /// Regions passed over so far.
    announced: AtomicU32,
    /// Not 0 if the loans' bytes may change from now on.
    revoked: AtomicU32,
    /// Address of a random number in the lender's memory, and that number.
    nonce_at: AtomicU64,
    nonce: [AtomicU64; 2],
    /// Bytes laid aside so far.
    aside: AtomicU64,
}

#[derive(Debug, Default)]
struct BorrowerWords {
    /// Loans that were read to their end.
    ended: AtomicU64,
    /// Bytes of loans that were read.
    returned: AtomicU64,
    /// The answer about the lender's own memory.
    own: AtomicU8,
    /// Not 0 if the ring is quicker than a read there.
    is_dear: AtomicU8,
    /// The number of the loan that cannot be read any more, from 1 on.
    declined: AtomicU64,
    /// Bytes taken of those that were laid aside.
    taken: AtomicU64,
}

#[derive(Debug, Default)]
struct Entry {
    /// Bytes of the ring before it.
    after: AtomicU64,
    region: AtomicU64,
    offset: AtomicU64,
    len: AtomicU64,
    /// State of the offer, which both sides change: see `offer`.
    state: AtomicU64,
}

/// Shared state of the loans of a direction. All zero is none.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Board {
    lender: CachePadded<LenderWords>,
    borrower: CachePadded<BorrowerWords>,
    /// The place of each region that is passed over, in that order.
    slots: [AtomicU8; REGIONS],
    /// The borrower's answer, by place.
    regions: [AtomicU8; REGIONS],
    entries: [Entry; LOANS],
}

/// The peer wrote a value that cannot be true.
#[derive(Debug)]
pub(super) struct Nonsense;

/// The lender's own memory is not there any more.
pub(super) fn unreadable(e: &io::Error) -> LinkError {
    LinkError(format!("let this rank read its memory, which failed: {e}; COMITY_PULL=0 does without it"))
}

/// The lender took its memory back while it was read.
pub(super) fn taken_back() -> LinkError {
    LinkError("gave up a call while this rank read its memory".into())
}

/// It lasts until it was read.
const LASTS: u64 = 0;
const OFFERED: u64 = 1;
const CLAIMED: u64 = 2;
const WITHDRAWN: u64 = 3;

impl Entry {
    /// Before it is shown: whether it lasts only if it is claimed.
    fn begin(&self, is_offer: bool) {
        self.state.store(if is_offer { OFFERED } else { LASTS }, Ordering::Relaxed);
    }

    /// Returns true if it is to be claimed before it is read.
    fn is_offer(&self) -> bool {
        self.state.load(Ordering::Relaxed) != LASTS
    }

    /// The borrower is about to read; false if the lender has withdrawn it.
    fn claim(&self) -> bool {
        self.becomes(CLAIMED)
    }

    /// The lender goes on without the borrower; false if that reads.
    fn withdraw(&self) -> bool {
        self.becomes(WITHDRAWN)
    }

    /// Returns true if the borrower reads, or has read.
    fn is_claimed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLAIMED
    }

    fn becomes(&self, new: u64) -> bool {
        self.state.compare_exchange(OFFERED, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Messages that are read in the sender's own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pull {
    #[default]
    None,
    /// Messages with [`Stays::Pulled`] or [`Stays::AtOnce`].
    WherePays,
    /// All from so many bytes on.
    From(usize),
}

impl Pull {
    fn takes(self, len: usize, stays: Stays) -> bool {
        match self {
            Self::None => false,
            Self::WherePays => matches!(stays, Stays::Pulled | Stays::AtOnce),
            Self::From(least) => len >= least,
        }
    }
}

/// A number that nobody guesses, at a place in this process's memory that does not move.
#[derive(Debug)]
struct Nonce(Box<[u8; 16]>);

impl Nonce {
    /// None where the system gives no random numbers.
    fn new() -> Option<Self> {
        let mut number = Box::new([0; 16]);
        getrandom::fill(number.as_mut()).ok()?;
        Some(Self(number))
    }

    /// Show the peer where it is.
    fn show(&self, board: &Board) {
        for (word, part) in board.lender.0.nonce.iter().zip(self.0.as_chunks().0) {
            word.store(u64::from_ne_bytes(*part), Ordering::Relaxed);
        }
        board.lender.0.nonce_at.store(self.0.as_ptr() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
thread_local! {
    /// True if this thread may not read any more.
    static NO_READS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Copy bytes of a message from the peer's memory ([`PeerMemory::read`]).
pub(super) fn read(peer: PeerMemory, at: u64, dst: &mut [u8]) -> io::Result<usize> {
    #[cfg(test)]
    if NO_READS.get() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    peer.read(at, dst)
}

/// The memory of the peer over whose socket it asked, if the number that it shows is there; else what to answer.
fn try_to_read(board: &Board, waker: &UnixStream, pull: Pull) -> Result<PeerMemory, u8> {
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
fn answer(found: &Result<PeerMemory, u8>) -> u8 {
    found.as_ref().map_or_else(|no| *no, |_| MAPPED)
}

#[cfg(all(test, target_os = "linux", loom))]
mod loom_tests;
#[cfg(all(test, target_os = "linux", not(loom)))]
mod offer_tests;
#[cfg(all(test, target_os = "linux", not(loom)))]
mod pull_tests;
#[cfg(all(test, not(loom)))]
mod tests;
