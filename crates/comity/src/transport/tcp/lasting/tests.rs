//! Links that go on over other connections.

use super::*;
use crate::transport::{
    conformance::{LinkEnds, conformance, eventually},
    tcp::tests::streams,
};

struct Ends {
    links: [LastingLink; 2],
    making: u16,
    sealed: bool,
}

fn seals(n: usize, sealed: bool, making: u16) -> [(Vec<Seal>, Vec<Seal>); 2] {
    let both = (0..n).filter(|_| sealed).map(|i| crate::channel::both_ends((i as u8) * 16 + making as u8));
    let mut ends: [(Vec<Seal>, Vec<Seal>); 2] = Default::default();
    for (a, b) in both {
        ends[0].0.push(a.send);
        ends[0].1.push(a.recv);
        ends[1].0.push(b.send);
        ends[1].1.push(b.recv);
    }
    ends
}

impl Ends {
    fn new(connections: usize, sealed: bool) -> Self {
        let (a, b) = streams(connections);
        let [ours, theirs] = seals(connections, sealed, 1);
        let options = TcpOptions::default();
        let a = make((7, 1), a, ours, &options, 1).unwrap().0;
        let b = make((7, 0), b, theirs, &options, 1).unwrap().0;
        Self { links: [a, b], making: 1, sealed }
    }

    /// Other connections. What lay in the old ones is lost where it `forgets`.
    fn renew(&mut self, connections: usize, forgets: bool) {
        self.making += 1;
        let (a, b) = streams(connections);
        let (c, d) = streams(1);
        for s in c.iter().chain(&d) {
            s.set_nonblocking(true).unwrap();
        }
        let desk = |mut s: Vec<TcpStream>| Conn::new(crate::channel::Stream::Tcp(s.remove(0)), None);
        let [ours, theirs] = seals(connections, self.sealed, self.making);
        for (link, (streams, seals, desk)) in
            self.links.iter_mut().zip([(a, ours, desk(c)), (b, theirs, desk(d))])
        {
            link.forgets = forgets;
            link.shared.renew(self.making, streams, seals, desk).unwrap();
        }
    }
}

fn pair(connections: usize, sealed: bool) -> LinkEnds {
    let [a, b] = Ends::new(connections, sealed).links;
    (Box::new(a), Box::new(b))
}

/// The same after some were replaced.
fn renewed(sealed: bool) -> LinkEnds {
    let mut ends = Ends::new(1, sealed);
    ends.renew(2, false);
    let [a, b] = ends.links;
    (Box::new(a), Box::new(b))
}

mod clear {
    super::conformance!(|| super::pair(1, false));
}

mod sealed {
    super::conformance!(|| super::pair(1, true));
}

mod two_connections {
    super::conformance!(|| super::pair(2, false));
}

fn byte(at: usize) -> u8 {
    (at * 31 + (at >> 9)) as u8
}

/// Bytes go both ways while connections are replaced, and all come once and in order.
fn goes_on(connections: usize, sealed: bool, forgets: bool) {
    // Nothing is taken for come before so much was sent.
    let (all, most) = if forgets { (250_000, 3000) } else { (24 << 20, 300_000) };
    let mut ends = Ends::new(connections, sealed);
    let (mut put, mut got, mut turn) = ([0; 2], [0; 2], 0usize);
    let mut place = vec![0; 300_000];
    eventually("both streams", || {
        turn += 1;
        if turn.is_multiple_of(11) && got[0] < all / 2 {
            ends.renew(1 + turn % 2, forgets);
        }
        for way in 0..2 {
            let n = [5, 700, 70_000, 300_000][(turn + way) % 4].min(all - put[way]).min(most);
            let bytes: Vec<u8> = (put[way]..put[way] + n).map(byte).collect();
            let (head, body) = bytes.split_at(n / 3);
            put[way] += ends.links[way].put(head, body).unwrap();
            let link = &mut ends.links[1 - way];
            if turn.is_multiple_of(3) {
                let n = {
                    let ready = link.peek(1000).unwrap();
                    assert!(ready.iter().enumerate().all(|(i, b)| *b == byte(got[way] + i)), "{turn}");
                    ready.len() / 2
                };
                link.consume(n);
                got[way] += n;
            } else {
                let n = link.take(&mut place[..most]).unwrap();
                assert!(place[..n].iter().enumerate().all(|(i, b)| *b == byte(got[way] + i)), "{turn}");
                got[way] += n;
            }
        }
        (got == [all; 2]).then_some(())
    });
    assert!(ends.making > 3, "{}", ends.making);
    for link in &ends.links {
        let out = lock(&link.shared.out);
        assert!(out.next.is_none() && out.latest() == ends.making);
    }
}

#[test]
fn all_comes_once_when_connections_are_replaced() {
    for (connections, sealed) in [(1, false), (2, false), (1, true), (2, true)] {
        goes_on(connections, sealed, false);
    }
}

#[test]
fn what_was_lost_is_sent_again() {
    for (connections, sealed) in [(1, false), (2, false), (1, true), (2, true)] {
        goes_on(connections, sealed, true);
    }
}

#[test]
fn bytes_that_were_acknowledged_and_did_not_come_are_an_error() {
    let mut ends = Ends::new(1, false);
    let piece = vec![7; 3 << 20];
    let (mut put, mut took) = (0, vec![0; 1 << 20]);
    let error = eventually("an error", || {
        if put < 12 << 20 {
            put += ends.links[0].put(&[], &piece).unwrap();
            if put >= 12 << 20 {
                ends.renew(1, true);
            }
        }
        let _ = ends.links[1].take(&mut took);
        // As if a process between them had taken the rest.
        ends.links[1].received = 5;
        ends.links[0].put(&[], &[]).err().map(|e| (e, ends.links[1].take(&mut took)).0)
    });
    assert!(error.0.contains("acknowledges in its place"), "{error:?}");
}

#[test]
fn a_link_works_as_any_other_afterwards() {
    for sealed in [false, true] {
        crate::transport::conformance::small_wants_come_whole(|| renewed(sealed));
        crate::transport::conformance::moves_both_ways_at_once(|| renewed(sealed));
        crate::transport::conformance::a_drop_delivers_what_was_accepted(|| renewed(sealed));
    }
}
