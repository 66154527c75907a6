//! An end of a link between two ranks, and the contract of every link.
//!
//! A link carries one stream of bytes each way, reliably and in order, and never blocks. It
//! lends bytes where they arrived, so that the engine reduces straight from a shared-memory
//! ring, a registered buffer or a socket's buffer, and moves bytes that are only copied straight
//! to their place. What the medium needs of its own (frames, checksums, credits, striping over
//! several connections) stays inside.
//!
//! The contract, held by the `conformance` tests over every implementation:
//! - `put` accepts a prefix of `head` followed by `body`, possibly nothing; what it has accepted
//!   reaches the peer without further calls. Bytes that it has not accepted may reach the peer as well, and are offered again before
//!   anything else, in any pieces: a link may have announced it already.
//! - `peek` lends the bytes that lie ready, without a gap; `consume` gives back a prefix of them.
//!   `peek` may return fewer bytes than are ready (the ring wraps there, a frame ends there), but
//!   never zero when some are; and for `want` up to [`SMALL_WANT`] it lends that many when that many are
//!   ready, for a larger one at least eight: a header or an element comes whole.
//! - `take` moves a prefix of the ready bytes to `dst`; the same bytes that `peek` would lend.
//! - Bytes may be given out before the link could check them; `unproven` says how many of the last ones, and nothing that
//!   depends on those may leave this rank, or be believed. A frame that was begun may be held back until the rest of it is put;
//!   no frame goes beyond what was offered in one call.
//! - A link may lend the body of a message that `stays` instead of carrying it: what it has accepted reaches the peer only while the
//!   caller leaves it as it is, as far as `lent` says. The receiver asks `still_holds` before it believes the bytes.
//! - After an error every call returns it again, but bytes that arrived before it are lent first.
//! - `arm` announces that this side is about to sleep in `poll` on `fds`: from then until `disarm`
//!   the peer's `put` or `consume` makes one of them ready. A caller arms, tries once more, then
//!   polls. The set of descriptors changes with every call that moves bytes.
//! - Where a link is [of memory](LinkProperties), a `put` at the very moment of `arm` may make none ready: the caller polls for [`NAP`] at first, tries again,
//!   and then polls on, still armed.
//! - A link that is dropped delivers what it has accepted; then the peer sees it closed.

use super::LinkKind;
use crate::sys::Mapping;
use std::{fmt, net::SocketAddr, os::fd::BorrowedFd, time::Duration};

/// The largest `want` that [`Link::peek`] fills in one piece when the bytes are there.
pub const SMALL_WANT: usize = 64;

/// The first sleep of a rank that has armed a link through memory. A core's stores are seen by the others a thousand times sooner.
pub const NAP: Duration = Duration::from_micros(100);

/// End of a link, as the rest of the sentence "rank 3 ...": "closed its connection".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkError(pub String);

/// Events that the engine waits for on a link's descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes to take.
    pub recv: bool,
    /// Room to put.
    pub send: bool,
}

/// Permission to leave a message's body in place until the peer has read it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// It is written to, or the caller wants to go on.
    No,
    /// It can.
    Yes,
    /// It can, and one copy that the system makes from there is quicker than two through memory of both.
    Pulled,
    /// It can, as with [`Pulled`](Self::Pulled), if the peer begins to read at once; else the caller wants to go on.
    AtOnce,
}

/// The medium of a link, and what follows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkProperties {
    pub kind: LinkKind,
    /// Both ends see the same memory: what was put lies before a peer that looks, and neither asks the system for it.
    pub is_memory: bool,
    /// Bytes of the peer may come after word, over another connection, that it left: then only the end of the link says that no more will. True
    /// of what passes through the system or a device (Unix sockets, TCP, RDMA), false of memory (threads, shared memory).
    pub may_lag: bool,
}

impl LinkProperties {
    pub(crate) const fn of_memory(kind: LinkKind) -> Self {
        Self { kind, is_memory: true, may_lag: false }
    }

    /// Properties of a link through the system or a device.
    pub const fn of_system(kind: LinkKind) -> Self {
        Self { kind, is_memory: false, may_lag: true }
    }
}

/// Progress of a link in which nothing moves, or that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkProgress {
    /// The peer owes the rest of something that it had at hand when it began.
    pub is_inside: bool,
    /// Bytes that have come so far, also those that cannot be given out yet.
    pub arrived: u64,
    /// For how long the peer's system has acknowledged nothing of what this one sends again and again.
    pub unanswered: Option<Duration>,
    /// The address here and the one there, where there are such.
    pub path: Option<(SocketAddr, SocketAddr)>,
    /// Bytes may reach the peer that were offered and not accepted yet.
    pub runs_ahead: bool,
}

/// The part of a link between processes that see the same memory: it lends bodies instead of carrying them, and passes memory on. A link that
/// carries all has nothing to say here.
pub trait Lending {
    /// Returns the number of the last accepted bytes of bodies that the peer may still read in place. The caller leaves them as they
    /// are; an error ends that.
    fn lent(&mut self) -> Result<usize, LinkError> {
        Ok(0)
    }

    /// Returns the number of bytes of bodies that the peer was offered to read in place, from the begin on.
    fn lent_in_all(&self) -> u64 {
        0
    }

    /// The caller gives up: it may write to what is [`lent`](Self::lent) from now on, and the peer must not believe what it reads there.
    fn revoke(&mut self) {}

    /// The caller has read the first `n` bytes that `peek` lent: whether they could not change meanwhile. Asked before `consume`; what was
    /// read must not be believed after an error.
    fn still_holds(&mut self, _n: usize) -> Result<(), LinkError> {
        Ok(())
    }

    /// Number of bytes that `peek` lends and that are worth combining in one go, if another than [`Link::chunk`].
    fn piece(&self) -> Option<usize> {
        None
    }

    /// Number of bytes of the message under way that are worth offering in one call, if another than [`Link::chunk`].
    fn offer_size(&self) -> Option<usize> {
        None
    }

    /// Pass this rank's [stage](comity_base::lanes::LaneMemory) to the peer, before anything that is put later; whether it left. Only links that
    /// are memory ([`LinkProperties::is_memory`]) do.
    fn pass_stage(&mut self, _: BorrowedFd<'_>) -> bool {
        false
    }

    /// The peer's stage, to read, if it passed one before what was taken last.
    fn take_stage(&mut self) -> Option<Mapping> {
        None
    }
}

/// End of a link, which keeps the contract above.
pub trait Link: Lending + Send + fmt::Debug {
    /// The medium, and what follows of it.
    fn properties(&self) -> LinkProperties;

    /// Number of connections that it consists of.
    fn connections(&self) -> usize {
        1
    }

    /// Bytes worth moving in one go before looking elsewhere. A call may move fewer: `put` need not accept as many at once.
    fn chunk(&self) -> usize;

    /// Accept a prefix of `head` followed by `body`; how many bytes in all.
    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError>;

    /// Announces that the next `put` begins a message of `len` bytes; `is_busy` if the caller has others to receive meanwhile; `stays` says
    /// whether it can leave the body where it is until the peer has read it. It may decide
    /// how the message travels; whatever is put without such word comes as well.
    fn announce(&mut self, _len: usize, _is_busy: bool, _stays: Stays) {}

    /// Bytes that lie ready, in place; empty when none are. A link that must read them from the
    /// system reads about `want`. All of them up to [`SMALL_WANT`]: the contract above says so.
    fn peek(&mut self, want: usize) -> Result<&[u8], LinkError>;

    /// Give back the first `n` bytes that `peek` lent.
    fn consume(&mut self, n: usize);

    /// Move ready bytes to `dst`; how many.
    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError>;

    /// Returns the number of the bytes given out last that are not checked yet.
    fn unproven(&self) -> usize {
        0
    }

    /// Facts to look at when nothing moves, or when it has ended; for links between hosts.
    fn progress(&self) -> LinkProgress {
        LinkProgress::default()
    }

    /// Returns true if the next [`peek`](Self::peek) would lend more without a look at the system, as far as can be told; for links that
    /// lend a frame at a time.
    fn has_more(&self) -> bool {
        false
    }

    /// Announce sleep: from now on the peer wakes this end when one of these things can be done.
    fn arm(&mut self, interest: Interest);

    /// Take the announcement back, and swallow wake-ups that came of it.
    fn disarm(&mut self) -> Result<(), LinkError>;

    /// Descriptors to poll while armed, each with whether to wait for readable and for writable.
    fn fds<'a>(&'a self, interest: Interest, out: &mut Vec<(BorrowedFd<'a>, Interest)>);
}
