//! Time limit for the proof of a handshake, and choice of the connection that goes when there are too many.

use super::*;
use crate::{Key, STORE, hello::Initiator};
use std::{
    io::Read,
    net::{Ipv4Addr, TcpStream},
    thread,
};

fn secret() -> Secret {
    Secret::new(&Key::from([7; 32]), "job", 0)
}

fn listening() -> (Acceptor, SocketAddr) {
    let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    listener.listen().unwrap();
    let at = listener.local_addr().unwrap();
    (Acceptor::new(vec![listener], secret()), at)
}

fn step(acceptor: &mut Acceptor) -> usize {
    acceptor.step(&mut |_, _| HelloVerdict::Yes).len()
}

/// Connecting side.
struct Dialer {
    stream: TcpStream,
    initiator: Option<Initiator>,
}

impl Dialer {
    fn start(at: SocketAddr, channel: Channel) -> Self {
        let hello = Hello { from: 1, to: STORE, world: 0, group_id: 0, channel, sealed: false };
        let (initiator, first) = Initiator::start(&secret(), &hello).unwrap();
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&first).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { stream, initiator: Some(initiator) }
    }

    /// The proof, once: when the answer has come.
    fn proof(&mut self) -> Option<Vec<u8>> {
        let mut answer = [0; 4096];
        let initiator = self.initiator.as_mut()?;
        let n = self.stream.read(&mut answer).ok()?;
        let agreed = initiator.read(&answer[..n]).unwrap()?;
        self.initiator = None;
        Some(agreed.proof)
    }
}

/// Returns true if a connection for `channel` is let in when its proof comes `late` after the answer.
fn is_let_in(channel: Channel, late: Duration) -> bool {
    let (mut acceptor, at) = listening();
    let mut dialer = Dialer::start(at, channel);
    let proof = loop {
        assert_eq!(step(&mut acceptor), 0);
        if let Some(proof) = dialer.proof() {
            break proof;
        }
    };
    let until = Instant::now() + late;
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
        assert_eq!(step(&mut acceptor), 0);
    }
    // Nobody may be there any more.
    let _ = dialer.stream.write_all(&proof);
    thread::sleep(Duration::from_millis(50));
    step(&mut acceptor) == 1
}

/// An answered connection believes that it is in. If it went, its process would take the listener's process for dead.
#[test]
fn who_was_answered_keeps_its_place_when_others_come() {
    // Of all connections these have the longest time for the proof: a sanitizer and a busy machine take it.
    const LINK: Channel = Channel::Link { transport: 2, index: 0, of: 1 };
    let (mut acceptor, at) = listening();
    let mut all: Vec<_> = (0..MAX_HALF_OPEN).map(|_| Dialer::start(at, LINK)).collect();
    let mut proofs = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    while proofs.len() < all.len() {
        assert!(Instant::now() < until, "{}", proofs.len());
        step(&mut acceptor);
        proofs.extend(all.iter_mut().enumerate().filter_map(|(i, d)| Some((i, d.proof()?))));
    }
    // All at one moment, however long a sanitizer or a busy machine took to answer them.
    for h in &mut acceptor.half_open {
        assert!(h.answered.is_some());
        h.answered = Some(until);
        h.until = until;
    }
    let mut more: Vec<_> = (0..10).map(|_| Dialer::start(at, LINK)).collect();
    assert_eq!(step(&mut acceptor), 0);
    for (i, proof) in proofs {
        all[i].stream.write_all(&proof).unwrap();
    }
    let mut done = 0;
    // Whoever has waited gets in as well.
    while done < all.len() + more.len() {
        assert!(Instant::now() < until, "{done}");
        done += step(&mut acceptor);
        for dialer in &mut more {
            if let Some(proof) = dialer.proof() {
                dialer.stream.write_all(&proof).unwrap();
            }
        }
    }
}

#[test]
fn the_proof_of_a_link_may_come_when_a_cable_is_back() {
    let late = PROOF + Duration::from_millis(300);
    assert!(is_let_in(Channel::Link { transport: 2, index: 0, of: 1 }, late));
    assert!(!is_let_in(Channel::Join, late));
}

/// Many newcomers at once must not keep a control thread from its beats.
#[test]
fn a_step_leaves_newcomers_for_the_next_when_its_time_is_over() {
    const ALL: usize = 40;
    let (mut acceptor, at) = listening();
    let mut dialers: Vec<_> = (0..ALL).map(|_| Dialer::start(at, Channel::Join)).collect();
    let mut most = 0;
    let mut let_in = 0;
    let end = Instant::now() + Duration::from_secs(20);
    while let_in < ALL {
        assert!(Instant::now() < end, "{let_in} of {ALL} were let in");
        let mut judged = 0;
        let done = acceptor.step_until(Some(Instant::now()), &mut |_, _| {
            judged += 1;
            thread::sleep(Duration::from_millis(2));
            HelloVerdict::Yes
        });
        (most, let_in) = (most.max(judged), let_in + done.len());
        for dialer in &mut dialers {
            if let Some(proof) = dialer.proof() {
                dialer.stream.write_all(&proof).unwrap();
            }
        }
    }
    assert!(most <= 4, "{most} in one step");
}
