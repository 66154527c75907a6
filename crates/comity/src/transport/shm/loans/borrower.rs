//! The side that receives: the regions that it maps, and the loan that it reads.

use super::{Board, FORGET, LOANS, MAPPED, NONE, Nonsense, REFUSED, REGIONS, RETURN};
use crate::sys::Mapping;
use std::{
    os::fd::OwnedFd,
    sync::atomic::{Ordering, fence},
};

/// A loan that is being read.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport::shm) struct Loan {
    after: u64,
    at: *const u8,
    left: usize,
}

// SAFETY: it points into a mapping that the borrower owns and that any thread may read.
unsafe impl Send for Loan {}

/// The side that receives.
#[derive(Debug)]
pub(in crate::transport::shm) struct Borrower {
    regions: Vec<Option<Mapping>>,
    /// Regions that came.
    came: u32,
    /// Loans read to their end, or given up.
    ended: u64,
    /// Bytes read, and of those the ones that the lender was told of.
    read: u64,
    told: u64,
    loan: Option<Loan>,
}

impl Borrower {
    pub(in crate::transport::shm) fn new() -> Self {
        Self { regions: Vec::new(), came: 0, ended: 0, read: 0, told: 0, loan: None }
    }

    /// Whether a region was passed over that has not come yet.
    #[inline]
    pub(in crate::transport::shm) fn awaits_region(&self, board: &Board) -> bool {
        board.lender.0.announced.load(Ordering::Acquire) != self.came
    }

    /// A region has come, or what is left of it where this process may have no more descriptors.
    pub(in crate::transport::shm) fn take_region(&mut self, board: &Board, fd: Option<OwnedFd>) {
        let slot = usize::from(board.slots[self.came as usize % REGIONS].load(Ordering::Acquire));
        self.came = self.came.wrapping_add(1);
        self.regions.resize_with(self.regions.len().max(slot + 1), || None);
        self.regions[slot] = fd.and_then(|fd| Mapping::attach_to_read(&fd).ok());
        let answer = if self.regions[slot].is_some() { MAPPED } else { REFUSED };
        board.regions[slot].store(answer, Ordering::Release);
    }

    /// The loan that the last look found.
    #[inline]
    pub(in crate::transport::shm) fn current(&self) -> Option<Loan> {
        self.loan
    }

    /// The loan that comes next, if there is one; `head` bytes of the ring were read.
    #[inline]
    pub(in crate::transport::shm) fn next(&mut self, board: &Board, head: u64) -> Result<Option<Loan>, Nonsense> {
        if self.loan.is_none() && board.lender.0.shown.load(Ordering::Acquire) != self.ended {
            self.loan = self.open(board, head)?;
        }
        Ok(self.loan)
    }

    fn open(&mut self, board: &Board, head: u64) -> Result<Option<Loan>, Nonsense> {
        let shown = board.lender.0.shown.load(Ordering::Acquire);
        if shown < self.ended || shown - self.ended > LOANS as u64 {
            return Err(Nonsense);
        }
        while self.ended < shown {
            let entry = &board.entries[self.ended as usize % LOANS];
            let [after, region, offset, len] =
                [&entry.after, &entry.region, &entry.offset, &entry.len].map(|w| w.load(Ordering::Relaxed));
            let slot = usize::try_from(region).map_err(|_| Nonsense)?;
            let place = self.regions.get_mut(slot).ok_or(Nonsense)?;
            if len == FORGET {
                *place = None;
                board.regions[slot].store(NONE, Ordering::Release);
                self.end(board);
                continue;
            }
            let map = place.as_ref().ok_or(Nonsense)?;
            let end = offset.checked_add(len).ok_or(Nonsense)?;
            if after < head || end > map.len() as u64 {
                return Err(Nonsense);
            }
            // SAFETY: inside the mapping, as just checked.
            let at = unsafe { map.as_ptr().add(offset as usize) };
            return Ok(Some(Loan { after, at, left: len as usize }));
        }
        Ok(None)
    }

    fn end(&mut self, board: &Board) {
        self.ended += 1;
        board.borrower.0.ended.store(self.ended, Ordering::Release);
    }

    /// Whether the lender has said that what it lent may change. Asked after the bytes were read.
    #[inline]
    pub(in crate::transport::shm) fn is_revoked(board: &Board) -> bool {
        fence(Ordering::Acquire);
        board.lender.0.revoked.load(Ordering::Relaxed) != 0
    }

    /// `n` bytes of the loan were read. Whether the lender is told now, and is to be woken.
    pub(in crate::transport::shm) fn read(&mut self, board: &Board, n: usize) -> bool {
        let Some(loan) = &mut self.loan else { return false };
        // SAFETY: not beyond the loan's end: nobody was lent more.
        loan.at = unsafe { loan.at.add(n) };
        loan.left -= n;
        self.read += n as u64;
        let is_over = loan.left == 0;
        if is_over {
            self.loan = None;
            self.end(board);
        }
        if is_over || self.read - self.told >= RETURN {
            self.told = self.read;
            board.borrower.0.returned.store(self.read, Ordering::Release);
            return true;
        }
        false
    }
}

impl Loan {
    /// How many bytes of the ring come before it.
    pub(in crate::transport::shm) fn after(&self) -> u64 {
        self.after
    }

    /// Its bytes that were not read yet.
    pub(in crate::transport::shm) fn bytes(&self) -> (*const u8, usize) {
        (self.at, self.left)
    }
}
