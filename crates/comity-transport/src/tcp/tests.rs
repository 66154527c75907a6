//! TCP beyond the conformance suite: peers that send what no link sends.

use super::*;
use crate::conformance::{conformance, eventually};
use proptest::prelude::*;
use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::mpsc,
    thread,
    time::Duration,
};

pub(super) fn streams(n: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    (0..n)
        .map(|_| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (a, listener.accept().unwrap().0)
        })
        .unzip()
}

fn pair(connections: usize) -> (Box<dyn Link>, Box<dyn Link>) {
    let (a, b) = streams(connections);
    (Box::new(TcpLink::new(a).unwrap()), Box::new(TcpLink::new(b).unwrap()))
}

mod one_connection {
    super::conformance!(|| super::pair(1));
}

mod three_connections {
    super::conformance!(|| super::pair(3));
}

/// Sealed form of [`pair`].
fn sealed_pair(connections: usize) -> (Box<dyn Link>, Box<dyn Link>) {
    let (a, b) = streams(connections);
    let (ours, theirs) =
        (1..=connections).map(|i| crate::channel::both_ends(i as u8)).map(|(a, b)| (*a, *b)).unzip();
    (Box::new(TcpLink::sealed(a, ours).unwrap()), Box::new(TcpLink::sealed(b, theirs).unwrap()))
}

mod sealed {
    super::conformance!(|| super::sealed_pair(1));
}

mod sealed_three_connections {
    super::conformance!(|| super::sealed_pair(3));
}

/// Drop what must not wait for a peer.
pub(super) fn drop_soon(what: impl Send + 'static) {
    let (done, dropped) = mpsc::channel();
    thread::spawn(move || {
        drop(what);
        done.send(()).unwrap();
    });
    dropped.recv_timeout(Duration::from_secs(20)).expect("it waits for the peer");
}

/// A link and the naked other end of its connection.
fn raw() -> (TcpLink, TcpStream) {
    let (a, mut b) = streams(1);
    (TcpLink::new(a).unwrap(), b.remove(0))
}

/// A sealed link, the naked other end of its connection, and what that end would seal with.
fn sealed_raw() -> (TcpLink, TcpStream, Seals) {
    let (a, mut b) = streams(1);
    let (ours, theirs) = crate::channel::both_ends(1);
    (TcpLink::sealed(a, vec![*ours]).unwrap(), b.remove(0), *theirs)
}

fn sealed_frame(number: u64, piece: &[u8], seals: &Seals) -> Vec<u8> {
    let mut frame = vec![0; frame::SEALED_HEADER + piece.len()];
    let n = frame::seal(&mut frame, number, [piece, &[]], FrameRoute::Home, &seals.send).unwrap();
    assert_eq!(n, frame.len());
    frame
}

/// All that a sealed link gets out of `bytes` and the end of the connection, and how that ended.
fn receive_sealed(bytes: impl FnOnce(&Seals) -> Vec<u8>, by_peek: bool) -> (Vec<u8>, String) {
    let (link, peer, seals) = sealed_raw();
    receive_with(link, peer, &bytes(&seals), by_peek)
}

/// All that a link gets out of `bytes` and the end of the connection, and how that ended.
fn receive(bytes: &[u8], by_peek: bool) -> (Vec<u8>, String) {
    let (link, peer) = raw();
    receive_with(link, peer, bytes, by_peek)
}

fn receive_with(mut link: TcpLink, mut peer: TcpStream, bytes: &[u8], by_peek: bool) -> (Vec<u8>, String) {
    peer.write_all(bytes).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    let error = eventually("an error", || {
        let step = if by_peek {
            link.peek(99).map(|b| {
                got.extend_from_slice(b);
                b.len()
            })
        } else {
            let mut place = [0; 77];
            link.take(&mut place).inspect(|&n| got.extend_from_slice(&place[..n]))
        };
        match step {
            Ok(n) => {
                if by_peek {
                    link.consume(n);
                }
                None
            }
            Err(e) => Some(e.0),
        }
    });
    assert_eq!(link.peek(1).map(<[u8]>::len), Err(LinkError(error.clone())));
    assert_eq!(link.take(&mut [0]), Err(LinkError(error.clone())));
    assert_eq!(link.put(b"x", b""), Err(LinkError(error.clone())));
    (got, error)
}

fn framed(number: u64, piece: &[u8]) -> Vec<u8> {
    [&frame::header(number, [piece, &[]], FrameRoute::Home), piece].concat()
}

#[test]
fn a_frame_that_is_wrong_is_told_and_never_lent() {
    let changed = |from: Vec<u8>, at: usize, by: u8| {
        let mut bytes = from;
        bytes[at] ^= by;
        bytes
    };
    let with_length = |len: u32| {
        let mut bytes = framed(0, b"piece");
        bytes[..frame::HEADER].copy_from_slice(&frame::start(len, 0, FrameRoute::Home).0);
        bytes
    };
    let second = [framed(0, b"good"), framed(1, b"was right once")].concat();
    let last = second.len() - 1;
    for (bytes, good, words) in [
        (
            [framed(0, b"good"), framed(2, b"lost one")].concat(),
            &b"good"[..],
            "sent a frame that is out of sequence (number 2, 1 was due)",
        ),
        (with_length(0), b"", "sent a frame that is empty"),
        (with_length(u32::MAX), b"", "sent a frame that is 2147483647 bytes long (at most 1048576)"),
        (changed(second, last, 4), b"good", "sent a damaged frame (checksum 0x"),
    ] {
        for by_peek in [true, false] {
            let (got, error) = receive(&bytes, by_peek);
            assert_eq!(got, good, "{words}");
            assert!(error.starts_with(words), "{words}: {error}");
        }
    }
    // In a long one it shows at its end.
    let bytes = changed(framed(0, &[7; 200_000]), 50_000, 15);
    for by_peek in [true, false] {
        let (got, error) = receive(&bytes, by_peek);
        assert!(got.len() < 200_000 && error.starts_with("sent a damaged frame"), "{error}");
    }
}

#[test]
fn the_longest_frame_is_taken() {
    let piece: Vec<u8> = (0..frame::MAX_FRAME).map(|i| (i / 3) as u8).collect();
    let bytes = framed(0, &piece);
    for by_peek in [true, false] {
        let (mut link, mut peer) = raw();
        let bytes = bytes.clone();
        let writer = thread::spawn(move || peer.write_all(&bytes).map(|()| peer));
        let mut got = Vec::new();
        eventually("the frame", || {
            if by_peek {
                let lent = link.peek(1 << 20).unwrap();
                got.extend_from_slice(lent);
                let n = lent.len();
                link.consume(n);
            } else {
                let mut place = vec![0; 300_000];
                let n = link.take(&mut place).unwrap();
                got.extend_from_slice(&place[..n]);
            }
            (got.len() == piece.len()).then_some(())
        });
        assert!(got == piece);
        drop(writer.join().unwrap().unwrap());
    }
}

#[test]
fn a_cut_frame_is_a_closed_connection() {
    let bytes = framed(0, b"abcdef");
    for cut in 0..bytes.len() {
        let (got, error) = receive(&bytes[..cut], cut % 2 == 0);
        // A small frame comes whole or not at all.
        assert_eq!(got, b"");
        assert_eq!(error, "closed its connection");
    }
}

#[test]
fn a_reset_is_told_from_a_close() {
    let (mut link, peer) = raw();
    SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    let error = eventually("an error", || link.peek(1).err());
    assert!(error.0.starts_with("reset its connection: "), "{error:?}");
    assert_eq!(link.put(b"x", b""), Err(error));
}

#[test]
fn a_small_message_is_one_frame() {
    let (mut link, mut peer) = raw();
    assert_eq!(link.put(&[1; 32], &[2; 8]), Ok(40));
    let mut bytes = [0; 99];
    assert_eq!(peer.read(&mut bytes).unwrap(), frame::HEADER + 40);
    assert_eq!(bytes[frame::HEADER..][..40], [[1; 32].as_slice(), &[2; 8]].concat());
}

#[test]
fn a_link_needs_a_connection() {
    assert_eq!(TcpLink::new(vec![]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
#[cfg(target_os = "linux")]
fn congestion_control_is_reno_within_a_host() {
    let of = |link: &TcpLink| {
        let name = SockRef::from(&link.sockets[0]).tcp_congestion().unwrap();
        String::from_utf8(name).unwrap().trim_end_matches('\0').to_string()
    };
    let (a, _b) = streams(1);
    assert_eq!(of(&TcpLink::new(a).unwrap()), "reno");
}

#[test]
fn a_frame_that_lies_behind_the_lent_one_is_known() {
    let (mut link, mut peer, seals) = sealed_raw();
    let whole = [sealed_frame(0, &[1; 3000], &seals), sealed_frame(1, &[2; 2000], &seals)].concat();
    let half = sealed_frame(2, &[3; 1000], &seals);
    peer.write_all(&[&whole, &half[..500]].concat()).unwrap();
    let mut seen = [0; 9000];
    eventually("all of it", || {
        let n = link.sockets[0].peek(&mut seen).unwrap_or(0);
        (n == whole.len() + 500).then_some(())
    });
    assert_eq!(link.peek(60_000).unwrap(), [1; 3000]);
    assert!(link.has_more());
    link.consume(3000);
    assert!(link.has_more());
    assert_eq!(link.peek(60_000).unwrap(), [2; 2000]);
    link.consume(2000);
    assert!(!link.has_more());
    // The header is there and believed, the rest is not.
    assert!(link.peek(60_000).unwrap().is_empty());
    assert!(!link.has_more());
    peer.write_all(&half[500..]).unwrap();
    eventually("the rest", || (link.peek(60_000).unwrap() == [3; 1000]).then_some(()));

    let (mut clear, mut peer) = raw();
    peer.write_all(&framed(0, &[1; 3000])).unwrap();
    eventually("a frame", || (clear.peek(60_000).unwrap() == [1; 3000]).then_some(()));
    assert!(!clear.has_more());
}

fn two(seals: &Seals) -> [Vec<u8>; 2] {
    [sealed_frame(0, b"good", seals), sealed_frame(1, b"changed", seals)]
}

#[test]
fn a_sealed_stream_shows_nothing_and_bears_no_change() {
    let (mut link, mut peer, _) = sealed_raw();
    let text = b"the weights of the model";
    assert_eq!(link.put(text, b""), Ok(text.len()));
    let mut seen = vec![0; frame::SEALED_HEADER + text.len()];
    peer.read_exact(&mut seen).unwrap();
    assert!(!seen.windows(4).any(|w| text.windows(4).any(|t| t == w)));

    let first = frame::SEALED_HEADER + 4;
    for at in first..first + frame::SEALED_HEADER + 7 {
        let change = |seals: &Seals| {
            let mut bytes = two(seals).concat();
            bytes[at] ^= 1 << (at % 8);
            bytes
        };
        let (got, error) = receive_sealed(change, at % 2 == 0);
        assert_eq!(got, b"good");
        // Nothing that the header says is believed before its own checksum was compared.
        let told = if at < first + 16 { "sent a damaged frame header" } else { "its seal is broken" };
        assert!(error.contains(told), "byte {at}: {error}");
    }
}

#[test]
fn a_sealed_frame_is_waited_for_only_as_far_as_its_header_was_checked() {
    // A length that became larger is not waited for.
    let (mut link, mut peer, seals) = sealed_raw();
    let mut bytes = sealed_frame(0, b"changed", &seals);
    bytes[1] ^= 1;
    peer.write_all(&bytes).unwrap();
    let error = eventually("an error", || link.peek(1).err());
    assert!(error.0.starts_with("sent a damaged frame header"), "{error:?}");
    // Only a frame whose piece has not all come is waited for, and that shows.
    let (mut link, mut peer, seals) = sealed_raw();
    let bytes = sealed_frame(0, b"cut", &seals);
    for at in [5, frame::SEALED_HEADER, bytes.len() - 1] {
        let from = [0, 5, frame::SEALED_HEADER].into_iter().rfind(|f| *f < at).unwrap_or_default();
        peer.write_all(&bytes[from..at]).unwrap();
        eventually("the start of a frame", || {
            assert_eq!(link.peek(1), Ok(&[][..]));
            link.progress().is_inside.then_some(())
        });
    }
    peer.write_all(&bytes[bytes.len() - 1..]).unwrap();
    let got = eventually("the frame", || {
        let ready = link.peek(1).unwrap().to_vec();
        (!ready.is_empty()).then_some(ready)
    });
    assert_eq!((&got[..], link.progress().is_inside, link.unproven()), (&b"cut"[..], false, 0));
}

#[test]
fn a_sealed_stream_takes_its_own_frames_in_order() {
    // Repeated, swapped, of another connection, in the clear.
    type Sent = fn(&Seals) -> Vec<u8>;
    let cases: [(Sent, &str); 5] = [
        (|s| [two(s)[0].clone(), two(s)[0].clone()].concat(), "out of sequence"),
        (|s| [two(s)[1].clone(), two(s)[0].clone()].concat(), "out of sequence"),
        (|_| sealed_frame(0, b"alien", &crate::channel::both_ends(9).1), "its seal is broken"),
        (|_| [framed(0, b"clear"), vec![0; 99]].concat(), "its seal is broken"),
        (|_| framed(0, &[0; frame::SEALED_MOST + 1]), "bytes long"),
    ];
    for (bytes, text) in cases {
        for by_peek in [true, false] {
            let (_, error) = receive_sealed(bytes, by_peek);
            assert!(error.contains(text), "{text}: {error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_an_error_and_nothing_else(bytes: Vec<u8>, by_peek: bool) {
        let (got, _) = receive(&bytes, by_peek);
        prop_assert!(got.is_empty());
    }

    #[test]
    fn random_bytes_after_a_good_start_are_too(bytes: Vec<u8>, len in 1u32..3_000_000, by_peek: bool) {
        let mut start = framed(0, b"hello");
        start.extend(frame::start(len, 1, FrameRoute::Home).0);
        let (got, _) = receive(&[start, bytes.clone()].concat(), by_peek);
        prop_assert_eq!(&got[..5], b"hello");
        prop_assert!(bytes.starts_with(&got[5..]));
    }
}
