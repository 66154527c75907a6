//! Links that keep the long messages of their directions apart.

use super::{
    tests::{drop_soon, streams},
    *,
};
use crate::conformance::{conformance, eventually, fill};
use std::io::{Read, Write};

/// More connections than this have the frames of a [far](reach::FAR) pair here.
const NEAR: usize = 4;

/// The ends of a link with connections for each direction, and a send thread where there may be one; all goes aside.
fn apart(connections: usize, sealed: bool) -> (Box<dyn Link>, Box<dyn Link>) {
    let (a, b) = both_apart(connections, sealed);
    (Box::new(a), Box::new(b))
}

fn both_apart(connections: usize, sealed: bool) -> (TcpLink, TcpLink) {
    let (mut a, mut b) = ends(connections, sealed, 1);
    a.announce(usize::MAX, true, Stays::No);
    b.announce(usize::MAX, true, Stays::No);
    (a, b)
}

/// Connects as [`apart`] does, with so many send threads each, before anything was announced.
fn ends(connections: usize, sealed: bool, send_threads: usize) -> (TcpLink, TcpLink) {
    let (a, b) = streams(connections);
    let seals = (1..=connections).filter(|_| sealed).map(|i| crate::channel::both_ends(i as u8));
    let (ours, theirs) = seals.map(|(a, b)| (*a, *b)).unzip();
    let end = |streams, seals, ways| {
        let options = TcpOptions {
            ways,
            is_far: connections > NEAR,
            send_threads: Some(SendThreads::new(send_threads)),
        };
        TcpLink::with_options(streams, seals, &options).unwrap()
    };
    let [first, second] =
        if connections.is_multiple_of(2) { [Ways::First, Ways::Second] } else { [Ways::All, Ways::All] };
    (end(a, ours, first), end(b, theirs, second))
}

mod two_apart {
    super::conformance!(|| super::apart(2, false));
}

/// The other end's head and body go over different connections.
mod two_apart_back {
    super::conformance!(|| {
        let (a, b) = super::apart(2, false);
        (b, a)
    });
}

mod sealed_two_apart_back {
    super::conformance!(|| {
        let (a, b) = super::apart(2, true);
        (b, a)
    });
}

mod four_apart {
    super::conformance!(|| super::apart(4, false));
}

mod sealed_two_apart {
    super::conformance!(|| super::apart(2, true));
}

mod sealed_four_apart {
    super::conformance!(|| super::apart(4, true));
}

mod far {
    super::conformance!(|| super::apart(5, false));
}

#[test]
fn a_far_peer_gets_a_message_over_all_connections() {
    for sealed in [false, true] {
        let (streams, peers) = streams(15);
        let seals = (1..=15).filter(|_| sealed).map(|i| crate::channel::both_ends(i).0).map(|a| *a);
        let options = TcpOptions { is_far: true, ..TcpOptions::default() };
        let mut link = TcpLink::with_options(streams, seals.collect(), &options).unwrap();
        // The first frame goes where short messages go.
        let sent = vec![7; 16 * (14 << 10)];
        link.announce(sent.len(), true, Stays::No);
        let mut put = 0;
        eventually("room for all of it", || {
            put += link.put(&[], &sent[put..]).unwrap();
            (put == sent.len()).then_some(())
        });
        drop_soon(link);
        for mut peer in peers.into_iter().skip(1) {
            let mut got = Vec::new();
            peer.read_to_end(&mut got).unwrap();
            // A fresh connection sends so much without an answer.
            assert!((10_000..14_480).contains(&got.len()), "{} bytes over one of them", got.len());
        }
    }
}

#[test]
fn a_send_thread_that_is_stuck_holds_up_nobody() {
    for (sealed, back) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut a, mut b) = both_apart(2, sealed);
        if back {
            std::mem::swap(&mut a, &mut b);
        }
        let block = vec![7; 1 << 20];
        let put = fill(&mut a, &block);
        let thread = a.framing.thread().unwrap();
        assert!(thread.is_busy() && thread.handed() > framing::BATCHES as u64, "the thread was not used");
        drop_soon(a);
        let mut got = 0;
        let mut place = block.clone();
        let error = eventually("the end", || match b.take(&mut place) {
            Ok(n) => {
                got += n;
                None
            }
            Err(e) => Some(e),
        });
        assert!(got >= put, "{got} of {put}: {error:?}");
        assert_eq!(error.0, "closed its connection");
    }
}

#[test]
fn only_one_connection_for_a_direction_has_a_send_thread() {
    let (a, b) = both_apart(4, false);
    assert!(a.framing.thread().is_none() && b.framing.thread().is_none());
}

/// Direction of [`all_that_is_put_comes`]: messages with heads, offered and taken in uneven pieces.
struct Flow {
    messages: Vec<(Vec<u8>, Vec<u8>)>,
    /// Position in the message that leaves, and in all bytes at the other end.
    message: usize,
    put: usize,
    took: usize,
}

impl Flow {
    fn new(seed: usize) -> Self {
        const LENGTHS: [usize; 9] = [8, 130_000, 4, 131_072, 40, 700_000, 17_000, 131_071, 400_000];
        let message = |i: usize| {
            let byte = |k: usize| (k * 7 + i * 31 + seed) as u8;
            // In another order for each, but all of them.
            let len = LENGTHS[i * [1, 2, 4, 5, 7, 8][seed % 6] % LENGTHS.len()] + seed % 3;
            ((0..40 * ((i + seed) % 3).min(1)).map(byte).collect(), (0..len).map(|k| byte(k / 3)).collect())
        };
        Self { messages: (0..18).map(message).collect(), message: 0, put: 0, took: 0 }
    }

    /// Offer some.
    fn offer(&mut self, link: &mut TcpLink, turn: usize) {
        let Some((whole, body)) = self.messages.get(self.message) else { return };
        if self.put == 0 {
            link.announce(body.len(), !turn.is_multiple_of(3), Stays::No);
        }
        // A body may be at hand only in part, or not at all yet.
        let most = if turn % 4 == 1 { turn * 5003 % 90_000 } else { usize::MAX };
        let head = &whole[self.put.min(whole.len())..];
        let body = &body[self.put.saturating_sub(whole.len())..];
        let n = link.put(head, &body[..body.len().min(most)]).unwrap();
        self.put += n;
        if n == head.len() + body.len() {
            self.message += 1;
            self.put = 0;
        }
    }

    fn accept(&mut self, truth: &[u8], link: &mut TcpLink, turn: usize) {
        let want = [70, 300_000, 1, 5000][turn % 4];
        let n = if turn.is_multiple_of(3) {
            let ready = link.peek(want).unwrap();
            assert!(truth[self.took..].starts_with(ready), "other bytes at {}", self.took);
            let n = ready.len();
            link.consume(n);
            n
        } else {
            let mut place = vec![0; want];
            let n = link.take(&mut place).unwrap();
            assert!(truth[self.took..].starts_with(&place[..n]), "other bytes at {}", self.took);
            n
        };
        self.took += n;
    }
}

#[test]
fn all_that_is_put_comes() {
    for case in 0..20 {
        let connections = [1, 2, 3, 4, 15][case % 5];
        let sealed = case / 5 % 2 == 1;
        let send_threads = case / 10;
        let (mut a, mut b) = ends(connections, sealed, send_threads);
        let mut there = Flow::new(case);
        let mut back = Flow::new(case + 5);
        let all =
            |f: &Flow| f.messages.iter().flat_map(|(h, b)| [&h[..], &b[..]].concat()).collect::<Vec<_>>();
        let truth = all(&there);
        let truth_back = all(&back);
        let mut turn = 0;
        eventually("all of it", || {
            turn += 1;
            there.offer(&mut a, turn);
            back.offer(&mut b, turn + 1);
            there.accept(&truth, &mut b, turn);
            back.accept(&truth_back, &mut a, turn + 2);
            (there.took == truth.len() && back.took == truth_back.len()).then_some(())
        });
        let carried = [&a, &b].map(|l| l.framing.thread().is_some_and(|t| t.handed() > 0));
        assert_eq!(carried, [connections == 2 && send_threads == 1; 2], "case {case}");
    }
}

#[test]
fn long_messages_go_aside_and_short_ones_come_back() {
    let (streams, mut peers) = streams(4);
    for stream in &streams {
        // All of a message fits in.
        SockRef::from(stream).set_send_buffer_size(1 << 20).unwrap();
    }
    let options = TcpOptions { ways: Ways::Second, ..TcpOptions::default() };
    let mut link = TcpLink::with_options(streams, Vec::new(), &options).unwrap();
    let body = vec![3; 131_072];
    let mut number = 0;
    let mut put = |head: usize, len: usize, frames: &[(usize, usize, FrameRoute)]| {
        link.announce(len, true, Stays::No);
        assert_eq!(link.put(&vec![1; head], &body[..len]), Ok(head + len));
        for (connection, len, place) in frames {
            let peer = &mut peers[*connection];
            let mut header = [0; frame::HEADER];
            peer.read_exact(&mut header).unwrap();
            let due = (*len, *place, number);
            number += 1;
            let (len, place) = frame::length(u32::from_le_bytes(header[..4].try_into().unwrap()));
            assert_eq!((len, place, header[4]), due);
            peer.read_exact(&mut vec![0; len]).unwrap();
        }
    };
    let long = body.len();
    // Without a word, and short: both ways on the first.
    put(40, 5000, &[(0, 40, FrameRoute::Home), (0, 5000, FrameRoute::Home)]);
    put(40, 8, &[(0, 48, FrameRoute::Home)]);
    // A direction's connections in turn, to which a first frame leads.
    put(40, long, &[(0, 40, FrameRoute::Aside), (1, long, FrameRoute::Aside)]);
    put(40, long, &[(3, 40, FrameRoute::Aside), (1, long, FrameRoute::Aside)]);
    put(0, long, &[(3, long, FrameRoute::Aside)]);
    // And a last one back.
    put(40, 8, &[(1, 48, FrameRoute::Home)]);
    put(40, 8, &[(0, 48, FrameRoute::Home)]);
    put(0, long, &[(0, 64, FrameRoute::Aside), (3, long - 64, FrameRoute::Aside)]);
}

#[test]
fn a_first_frame_that_finds_no_room_goes_before_the_rest() {
    for (sealed, head) in [(false, 40), (true, 40), (false, 0), (true, 0)] {
        // The system makes room at times of its own, also in a connection that it has just called full.
        let found_none = (0..20).any(|_| goes_before_the_rest(sealed, head));
        assert!(found_none, "there was room each time");
    }
}

/// Returns true if there was no room for the first frame, as is wanted; then all has come in order.
fn goes_before_the_rest(sealed: bool, head: usize) -> bool {
    // The end whose connection for long messages is not the first.
    let (mut far, mut near) = ends(2, sealed, 1);
    // What is no frame fills the first connection, and is gone before a link reads.
    let mut filled = 0;
    while let Ok(n) = (&near.sockets[0]).write(&[9; 4096]) {
        filled += n;
    }
    let head = vec![1; head];
    let body = vec![2; 1 << 20];
    let truth = [&head[..], &body].concat();
    near.announce(body.len(), true, Stays::No);
    for _ in 0..3 {
        if near.put(&head, &body).unwrap() > 0 {
            // Else the near end would wait until what it has accepted is delivered.
            drop(far);
            return false;
        }
    }
    eventually("an empty connection", || {
        let most = filled.min(4096);
        filled -= (&far.sockets[0]).read(&mut vec![0; most]).unwrap_or(0);
        (filled == 0).then_some(())
    });
    let mut put = 0;
    let mut got = Vec::new();
    eventually("all of it", || {
        if put < head.len() + body.len() {
            put += near.put(&head[put.min(head.len())..], &body[put.saturating_sub(head.len())..]).unwrap();
        }
        let ready = far.peek(777).unwrap();
        got.extend_from_slice(ready);
        let n = ready.len();
        far.consume(n);
        (got.len() == truth.len()).then_some(())
    });
    assert!(got == truth && near.framing.thread().is_some_and(|t| t.handed() > 0));
    true
}
