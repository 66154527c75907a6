//! Messages that the peer has the system read in this process's own memory.

use super::super::ShmLink;
use super::{
    NO_READS,
    tests::{Ends, LONG, Lent, carry, is_an_error, keeps_order, no_loans, offer, through_the_ring},
    try_to_read, *,
};
use crate::{
    Link, LinkKind, SMALL_WANT, Stays,
    conformance::{bytes, eventually, expect},
};
use std::{os::unix::net::UnixStream, slice, sync::atomic::Ordering::Relaxed};

const PULL: Pull = Pull::From(LEAST_LOAN);

fn pair() -> Ends {
    ShmLink::pair_with(LinkKind::Local, PULL).unwrap()
}

/// Two ends that have tried it.
fn met(memory: &[u8]) -> Ends {
    let (mut a, mut b) = pair();
    through_the_ring((a.as_mut(), b.as_mut()), &memory[..LEAST_LOAN], Stays::Yes);
    (a, b)
}

#[test]
fn any_long_message_is_read_where_it_lies() {
    let memory = bytes(0, LONG);
    let (mut a, mut b) = met(&memory);
    assert_eq!(offer(a.as_mut(), b"head", &memory), Ok(LONG), "all of it at once, more than a ring holds");
    assert_eq!(a.lent(), Ok(LONG));
    let mut head = [0; 4];
    assert_eq!(b.take(&mut head), Ok(4));
    // In pieces that end anywhere, copied or straight to their place; at the end of a piece what is wanted comes whole all the same.
    let mut got = 0;
    for n in [131_072 - 9, 8, 8, 1].into_iter().chain([7; 100]) {
        let lent = b.peek(n.min(SMALL_WANT)).unwrap();
        assert!(lent.len() >= n.min(SMALL_WANT), "{} of {n} bytes at {got}", lent.len());
        let n = lent.len().min(n);
        expect(&lent[..n], got);
        b.still_holds(n).unwrap();
        b.consume(n);
        got += n;
    }
    let mut place = vec![0; LONG];
    while got < LONG {
        let n = b.take(&mut place).unwrap();
        expect(&place[..n], got);
        got += n;
    }
    assert_eq!(a.lent(), Ok(0));
    // A shorter message, or one that does not stay, is copied.
    through_the_ring((a.as_mut(), b.as_mut()), &memory[..LEAST_LOAN - 1], Stays::Yes);
    a.announce(LONG, false, Stays::No);
    assert!(a.put(&[], &memory).unwrap() < LONG && a.lent() == Ok(0));
}

#[test]
fn another_message_at_the_same_address_is_read_anew() {
    let mut memory = bytes(0, LONG);
    let (mut a, mut b) = met(&memory);
    for round in 0..4 {
        memory.copy_from_slice(&bytes(round * 1000, LONG));
        offer(a.as_mut(), &[], &memory).unwrap();
        let mut got = 0;
        while got < LONG {
            let lent = b.peek(LONG).unwrap();
            expect(lent, round * 1000 + got);
            let n = lent.len();
            b.still_holds(n).unwrap();
            b.consume(n);
            got += n;
        }
        assert_eq!(a.lent(), Ok(0));
    }
}

#[test]
fn messages_of_all_ways_keep_their_order() {
    keeps_order(pair());
}

#[test]
fn what_is_read_after_a_lender_gave_up_is_an_error() {
    is_an_error(
        || {
            let memory = bytes(0, LONG);
            (met(&memory), memory)
        },
        |memory| memory,
    );
}

#[test]
fn what_cannot_be_read_any_more_comes_beside_the_ring() {
    for by_take in [true, false] {
        let memory = bytes(0, LONG);
        let (mut a, mut b) = met(&memory);
        // The second one is lent before its lender knows better, and what goes through the ring stays behind both.
        offer(a.as_mut(), &[], &memory).unwrap();
        offer(a.as_mut(), &[], &memory).unwrap();
        a.put(b"tail", &[]).unwrap();
        assert_eq!(a.lent(), Ok(2 * LONG));
        let mut got = Vec::<u8>::new();
        let mut read = |b: &mut dyn Link| {
            let before = got.len();
            if by_take {
                let mut place = vec![0; 30_001];
                let n = b.take(&mut place).unwrap();
                got.extend(&place[..n]);
            } else {
                // Elements, which come whole at the end of each part too.
                let lent = b.peek(8).unwrap();
                let left = 2 * LONG + 4 - before;
                assert!(lent.is_empty() || lent.len() >= left.min(8), "{} of {left}", lent.len());
                let n = lent.len().min(30_000);
                got.extend(&lent[..n]);
                b.still_holds(n).unwrap();
                b.consume(n);
            }
            got.len() - before
        };
        assert!(read(b.as_mut()) > 0);
        NO_READS.set(true);
        while read(b.as_mut()) > 0 {}
        assert_eq!(read(b.as_mut()), 0, "nothing comes before the lender looks");
        eventually("all bytes", || {
            let left = a.lent().unwrap();
            (read(b.as_mut()) + left == 0).then_some(())
        });
        assert!(got == [&memory[..], &memory, b"tail"].concat());
        // From now on the ring carries it.
        through_the_ring((a.as_mut(), b.as_mut()), &memory, Stays::Yes);
        NO_READS.set(false);
    }
}

#[test]
fn both_ends_have_to_want_it() {
    let map = std::sync::Arc::new(crate::sys::Mapping::private(super::super::LEN).unwrap());
    for wants in [[PULL, Pull::default()], [Pull::default(), PULL]] {
        let (a, b) = UnixStream::pair().unwrap();
        let [mut a, mut b] = [(a, true, wants[0]), (b, false, wants[1])]
            .map(|(s, first, pull)| ShmLink::boxed(LinkKind::Local, map.clone(), first, s, pull).unwrap());
        let memory = bytes(0, LONG);
        for _ in 0..3 {
            through_the_ring((a.as_mut(), b.as_mut()), &memory, Stays::Yes);
        }
        map.give_back_pages();
    }
}

#[test]
fn unless_told_only_what_gains_by_it_is_read() {
    let (mut a, mut b) = ShmLink::pair_with(LinkKind::Local, Pull::WherePays).unwrap();
    let memory = bytes(0, LONG);
    let send = |a: &mut dyn Link, b: &mut dyn Link, stays| {
        a.announce(LONG, true, stays);
        carry((a, b), &memory)
    };
    let lent = [Stays::Yes, Stays::Pulled, Stays::No, Stays::Yes, Stays::Pulled]
        .map(|stays| send(a.as_mut(), b.as_mut(), stays));
    assert_eq!(lent, [0, 0, 0, 0, LONG], "the first one asks");
}

#[test]
fn where_the_ring_is_quicker_few_messages_are_read() {
    let board = no_loans();
    board.borrower.0.own.store(MAPPED, Relaxed);
    let (near, _far) = UnixStream::pair().unwrap();
    let memory = bytes(0, LONG);
    let lent = |pull, is_dear: u8, stays| {
        board.borrower.0.is_dear.store(is_dear, Relaxed);
        let mut lender = Lender::new(pull);
        (0..100)
            .filter(|_| {
                lender.begin(LONG, stays);
                lender.decide(&board, &near, &memory);
                lender.lends()
            })
            .count()
    };
    for stays in [Stays::Pulled, Stays::AtOnce] {
        assert_eq!([0, 1].map(|is_dear| lent(Pull::WherePays, is_dear, stays)), [96, 4], "{stays:?}");
        assert_eq!(lent(Pull::From(LEAST_LOAN), 1, stays), 100, "told to");
    }
}

#[test]
fn who_reads_says_which_way_is_quicker() {
    let map = std::sync::Arc::new(crate::sys::Mapping::private(super::super::LEN).unwrap());
    let (a, b) = UnixStream::pair().unwrap();
    let [mut a, mut b] = [(a, true), (b, false)]
        .map(|(s, first)| ShmLink::boxed(LinkKind::Local, map.clone(), first, s, Pull::WherePays).unwrap());
    // SAFETY: the loans from `a` to `b`, in a mapping that lives; atomic integers.
    let board: &Board = unsafe { &*map.as_ptr().add(super::super::BOARDS).cast() };
    let memory = bytes(0, LONG);
    // Whatever was measured: what the lender does follows from it, and both ways were tried.
    let mut lent = 0;
    eventually("both ways", || {
        board.borrower.0.is_dear.store(2, Relaxed);
        a.announce(LONG, true, Stays::Pulled);
        lent += carry((a.as_mut(), b.as_mut()), &memory);
        (lent > 0 && board.borrower.0.is_dear.load(Relaxed) < 2).then_some(())
    });
}

#[test]
fn what_the_peer_is_told_at_once_is_heard_in_order() {
    let (mut a, mut b) = ShmLink::pair_with(LinkKind::Local, Pull::WherePays).unwrap();
    let mut first = Lent::new(LEAST_LOAN);
    let mut second = Lent::new(LEAST_LOAN);
    let private = bytes(0, LEAST_LOAN);
    first.all().copy_from_slice(&bytes(1000, LEAST_LOAN));
    second.all().copy_from_slice(&bytes(2000, LEAST_LOAN));
    let mut place = vec![0; LEAST_LOAN];
    for round in 0..3 {
        // Nothing is taken before all are there: the peer then hears of its memory and of both regions in one go.
        for body in [&private[..], first.all(), second.all()] {
            a.announce(LEAST_LOAN, true, Stays::Pulled);
            let mut put = 0;
            eventually("room", || {
                put += a.put(&[], &body[put..]).unwrap();
                (put == LEAST_LOAN).then_some(())
            });
        }
        assert_eq!(a.lent().unwrap() > 0, round > 0);
        for from in [0, 1000, 2000] {
            let mut got = 0;
            eventually("a message", || {
                got += b.take(&mut place[got..]).unwrap();
                (got == LEAST_LOAN).then_some(())
            });
            expect(&place, from);
        }
    }
    assert_eq!(a.lent_in_all() as usize, 2 * 3 * LEAST_LOAN);
}

#[test]
fn another_process_with_the_same_number_is_not_taken_for_the_peer() {
    let board = no_loans();
    let (near, _far) = UnixStream::pair().unwrap();
    let number = [7u64, 8];
    board.lender.0.nonce_at.store(number.as_ptr() as u64, Relaxed);
    let shown =
        |parts: [u64; 2]| board.lender.0.nonce.iter().zip(parts).for_each(|(w, p)| w.store(p, Relaxed));
    shown([7, 9]);
    assert_eq!(try_to_read(&board, &near, PULL).unwrap_err(), REFUSED, "another number lies there");
    shown(number);
    assert!(try_to_read(&board, &near, PULL).is_ok());
    assert_eq!(try_to_read(&board, &near, Pull::default()).unwrap_err(), REFUSED);
    board.lender.0.nonce_at.store(8, Relaxed);
    assert_eq!(try_to_read(&board, &near, PULL).unwrap_err(), REFUSED, "nothing lies there");
    // Nor is an address believed before it was tried.
    let mut b = Borrower::new(PULL);
    for (word, value) in [&board.entries[0].region, &board.entries[0].offset, &board.entries[0].len]
        .into_iter()
        .zip([ADDRESS, 64, 8])
    {
        word.store(value, Relaxed);
    }
    board.lender.0.shown.store(1, Relaxed);
    assert!(b.next(&board, 0).is_err());
}

/// Let nobody read or write it any more, by whatever way; its addresses stay taken.
pub(super) fn take_access(map: &crate::sys::Mapping) {
    let nothing = rustix::mm::MprotectFlags::empty();
    // SAFETY: a test's own mapping, whose bytes it has no use for any more.
    unsafe { rustix::mm::mprotect(map.as_ptr().cast(), map.len(), nothing) }.unwrap();
}

#[test]
fn memory_that_went_is_an_error() {
    let (mut a, mut b) = met(&bytes(0, LONG));
    let map = crate::sys::Mapping::private(LONG).unwrap();
    // SAFETY: this test's own mapping, which nobody writes to, and whose bytes nobody reads once they are gone.
    let memory = unsafe { slice::from_raw_parts(map.as_ptr(), LONG) };
    assert_eq!(offer(a.as_mut(), &[], memory), Ok(LONG));
    // Still taken, so that no other test's memory can come to lie there.
    take_access(&map);
    let error = b.take(&mut vec![0; LONG]).unwrap_err();
    assert!(error.0.contains("COMITY_PULL=0"), "{error:?}");
    assert_eq!(b.peek(1).map(<[u8]>::to_vec), Err(error));
}
