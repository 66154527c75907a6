//! The side that sends: what it lends, and what came back.

use super::{
    ADDRESS, Board, DENIED, FORGET, KNOWN, LEAST_GAIN, LEAST_LOAN, LEAST_PIECE, LOANS, MAPPED, MOMENT,
    MOST_KNOWN, MOST_PASSED, NONE, Nonce, Nonsense, OWN, Pull, REGION, REGIONS, WHOLE, aside::Remainder,
    speed::Turns,
};
use crate::{
    Stays,
    sync::{Ordering, fence},
    sys::{PeerMemory, Region, Tracer, send_byte_with},
};
use std::{collections::VecDeque, io::Write, os::unix::net::UnixStream, sync::Arc, time::Instant};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// It is not known yet where it lies.
    Open,
    #[default]
    Ring,
    /// From this place in the peer's list, which begins at this address.
    Loan { slot: usize, begin: usize },
    /// From this process's own memory.
    Own,
}

#[derive(Debug)]
struct PassedRegion {
    id: u64,
    slot: usize,
}

/// A loan that was not returned: its number, where it lies, and up to where it goes, in bytes lent and in bytes of bodies.
#[derive(Debug)]
pub(super) struct OutLoan {
    pub(super) number: u64,
    pub(super) address: usize,
    pub(super) len: usize,
    pub(super) lent: u64,
    body: u64,
}

#[derive(Debug, Default)]
pub(in crate::shm) struct Lender {
    way: Way,
    /// Bytes of the message's body that are still to come.
    left: usize,
    /// Bytes of bodies so far, lent or not.
    body: u64,
    lent: u64,
    pub(super) returned: u64,
    shown: u64,
    pub(super) out: VecDeque<OutLoan>,
    pub(super) rest: Remainder,
    passed: Vec<PassedRegion>,
    announced: u32,
    /// Number of regions that were gone at the last look.
    gone: u64,
    pull: Pull,
    /// True if the message under way may be read in this process's own memory.
    may_be_pulled: bool,
    turns: Turns,
    /// True if it is lent only if the peer reads it at once.
    at_once: bool,
    /// Since when the peer may begin to read what was lent last.
    offered: Option<Instant>,
    /// This process, and which of its bytes the system was seen to read lately.
    own: PeerMemory,
    readable: Vec<((usize, usize), Instant)>,
    /// Number of such messages that are still not offered, and the number after the next one that nobody claims.
    passes: u32,
    next_passes: u32,
    /// Number that the peer was asked to read; none before the first time.
    nonce: Option<Nonce>,
    has_allowed: bool,
}

impl Lender {
    pub(in crate::shm) fn new(pull: Pull) -> Self {
        Self { pull, next_passes: 1, ..Self::default() }
    }

    /// A message of `len` bytes begins; `stays` says whether its bytes can stay where they are.
    #[inline]
    pub(in crate::shm) fn begin(&mut self, len: usize, stays: Stays) {
        self.left = len;
        self.way = Way::Ring;
        let least = match stays {
            Stays::No => return,
            Stays::Yes => LEAST_LOAN,
            Stays::Pulled | Stays::AtOnce => LEAST_GAIN,
        };
        self.at_once = stays == Stays::AtOnce;
        if len < least {
            return;
        }
        if self.at_once && self.passes > 0 {
            self.passes -= 1;
            return;
        }
        self.way = Way::Open;
        self.may_be_pulled = self.pull.takes(len, stays);
    }

    /// Returns true if the peer's copies out of this process's own memory are known to gain, or the next is to be measured.
    fn is_turn_to_pull(&mut self, board: &Board) -> bool {
        self.pull != Pull::WherePays
            || self.turns.pulls(board.borrower.0.is_dear.load(Ordering::Relaxed) != 0)
    }

    /// Returns true if the message under way may be lent.
    #[inline]
    pub(in crate::shm) fn may_lend(&self) -> bool {
        self.way != Way::Ring
    }

    /// Returns true if the message is lent, as far as is known.
    pub(in crate::shm) fn lends(&self) -> bool {
        matches!(self.way, Way::Loan { .. } | Way::Own)
    }

    /// Bytes of bodies lent so far.
    pub(in crate::shm) fn lent_in_all(&self) -> u64 {
        self.lent
    }

    /// `n` bytes of a body went through the ring.
    #[inline]
    pub(in crate::shm) fn copied(&mut self, n: usize) {
        self.left = self.left.saturating_sub(n);
        self.body += n as u64;
    }

    /// Find out how the message goes whose next bytes are `body`.
    pub(in crate::shm) fn decide(&mut self, board: &Board, waker: &UnixStream, body: &[u8]) {
        if self.way == Way::Open && !body.is_empty() {
            self.way = self.way_of(board, waker, body).unwrap_or(Way::Ring);
        }
    }

    fn way_of(&mut self, board: &Board, waker: &UnixStream, body: &[u8]) -> Option<Way> {
        self.forget_gone(board);
        let Some((region, before)) = Region::find(body.as_ptr(), self.left) else {
            return self.own_way(board, waker, body);
        };
        let Some(passed) = self.passed.iter().find(|p| p.id == region.id()) else {
            self.pass(board, waker, &region);
            return None;
        };
        let answer = board.regions[passed.slot].load(Ordering::Acquire);
        let begin = body.as_ptr() as usize - before;
        (answer == MAPPED).then_some(Way::Loan { slot: passed.slot, begin })
    }

    /// Returns [`Way::Own`] if the peer is to read `body`, which lies in no region, in this process's own memory.
    fn own_way(&mut self, board: &Board, waker: &UnixStream, body: &[u8]) -> Option<Way> {
        if !self.may_be_pulled {
            return None;
        }
        match board.borrower.0.own.load(Ordering::Acquire) {
            MAPPED => {
                let pulls =
                    self.is_turn_to_pull(board) && self.is_readable(&body[..self.left.min(body.len())]);
                return pulls.then_some(Way::Own);
            }
            NONE if self.nonce.is_none() => self.ask(board, waker),
            DENIED if !self.has_allowed => {
                self.has_allowed = true;
                self.nonce = None;
                if Tracer::allow() {
                    board.borrower.0.own.store(NONE, Ordering::Relaxed);
                    self.ask(board, waker);
                }
            }
            _ => {}
        }
        None
    }

    /// Ask the peer to try.
    fn ask(&mut self, board: &Board, mut waker: &UnixStream) {
        let Some(nonce) = Nonce::new() else { return };
        nonce.show(board);
        if waker.write(&[OWN]).is_ok_and(|n| n == 1) {
            self.nonce = Some(nonce);
            self.announced = self.announced.wrapping_add(1);
            board.lender.0.announced.store(self.announced, Ordering::Release);
        }
    }

    /// Pass a region's descriptor over, if there is room for it.
    fn pass(&mut self, board: &Board, waker: &UnixStream, region: &Arc<Region>) {
        let is_free = |&slot: &usize| {
            let answer = board.regions[slot].load(Ordering::Acquire);
            answer == NONE && self.passed.iter().all(|p| p.slot != slot)
        };
        let Some(slot) = (0..REGIONS).find(is_free) else { return };
        // The peer reads it when it takes the descriptor: fewer than so many are under way.
        board.slots[self.announced as usize % REGIONS].store(slot as u8, Ordering::Relaxed);
        if send_byte_with(waker, REGION, region).is_ok() {
            self.passed.push(PassedRegion { id: region.id(), slot });
            self.announced = self.announced.wrapping_add(1);
            board.lender.0.announced.store(self.announced, Ordering::Release);
        }
    }

    /// Have the peer unmap what has no owner any more.
    fn forget_gone(&mut self, board: &Board) {
        let gone = Region::gone();
        if self.gone == gone {
            return;
        }
        while let Some(i) = self.passed.iter().position(|p| !Region::lives(p.id)) {
            // What the peer has not answered yet, it maps later: it is told then. Half of the room is for loans.
            let answer = board.regions[self.passed[i].slot].load(Ordering::Acquire);
            if answer == NONE || self.room(board) <= LOANS / 2 {
                return;
            }
            let slot = self.passed.swap_remove(i).slot;
            self.show(board, [u64::MAX, slot as u64, 0, FORGET], false);
        }
        self.gone = gone;
    }

    fn room(&self, board: &Board) -> usize {
        let ended = board.borrower.0.ended.load(Ordering::Acquire);
        LOANS.saturating_sub(self.shown.wrapping_sub(ended) as usize)
    }

    fn show(&mut self, board: &Board, [after, region, offset, len]: [u64; 4], is_offer: bool) {
        let entry = &board.entries[self.shown as usize % LOANS];
        entry.after.store(after, Ordering::Relaxed);
        entry.region.store(region, Ordering::Relaxed);
        entry.offset.store(offset, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.begin(is_offer);
        self.shown += 1;
        board.lender.0.shown.store(self.shown, Ordering::Release);
    }

    /// Lend a prefix of `body`, the next bytes of the message, after so many bytes of the ring; how many.
    pub(in crate::shm) fn lend(&mut self, board: &Board, after: u64, body: &[u8]) -> usize {
        let (region, begin) = match self.way {
            Way::Loan { slot, begin } => (slot as u64, begin),
            Way::Own => (ADDRESS, 0),
            Way::Open | Way::Ring => return 0,
        };
        let mut n = body.len().min(self.left);
        if n < self.left {
            n -= n % WHOLE;
            n = if n < LEAST_PIECE { 0 } else { n };
        }
        if n == 0 || self.room(board) == 0 {
            return 0;
        }
        let offset = body.as_ptr() as usize - begin;
        self.show(board, [after, region, offset as u64, n as u64], self.at_once);
        self.offered = None;
        self.lent += n as u64;
        self.copied(n);
        let address = body.as_ptr() as usize;
        let number = self.shown;
        self.out.push_back(OutLoan { number, address, len: n, lent: self.lent, body: self.body });
        n
    }

    /// Returns true if the last `n` bytes, lent just now, stay lent. If not it is as if they had not been, and the message goes through the ring.
    /// None while that is open: for a moment.
    pub(in crate::shm) fn settled(&mut self, board: &Board, n: usize) -> Option<bool> {
        if !self.at_once {
            return Some(true);
        }
        let entry = &board.entries[(self.shown - 1) as usize % LOANS];
        let since = *self.offered.get_or_insert_with(Instant::now);
        if !entry.is_claimed() && since.elapsed() < MOMENT {
            return None;
        }
        if !entry.withdraw() {
            self.next_passes = 1;
            return Some(true);
        }
        self.passes = self.next_passes;
        self.next_passes = (2 * self.next_passes).min(MOST_PASSED);
        if self.way == Way::Own {
            self.turns.in_vain();
        }
        self.take_back(n);
        Some(false)
    }

    /// The last `n` bytes were not lent.
    fn take_back(&mut self, n: usize) {
        self.out.pop_back();
        self.lent -= n as u64;
        self.body -= n as u64;
        self.left += n;
        self.way = Way::Ring;
    }

    /// Returns true if the peer can read `body`. Asking the system takes as long as half a short message, so its answers hold for some time.
    fn is_readable(&mut self, body: &[u8]) -> bool {
        let now = Instant::now();
        let bytes = (body.as_ptr() as usize, body.len());
        if self.readable.iter().any(|(known, since)| *known == bytes && now - *since < KNOWN) {
            return true;
        }
        self.readable.retain(|(known, since)| *known != bytes && now - *since < KNOWN);
        let is_readable = self.own.lends(body);
        if is_readable && self.readable.len() < MOST_KNOWN {
            self.readable.push((bytes, now));
        }
        is_readable
    }

    /// Returns the number of the last bytes of bodies that the peer may still read, and whether some have come back since the last look.
    pub(in crate::shm) fn out(&mut self, board: &Board) -> Result<(usize, bool), Nonsense> {
        if self.out.is_empty() {
            return Ok((0, false));
        }
        let returned = board.borrower.0.returned.load(Ordering::Acquire);
        if returned < self.returned || returned > self.lent {
            return Err(Nonsense);
        }
        let moved = returned != self.returned;
        self.returned = returned;
        while self.out.front().is_some_and(|o| o.lent <= returned) {
            self.out.pop_front();
        }
        let kept = self.out.front().map_or(0, |o| self.body - (o.body - (o.lent - returned)));
        Ok((kept as usize, moved))
    }

    /// Revokes the loans: their bytes may change from now on.
    pub(in crate::shm) fn revoke(&self, board: &Board) {
        if !self.out.is_empty() {
            board.lender.0.revoked.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }
}
