//! TCP beyond the conformance suite: peers that send what no link sends.

use super::*;
use crate::link::conformance::{conformance, eventually};
use proptest::prelude::*;
use std::{
    io::{Read, Write},
    net::TcpListener,
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

/// A link and the naked other end of its connection.
fn raw() -> (TcpLink, TcpStream) {
    let (a, mut b) = streams(1);
    (TcpLink::new(a).unwrap(), b.remove(0))
}

/// All that a link gets out of `bytes` and the end of the connection, and how that ended.
fn receive(bytes: &[u8], by_peek: bool) -> (Vec<u8>, String) {
    let (mut link, mut peer) = raw();
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
    [&frame::header(number, [piece, &[]]), piece].concat()
}

#[test]
fn a_wrong_number_is_an_error() {
    for by_peek in [true, false] {
        let bytes = [framed(0, b"good"), framed(2, b"lost one")].concat();
        let (got, error) = receive(&bytes, by_peek);
        assert_eq!(got, b"good");
        assert_eq!(error, "sent a frame that is out of sequence (number 2, 1 was due)");
    }
}

#[test]
fn a_length_beyond_bounds_is_an_error() {
    for (len, text) in [
        (0u32, "sent a frame that is empty"),
        (u32::MAX, "sent a frame that is 4294967295 bytes long (at most 1048576)"),
    ] {
        let mut bytes = framed(0, b"piece");
        bytes[..frame::HEADER].copy_from_slice(&frame::start(len, 0).0);
        for by_peek in [true, false] {
            assert_eq!(receive(&bytes, by_peek), (vec![], text.to_string()));
        }
    }
}

#[test]
fn the_longest_frame_is_taken() {
    let piece: Vec<u8> = (0..frame::MAX_FRAME).map(|i| (i / 3) as u8).collect();
    let bytes = framed(0, &piece);
    for by_peek in [true, false] {
        let (mut link, mut peer) = raw();
        let bytes = bytes.clone();
        let writer = std::thread::spawn(move || peer.write_all(&bytes).map(|()| peer));
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
fn a_damaged_frame_is_never_lent() {
    let mut bytes = [framed(0, b"good"), framed(1, b"was right once")].concat();
    *bytes.last_mut().unwrap() ^= 4;
    for by_peek in [true, false] {
        let (got, error) = receive(&bytes, by_peek);
        assert_eq!(got, b"good");
        assert!(error.starts_with("sent a damaged frame (checksum 0x"), "{error}");
    }
}

#[test]
fn damage_in_a_long_frame_shows_at_its_end() {
    let piece = vec![7; 200_000];
    let mut bytes = framed(0, &piece);
    bytes[50_000] = 8;
    for by_peek in [true, false] {
        let (got, error) = receive(&bytes, by_peek);
        assert!(got.len() < piece.len());
        assert!(error.starts_with("sent a damaged frame"), "{error}");
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
    socket2::SockRef::from(&peer).set_linger(Some(std::time::Duration::ZERO)).unwrap();
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
fn congestion_control_is_reno_within_a_host_or_as_chosen() {
    let of = |link: &TcpLink| {
        let name = socket2::SockRef::from(&link.sockets[0]).tcp_congestion().unwrap();
        String::from_utf8(name).unwrap().trim_end_matches('\0').to_string()
    };
    let (a, b) = streams(1);
    assert_eq!(of(&TcpLink::new(a).unwrap()), "reno");
    let no = TcpOptions { congestion: Some("no such thing".into()) };
    assert!(TcpLink::with_options(b, &no).is_err());
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
        start.extend(frame::start(len, 1).0);
        let (got, _) = receive(&[start, bytes.clone()].concat(), by_peek);
        prop_assert_eq!(&got[..5], b"hello");
        prop_assert!(bytes.starts_with(&got[5..]));
    }
}
