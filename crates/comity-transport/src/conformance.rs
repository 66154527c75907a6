//! The contract of [`Link`](super::Link) as tests, written once and run over every kind of link.
//!
//! A module of tests, under `cfg(all(test, not(loom)))`, writes `conformance!(make)`, where `make` gives a fresh connected pair.
//! Byte `p` of a stream is a function of `p`, so every test knows what must come next.

mod stream;

use super::{Interest, Link, SMALL_WANT};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scope::Rng;
pub(crate) use scope::eventually;
use std::{thread, time::Duration};
use stream::{StreamCheck, length};
pub(crate) use stream::{bytes, expect};

/// Two ends of one link.
pub(crate) type LinkEnds = (Box<dyn Link>, Box<dyn Link>);

/// The suite over the pairs that `$make` makes.
macro_rules! conformance {
    ($make:expr $(, $meta:meta)?) => {
        $crate::conformance::conformance!(@ ($(#[$meta])?) $make;
            moves_both_ways_at_once any_order_of_calls keeps_the_order_of_head_and_body nothing_is_nothing
            small_wants_come_whole elements_come_whole pushes_back_and_recovers sleeps_when_nothing_happens
            put_wakes_a_reader consume_wakes_a_writer bytes_come_before_the_end an_error_stays
            a_drop_delivers_what_was_accepted);
    };
    (@ $metas:tt $make:expr; $($test:ident)*) => {
        $($crate::conformance::conformance!(= $metas $make; $test);)*
    };
    (= ($(#[$meta:meta])?) $make:expr; $test:ident) => {
        #[test]
        $(#[$meta])?
        fn $test() {
            $crate::conformance::$test($make);
        }
    };
}
pub(crate) use conformance;

pub(crate) fn moves_both_ways_at_once(make: impl Fn() -> LinkEnds) {
    const ALL: usize = 6 << 20;
    let (mut a, mut b) = make();
    assert_eq!(a.properties(), b.properties());
    assert!(a.chunk() > 0);
    let mut input = Rng::new(0x1234_5678_9abc_def1);
    let mut ways = [StreamCheck::default(); 2];
    let sum = |ways: &[StreamCheck; 2]| ways.iter().map(|s| s.put + s.got).sum::<usize>();
    while ways.iter().any(|s| s.got < ALL) {
        let before = sum(&ways);
        let [there, back] = ways.map(|s| s.got);
        // The limit is for a link that stands still, not for one that takes few bytes a call.
        eventually(&format!("more bytes: {there} have come there and {back} back, of {ALL} each"), || {
            for (way, s) in ways.iter_mut().enumerate() {
                let (from, to) = if way == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
                let head = s.offer(&mut input).min(ALL - s.put);
                let body = s.offer(&mut input).min(ALL - s.put - head);
                s.put(from.as_mut(), head, body).unwrap();
                match input.below(3) {
                    0 => s.peek(to.as_mut(), length(&mut input), input.below(257)).unwrap(),
                    1 => s.take(to.as_mut(), length(&mut input)).unwrap(),
                    _ => 0,
                };
            }
            (sum(&ways) > before).then_some(())
        });
    }
}

#[derive(Clone, Debug)]
enum Do {
    Put { head: usize, body: usize },
    Peek { want: usize, share: usize },
    Take { len: usize },
}

fn any_do() -> impl Strategy<Value = (bool, Do)> {
    let len = || prop_oneof![0usize..9, 0usize..100, 0usize..6000, 0usize..700_000];
    let what = prop_oneof![
        (0usize..50, len()).prop_map(|(head, body)| Do::Put { head, body }),
        (len(), 0usize..257).prop_map(|(want, share)| Do::Peek { want, share }),
        len().prop_map(|len| Do::Take { len }),
    ];
    (any::<bool>(), what)
}

pub(crate) fn any_order_of_calls<M: Fn() -> LinkEnds>(make: M) {
    let config = ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(calls in proptest::collection::vec(any_do(), 0..60))| {
        let mut ends: [Box<dyn Link>; 2] = make().into();
        // By the end that puts.
        let mut ways = [StreamCheck::default(); 2];
        for (second, call) in calls {
            let end = usize::from(second);
            let link = ends[end].as_mut();
            match call {
                Do::Put { head, body } => ways[end].put(link, head, body).unwrap(),
                Do::Peek { want, share } => ways[1 - end].peek(link, want, share).unwrap(),
                Do::Take { len } => ways[1 - end].take(link, len).unwrap(),
            };
        }
        ways[0].catch_up(ends[1].as_mut());
        ways[1].catch_up(ends[0].as_mut());
        for (way, end) in ways.iter_mut().zip(ends.iter_mut().rev()) {
            // No more than was offered.
            way.peek(end.as_mut(), 100, 256).unwrap();
        }
    });
}

pub(crate) fn keeps_the_order_of_head_and_body(make: impl Fn() -> LinkEnds) {
    let (mut a, mut b) = make();
    let mut s = StreamCheck::default();
    for (head, body) in [(32, 8), (32, 0), (0, 32), (1, 1), (64, 100_000), (3, 300_000), (300_000, 3)] {
        let end = s.put + head + body;
        eventually("room", || {
            let head = head.min(end - s.put);
            s.put(a.as_mut(), head, end - s.put - head).unwrap();
            // Make room, but not always at the same place.
            s.take(b.as_mut(), 70_001).unwrap();
            (s.put == end).then_some(())
        });
    }
    s.catch_up(b.as_mut());
}

pub(crate) fn nothing_is_nothing(make: impl Fn() -> LinkEnds) {
    let (mut a, mut b) = make();
    assert_eq!(a.put(b"", b""), Ok(0));
    thread::sleep(Duration::from_millis(5));
    assert_eq!(b.take(&mut []), Ok(0));
    assert_eq!(b.take(&mut [0; 9]), Ok(0));
    assert_eq!(b.peek(0).unwrap(), b"");
    assert_eq!(b.peek(9).unwrap(), b"");
    b.consume(0);
    let mut s = StreamCheck::default();
    s.put_all(a.as_mut(), 5);
    assert_eq!(b.take(&mut []), Ok(0));
    s.catch_up(b.as_mut());
}

pub(crate) fn small_wants_come_whole(make: impl Fn() -> LinkEnds) {
    let (mut a, mut b) = make();
    let mut s = StreamCheck::default();
    let mut input = Rng::new(0xfeed_beef_1234_5677);
    for round in 0..2000 {
        // Pieces that end anywhere, and sometimes one that fills buffers up.
        let piece = if round % 200 == 0 { 40_001 } else { 1 + input.below(40) };
        let end = s.put + piece;
        eventually("room", || {
            let is_full = s.put(a.as_mut(), 0, end - s.put).unwrap() == 0;
            let spare = s.put - end.saturating_sub(100).min(s.put);
            s.take(b.as_mut(), if is_full { 1000 } else { spare }).unwrap();
            (s.put == end).then_some(())
        });
        let want = 1 + input.below(SMALL_WANT);
        if s.put.saturating_sub(s.got) < want {
            continue;
        }
        let n = eventually("as many bytes as wanted", || {
            let lent = b.peek(want).unwrap();
            expect(lent, s.got);
            (lent.len() >= want).then_some(lent.len())
        });
        let n = input.below(n.min(100) + 1);
        b.consume(n);
        s.got += n;
    }
    s.catch_up(b.as_mut());
}

pub(crate) fn elements_come_whole(make: impl Fn() -> LinkEnds) {
    let (mut a, mut b) = make();
    let mut s = StreamCheck::default();
    // A head of odd length puts every later element across some boundary.
    s.put_all(a.as_mut(), 3);
    eventually("the head", || (s.take(b.as_mut(), 3).unwrap() > 0 && s.got == 3).then_some(()));
    let all = 3 + (3 << 20);
    let mut input = Rng::new(77);
    eventually("all elements", || {
        let n = s.offer(&mut input).min(all - s.put);
        s.put(a.as_mut(), 0, n).unwrap();
        let ready = s.put.saturating_sub(s.got);
        if ready >= 8 {
            let n = eventually("an element", || {
                let lent = b.peek(60_000).unwrap();
                expect(lent, s.got);
                (lent.len() >= 8).then_some(lent.len() / 8 * 8)
            });
            b.consume(n);
            s.got += n;
        }
        (s.got == all).then_some(())
    });
}

pub(crate) fn pushes_back_and_recovers(make: impl Fn() -> LinkEnds) {
    let (mut a, mut b) = make();
    let mut s = StreamCheck::default();
    let block = bytes(0, 1 << 20);
    let mut refused = 0;
    eventually("a full link", || {
        // Only what was refused may be offered next: the block starts where the stream stands.
        let from = s.put % block.len();
        let n = a.put(&[], &block[from..]).unwrap();
        s.put += n;
        assert!(s.put < 1 << 30, "accepts without bound");
        if n > 0 {
            refused = 0;
            return None;
        }
        refused += 1;
        thread::sleep(Duration::from_millis(1));
        (refused == 50).then_some(())
    });
    let mut place = vec![0; 1 << 20];
    let runs_ahead = a.progress().runs_ahead;
    let mut drain = |s: &mut StreamCheck| {
        eventually("the bytes of a full link", || {
            let n = b.take(&mut place).unwrap();
            for i in (0..n).step_by(61) {
                assert_eq!(place[i], block[(s.got + i) % block.len()], "byte {} of the stream", s.got + i);
            }
            s.got += n;
            assert!(s.got <= s.put || runs_ahead);
            (s.got >= s.put).then_some(())
        });
    };
    drain(&mut s);
    let end = s.put + (2 << 20);
    eventually("room again", || {
        let from = s.put % block.len();
        s.put += a.put(&block[from..], &[]).unwrap();
        drain(&mut s);
        (s.put >= end).then_some(())
    });
}

/// Returns true if a descriptor of `link` becomes ready within `limit`.
pub(crate) fn wakes(link: &dyn Link, interest: Interest, limit: Duration) -> bool {
    let mut fds = Vec::new();
    link.fds(interest, &mut fds);
    let flags = |i: Interest| {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, i.recv);
        flags.set(PollFlags::OUT, i.send);
        flags
    };
    let mut fds: Vec<_> = fds.iter().map(|(fd, i)| PollFd::from_borrowed_fd(*fd, flags(*i))).collect();
    poll(&mut fds, Some(&Timespec::try_from(limit).unwrap())).unwrap() > 0
}

const RECV: Interest = Interest { recv: true, send: false };
const SEND: Interest = Interest { recv: false, send: true };
const LONG: Duration = Duration::from_secs(20);

pub(crate) fn sleeps_when_nothing_happens(make: impl Fn() -> LinkEnds) {
    let (mut a, mut b) = make();
    let mut s = StreamCheck::default();
    for _ in 0..3 {
        s.put_all(a.as_mut(), 1000);
        b.arm(RECV);
        s.catch_up(b.as_mut());
        b.disarm().unwrap();
        b.arm(RECV);
        assert_eq!(b.peek(1).unwrap(), b"");
        assert!(!wakes(b.as_ref(), RECV, Duration::from_millis(20)), "woken by what was taken already");
        b.disarm().unwrap();
    }
}

pub(crate) fn put_wakes_a_reader(make: impl Fn() -> LinkEnds) {
    let (mut a, mut b) = make();
    let mut s = StreamCheck::default();
    for _ in 0..4 {
        b.arm(RECV);
        assert_eq!(b.peek(1).unwrap(), b"");
        thread::scope(|scope| {
            let reader = &mut b;
            let sleeper = scope.spawn(move || wakes(reader.as_ref(), RECV, LONG));
            thread::sleep(Duration::from_millis(10));
            s.put_all(a.as_mut(), 100);
            assert!(sleeper.join().unwrap());
        });
        b.disarm().unwrap();
        s.catch_up(b.as_mut());
    }
}

/// Put `block` again and again until none of it is accepted for a while; how many bytes were.
pub(crate) fn fill(link: &mut dyn Link, block: &[u8]) -> usize {
    let mut put = 0;
    let mut refused = 0;
    eventually("a full link", || {
        let n = link.put(&[], block).unwrap();
        put += n;
        refused = if n > 0 { 0 } else { refused + 1 };
        thread::sleep(Duration::from_millis(u64::from(n == 0)));
        (refused == 50).then_some(put)
    })
}

pub(crate) fn consume_wakes_a_writer(make: impl Fn() -> LinkEnds) {
    let (mut a, mut b) = make();
    let block = vec![7; 1 << 20];
    let mut put = 0;
    let mut got = 0;
    let runs_ahead = a.progress().runs_ahead;
    for by_peek in [true, false] {
        put += fill(a.as_mut(), &block);
        a.arm(SEND);
        // A system that takes what it refused so long is asked again.
        while let n @ 1.. = a.put(&[], &block).unwrap() {
            put += n;
            a.disarm().unwrap();
            a.arm(SEND);
        }
        thread::scope(|scope| {
            let writer = &mut a;
            let sleeper = scope.spawn(move || wakes(writer.as_ref(), SEND, LONG));
            thread::sleep(Duration::from_millis(10));
            let mut place = vec![0; 1 << 20];
            eventually("all bytes to leave", || {
                let n = if by_peek {
                    let n = b.peek(1 << 20).unwrap().len();
                    b.consume(n);
                    n
                } else {
                    b.take(&mut place).unwrap()
                };
                got += n;
                assert!(got <= put || runs_ahead);
                (got >= put).then_some(())
            });
            assert!(sleeper.join().unwrap());
        });
        a.disarm().unwrap();
        let n = eventually("room", || Some(a.put(&[], &block).unwrap()).filter(|&n| n > 0));
        put += n;
    }
}

pub(crate) fn bytes_come_before_the_end(make: impl Fn() -> LinkEnds) {
    for len in [0, 1, 40, 5000, 100_000] {
        let (mut a, mut b) = make();
        let mut s = StreamCheck::default();
        // The longest need not fit.
        s.put(a.as_mut(), 0, len).unwrap();
        drop(a);
        let error = eventually("the end", || {
            let step = if s.got % 2 == 0 { s.peek(b.as_mut(), 64, 200) } else { s.take(b.as_mut(), 999) };
            step.err()
        });
        // And no more, but for links that run ahead: the stream has looked.
        assert!(s.got >= s.put, "{} of {}", s.got, s.put);
        assert_eq!(error.0, "closed its connection");
    }
}

pub(crate) fn an_error_stays(make: impl Fn() -> LinkEnds) {
    let (a, mut b) = make();
    drop(a);
    let error = eventually("the end", || b.peek(1).map(<[u8]>::len).err());
    for _ in 0..3 {
        assert_eq!(b.put(b"head", b"body"), Err(error.clone()));
        assert_eq!(b.peek(8).map(<[u8]>::len), Err(error.clone()));
        assert_eq!(b.take(&mut [0; 8]), Err(error.clone()));
    }
    // One that only puts finds out as well.
    let (a, mut b) = make();
    drop(a);
    let error = eventually("an error of put", || b.put(b"", &[1; 5000]).err());
    assert!(error.0.contains("its connection"), "{error:?}");
    assert_eq!(b.put(b"", &[1]), Err(error.clone()));
    assert_eq!(eventually("an error of peek", || b.peek(1).map(<[u8]>::len).err()), error);
}

pub(crate) fn a_drop_delivers_what_was_accepted(make: impl Fn() -> LinkEnds) {
    for unread in [0, 10, 100_000] {
        let (mut a, mut b) = make();
        let mut there = StreamCheck::default();
        let mut back = StreamCheck::default();
        for _ in 0..8 {
            there.put(a.as_mut(), 40, 1 << 20).unwrap();
        }
        // Bytes on their way to the end that goes must not cost those that it sent.
        back.put(b.as_mut(), 0, unread).unwrap();
        drop(a);
        let error = eventually("the end", || there.take(b.as_mut(), 1 << 16).err());
        assert!(there.got >= there.put, "{} of {}: {error:?}", there.got, there.put);
    }
}
