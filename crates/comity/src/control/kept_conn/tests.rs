//! Notes come once over whatever connection, and what never stood is no end.

use super::*;
use std::net::{TcpListener, TcpStream};

const OURS: Origin = Origin { is_ours: true, is_passed_on: false, has_second: true };
const THEIRS: Origin = Origin { is_ours: false, ..OURS };

fn streams() -> (Stream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let b = listener.accept().unwrap().0;
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    (Stream::Tcp(a), Stream::Tcp(b))
}

fn ends() -> [KeptConn; 2] {
    let (a, b) = streams();
    [KeptConn::new(a, None, OURS), KeptConn::new(b, None, THEIRS)]
}

fn note(i: usize) -> Vec<u8> {
    let mut note = vec![1; 9 + i % 50];
    note[1..9].copy_from_slice(&(i as u64).to_be_bytes());
    note
}

/// What has come.
fn read(end: &mut KeptConn) -> Vec<Vec<u8>> {
    assert!(end.fill());
    std::iter::from_fn(|| end.next().unwrap()).collect()
}

/// Both ends, until `done`.
fn until(ends: &mut [KeptConn; 2], mut done: impl FnMut(&mut [KeptConn; 2]) -> bool) {
    let begun = Instant::now();
    while !done(ends) {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

/// Notes both ways, while one end goes on over new connections so many turns before the other. Each `lost`th never comes to the other.
fn all_come(behind: usize, lost: usize) {
    const ALL: usize = 3000;
    let mut ends = ends();
    let (mut put, mut got) = ([0; 2], [0; 2]);
    let (mut later, mut number, mut turn) = (Vec::new(), 0, 0);
    until(&mut ends, |ends| {
        turn += 1;
        for way in 0..2 {
            for _ in 0..7 {
                if put[way] < ALL {
                    ends[way].send(&note(put[way])).unwrap();
                    put[way] += 1;
                }
            }
            ends[way].flush().unwrap();
            // Some is never read before the path is cut.
            if turn % 5 < 3 {
                for came in read(&mut ends[1 - way]) {
                    assert_eq!(came, note(got[way]), "{way}");
                    got[way] += 1;
                }
            }
        }
        if turn % 40 == 7 && turn < 400 || turn > 420 && turn % 40 == 7 && ends[0].is_paused() {
            number += 1;
            let (a, b) = streams();
            ends[0].renew(number, a, None);
            if turn > 420 || lost == 0 || !(number as usize).is_multiple_of(lost) {
                later.push((turn + behind, number, b));
            }
        }
        if later.first().is_some_and(|(at, ..)| *at <= turn) {
            let (_, number, stream) = later.remove(0);
            ends[1].renew(number, stream, None);
        }
        got == [ALL; 2] && ends.iter().all(|e| !e.is_paused())
    });
    assert!(ends.iter().all(|e| e.number > 5 && !e.is_paused() && e.earlier_streams.is_empty()));
}

#[test]
fn every_note_comes_once_over_whatever_connection() {
    all_come(0, 0);
}

#[test]
fn also_where_one_end_goes_on_over_the_old_one_for_a_while() {
    all_come(3, 0);
    all_come(17, 0);
}

#[test]
fn also_where_a_new_one_never_comes_to_the_other_end() {
    all_come(0, 2);
    all_come(5, 3);
}

#[test]
fn what_lies_in_the_old_one_is_read_however_much_it_is() {
    let mut ends = ends();
    for i in 0..20_000 {
        ends[1].send(&note(i)).unwrap();
    }
    let (a, b) = streams();
    ends[0].renew(1, a, None);
    ends[1].renew(1, b, None);
    let mut got = 0;
    until(&mut ends, |[a, b]| {
        b.flush().unwrap();
        assert!(read(b).is_empty());
        for came in read(a) {
            assert_eq!(came, note(got));
            got += 1;
        }
        got == 20_000 && !a.is_paused() && !b.is_paused()
    });
}

#[test]
fn a_new_one_that_ends_before_it_stood_is_no_end() {
    let mut ends = ends();
    let (a, b) = streams();
    ends[0].renew(1, a, None);
    drop(b);
    ends[1].send(&note(0)).unwrap();
    until(&mut ends, |[a, _]| read(a) == [note(0)]);
    until(&mut ends, |[a, _]| read(a).is_empty() && a.next.is_none());
    // What is said meanwhile waits for another one.
    ends[0].send(&note(0)).unwrap();
    assert!(ends[0].is_unsaid() && read(&mut ends[1]).is_empty());
    let long = Duration::from_secs(9);
    assert!(!ends[0].wants_other(long, Instant::now()) && !ends[1].wants_other(long, Instant::now() + long));
    assert!(ends[0].wants_other(long, Instant::now() + long));
    let (a, b) = streams();
    ends[0].renew(2, a, None);
    ends[1].renew(2, b, None);
    until(&mut ends, |[a, b]| read(a).is_empty() && read(b) == [note(0)]);
    // One that stood and ends is one.
    let [mut a, b] = ends;
    drop(b);
    let begun = Instant::now();
    while a.fill() {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn an_end_that_has_nothing_to_say_goes_on() {
    let mut ends = ends();
    let (a, b) = streams();
    ends[0].renew(1, a, None);
    ends[1].renew(1, b, None);
    until(&mut ends, |[a, b]| read(a).is_empty() && read(b).is_empty() && !a.is_paused() && !b.is_paused());
    for end in &mut ends {
        end.flush().unwrap();
        assert!(!end.is_pending());
    }
    ends[0].send(&note(5)).unwrap();
    until(&mut ends, |[_, b]| read(b) == [note(5)]);
}

#[test]
fn notes_that_nobody_has_any_more_end_it() {
    let [mut end, _other] = ends();
    end.send(&note(0)).unwrap();
    let (c, d) = streams();
    end.renew(1, c, None);
    let mut other = Conn::new(d, None);
    other.send(STOP).unwrap();
    other.send(&[&[COUNT][..], &7u64.to_be_bytes()].concat()).unwrap();
    let begun = Instant::now();
    while end.fill() && end.next().is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn more_than_is_kept_is_found() {
    let [mut end, _other] = ends();
    let (a, _b) = streams();
    end.renew(1, a, None);
    for i in 0..MOST_NOTES {
        end.send(&note(i)).unwrap();
    }
    assert!(!end.is_full());
    end.send(&note(0)).unwrap_err();
    assert!(end.take_full() && !end.is_full());
}

#[test]
fn what_cannot_go_on_keeps_nothing() {
    for origin in [Origin { is_passed_on: true, ..OURS }, Origin { has_second: false, ..OURS }] {
        let (a, _b) = streams();
        let mut end = KeptConn::new(a, None, origin);
        end.send(&note(0)).unwrap();
        assert!(end.kept.is_empty() && !end.may_renew(1));
        assert!(!end.wants_other(Duration::ZERO, Instant::now()));
    }
}

#[test]
fn what_has_come_is_kept_no_longer() {
    let mut ends = ends();
    let mut most = 0;
    for i in 0..5000 {
        ends[0].send(&note(i)).unwrap();
        most = most.max(ends[0].kept.len());
    }
    assert_eq!(ends[0].bytes, ends[0].kept.iter().map(Vec::len).sum::<usize>());
    until(&mut ends, |[a, b]| {
        drop(read(b));
        a.let_go();
        a.kept.is_empty() && a.bytes == 0
    });
    assert!(most < 5000, "{most}");
}
