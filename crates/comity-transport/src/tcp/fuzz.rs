//! Fuzzes the receiving half.

use super::{
    Route, TcpLink, TcpOptions, Ways,
    frame::{self, FrameRoute, HEADER, SEALED_HEADER},
};
use crate::{
    Link,
    channel::{Seals, both_ends},
    fuzz_input::FuzzInput,
};
use std::{io::Write, net::TcpStream, os::fd::OwnedFd, os::unix::net::UnixStream};

/// More would not fit a socket that nobody reads yet.
const MOST: usize = 32 << 10;

/// Either all bytes are the peer's, or true frames of which one byte is changed: no frame with a changed byte comes whole, and of a
/// sealed one no byte.
pub fn frame(bytes: &[u8]) {
    let mut input = FuzzInput(&bytes[..bytes.len().min(MOST)]);
    let shape = input.roll();
    let connections = shape % 3 + 1;
    let is_sealed = shape / 3 % 2 == 1;
    let is_true = input.roll() % 4 > 0;
    let (ours, theirs): (Vec<Seals>, Vec<Seals>) =
        (0..connections as u8).filter(|_| is_sealed).map(both_ends).map(|(a, b)| (*a, *b)).unzip();
    let want = input.roll() + 1;
    let flip = input.roll() as u8;
    let at = input.roll() << 8 | input.roll();
    let places = input.roll();
    let pieces: Vec<&[u8]> = input.0.chunks(want * 7).collect();
    let ways = if connections == 2 { Ways::Second } else { Ways::All };
    let mut peer = Peer {
        streams: vec![Vec::new(); connections],
        route: Route::new(connections, ways),
        place: FrameRoute::Home,
        seals: theirs,
        sent: 0,
        right: usize::MAX,
        most: usize::MAX,
    };
    for (k, piece) in pieces.iter().enumerate() {
        let next = if places >> (k % 8) & 1 == 0 { FrameRoute::Home } else { FrameRoute::Aside };
        let change = (k == at % pieces.len() && flip != 0).then_some((at / pieces.len(), flip));
        peer.put(k as u64, piece, next, is_true, change);
    }
    let Some(link) = link(&peer.streams, ours, ways.back()) else { return };
    let got = take_all(link, want);
    if is_true {
        let truth = pieces.concat();
        let sure = peer.right.min(got.len());
        assert!(truth.get(..sure) == Some(&got[..sure]), "changed bytes before the frame that was changed");
        assert!(got.len() <= peer.most, "a frame with a changed byte came whole");
        assert!(peer.right != usize::MAX || got.len() == truth.len(), "true frames did not all come");
    }
}

/// Bytes that the peer puts on each connection.
struct Peer {
    streams: Vec<Vec<u8>>,
    route: Route,
    place: FrameRoute,
    seals: Vec<Seals>,
    /// Bytes of the stream so far.
    sent: usize,
    /// The bytes before the changed frame,
    right: usize,
    /// and up to its end, if only its length was not what was changed.
    most: usize,
}

impl Peer {
    /// Frame `number`, with a byte changed: at a place, by a flip. If it is not a true frame, its bytes alone.
    fn put(
        &mut self,
        number: u64,
        piece: &[u8],
        next: FrameRoute,
        is_true: bool,
        change: Option<(usize, u8)>,
    ) {
        let turn = self.route.take(self.place);
        self.place = next;
        let stream = &mut self.streams[turn];
        if !is_true {
            stream.extend_from_slice(piece);
            return;
        }
        let begin = stream.len();
        let header = if let Some(seals) = self.seals.get(turn) {
            stream.resize(begin + SEALED_HEADER + piece.len(), 0);
            let sealed = frame::seal(&mut stream[begin..], number, [piece, &[]], next, &seals.send);
            assert_eq!(sealed, Ok(SEALED_HEADER + piece.len()));
            SEALED_HEADER
        } else {
            stream.extend(frame::header(number, [piece, &[]], next));
            stream.extend_from_slice(piece);
            HEADER
        };
        if let Some((at, flip)) = change {
            let place = at % (header + piece.len());
            stream[begin + place] ^= flip;
            self.right = self.sent;
            if !self.seals.is_empty() {
                self.most = self.sent;
            } else if place >= 4 {
                self.most = self.sent + piece.len() - 1;
            }
        }
        self.sent += piece.len();
    }
}

/// All that comes, lent and moved in turn.
fn take_all(mut link: TcpLink, want: usize) -> Vec<u8> {
    let mut got = Vec::new();
    let mut buffer = vec![0; want];
    loop {
        let n = if got.len() % 2 == 0 {
            let Ok(n) = link.take(&mut buffer) else { return got };
            got.extend_from_slice(&buffer[..n]);
            n
        } else {
            let Ok(ready) = link.peek(want) else { return got };
            let n = ready.len().min(want);
            got.extend_from_slice(&ready[..n]);
            link.consume(n);
            n
        };
        if n == 0 {
            return got;
        }
    }
}

/// A link that has these bytes in its connections, which then end.
fn link(streams: &[Vec<u8>], seals: Vec<Seals>, ways: Ways) -> Option<TcpLink> {
    let mut sockets = Vec::new();
    for bytes in streams {
        // A pair of local sockets costs less than a connection.
        let (mut peer, us) = UnixStream::pair().ok()?;
        us.set_nonblocking(true).ok()?;
        peer.set_nonblocking(true).ok()?;
        peer.write_all(bytes).ok()?;
        sockets.push(TcpStream::from(OwnedFd::from(us)));
    }
    Some(TcpLink::over(sockets, seals, &TcpOptions { ways, ..TcpOptions::default() }))
}
