//! Fuzzes the messages that follow a handshake.

use super::note::{ControlNote, Encoding};
use crate::{
    channel::{Conn, Stream, frame},
    rendezvous::{Field, FromStore, ToStore},
};
use std::{io::Write, os::unix::net::UnixStream};

/// The longest message that authenticated peers may send, and its length.
const MOST: usize = 64 * 1024 + 12;

/// The far end takes what no reader has taken yet, or says that there is no room.
fn pair() -> (UnixStream, UnixStream) {
    let pair = UnixStream::pair();
    let Ok((peer, us)) = pair.and_then(|(a, b)| {
        a.set_nonblocking(true)?;
        b.set_nonblocking(true)?;
        Ok((a, b))
    }) else {
        panic!("no pair of sockets")
    };
    (peer, us)
}

/// Every valid message encodes to the bytes that it was decoded from; lengths are bounded before anything is kept.
pub fn messages(bytes: &[u8]) {
    if let Ok(m) = ToStore::decode(bytes) {
        assert_eq!(m.encode(), bytes);
    }
    if let Ok(m) = FromStore::decode(bytes) {
        assert_eq!(m.encode(), bytes);
    }
    if let Ok(m) = ControlNote::decode(bytes) {
        assert_eq!(m.encode(), bytes);
    }
    let bytes = &bytes[..bytes.len().min(MOST)];
    let (mut peer, us) = pair();
    if peer.write_all(bytes).is_err() {
        return;
    }
    let mut conn = Conn::new(Stream::Unix(us), None);
    conn.fill();
    let mut rest = bytes;
    while let Ok(Some(body)) = conn.next_message() {
        let whole = frame(&body);
        assert!(rest.starts_with(&whole));
        rest = &rest[whole.len()..];
    }
    // What no fuzzer guesses: the checksums are right.
    let body = &bytes[..bytes.len().min(64 * 1024)];
    let (mut peer, us) = pair();
    if peer.write_all(&frame(body)).is_ok() {
        let mut conn = Conn::new(Stream::Unix(us), None);
        assert!(conn.fill());
        assert_eq!(conn.next_message(), Ok(Some(body.to_vec())));
    }
}
