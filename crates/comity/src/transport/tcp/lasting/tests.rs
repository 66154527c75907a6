//! Links that go on over other connections.

use super::*;
use crate::{
    channel::{Conn, Seal},
    transport::{
        conformance::{LinkEnds, conformance, eventually, fill},
        tcp::tests::streams,
    },
};

const GROUP: u64 = 7;

struct Ends {
    links: [LastingLink; 2],
    shared: [Arc<Lasting>; 2],
    all: [Arc<LastingLinks>; 2],
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

/// Connections for both ends of a making.
fn paths(n: usize, sealed: bool, making: u16) -> [(OutgoingPath, NewPath); 2] {
    let ((a, b), (c, d)) = (streams(n), streams(1));
    let [ours, theirs] = seals(n, sealed, making);
    [(a, c, ours), (b, d, theirs)].map(|(streams, mut desk, (send, recv))| {
        let desk = desk.remove(0);
        desk.set_nonblocking(true).unwrap();
        let desk = Conn::new(Stream::Tcp(desk), None);
        let sockets: Arc<[_]> = streams.into();
        (OutgoingPath { making, sockets: Arc::clone(&sockets), seals: send, desk }, (sockets, recv))
    })
}

impl Ends {
    fn new(connections: usize, sealed: bool) -> Self {
        let all: [Arc<LastingLinks>; 2] = Default::default();
        let (mut peer, options) = (2, TcpOptions::default());
        let links = paths(connections, sealed, 1).map(|(outgoing, incoming)| {
            peer -= 1;
            LastingLink::make(&all[1 - peer], (GROUP, peer), outgoing, incoming, &options).unwrap()
        });
        let shared = [Arc::clone(&links[0].shared), Arc::clone(&links[1].shared)];
        Self { links, shared, all, making: 1, sealed }
    }

    /// Other connections, at both ends or at one.
    fn renew(&mut self, connections: usize, ends: &[usize]) {
        self.making += 1;
        for (end, (outgoing, incoming)) in
            paths(connections, self.sealed, self.making).into_iter().enumerate()
        {
            if ends.contains(&end) {
                self.shared[end].renew(outgoing, incoming).unwrap();
            }
        }
    }

    /// What lies in connections that are left is lost, as what a system has not acknowledged.
    fn forget(&mut self) {
        for link in &mut self.links {
            link.incoming.forgets = true;
            lock(&link.shared.out).never_trims = true;
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
    ends.renew(2, &[0, 1]);
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

/// Bytes go both ways while connections are replaced, and all come once and in order. Some makings never come to one of the ends.
fn goes_on(connections: usize, sealed: bool, forgets: bool) {
    let (all, most) = if forgets { (250_000, 3000) } else { (24 << 20, 300_000) };
    let mut ends = Ends::new(connections, sealed);
    if forgets {
        ends.forget();
    }
    let (mut put, mut got, mut turn) = ([0; 2], [0; 2], 0usize);
    let mut place = vec![0; 300_000];
    eventually("both streams", || {
        turn += 1;
        if turn.is_multiple_of(11) && got[0] < all / 2 || turn.is_multiple_of(1000) {
            match turn / 11 % 5 {
                1 => ends.renew(1 + turn % 2, &[turn / 55 % 2]),
                // Two at once.
                2 => [1, 2].map(|n| ends.renew(n, &[1, 0])).into_iter().collect(),
                _ => ends.renew(1 + turn % 2, &[0, 1]),
            }
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
    assert!(ends.making > 5, "{}", ends.making);
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
                // As if a process between them had taken the rest.
                ends.links[1].incoming.forgets = true;
                ends.links[1].incoming.pretend(5);
                ends.renew(1, &[0, 1]);
            }
        }
        let _ = ends.links[0].put(&[], &[]);
        ends.links[1].take(&mut took).err()
    });
    assert!(error.0.contains("acknowledges in this one's place"), "{error:?}");
}

#[test]
fn a_link_works_as_any_other_afterwards() {
    for sealed in [false, true] {
        crate::transport::conformance::small_wants_come_whole(|| renewed(sealed));
        crate::transport::conformance::moves_both_ways_at_once(|| renewed(sealed));
        crate::transport::conformance::a_drop_delivers_what_was_accepted(|| renewed(sealed));
        crate::transport::conformance::an_error_stays(|| renewed(sealed));
    }
}

/// Nothing is sent over connections that the other end does not use, for its system would acknowledge it.
#[test]
fn connections_that_the_other_end_has_not_taken_carry_nothing() {
    let mut ends = Ends::new(1, false);
    let mut put = eventually("room", || Some(ends.links[0].put(b"ab", b"cd").unwrap()).filter(|n| *n > 0));
    let mut halves = paths(1, false, 2).into_iter();
    let ((outgoing, incoming), theirs) = (halves.next().unwrap(), halves.next().unwrap());
    ends.shared[0].renew(outgoing, incoming).unwrap();
    for _ in 0..100 {
        assert_eq!(ends.links[0].put(b"ef", b""), Ok(0));
    }
    assert!(!ends.shared[0].is_doubted());
    let mut carried = [0; 9];
    theirs.0.sockets[0].set_nonblocking(true).unwrap();
    assert_eq!(theirs.0.sockets[0].peek(&mut carried).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    // It never takes them: others are wanted, and the link stands.
    drop(theirs);
    eventually("doubt", || {
        (ends.links[0].put(b"ef", b"") == Ok(0) && ends.shared[0].is_doubted()).then_some(())
    });
    ends.making = 2;
    ends.renew(2, &[0, 1]);
    let mut got: Vec<u8> = Vec::new();
    eventually("all", || {
        put += if put < 6 { ends.links[0].put(b"ef", b"").unwrap() } else { 0 };
        let mut place = [0; 9];
        let n = ends.links[1].take(&mut place).unwrap();
        got.extend(&place[..n]);
        (got.len() >= 6).then_some(())
    });
    assert_eq!(got, b"abcdef");
}

/// The first making came whole to one end only: the other makes the link of the second.
#[test]
fn first_connections_that_the_other_end_has_not_taken_are_no_end() {
    let (all, options) = (Arc::<LastingLinks>::default(), TcpOptions::default());
    let [(outgoing, incoming), theirs] = paths(1, false, 1);
    let mut a = LastingLink::make(&all, (GROUP, 1), outgoing, incoming, &options).unwrap();
    drop(theirs);
    eventually("doubt", || {
        assert_eq!(a.peek(8), Ok(&[][..]));
        assert_eq!((a.take(&mut [0; 8]), a.put(b"x", b"")), (Ok(0), Ok(0)));
        a.shared.is_doubted().then_some(())
    });
    let [(outgoing, incoming), theirs] = paths(1, false, 2);
    a.shared.renew(outgoing, incoming).unwrap();
    let b = LastingLink::make(&all, (GROUP, 0), theirs.0, theirs.1, &options).unwrap();
    let mut ends = [a, b];
    for way in [0, 1] {
        eventually("a byte", || {
            let _ = ends[way].put(b"x", b"").unwrap();
            (ends[1 - way].take(&mut [0; 8]).unwrap() > 0).then_some(())
        });
    }
}

#[test]
fn the_last_bytes_come_over_other_connections_too() {
    for (sealed, times) in [(false, 0), (false, 1), (true, 1), (true, 3)] {
        let mut ends = Ends::new(1, sealed);
        let block = vec![9; 1 << 20];
        let put = fill(&mut ends.links[0], &block);
        assert_eq!(ends.all[0].owes(GROUP).len(), 1);
        let Ends { links: [a, mut b], .. } = ends;
        drop(a);
        let mut shared = ends.shared;
        for making in 2..2 + times {
            for (link, (outgoing, incoming)) in shared.iter_mut().zip(paths(1, sealed, making)) {
                link.renew(outgoing, incoming).unwrap();
            }
            ends.all[0].tend();
        }
        assert!(ends.all[0].has_any());
        let (mut got, mut place) = (0, vec![0; 1 << 20]);
        let error = eventually("the end", || {
            ends.all.iter().for_each(|all| drop(all.tend()));
            match b.take(&mut place) {
                Ok(n) => {
                    assert!(place[..n].iter().all(|b| *b == 9));
                    got += n;
                    None
                }
                Err(e) => Some(e),
            }
        });
        assert_eq!((got, error.0.as_str()), (put, "closed its connection"), "{sealed} {times}");
        eventually("the end of it", || (ends.all[0].tend().is_none()).then_some(()));
        assert!(ends.all[0].owes(GROUP).is_empty());
    }
}

/// A cable counts as out when it was in. An address that the system never lists would have connections made for ever.
#[test]
fn a_cable_that_was_never_seen_is_not_out() {
    let ends = Ends::new(1, false);
    let (here, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 9, 9, 9]));
    let is_cut = |running: &[IpAddr]| {
        let shared = &ends.shared[0];
        lock(&shared.out).tend(running, Duration::from_secs(60), shared)
    };
    assert!(!is_cut(&[other]));
    assert!(!is_cut(&[here, other]) && is_cut(&[other]) && !is_cut(&[here]));
}

#[test]
fn what_nobody_waits_for_goes_with_its_link() {
    let mut ends = Ends::new(1, false);
    fill(&mut ends.links[0], &vec![9; 1 << 20]);
    let Ends { links: [a, _b], .. } = ends;
    ends.all[0].forgive(GROUP);
    drop(a);
    assert!(!ends.all[0].has_any() && ends.all[1].has_any());
}

/// The other process ends while the link goes on over other connections, which it has taken or not.
#[test]
fn a_death_is_seen_while_connections_are_replaced() {
    for taken in [&[0, 1][..], &[1]] {
        let mut ends = Ends::new(1, false);
        ends.renew(1, taken);
        let Ends { links: [a, mut b], .. } = ends;
        drop(a);
        let error = eventually("the end", || b.peek(1).map(<[u8]>::len).err());
        assert!(error.0.contains("its connection"), "{error:?}");
    }
}

#[test]
fn what_has_come_is_kept_no_longer_without_a_call() {
    let mut ends = Ends::new(1, false);
    let mut place = vec![0; 1 << 20];
    let (mut put, mut got) = (0, 0);
    let block = vec![3; 1 << 20];
    while put < 8 << 20 {
        put += ends.links[0].put(&[], &block).unwrap();
        got += ends.links[1].take(&mut place).unwrap();
    }
    eventually("all", || {
        got += ends.links[1].take(&mut place).unwrap();
        (got == put).then_some(())
    });
    eventually("nothing", || {
        ends.all[0].tend();
        ends.all[0].owes(GROUP).is_empty().then_some(())
    });
}

#[test]
fn connections_that_wait_for_a_call_are_bounded() {
    let mut ends = Ends::new(1, false);
    for _ in 0..MOST_FRESH + 4 {
        ends.renew(1, &[0, 1]);
    }
    assert_eq!(lock(&ends.shared[0].fresh).len(), MOST_FRESH);
    let mut place = [0; 9];
    eventually("a byte", || {
        let _ = ends.links[0].put(b"x", b"").unwrap();
        (ends.links[1].take(&mut place).unwrap() > 0).then_some(())
    });
    // There is room again.
    ends.links[0].peek(1).unwrap();
    ends.renew(1, &[0, 1]);
    assert!(ends.shared.iter().all(|s| lock(&s.out).latest() == ends.making));
}
