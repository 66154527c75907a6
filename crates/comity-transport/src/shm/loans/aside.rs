//! A loan of the lender's own memory that the borrower cannot read any more. A program may drop privileges (`setuid`,
//! `prctl(PR_SET_DUMPABLE, 0)`) or protect a page, and the system refuses from one call to the next. The stream behind the loan is in the
//! ring already, so the rest of the loan goes through a place beside it.
//!
//! ```text
//!   lender                                      borrower
//!                     <------- the board -----  loan 7 is declined; own memory: REFUSED; so much of it was read
//!   lays up to ASIDE bytes of its rest aside
//!                     -------- the board ---->  takes them
//!   lays the next ones aside ...                ... until loan 7 is read
//! ```
//! Loans that were shown before the lender saw this are declined in their turn. Later messages go through the ring.

use super::{Board, Borrower, Lender, Nonsense, REFUSED, borrower::Lies};
use std::{ptr, slice, sync::atomic::Ordering};

/// Bytes of one direction that are laid aside at once. The system gives the pages when they are first used.
pub(in crate::shm) const ASIDE: usize = if cfg!(loom) { 32 } else { 64 << 10 };

/// The rest of a declined loan, as its lender lays it aside.
#[derive(Debug, Default)]
pub(super) struct Remainder {
    /// The loan.
    number: u64,
    address: usize,
    left: usize,
    /// Bytes laid aside so far, of all loans.
    laid: u64,
}

impl Lender {
    /// Lay the next bytes of a declined loan in `place`, which has room for [`ASIDE`]; whether there were some.
    ///
    /// # Safety
    /// The lent memory is still there, and nobody writes to it. `place` is this direction's.
    pub(in crate::shm) unsafe fn lay_aside(&mut self, board: &Board, place: *mut u8) -> bool {
        let Some((address, n)) = self.find_unlaid(board) else { return false };
        // SAFETY: the caller vouches for both; the borrower has taken what lay in `place`.
        unsafe { ptr::copy_nonoverlapping(address as *const u8, place, n) };
        self.count_laid(board, n);
        true
    }

    /// Address and number of the next bytes to lay aside, if there is room for them.
    pub(super) fn find_unlaid(&mut self, board: &Board) -> Option<(usize, usize)> {
        let declined = board.borrower.0.declined.load(Ordering::Acquire);
        let out = self.out.front().filter(|o| o.number == declined)?;
        let rest = &mut self.rest;
        if rest.number != declined {
            // The borrower has said how much it read before it declined.
            let left = (out.lent - self.returned) as usize;
            rest.number = declined;
            rest.left = left;
            rest.address = out.address + out.len - left;
        }
        let n = rest.left.min(ASIDE);
        let is_revoked = board.lender.0.revoked.load(Ordering::Relaxed) != 0;
        let is_free = board.borrower.0.taken.load(Ordering::Acquire) == rest.laid;
        (n > 0 && !is_revoked && is_free).then_some((rest.address, n))
    }

    /// So many bytes lie there now.
    pub(super) fn count_laid(&mut self, board: &Board, n: usize) {
        let rest = &mut self.rest;
        rest.address += n;
        rest.left -= n;
        rest.laid += n as u64;
        board.lender.0.aside.store(rest.laid, Ordering::Release);
    }
}

impl Borrower {
    /// The system does not read the current loan any more: have the lender lay it aside.
    pub(in crate::shm) fn decline(&mut self, board: &Board) {
        let Some(loan) = &mut self.loan else { return };
        if let Lies::There(_, at) = loan.at {
            loan.at = Lies::Aside(at);
        }
        self.piece.discard();
        self.own = None;
        self.declined = self.ended + 1;
        self.told = self.read;
        let words = &board.borrower.0;
        words.own.store(REFUSED, Ordering::Relaxed);
        words.returned.store(self.read, Ordering::Relaxed);
        words.declined.store(self.declined, Ordering::Release);
    }

    /// Have at least `want` of the next bytes of a declined loan, as far as they lie in `place`; whether the lender has
    /// to do something.
    ///
    /// # Safety
    /// `place` has [`ASIDE`] bytes, which the lender writes.
    pub(in crate::shm) unsafe fn fetch_aside(
        &mut self,
        board: &Board,
        place: *const u8,
        want: usize,
    ) -> Result<bool, Nonsense> {
        let Some(Lies::Aside(at)) = self.loan.map(|l| l.at) else { return Ok(false) };
        let left = self.loan.map_or(0, |l| l.left);
        if self.declined <= self.ended {
            // It was shown before the lender saw that another one was declined.
            self.decline(board);
            return Ok(true);
        }
        if self.piece.lacks(at, left, want).is_none() {
            return Ok(false);
        }
        let Some(n) = self.find_laid(board)? else { return Ok(false) };
        // SAFETY: so many bytes lie there, and the lender leaves them until they were taken.
        self.piece.append(at, left, unsafe { slice::from_raw_parts(place, n) });
        self.count_taken(board, n);
        Ok(true)
    }

    /// Number of bytes that lie aside, if any do.
    pub(super) fn find_laid(&self, board: &Board) -> Result<Option<usize>, Nonsense> {
        let laid = board.lender.0.aside.load(Ordering::Acquire);
        match laid.checked_sub(self.taken).filter(|n| *n <= ASIDE as u64) {
            Some(n) => Ok((n > 0).then_some(n as usize)),
            None => Err(Nonsense),
        }
    }

    /// So many of them were taken.
    pub(super) fn count_taken(&mut self, board: &Board, n: usize) {
        self.taken += n as u64;
        board.borrower.0.taken.store(self.taken, Ordering::Release);
    }
}
