//! Both sides of a loan under loom. The lent bytes are a cell beside the board: loom sees who touches it when.

use super::*;
use crate::{Stays, sync::Ordering::Relaxed, sys::PeerMemory};
use loom::{cell::UnsafeCell, sync::Arc, thread};
use std::os::unix::net::UnixStream;

const PULL: Pull = Pull::From(LEAST_GAIN);
/// Twice as long as what is laid aside at once.
const LEN: usize = LEAST_GAIN;

struct Both {
    board: Board,
    bytes: UnsafeCell<u8>,
}

/// A board whose borrower has seen that it can read the lender's memory.
fn both() -> Arc<Both> {
    let board = Board {
        lender: CachePadded::default(),
        borrower: CachePadded::default(),
        slots: std::array::from_fn(|_| AtomicU8::new(0)),
        regions: std::array::from_fn(|_| AtomicU8::new(0)),
        entries: std::array::from_fn(|_| Entry::default()),
    };
    board.borrower.0.own.store(MAPPED, Relaxed);
    Arc::new(Both { board, bytes: UnsafeCell::new(0) })
}

impl Both {
    fn write(&self, value: u8) {
        // SAFETY: this side's alone, as the protocol has it; loom checks that.
        self.bytes.with_mut(|p| unsafe { *p = value });
    }

    fn read(&self) -> u8 {
        // SAFETY: as above.
        self.bytes.with(|p| unsafe { *p })
    }
}

fn borrower() -> Borrower {
    let mut borrower = Borrower::new(PULL);
    borrower.own = Some(PeerMemory::own());
    borrower
}

/// The next loan, once it is shown.
fn next(borrower: &mut Borrower, board: &Board) -> Loan {
    loop {
        match borrower.next(board, 0).unwrap() {
            Some(loan) => return loan,
            None => thread::yield_now(),
        }
    }
}

fn lend(lender: &mut Lender, board: &Board, memory: &[u8], stays: Stays) {
    let (near, _far) = UnixStream::pair().unwrap();
    lender.begin(LEN, stays);
    lender.decide(board, &near, memory);
    assert_eq!(lender.lend(board, 0, memory), LEN);
}

/// Two loans of the same bytes: each is read as it was lent, and the lender writes only to what came back.
#[test]
fn lent_bytes_are_the_borrowers_until_they_are_returned() {
    let memory = [0; LEN];
    loom::model(move || {
        let lent = both();
        let theirs = lent.clone();
        let reader = thread::spawn(move || {
            let mut borrower = borrower();
            for value in 1..=2 {
                let loan = next(&mut borrower, &theirs.board);
                assert!(borrower.claim(&theirs.board));
                assert_eq!(theirs.read(), value);
                borrower.read(&theirs.board, loan.left);
            }
        });
        let mut lender = Lender::new(PULL);
        for value in 1..=2 {
            lent.write(value);
            lend(&mut lender, &lent.board, &memory, Stays::Pulled);
            while lender.out(&lent.board).unwrap().0 > 0 {
                thread::yield_now();
            }
        }
        reader.join().unwrap();
    });
}

/// A lender that gives up writes to what it lent. Who read any of that knows.
#[test]
fn bytes_that_changed_are_known_to_be_revoked() {
    let memory = [0; LEN];
    loom::model(move || {
        let lent = both();
        // Both sides may touch it at once.
        let word = Arc::new(AtomicU8::new(1));
        let theirs = lent.clone();
        let seen = word.clone();
        let reader = thread::spawn(move || {
            let mut borrower = borrower();
            next(&mut borrower, &theirs.board);
            let value = seen.load(Relaxed);
            assert!(value == 1 || Borrower::is_revoked(&theirs.board), "{value} was believed");
        });
        let mut lender = Lender::new(PULL);
        lend(&mut lender, &lent.board, &memory, Stays::Pulled);
        lender.revoke(&lent.board);
        word.store(2, Relaxed);
        reader.join().unwrap();
    });
}

/// Either side may be first: the borrower reads, or the lender writes.
#[test]
fn an_offer_is_claimed_or_withdrawn() {
    let memory = [0; LEN];
    loom::model(move || {
        let lent = both();
        let theirs = lent.clone();
        let reader = thread::spawn(move || {
            let mut borrower = borrower();
            let loan = next(&mut borrower, &theirs.board);
            if borrower.claim(&theirs.board) {
                assert_eq!(theirs.read(), 1);
                borrower.read(&theirs.board, loan.left);
            }
        });
        let mut lender = Lender::new(PULL);
        lent.write(1);
        lend(&mut lender, &lent.board, &memory, Stays::AtOnce);
        if lent.board.entries[0].withdraw() {
            lent.write(2);
        }
        reader.join().unwrap();
    });
}

/// A loan that cannot be read goes through the place beside the ring in two pieces, each whole, and the second not before the first was taken.
#[test]
fn what_is_laid_aside_is_taken_whole() {
    let memory = [0; LEN];
    loom::model(move || {
        let place = both();
        let theirs = place.clone();
        let reader = thread::spawn(move || {
            let board = &theirs.board;
            let mut borrower = borrower();
            next(&mut borrower, board);
            borrower.decline(board);
            for value in 1..=2 {
                let n = loop {
                    match borrower.find_laid(board).unwrap() {
                        Some(n) => break n,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!((n, theirs.read()), (ASIDE, value));
                borrower.count_taken(board, n);
            }
        });
        let mut lender = Lender::new(PULL);
        lend(&mut lender, &place.board, &memory, Stays::Pulled);
        for value in 1..=2 {
            let n = loop {
                match lender.find_unlaid(&place.board) {
                    Some((_, n)) => break n,
                    None => thread::yield_now(),
                }
            };
            place.write(value);
            lender.count_laid(&place.board, n);
        }
        reader.join().unwrap();
        assert!(lender.find_unlaid(&place.board).is_none(), "there is no more of it");
    });
}
