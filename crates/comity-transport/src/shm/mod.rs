//! A link over memory that both ends see: two byte rings and a socket that wakes a sleeper.
//!
//! ```text
//!   one mapping:  [ positions a->b | positions b->a | loans a->b | loans b->a | bytes a->b ........ | bytes b->a ........ | aside | aside ]
//!   one socket:   a byte means "look again"; its end means the peer is gone
//! ```
//!
//! Between processes the mapping is a sealed memory file passed over a Unix socket (shm), between
//! threads an anonymous one (local). Bytes are copied into the ring by the sender and out of it, or reduced
//! from where they lie, by the receiver; the rings are small enough to stay in cache. There is no checksum:
//! the bytes never leave this machine's memory. Long messages out of memory that the peer maps are not copied: see `loans`.
#![allow(unsafe_code, reason = "memory that two processes map")]

mod loans;
mod reach;
mod ring;

use super::{Interest, Lending, Link, LinkError, LinkKind, LinkProperties, SMALL_WANT, Stays};
use crate::sys::{self, Mapping, PeerMemory};
use loans::{ASIDE, Board, Borrower, By, Lender, Lies, Loan, MeasuredCopy, Pull, taken_back, unreadable};
pub(crate) use reach::Shm;
use ring::{RingReader, RingWriter, SHORT, Shared, wakes_reader, wakes_writer};
use rustix::io::Errno;
use std::{
    hint,
    io::{self, Write},
    mem::{align_of, size_of},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    ptr, slice,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bytes of one direction's ring: what a rank can send before its peer runs, small enough for the second-level cache.
const RING: usize = 256 << 10;
/// Bytes moved before they are shown to the peer, at most.
const CHUNK: usize = 32 << 10;
/// A message that travels one way is shown in so many pieces, of this many bytes at least.
const PIECES: usize = 8;
const LEAST_STRIDE: usize = 8 << 10;
/// Bytes read of a loan before a look elsewhere.
const LOAN_CHUNK: usize = 256 << 10;
/// Bytes that the system copies out of the peer's memory before a look elsewhere: each time costs a call.
const PULL_CHUNK: usize = 1 << 20;
/// Positions and loans of both directions; the bytes follow on a page of their own.
const HEAD: usize = 8192;
/// Offset of the loans of both directions.
const BOARDS: usize = 2 * size_of::<Shared>();
const LEN: usize = HEAD + 2 * RING + 2 * ASIDE;
/// Looks in vain between two looks at the socket.
const SPINS_PER_SOCKET_CHECK: u32 = 1024;
/// A peer that was seen so long ago counts as living: if it died since, no other process has its number yet, for the system gives
/// numbers in turn.
const LIVES: Duration = Duration::from_millis(2);

// Loom's atomics are larger.
#[cfg(not(loom))]
const _: () = assert!(BOARDS + 2 * size_of::<Board>() <= HEAD && align_of::<Shared>() <= 4096);
const _: () = assert!(BOARDS.is_multiple_of(align_of::<Board>()));

#[derive(Debug)]
pub(crate) struct ShmLink {
    kind: LinkKind,
    map: Arc<Mapping>,
    /// True if this end is `a` of the picture.
    first: bool,
    tx: RingWriter,
    rx: RingReader,
    /// Bytes of the message under way that are copied before they are shown.
    stride: usize,
    lender: Lender,
    borrower: Borrower,
    waker: UnixStream,
    /// Memory that the peer passed for its lanes.
    stage: Option<Mapping>,
    armed: bool,
    looks: u32,
    /// When the peer was last seen to be there.
    listened: Option<Instant>,
    /// Buffer in which bytes on both sides of the ring's end are put together.
    joint: [u8; SMALL_WANT],
    gone: Option<LinkError>,
}

impl ShmLink {
    /// Make the memory and pass it over `stream` to a peer in [`attach`](Self::attach).
    fn create(stream: UnixStream, pull: Pull) -> io::Result<Box<dyn Link>> {
        let (map, fd) = Mapping::create(LEN)?;
        sys::send_fd(&stream, &fd)?;
        Self::boxed(LinkKind::Shm, Arc::new(map), true, stream, pull)
    }

    /// Take the memory that the peer in [`create`](Self::create) has passed over `stream`.
    fn attach(stream: UnixStream, pull: Pull) -> io::Result<Box<dyn Link>> {
        let fd = sys::recv_fd(&stream)?;
        let map = Mapping::attach(&fd, LEN)?;
        Self::boxed(LinkKind::Shm, Arc::new(map), false, stream, pull)
    }

    /// Both ends over memory that nobody else maps, as links of this kind.
    pub(super) fn pair(kind: LinkKind) -> io::Result<(Box<dyn Link>, Box<dyn Link>)> {
        Self::pair_with(kind, Pull::default())
    }

    fn pair_with(kind: LinkKind, pull: Pull) -> io::Result<(Box<dyn Link>, Box<dyn Link>)> {
        let map = Arc::new(Mapping::private(LEN)?);
        let (a, b) = UnixStream::pair()?;
        Ok((Self::boxed(kind, map.clone(), true, a, pull)?, Self::boxed(kind, map, false, b, pull)?))
    }

    fn boxed(
        kind: LinkKind,
        map: Arc<Mapping>,
        first: bool,
        waker: UnixStream,
        pull: Pull,
    ) -> io::Result<Box<dyn Link>> {
        waker.set_nonblocking(true)?;
        let tx = RingWriter::new(RING);
        let rx = RingReader::new(RING);
        Ok(Box::new(Self {
            kind,
            map,
            first,
            tx,
            rx,
            stride: CHUNK,
            lender: Lender::new(pull),
            borrower: Borrower::new(pull),
            waker,
            stage: None,
            armed: false,
            looks: 0,
            listened: None,
            joint: [0; SMALL_WANT],
            gone: None,
        }))
    }

    #[inline]
    fn shared<'a>(&self, outgoing: bool) -> &'a Shared {
        let at = if outgoing == self.first { 0 } else { size_of::<Shared>() };
        // SAFETY: inside the mapping, which lives as long as this link (no caller keeps the reference longer), aligned (the mapping is
        // page aligned and the size a multiple of the alignment), zeros are a valid `Shared`, and every access by either side is atomic.
        unsafe { &*self.map.as_ptr().add(at).cast() }
    }

    #[inline]
    fn board<'a>(&self, outgoing: bool) -> &'a Board {
        let at = BOARDS + if outgoing == self.first { 0 } else { size_of::<Board>() };
        // SAFETY: as in `shared`.
        unsafe { &*self.map.as_ptr().add(at).cast() }
    }

    #[inline]
    fn bytes(&self, outgoing: bool) -> *mut u8 {
        let at = if outgoing == self.first { HEAD } else { HEAD + RING };
        // SAFETY: inside the mapping.
        unsafe { self.map.as_ptr().add(at) }
    }

    fn aside(&self, outgoing: bool) -> *mut u8 {
        let at = HEAD + 2 * RING + if outgoing == self.first { 0 } else { ASIDE };
        // SAFETY: inside the mapping.
        unsafe { self.map.as_ptr().add(at) }
    }

    /// Copy a prefix of `src` to the ring without showing it, at most `free` bytes from `at` on.
    fn fill(&self, at: usize, free: usize, src: &[u8]) -> usize {
        let n = src.len().min(free);
        let first = n.min(RING - at);
        let to = self.bytes(true);
        // SAFETY: `RingWriter::room` gave these positions to this side alone until they are published; both parts lie
        // inside the ring, and `src` is not in it.
        unsafe {
            ptr::copy_nonoverlapping(src.as_ptr(), to.add(at), first);
            if n > first {
                ptr::copy_nonoverlapping(src.as_ptr().add(first), to, n - first);
            }
        }
        n
    }

    /// A copy of `n` bytes begins, into the ring or out of it, at this position; whether it is measured: not the first time around, when the
    /// ring's own pages are not there yet.
    #[inline]
    fn begin_ring_copy(&mut self, position: u64, n: usize, by: By) -> Option<MeasuredCopy> {
        if position > RING as u64 { self.borrower.begin_copy(n, by) } else { None }
    }

    /// Returns the next bytes: their place in the ring, their number up to the next loan, and that loan if it is next.
    #[inline]
    fn ready(&mut self, want: usize) -> Result<(usize, usize, Option<Loan>), LinkError> {
        let board = self.board(false);
        // Armed, its byte wakes the poll that follows, and so must every other.
        if !self.armed && self.borrower.awaits_region(board) {
            self.listen();
        }
        // In this order: whoever shows bytes behind a loan has shown that before.
        let Ok((at, n)) = self.rx.ready(self.shared(false), want) else { return Err(self.corrupt()) };
        let head = self.rx.head();
        match self.borrower.next(board, head) {
            Ok(None) => Ok((at, n, None)),
            Ok(Some(loan)) if loan.after == head => match self.borrower.claim(board) {
                true => Ok((at, 0, Some(loan))),
                false => self.ready(want),
            },
            Ok(Some(loan)) => Ok((at, n.min((loan.after - head) as usize), None)),
            Err(_) => Err(self.corrupt()),
        }
    }

    /// The loan that is next, as the last look found.
    #[inline]
    fn loan(&self) -> Option<Loan> {
        let head = self.rx.head();
        self.borrower.current().filter(|l| l.after == head)
    }

    /// Lend bytes of a loan, in place or copied here.
    fn peek_loan(&mut self, loan: Loan, want: usize) -> Result<&[u8], LinkError> {
        match loan.at {
            // SAFETY: inside a mapping of this link, which it keeps while the loan lasts. The lender does not write there while the loan
            // stands, and nobody believes what was read before `still_holds` has said that it did.
            Lies::Here(at) => Ok(unsafe { slice::from_raw_parts(at, loan.left) }),
            Lies::There(..) => {
                if let Err(e) = self.borrower.fetch(self.board(false), want) {
                    self.decline(&e)?;
                    return Ok(&[]);
                }
                Ok(self.borrower.fetched())
            }
            Lies::Aside(_) => self.peek_aside(want),
        }
    }

    /// The lender's own memory cannot be read any more. Where the system does not allow it, the rest comes beside the ring.
    fn decline(&mut self, e: &io::Error) -> Result<(), LinkError> {
        // Whoever is gone cannot be read: that says it better.
        self.listen();
        if e.raw_os_error() == Some(Errno::FAULT.raw_os_error()) {
            self.gone.get_or_insert_with(|| unreadable(e));
        }
        if let Some(gone) = &self.gone {
            return Err(gone.clone());
        }
        tracing::info!(%e, "the memory of a rank of this host cannot be read any more; its messages go through the ring");
        self.borrower.decline(self.board(false));
        if wakes_writer(self.shared(false)) {
            self.wake();
        }
        Ok(())
    }

    /// Bytes at hand of the remainder of a loan that was declined.
    fn peek_aside(&mut self, want: usize) -> Result<&[u8], LinkError> {
        // SAFETY: the place beside the ring of that direction.
        match unsafe { self.borrower.fetch_aside(self.board(false), self.aside(false), want) } {
            Ok(true) if wakes_writer(self.shared(false)) => self.wake(),
            Ok(_) => {}
            Err(_) => return Err(self.corrupt()),
        }
        if self.borrower.fetched().is_empty() {
            self.look();
            if let Some(gone) = &self.gone {
                return Err(gone.clone());
            }
        }
        Ok(self.borrower.fetched())
    }

    /// Lay the rest of what the peer declined beside the ring, as far as there is room.
    fn lay_aside(&mut self) {
        // SAFETY: only called while a caller still keeps what it has lent; the place beside the ring of this direction.
        if unsafe { self.lender.lay_aside(self.board(true), self.aside(true)) }
            && wakes_reader(self.shared(true))
        {
            self.wake();
        }
    }

    /// Have the system copy bytes of the lender's own memory to their place.
    fn take_there(&mut self, peer: PeerMemory, at: u64, dst: &mut [u8]) -> Result<usize, LinkError> {
        let left = self.loan().map_or(0, |l| l.left);
        let most = dst.len().min(left).min(PULL_CHUNK);
        let copy = self.borrower.begin_copy(most, By::System);
        let n = match loans::read(peer, at, &mut dst[..most]) {
            Ok(n) => n,
            Err(e) => return self.decline(&e).map(|()| 0),
        };
        self.borrower.end_copy(self.board(false), copy, n);
        self.still_holds(n)?;
        self.consume(n);
        Ok(n)
    }

    /// Lend bytes of the message under way; how many.
    fn lend(&mut self, body: &[u8]) -> usize {
        let board = self.board(true);
        let lent = self.lender.lend(board, self.tx.tail(), body);
        if lent == 0 {
            return 0;
        }
        if wakes_reader(self.shared(true)) {
            self.wake();
        }
        loop {
            match self.lender.settled(board, lent) {
                Some(true) => return lent,
                Some(false) => return 0,
                // WAIT(settled): a put; that is open for some microseconds
                None => hint::spin_loop(),
            }
        }
    }

    /// Put through the ring.
    #[inline]
    fn copy(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        let want = head.len() + body.len();
        let shared = self.shared(true);
        let Ok((at, free)) = self.tx.room(shared, want) else { return Err(self.corrupt()) };
        if (1..=SHORT.min(free)).contains(&want) {
            return Ok(self.copy_short(at, free, head, body));
        }
        let mut n = self.fill(at, free, head);
        if n == head.len() {
            let most = body.len().min(free - n);
            let copy = self.begin_ring_copy(self.tx.tail(), most, By::Writer);
            let of_body = self.fill((at + n) & (RING - 1), free - n, body);
            self.borrower.end_copy(self.board(false), copy, of_body);
            self.lender.copied(of_body);
            n += of_body;
        }
        if n > 0 && self.tx.publish(shared, n) {
            self.wake();
        }
        if n == 0 && want > 0 {
            self.look();
        }
        Ok(n)
    }

    /// Put all of a short message where so much is free: in the ring, and beside the position. Copies of a length that is known here take a
    /// few instructions.
    #[inline]
    fn copy_short(&mut self, at: usize, free: usize, head: &[u8], body: &[u8]) -> usize {
        let mut bytes = [0; SHORT];
        let n = head.len() + body.len();
        bytes[..head.len()].copy_from_slice(head);
        bytes[head.len()..n].copy_from_slice(body);
        if free >= SHORT && at <= RING - SHORT {
            // SAFETY: as in `fill`; what goes beyond the message is overwritten before it is shown.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.bytes(true).add(at), SHORT) };
        } else {
            self.fill(at, n, &bytes[..n]);
        }
        self.lender.copied(body.len());
        if self.tx.publish_short(self.shared(true), &bytes, n) {
            self.wake();
        }
        n
    }

    /// After a look in vain: see once in a while whether the peer still is.
    #[inline]
    fn look(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        // Armed, a wake-up is for the poll that follows.
        if !self.armed && self.looks.is_multiple_of(SPINS_PER_SOCKET_CHECK) {
            self.listen();
        }
    }

    /// Swallow wake-ups, take regions, and learn whether the peer has gone.
    fn listen(&mut self) {
        let mut bytes = [0u8; 64];
        loop {
            match sys::recv_bytes(&self.waker, &mut bytes) {
                Ok((0, _)) => {
                    self.gone.get_or_insert_with(|| LinkError("closed its connection".into()));
                    return;
                }
                Ok((n, fd)) => self.hear(&bytes[..n], fd),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.listened = Some(Instant::now());
                    return;
                }
                Err(e) => {
                    let e = io::Error::from(e);
                    self.gone.get_or_insert_with(|| LinkError(format!("broke its connection: {e}")));
                    return;
                }
            }
        }
    }

    /// Handles the bytes from the waker's socket, in the order in which the peer sent them.
    fn hear(&mut self, bytes: &[u8], fd: Option<OwnedFd>) {
        let board = self.board(false);
        let mut fd = fd;
        for byte in bytes {
            match *byte {
                loans::OWN => self.borrower.try_own(board, &self.waker),
                // A read ends with the byte that brings a descriptor.
                loans::REGION => self.borrower.take_region(board, fd.take()),
                loans::STAGE => self.stage = fd.take().and_then(|fd| Mapping::attach_to_read(&fd).ok()),
                _ => {}
            }
        }
    }

    fn wake(&self) {
        // A full socket is awake already; a closed one is found when this end sleeps.
        let _ = (&self.waker).write(&[1]);
    }

    fn corrupt(&mut self) -> LinkError {
        self.gone
            .get_or_insert_with(|| LinkError("wrote an impossible position into shared memory".into()))
            .clone()
    }
}

impl Lending for ShmLink {
    #[inline]
    fn lent(&mut self) -> Result<usize, LinkError> {
        match self.lender.out(self.board(true)) {
            Ok((0, _)) => Ok(0),
            Ok((n, moved)) => {
                self.lay_aside();
                if !moved {
                    self.look();
                }
                self.gone.clone().map_or(Ok(n), Err)
            }
            Err(_) => Err(self.corrupt()),
        }
    }

    fn lent_in_all(&self) -> u64 {
        self.lender.lent_in_all()
    }

    fn revoke(&mut self) {
        self.lender.revoke(self.board(true));
    }

    #[inline]
    fn still_holds(&mut self, n: usize) -> Result<(), LinkError> {
        let Some(loan) = self.loan() else { return Ok(()) };
        if Borrower::is_revoked(self.board(false)) {
            return Err(self.gone.get_or_insert_with(taken_back).clone());
        }
        // A peer that is gone cannot say that it gave up, and another process may have its number then.
        if n == loan.left && self.listened.is_none_or(|at| at.elapsed() > LIVES) {
            self.listen();
        }
        self.gone.clone().map_or(Ok(()), Err)
    }

    fn piece(&self) -> Option<usize> {
        Some(LOAN_CHUNK)
    }

    fn offer_size(&self) -> Option<usize> {
        // One loan for all that is there.
        self.lender.may_lend().then_some(usize::MAX)
    }

    fn pass_stage(&mut self, fd: BorrowedFd<'_>) -> bool {
        sys::send_byte_with(&self.waker, loans::STAGE, &fd).is_ok()
    }

    fn take_stage(&mut self) -> Option<Mapping> {
        self.listen();
        self.stage.take()
    }
}

impl Link for ShmLink {
    fn properties(&self) -> LinkProperties {
        LinkProperties::of_memory(self.kind)
    }

    fn chunk(&self) -> usize {
        CHUNK
    }

    #[inline]
    fn announce(&mut self, len: usize, is_busy: bool, stays: Stays) {
        self.lender.begin(len, stays);
        // Who only sends fills a piece while the peer empties the one before. Who also receives has that to do.
        self.stride = if is_busy { CHUNK } else { (len / PIECES).clamp(LEAST_STRIDE, CHUNK) };
    }

    #[inline]
    fn put(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        if let Some(e) = &self.gone {
            return Err(e.clone());
        }
        if !self.lender.may_lend() {
            return self.copy(head, &body[..body.len().min(self.stride)]);
        }
        // The head first, alone: the peer looks at it while this end finds out how the rest goes.
        let n = if head.is_empty() { 0 } else { self.copy(head, &[])? };
        if n < head.len() {
            return Ok(n);
        }
        self.lender.decide(self.board(true), &self.waker, body);
        if self.lender.lends() {
            let lent = self.lend(body);
            if lent > 0 || self.lender.lends() {
                return Ok(n + lent);
            }
        }
        Ok(n + self.copy(&[], &body[..body.len().min(self.stride)])?)
    }

    #[inline]
    fn peek(&mut self, want: usize) -> Result<&[u8], LinkError> {
        let want = want.min(CHUNK);
        let (mut at, mut n, mut loan) = self.ready(want)?;
        if n == 0 && loan.is_none() {
            self.look();
            if let Some(e) = self.gone.clone() {
                // What was published before the peer went comes first.
                (at, n, loan) = self.ready(want)?;
                if n == 0 && loan.is_none() {
                    return Err(e);
                }
            }
        }
        if let Some(loan) = loan {
            return self.peek_loan(loan, want);
        }
        let short = self.rx.short();
        if !short.is_empty() {
            return Ok(&short[..n.min(short.len())]);
        }
        let whole = n.min(RING - at).min(CHUNK);
        let from = self.bytes(false);
        if whole < want.min(SMALL_WANT) && whole < n {
            let n = n.min(want).min(SMALL_WANT);
            // SAFETY: published and not released, so these bytes do not change; both parts lie inside the ring.
            unsafe {
                ptr::copy_nonoverlapping(from.add(at), self.joint.as_mut_ptr(), whole);
                ptr::copy_nonoverlapping(from, self.joint.as_mut_ptr().add(whole), n - whole);
            }
            return Ok(&self.joint[..n]);
        }
        // SAFETY: as above; the part ends before the ring does.
        Ok(unsafe { slice::from_raw_parts(from.add(at), whole) })
    }

    #[inline]
    fn consume(&mut self, n: usize) {
        if n == 0 {
            return;
        }
        let told = match self.loan() {
            Some(_) => self.borrower.read(self.board(false), n) && wakes_writer(self.shared(false)),
            None => self.rx.release(self.shared(false), n),
        };
        if told {
            self.wake();
        }
    }

    fn take(&mut self, dst: &mut [u8]) -> Result<usize, LinkError> {
        // Looked for here: `peek` would have the system copy to a place of its own, from where it would be copied again.
        if self.loan().is_none() {
            self.ready(dst.len().min(CHUNK))?;
        }
        if let Some(Lies::There(peer, at)) = self.loan().map(|l| l.at)
            && self.borrower.claim(self.board(false))
        {
            return self.take_there(peer, at, dst);
        }
        let ready = self.peek(dst.len().min(CHUNK))?;
        let from = ready.as_ptr();
        let len = ready.len();
        let is_lent = self.loan().is_some();
        let n = len.min(dst.len()).min(if is_lent { LOAN_CHUNK } else { CHUNK });
        let copy = if is_lent { None } else { self.begin_ring_copy(self.rx.head(), n, By::Reader) };
        // SAFETY: `peek` lent them, and nothing was taken since; no memory of a caller lies in the ring, in this link or in a peer's
        // mapping.
        unsafe { ptr::copy_nonoverlapping(from, dst.as_mut_ptr(), n) };
        self.borrower.end_copy(self.board(false), copy, n);
        self.still_holds(n)?;
        self.consume(n);
        Ok(n)
    }

    fn arm(&mut self, interest: Interest) {
        self.armed = true;
        if interest.recv {
            self.rx.arm(self.shared(false));
        }
        if interest.send {
            self.tx.arm(self.shared(true));
        }
    }

    fn disarm(&mut self) -> Result<(), LinkError> {
        if !self.armed {
            return Ok(());
        }
        self.armed = false;
        self.rx.disarm(self.shared(false));
        self.tx.disarm(self.shared(true));
        self.listen();
        Ok(())
    }

    fn fds<'a>(&'a self, _: Interest, out: &mut Vec<(BorrowedFd<'a>, Interest)>) {
        out.push((self.waker.as_fd(), Interest { recv: true, send: false }));
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.revoke();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::conformance::conformance;

    conformance!(|| {
        let (a, b) = UnixStream::pair().unwrap();
        (ShmLink::create(a, Pull::default()).unwrap(), ShmLink::attach(b, Pull::default()).unwrap())
    });

    #[test]
    fn memory_of_another_size_is_refused() {
        let (a, b) = UnixStream::pair().unwrap();
        let (_map, fd) = Mapping::create(4096).unwrap();
        sys::send_fd(&a, &fd).unwrap();
        assert!(ShmLink::attach(b, Pull::default()).is_err());
    }
}
