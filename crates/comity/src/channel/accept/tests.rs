//! How long the proof of a handshake is waited for.

use super::*;
use crate::{
    Key,
    channel::{STORE, hello::Initiator},
};
use std::{
    io::Read,
    net::{Ipv4Addr, TcpStream},
    thread,
};

/// Whether a connection for `channel` is let in whose proof comes `late` after the answer.
fn is_let_in(channel: Channel, late: Duration) -> bool {
    let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    listener.listen().unwrap();
    let mut there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let secret = || Secret::new(&Key::from([7; 32]), "job", 0);
    let mut acceptor = Acceptor::new(vec![listener], secret());
    let hello = Hello { from: 1, to: STORE, world: 0, group_id: 0, channel, sealed: false };
    let (mut initiator, first) = Initiator::start(&secret(), &hello).unwrap();
    there.write_all(&first).unwrap();
    let mut step = || acceptor.step(&mut |_, _| HelloVerdict::Yes).len();
    let mut answer = [0; 4096];
    there.set_nonblocking(true).unwrap();
    let proof = loop {
        assert_eq!(step(), 0);
        let Ok(n) = there.read(&mut answer) else { continue };
        if let Some(agreed) = initiator.read(&answer[..n]).unwrap() {
            break agreed.proof;
        }
    };
    let until = Instant::now() + late;
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
        assert_eq!(step(), 0);
    }
    // Nobody may be there any more.
    let _ = there.write_all(&proof);
    thread::sleep(Duration::from_millis(50));
    step() == 1
}

#[test]
fn the_proof_of_a_link_may_come_when_a_cable_is_back() {
    let late = PROOF + Duration::from_millis(300);
    assert!(is_let_in(Channel::Link { transport: 2, index: 0, of: 1, making: 0 }, late));
    assert!(!is_let_in(Channel::Join, late));
}
