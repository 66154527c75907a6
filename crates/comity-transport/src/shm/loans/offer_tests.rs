//! Loans that may not last.

use super::super::ShmLink;
use super::{
    pull_tests::take_access,
    tests::{Ends, no_loans, through_the_ring},
    *,
};
use crate::{
    LinkKind, Stays,
    conformance::{bytes, eventually},
};
use std::{
    os::unix::net::UnixStream,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
};

const LONG: usize = 100_000;

fn met(memory: &[u8]) -> Ends {
    let (mut a, mut b) = ShmLink::pair_with(LinkKind::Local, Pull::From(LEAST_GAIN)).unwrap();
    through_the_ring((a.as_mut(), b.as_mut()), memory, Stays::AtOnce);
    (a, b)
}

#[test]
fn one_side_is_first() {
    let entry = |is_offer| {
        let entry = Entry::default();
        entry.begin(is_offer);
        entry
    };
    assert!(!entry(false).is_offer());
    let claimed = entry(true);
    let withdrawn = entry(true);
    assert!(claimed.is_offer() && !claimed.is_claimed());
    assert!(claimed.claim() && claimed.is_claimed() && !claimed.withdraw(), "it is being read");
    assert!(withdrawn.withdraw() && !withdrawn.claim() && !withdrawn.is_claimed());
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_message_is_read_in_place_by_a_peer_that_waits_for_it() {
    let memory = bytes(0, LONG);
    let (mut a, mut b) = met(&memory);
    let over = AtomicBool::new(false);
    let messages = AtomicUsize::new(0);
    thread::scope(|s| {
        // Also where an assertion below fails.
        let _over = Over(&over);
        s.spawn(|| {
            let mut got = 0;
            let mut place = vec![0; LONG];
            while !over.load(Relaxed) {
                got += b.take(&mut place[got..]).unwrap();
                if got == LONG {
                    assert!(place == memory);
                    got = 0;
                    messages.fetch_add(1, Relaxed);
                }
            }
        });
        // On a busy machine the other thread may run too late, but not always.
        let mut sent = 0;
        let lent = eventually("a message that was read in place", || {
            a.announce(LONG, false, Stays::AtOnce);
            let mut put = 0;
            eventually("room", || {
                put += a.put(&[], &memory[put..]).unwrap();
                (put == LONG && a.lent().unwrap() == 0).then_some(())
            });
            sent += 1;
            eventually("the peer", || (messages.load(Relaxed) == sent).then_some(()));
            Some(a.lent_in_all()).filter(|n| *n > 0)
        });
        assert_eq!(lent as usize, LONG, "all of it");
    });
}

#[test]
fn a_message_that_nobody_waits_for_is_copied_and_fewer_are_offered() {
    let memory = bytes(0, LONG);
    let (mut a, mut b) = met(&memory);
    for _ in 0..20 {
        a.announce(LONG, false, Stays::AtOnce);
        let mut put = a.put(b"head", &memory).unwrap() - 4;
        assert_eq!(a.lent(), Ok(0));
        assert!((1..LONG).contains(&put), "{put}");
        while put < LONG {
            put += a.put(&[], &memory[put..]).unwrap();
        }
        let mut place = vec![0; LONG + 4];
        let mut got = 0;
        while got < place.len() {
            got += b.take(&mut place[got..]).unwrap();
        }
        assert!(&place[..4] == b"head" && place[4..] == memory);
    }
    let mut lender = Lender::new(Pull::From(LEAST_GAIN));
    let board = no_loans();
    board.borrower.0.own.store(MAPPED, Relaxed);
    let (near, _far) = UnixStream::pair().unwrap();
    let offered: Vec<u32> = (0..300)
        .filter(|_| {
            // Whatever was withdrawn before has been seen.
            board.borrower.0.ended.store(board.lender.0.shown.load(Relaxed), Relaxed);
            lender.begin(LONG, Stays::AtOnce);
            lender.decide(&board, &near, &memory);
            let is_offered = lender.lend(&board, 0, &memory) > 0;
            is_offered && !eventually("the moment's end", || lender.settled(&board, LONG))
        })
        .collect();
    assert_eq!(offered[..9], [0, 2, 5, 10, 19, 36, 69, 134, 199]);
    assert_eq!(lender.lent_in_all(), 0);
}

#[test]
fn what_cannot_be_read_goes_through_the_ring_and_is_asked_anew_after_a_time() {
    let board = no_loans();
    board.borrower.0.own.store(MAPPED, Relaxed);
    let (near, _far) = UnixStream::pair().unwrap();
    let map = crate::sys::Mapping::private(LONG).unwrap();
    // SAFETY: this test's own mapping. Nobody reads the bytes: the system is asked to, and refuses in the end.
    let memory = unsafe { std::slice::from_raw_parts(map.as_ptr(), LONG) };
    let mut lender = Lender::new(Pull::From(LEAST_GAIN));
    let mut lends = || {
        lender.begin(LONG, Stays::Pulled);
        lender.decide(&board, &near, memory);
        lender.lends()
    };
    assert!(lends() && lends());
    take_access(&map);
    eventually("an answer that is not the old one", || (!lends()).then_some(()));
    assert!(!lends());
}
