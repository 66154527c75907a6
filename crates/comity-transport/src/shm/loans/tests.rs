//! Messages that are lent, over the two ends of a link.

use super::{
    super::{LIVES, ShmLink},
    *,
};
use crate::{
    Interest, Link, LinkKind, Stays,
    conformance::{bytes, eventually, expect, wakes},
    sys::SharedMemory,
};
use scope::Rng;
use std::{
    net::Shutdown, os::unix::net::UnixStream, slice, sync::atomic::Ordering::Relaxed, thread, time::Duration,
};

pub(super) type Ends = (Box<dyn Link>, Box<dyn Link>);

pub(super) const LONG: usize = 200_000;

/// Memory that peers may read, as a test uses it.
pub(super) struct Lent(SharedMemory, usize);

impl Lent {
    pub(super) fn new(len: usize) -> Self {
        Self(SharedMemory::new(len).unwrap(), len)
    }

    pub(super) fn all(&mut self) -> &mut [u8] {
        // SAFETY: this test's own, and borrowed mutably; a peer in this process reads what is lent and not written to.
        unsafe { slice::from_raw_parts_mut(self.0.as_ptr(), self.1) }
    }
}

fn pair() -> Ends {
    ShmLink::pair(LinkKind::Local).unwrap()
}

/// Put all of a message that stays.
pub(super) fn offer(link: &mut dyn Link, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
    link.announce(body.len(), false, Stays::Yes);
    let n = link.put(head, body)?;
    assert!(n >= head.len());
    let mut done = n - head.len();
    for _ in 0..10 {
        done += link.put(&[], &body[done..])?;
    }
    Ok(done)
}

/// Put all of a message that was announced, take it at the other end, and wait until nothing is lent; how many bytes were.
pub(super) fn carry((a, b): (&mut dyn Link, &mut dyn Link), body: &[u8]) -> usize {
    let mut place = vec![0; body.len()];
    let mut put = 0;
    let mut got = 0;
    let before = a.lent_in_all();
    eventually("a message", || {
        put += a.put(&[], &body[put..]).unwrap();
        got += b.take(&mut place[got..]).unwrap();
        (got == body.len() && a.lent() == Ok(0)).then_some(())
    });
    assert!(place == body);
    (a.lent_in_all() - before) as usize
}

/// Through the ring, all of it.
pub(super) fn through_the_ring((a, b): (&mut dyn Link, &mut dyn Link), body: &[u8], stays: Stays) {
    a.announce(body.len(), false, stays);
    assert_eq!(carry((a, b), body), 0);
}

/// Have the peer map the memory, which it does by the first message.
fn meet(a: &mut dyn Link, b: &mut dyn Link, memory: &mut Lent) {
    through_the_ring((a, b), &memory.all()[..LEAST_LOAN], Stays::Yes);
}

/// Loans of nothing yet.
pub(super) fn no_loans() -> Board {
    // SAFETY: atomic integers, for which zeros are values.
    unsafe { std::mem::zeroed() }
}

/// Two ends over memory that both know, which holds the bytes of a stream.
fn met() -> (Box<dyn Link>, Box<dyn Link>, Lent) {
    let (mut a, mut b) = pair();
    let mut memory = Lent::new(LONG);
    memory.all().copy_from_slice(&bytes(0, LONG));
    meet(a.as_mut(), b.as_mut(), &mut memory);
    (a, b, memory)
}

#[test]
fn a_long_message_is_read_where_it_lies() {
    let (mut a, mut b, mut memory) = met();
    let body = memory.all();
    assert_eq!(offer(a.as_mut(), b"head", body), Ok(LONG), "all of it at once, more than a ring holds");
    assert_eq!(a.lent(), Ok(LONG));
    let mut head = [0; 4];
    assert_eq!(b.take(&mut head), Ok(4));
    assert_eq!(&head, b"head");
    assert!(b.peek(LONG).unwrap().len() > CHUNKS, "in one piece");
    assert!(b.piece() >= Some(LONG), "all of it is added at once");
    let mut got = 0;
    while got < LONG {
        let lent = b.peek(64).unwrap();
        let n = lent.len().min(50_000);
        expect(&lent[..n], got);
        b.still_holds(n).unwrap();
        b.consume(n);
        got += n;
    }
    assert_eq!(a.lent(), Ok(0));
}

/// More than the link copies at a time.
const CHUNKS: usize = 100_000;

#[test]
fn a_message_that_does_not_stay_or_is_short_is_copied() {
    let (mut a, mut b, mut memory) = met();
    let body = &memory.all()[..LEAST_LOAN];
    a.announce(body.len(), true, Stays::No);
    let n = a.put(&[], body).unwrap();
    assert_eq!(n + a.put(&[], &body[n..]).unwrap(), 2 * a.chunk());
    assert_eq!(b.peek(b.piece().unwrap()).unwrap().len(), b.chunk(), "out of the ring a chunk at a time");
    assert_eq!(a.lent(), Ok(0));
    let short = &body[..LEAST_LOAN - 1];
    let mut place = vec![0; LEAST_LOAN];
    while b.take(&mut place).unwrap() > 0 {}
    a.announce(body.len(), false, Stays::No);
    assert_eq!(a.put(&[], body), Ok(body.len() / 8), "the peer begins while the rest is filled in");
    a.announce(short.len(), false, Stays::Yes);
    assert!(a.put(&[], short).unwrap() > 0);
    assert_eq!(a.lent(), Ok(0));
}

/// Take what has come, at most `most` bytes of the stream from `got` on; how many.
fn take_any(link: &mut dyn Link, got: usize, most: usize) -> usize {
    let piece = link.peek(64).unwrap();
    let n = piece.len().min(most);
    expect(&piece[..n], got);
    link.still_holds(n).unwrap();
    link.consume(n);
    n
}

#[test]
fn messages_of_all_ways_keep_their_order() {
    keeps_order(pair());
}

/// Messages of all lengths, out of memory that the peer maps and out of any.
pub(super) fn keeps_order((mut a, mut b): Ends) {
    const SLOT: usize = 300_000;
    let mut memory = Lent::new(4 * SLOT);
    meet(a.as_mut(), b.as_mut(), &mut memory);
    let mut input = Rng::new(0x5eed_1234_8765_4321);
    let mut put = 0;
    let mut got = 0;
    let mut lent = 0;
    for message in 0..400 {
        let head = input.below(90);
        let len = input.below(if message % 3 == 0 { SLOT } else { 3000 });
        let slot = message % 4 * SLOT;
        let shared = input.below(4) > 0;
        let stays = input.below(4) > 0;
        let mut take = |b: &mut dyn Link, got: &mut usize, most: usize| {
            if input.below(2) == 0 {
                let mut place = vec![0; most];
                let n = b.take(&mut place).unwrap();
                expect(&place[..n], *got);
                *got += n;
            } else {
                *got += take_any(b, *got, input.below(most + 1));
            }
        };
        // Whoever had this part of the memory before has it back.
        if message % 4 == 0 {
            eventually("what is lent", || {
                take(b.as_mut(), &mut got, 100_000);
                (a.lent().unwrap() == 0).then_some(())
            });
        }
        let heads = bytes(put, head);
        let bodies = bytes(put + head, len);
        memory.all()[slot..slot + len].copy_from_slice(&bodies);
        let body = if shared { &memory.all()[slot..slot + len] } else { &bodies[..] };
        a.announce(len, false, if stays { Stays::Yes } else { Stays::No });
        let mut done = 0;
        eventually("room", || {
            let h = &heads[done.min(head)..];
            let b0 = done.saturating_sub(head);
            done += a.put(h, &body[b0..]).unwrap();
            lent += usize::from(a.lent().unwrap() > 0);
            // A private body is gone when the message is.
            let is_done = done == head + len && (shared || a.lent().unwrap() == 0);
            if !is_done {
                take(b.as_mut(), &mut got, 100_000);
            }
            is_done.then_some(())
        });
        put += head + len;
    }
    eventually("all bytes", || {
        got += take_any(b.as_mut(), got, 100_000);
        (got == put).then_some(())
    });
    assert_eq!(a.lent(), Ok(0));
    assert!(lent > 20, "only {lent} times");
}

/// Check that what is read of such memory after its lender gave up is an error.
pub(super) fn is_an_error<M>(met: impl Fn() -> (Ends, M), all: fn(&mut M) -> &mut [u8]) {
    for by_take in [true, false] {
        let ((mut a, mut b), mut memory) = met();
        offer(a.as_mut(), &[], all(&mut memory)).unwrap();
        assert!(b.take(&mut [0; 1000]).unwrap() > 0);
        let n = b.peek(1).unwrap().len();
        a.revoke();
        all(&mut memory).fill(0);
        let error = if by_take { b.take(&mut [0; 1000]).unwrap_err() } else { b.still_holds(n).unwrap_err() };
        assert_eq!(error, taken_back());
        assert_eq!(b.put(&[1], &[]), Err(error), "and stays");
    }
}

#[test]
fn what_is_read_after_a_lender_gave_up_is_an_error() {
    is_an_error(
        || {
            let (a, b, memory) = met();
            ((a, b), memory)
        },
        Lent::all,
    );
    // Nothing is lent: nothing is said.
    let (mut a, mut b, _memory) = met();
    a.revoke();
    a.put(b"x", &[]).unwrap();
    assert_eq!(b.take(&mut [0; 1]), Ok(1));
}

#[test]
fn a_loan_ends_with_its_lender() {
    let (mut a, mut b, mut memory) = met();
    offer(a.as_mut(), &[], memory.all()).unwrap();
    drop(a);
    assert_eq!(b.take(&mut [0; 1000]), Err(taken_back()));

    // One that is killed says nothing: its socket closes.
    let (near, far) = UnixStream::pair().unwrap();
    let socket = near.try_clone().unwrap();
    let mut a = ShmLink::create(near, Pull::default()).unwrap();
    let mut b = ShmLink::attach(far, Pull::default()).unwrap();
    meet(a.as_mut(), b.as_mut(), &mut memory);
    offer(a.as_mut(), &[], memory.all()).unwrap();
    socket.shutdown(Shutdown::Both).unwrap();
    // Up to then it counts as living.
    thread::sleep(2 * LIVES);
    let mut place = vec![0; LONG];
    let error = eventually("the end", || b.take(&mut place).err());
    assert!(error.0.contains("its connection"), "{error:?}");
    // Who has lent learns it too.
    let error = eventually("the end", || a.lent().err());
    assert!(error.0.contains("its connection"), "{error:?}");
}

#[test]
fn sleepers_wake_for_loans_and_for_what_comes_back() {
    let (mut a, mut b, mut memory) = met();
    let (recv, send) = (Interest { recv: true, send: false }, Interest { recv: false, send: true });
    b.arm(recv);
    assert_eq!(b.peek(1).unwrap(), b"");
    offer(a.as_mut(), &[], memory.all()).unwrap();
    assert!(wakes(b.as_ref(), recv, Duration::from_secs(20)));
    b.disarm().unwrap();
    a.arm(send);
    assert_eq!(a.lent(), Ok(LONG));
    let mut place = vec![0; LONG];
    b.take(&mut place).unwrap();
    assert!(wakes(a.as_ref(), send, Duration::from_secs(20)));
    a.disarm().unwrap();
    assert!(a.lent().unwrap() < LONG);
}

#[test]
fn regions_that_are_gone_are_forgotten_and_others_take_their_place() {
    // One that stays holds up nobody.
    let (mut a, mut b, _stays) = met();
    let mut place = vec![0; LONG];
    for round in 0..REGIONS + 20 {
        let mut memory = Lent::new(LONG);
        meet(a.as_mut(), b.as_mut(), &mut memory);
        offer(a.as_mut(), &[], memory.all()).unwrap();
        assert_eq!(a.lent(), Ok(LONG), "round {round}");
        eventually("the message", || {
            b.take(&mut place).unwrap();
            (a.lent().unwrap() == 0).then_some(())
        });
    }
    // While all places are taken, messages from other regions are copied.
    let mut all: Vec<_> = (0..REGIONS + 5).map(|_| Lent::new(LEAST_LOAN)).collect();
    for memory in &mut all {
        meet(a.as_mut(), b.as_mut(), memory);
    }
}

#[test]
fn a_peer_that_writes_nonsense_is_caught() {
    let board = no_loans();
    let (_map, fd) = crate::sys::Mapping::create(8192).unwrap();
    let show = |entry: [u64; 4]| {
        let e = &board.entries[0];
        for (word, value) in [&e.after, &e.region, &e.offset, &e.len].into_iter().zip(entry) {
            word.store(value, Relaxed);
        }
        board.lender.0.shown.store(1, Relaxed);
    };
    let known = |fd: &std::os::fd::OwnedFd| {
        let mut b = Borrower::new(Pull::default());
        b.take_region(&board, Some(fd.try_clone().unwrap()));
        b
    };
    show([10, 0, 0, 8192]);
    assert!(known(&fd).next(&board, 10).is_ok_and(|l| l.is_some()));
    for wrong in [[9, 0, 0, 8], [10, 1, 0, 8], [10, u64::MAX, 0, 8], [10, 0, 1, 8192], [10, 0, u64::MAX, 2]] {
        show(wrong);
        assert!(known(&fd).next(&board, 10).is_err(), "{wrong:?}");
    }
    board.lender.0.shown.store(LOANS as u64 + 1, Relaxed);
    assert!(known(&fd).next(&board, 10).is_err(), "more than there is room for");
    // A region that could not be passed on is no region.
    let mut b = Borrower::new(Pull::default());
    b.take_region(&board, None);
    assert_eq!(board.regions[0].load(Relaxed), REFUSED);
    show([10, 0, 0, 8]);
    assert!(b.next(&board, 10).is_err());

    let mut lender = Lender::new(Pull::default());
    assert!(lender.out(&board).is_ok_and(|o| o == (0, false)));
    let mut memory = Lent::new(LEAST_LOAN);
    let (near, _far) = UnixStream::pair().unwrap();
    board.regions[0].store(NONE, Relaxed);
    lender.begin(LEAST_LOAN, Stays::Yes);
    lender.decide(&board, &near, memory.all());
    assert!(!lender.lends(), "the peer has not mapped it");
    board.regions[0].store(MAPPED, Relaxed);
    lender.begin(LEAST_LOAN, Stays::Yes);
    lender.decide(&board, &near, memory.all());
    assert_eq!(lender.lend(&board, 0, memory.all()), LEAST_LOAN);
    board.borrower.0.returned.store(LEAST_LOAN as u64 + 1, Relaxed);
    assert!(lender.out(&board).is_err(), "more came back than was lent");
}
