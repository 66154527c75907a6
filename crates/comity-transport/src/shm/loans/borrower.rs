//! The side that receives: the regions that it maps, and the loan that it reads.

use super::{
    super::SMALL_WANT,
    ADDRESS, Board, FORGET, LOANS, MAPPED, NONE, Nonsense, Pull, REFUSED, REGIONS, RETURN, answer,
    speed::{By, MeasuredCopy, Speeds},
    try_to_read,
};
use crate::{
    sync::{Ordering, fence},
    sys::{Mapping, PeerMemory},
};
use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
};

#[derive(Clone, Copy, Debug)]
pub(in crate::shm) struct Loan {
    /// Bytes of the ring before it.
    pub(in crate::shm) after: u64,
    /// Location of its bytes that were not read yet, and their number.
    pub(in crate::shm) at: Lies,
    pub(in crate::shm) left: usize,
    /// Its place in the list, until it is claimed that has to be.
    offer: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::shm) enum Lies {
    /// In a mapping of the borrower.
    Here(*const u8),
    /// At this address of the lender's own memory.
    There(PeerMemory, u64),
    /// At this address there, which the system does not read any more.
    Aside(u64),
}

// SAFETY: it points into a mapping that the borrower owns and that any thread may read.
unsafe impl Send for Lies {}

#[derive(Debug, Default)]
pub(in crate::shm) struct Borrower {
    regions: Vec<Option<Mapping>>,
    came: u32,
    /// Loans read to their end, or given up.
    pub(super) ended: u64,
    /// Bytes read, and of those the ones that the lender was told of.
    pub(super) read: u64,
    pub(super) told: u64,
    pub(super) loan: Option<Loan>,
    pull: Pull,
    /// The lender's own memory, once it was seen that it can be read.
    pub(super) own: Option<PeerMemory>,
    /// The last loan that could not be read any more.
    pub(super) declined: u64,
    /// Bytes taken of those that were laid aside.
    pub(super) taken: u64,
    pub(super) piece: Piece,
    speeds: Speeds,
}

impl Borrower {
    pub(in crate::shm) fn new(pull: Pull) -> Self {
        Self { pull, ..Self::default() }
    }

    /// Returns true if a region was announced that has not come yet.
    #[inline]
    pub(in crate::shm) fn awaits_region(&self, board: &Board) -> bool {
        board.lender.0.announced.load(Ordering::Acquire) != self.came
    }

    /// A region has come, or what is left of it where this process may have no more descriptors.
    pub(in crate::shm) fn take_region(&mut self, board: &Board, fd: Option<OwnedFd>) {
        let slot = usize::from(board.slots[self.came as usize % REGIONS].load(Ordering::Acquire));
        self.came = self.came.wrapping_add(1);
        self.regions.resize_with(self.regions.len().max(slot + 1), || None);
        self.regions[slot] = fd.and_then(|fd| Mapping::attach_to_read(&fd).ok());
        let answer = if self.regions[slot].is_some() { MAPPED } else { REFUSED };
        board.regions[slot].store(answer, Ordering::Release);
    }

    /// The lender asks whether its own memory can be read.
    pub(in crate::shm) fn try_own(&mut self, board: &Board, waker: &UnixStream) {
        self.came = self.came.wrapping_add(1);
        let found = try_to_read(board, waker, self.pull);
        board.borrower.0.own.store(answer(&found), Ordering::Release);
        self.own = found.ok();
    }

    /// The loan that the last look found.
    #[inline]
    pub(in crate::shm) fn current(&self) -> Option<Loan> {
        self.loan
    }

    /// The loan that comes next, if there is one; `head` bytes of the ring were read.
    #[inline]
    pub(in crate::shm) fn next(&mut self, board: &Board, head: u64) -> Result<Option<Loan>, Nonsense> {
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
            let place = self.ended as usize % LOANS;
            let entry = &board.entries[place];
            let offer = entry.is_offer().then_some(place);
            let [after, region, offset, len] =
                [&entry.after, &entry.region, &entry.offset, &entry.len].map(|w| w.load(Ordering::Relaxed));
            if region == ADDRESS {
                let at = match self.own {
                    Some(peer) => Lies::There(peer, offset),
                    None if self.declined > 0 => Lies::Aside(offset),
                    None => return Err(Nonsense),
                };
                offset.checked_add(len).filter(|_| len > 0 && after >= head).ok_or(Nonsense)?;
                let left = usize::try_from(len).map_err(|_| Nonsense)?;
                self.piece.discard();
                return Ok(Some(Loan { after, at, left, offer }));
            }
            let slot = usize::try_from(region).map_err(|_| Nonsense)?;
            let region = self.regions.get_mut(slot).ok_or(Nonsense)?;
            if len == FORGET {
                *region = None;
                board.regions[slot].store(NONE, Ordering::Release);
                self.end(board);
                continue;
            }
            let map = region.as_ref().ok_or(Nonsense)?;
            let end = offset.checked_add(len).ok_or(Nonsense)?;
            if after < head || end > map.len() as u64 {
                return Err(Nonsense);
            }
            // SAFETY: inside the mapping, as just checked.
            let at = unsafe { map.as_ptr().add(offset as usize) };
            let at = Lies::Here(at);
            let left = len as usize;
            return Ok(Some(Loan { after, at, left, offer }));
        }
        Ok(None)
    }

    /// This end is about to read the loan; false if the lender has taken it back, and its bytes come through the ring.
    #[inline]
    pub(in crate::shm) fn claim(&mut self, board: &Board) -> bool {
        let Some(place) = self.loan.as_mut().and_then(|l| l.offer.take()) else { return true };
        let is_claimed = board.entries[place].claim();
        if !is_claimed {
            self.loan = None;
            self.end(board);
        }
        is_claimed
    }

    fn end(&mut self, board: &Board) {
        self.ended += 1;
        board.borrower.0.ended.store(self.ended, Ordering::Release);
    }

    /// Returns true if the lender has revoked its loans: the bytes may change. Asked after the bytes were read.
    #[inline]
    pub(in crate::shm) fn is_revoked(board: &Board) -> bool {
        fence(Ordering::Acquire);
        board.lender.0.revoked.load(Ordering::Relaxed) != 0
    }

    /// A copy of `n` bytes begins; whether it is measured.
    #[inline]
    pub(in crate::shm) fn begin_copy(&mut self, n: usize, by: By) -> Option<MeasuredCopy> {
        (self.pull == Pull::WherePays).then(|| self.speeds.begin(n, by)).flatten()
    }

    /// It has ended, of `n` bytes.
    #[inline]
    pub(in crate::shm) fn end_copy(&mut self, board: &Board, copy: Option<MeasuredCopy>, n: usize) {
        if let Some(is_dear) = copy.and_then(|copy| self.speeds.end(copy, n)) {
            board.borrower.0.is_dear.store(is_dear.into(), Ordering::Relaxed);
        }
    }

    /// Have a copy of at least `want` of the next bytes of a loan of the lender's own memory.
    pub(in crate::shm) fn fetch(&mut self, board: &Board, want: usize) -> io::Result<()> {
        let Some(Loan { at: Lies::There(peer, at), left, .. }) = self.loan else { return Ok(()) };
        let Some(n) = self.piece.lacks(at, left, want) else { return Ok(()) };
        let copy = self.begin_copy(n, By::System);
        self.piece.fetch(peer, at, n)?;
        self.end_copy(board, copy, n);
        Ok(())
    }

    pub(in crate::shm) fn fetched(&self) -> &[u8] {
        match self.loan {
            Some(Loan { at: Lies::There(_, at) | Lies::Aside(at), left, .. }) => self.piece.bytes(at, left),
            _ => &[],
        }
    }

    /// `n` bytes of the loan were read. Returns true if the lender is told now, and is to be woken.
    pub(in crate::shm) fn read(&mut self, board: &Board, n: usize) -> bool {
        let Some(loan) = &mut self.loan else { return false };
        loan.at = match loan.at {
            // SAFETY: not beyond the loan's end: nobody was lent more.
            Lies::Here(at) => Lies::Here(unsafe { at.add(n) }),
            Lies::There(peer, at) => {
                PeerMemory::count(n);
                Lies::There(peer, at + n as u64)
            }
            Lies::Aside(at) => Lies::Aside(at + n as u64),
        };
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

/// Bytes copied at once: they stay in the second-level cache, also beside those of other links.
const MOST: usize = 128 << 10;

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
            self.len += super::read(peer, at + self.len as u64, &mut self.bytes[self.len..n])?;
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
