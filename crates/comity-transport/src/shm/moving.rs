//! Movement of bytes into a link and out of it: through the ring, or lent.

use super::{
    Lending, Link, LinkError, PULL_CHUNK, RING, SPINS_PER_SOCKET_CHECK, ShmLink,
    loans::{self, By, Lies, Loan, MeasuredCopy, unreadable},
    ring::{SHORT, wakes_reader, wakes_writer},
};
use crate::sys::{self, Mapping, PeerMemory};
use rustix::io::Errno;
use std::{
    hint,
    io::{self, Write},
    os::fd::OwnedFd,
    ptr, slice,
    time::Instant,
};

impl ShmLink {
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
    pub(super) fn begin_ring_copy(&mut self, position: u64, n: usize, by: By) -> Option<MeasuredCopy> {
        if position > RING as u64 { self.borrower.begin_copy(n, by) } else { None }
    }

    /// Returns the next bytes: their place in the ring, their number up to the next loan, and that loan if it is next.
    #[inline]
    pub(super) fn ready(&mut self, want: usize) -> Result<(usize, usize, Option<Loan>), LinkError> {
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
            Ok(Some(loan)) if loan.after() == head => match self.borrower.claim(board) {
                true => Ok((at, 0, Some(loan))),
                false => self.ready(want),
            },
            Ok(Some(loan)) => Ok((at, n.min((loan.after() - head) as usize), None)),
            Err(_) => Err(self.corrupt()),
        }
    }

    /// The loan that is next, as the last look found.
    #[inline]
    pub(super) fn loan(&self) -> Option<Loan> {
        let head = self.rx.head();
        self.borrower.current().filter(|l| l.after() == head)
    }

    /// Lend bytes of a loan, in place or copied here.
    pub(super) fn peek_loan(&mut self, loan: Loan, want: usize) -> Result<&[u8], LinkError> {
        match loan.at() {
            // SAFETY: inside a mapping of this link, which it keeps while the loan lasts. The lender does not write there while the loan
            // stands, and nobody believes what was read before `still_holds` has said that it did.
            Lies::Here(at) => Ok(unsafe { slice::from_raw_parts(at, loan.left()) }),
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
    pub(super) fn lay_aside(&mut self) {
        // SAFETY: only called while a caller still keeps what it has lent; the place beside the ring of this direction.
        if unsafe { self.lender.lay_aside(self.board(true), self.aside(true)) }
            && wakes_reader(self.shared(true))
        {
            self.wake();
        }
    }

    /// Have the system copy bytes of the lender's own memory to their place.
    pub(super) fn take_there(
        &mut self,
        peer: PeerMemory,
        at: u64,
        dst: &mut [u8],
    ) -> Result<usize, LinkError> {
        let left = self.loan().map_or(0, |l| l.left());
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
    pub(super) fn lend(&mut self, body: &[u8]) -> usize {
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
    pub(super) fn copy(&mut self, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
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
    pub(super) fn look(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        // Armed, a wake-up is for the poll that follows.
        if !self.armed && self.looks.is_multiple_of(SPINS_PER_SOCKET_CHECK) {
            self.listen();
        }
    }

    /// Swallow wake-ups, take regions, and learn whether the peer has gone.
    pub(super) fn listen(&mut self) {
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

    pub(super) fn wake(&self) {
        // A full socket is awake already; a closed one is found when this end sleeps.
        let _ = (&self.waker).write(&[1]);
    }

    pub(super) fn corrupt(&mut self) -> LinkError {
        self.gone
            .get_or_insert_with(|| LinkError("wrote an impossible position into shared memory".into()))
            .clone()
    }
}
