use super::*;
use crate::hello::Channel;
use std::net::TcpListener;

/// The two ends, when a byte after the hello has come.
fn said(mut near: TcpStream, mut far: TcpStream) -> (TcpStream, TcpStream) {
    far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    near.write_all(&[8]).unwrap();
    far.read_exact(&mut [0; 2]).unwrap();
    (near, far)
}

#[test]
fn who_says_nothing_after_the_hello_makes_room_for_others() {
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = far.local_addr().unwrap();
    let here = near.local_addr().unwrap();
    let relay = Relay::new(move |_| Some(vec![at]));
    let hello = Hello { from: 2, to: 0, world: 1, group_id: 0, channel: Channel::Control, sealed: true };
    let pass = || {
        let one = TcpStream::connect(here).unwrap();
        let stream = near.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        relay.pass(stream, vec![7], &hello);
        (one, far.accept().unwrap().0)
    };
    let (first, at_first) = pass();
    let (mut near, mut far) = said(first, at_first);
    let mut strangers: Vec<_> = (0..2 * MAX_PASSED).map(|_| pass()).collect();
    let until = Instant::now() + Duration::from_secs(60);
    while relay.is_full() {
        assert!(Instant::now() < until, "the thread has had its turn");
        std::thread::sleep(Duration::from_millis(1));
    }
    let oldest = &mut strangers[0].0;
    oldest.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_ne!(oldest.read(&mut [0]).ok(), Some(1), "the oldest of them was closed");
    near.write_all(&[9]).unwrap();
    far.read_exact(&mut [0]).unwrap();
    far.write_all(&[10]).unwrap();
    near.read_exact(&mut [0]).unwrap();
}

#[test]
fn half_a_connection_over_which_nothing_moves_ends() {
    let pair = || {
        let at = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(at.local_addr().unwrap()).unwrap();
        let other = at.accept().unwrap().0;
        other.set_nonblocking(true).unwrap();
        (one, other)
    };
    let mut room = [0; ROOM];
    let ((_quiet, near), (ended, far)) = (pair(), pair());
    let outward = Flow::default();
    let inward = Flow::default();
    let far = Far::Connected(far);
    let moved = Instant::now();
    let mut passed = RelayedPair { near, far, outward, inward, hello: 0, seen: (0, false), moved };
    drop(ended);
    let until = Instant::now() + Duration::from_secs(60);
    while !passed.is_half() {
        assert!(passed.advance(&mut room) && Instant::now() < until);
    }
    assert!(passed.advance(&mut room), "it may still have something to say");
    passed.moved -= HALF;
    assert!(!passed.advance(&mut room));
}

#[test]
fn one_too_many_is_seen_and_there_is_room_again_when_others_end() {
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = far.local_addr().unwrap();
    let here = near.local_addr().unwrap();
    let relay = Relay::new(move |_| Some(vec![at]));
    let channel = Channel::Control;
    let group_id = 0;
    let hello = Hello { from: 2, to: 0, world: 1, group_id, channel, sealed: true };
    let until = Instant::now() + Duration::from_secs(60);
    let mut held = Vec::new();
    for i in 0..MAX_PASSED {
        assert!(!relay.is_full(), "{i}");
        let one = TcpStream::connect(here).unwrap();
        let stream = near.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        relay.pass(stream, vec![7], &hello);
        held.push(said(one, far.accept().unwrap().0));
    }
    assert!(relay.is_full());
    held.truncate(MAX_PASSED - 3);
    while relay.is_full() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
}
