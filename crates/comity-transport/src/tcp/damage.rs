//! Frames that are damaged on the way: none is delivered, whatever the damage and however the bytes are asked for.
//!
//! Real frames, made by the sending half, are changed and given to the receiving half in a socket pair: 100,000 of them, and 5,000
//! that are sealed. Then some go from link to link over TCP, through something in between that changes them. A case is its number:
//! `COMITY_TEST_DAMAGE=4711` runs that one alone.

use super::{tests::streams, *};
use crate::conformance::eventually;
use scope::Rng;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    thread,
};

const CASES: u64 = 100_000;
const SEALED_CASES: u64 = 5000;
/// Cases that share one recording.
const SHARE: u64 = 64;

fn bytes(input: &mut Rng, n: usize) -> Vec<u8> {
    (0..n).map(|_| input.below(256) as u8).collect()
}

fn unix() -> (UnixStream, TcpStream) {
    let (peer, us) = UnixStream::pair().unwrap();
    us.set_nonblocking(true).unwrap();
    (peer, TcpStream::from(OwnedFd::from(us)))
}

/// The two ends' seals, if the link has any.
fn seals(sealed: bool) -> (Vec<Seals>, Vec<Seals>) {
    sealed.then(|| crate::channel::both_ends(1)).into_iter().map(|(a, b)| (*a, *b)).unzip()
}

/// Bytes that a link puts on its connection.
struct Recording {
    sealed: bool,
    /// Bytes of each header.
    header: usize,
    truth: Vec<u8>,
    wire: Vec<u8>,
    /// Beginning of each frame on the wire, and number of bytes of the truth that stand before it.
    frames: Vec<(usize, usize)>,
}

impl Recording {
    fn make(input: &mut Rng, sealed: bool) -> Self {
        let (mut peer, us) = unix();
        let mut link = TcpLink::over(vec![us], seals(sealed).0, &TcpOptions::default());
        let header_len = if sealed { frame::SEALED_HEADER } else { frame::HEADER };
        let mut truth = Vec::new();
        let mut wire = Vec::new();
        let mut frames = Vec::new();
        for _ in 0..4 {
            let most = [8, 300, 3000, 12_000][input.below(4)];
            let head = [0, 32, 80][input.below(3)];
            let head = bytes(input, head);
            let len = 1 + input.below(most);
            let body = bytes(input, len);
            let total = head.len() + body.len();
            let before = truth.len();
            assert_eq!(link.put(&head, &body), Ok(total));
            truth.extend(head);
            truth.extend(body);
            let mut at = 0;
            while at < total {
                let mut header = vec![0; header_len];
                peer.read_exact(&mut header).unwrap();
                let (n, _) = frame::length(u32::from_le_bytes(header[..4].try_into().unwrap()));
                frames.push((wire.len(), before + at));
                wire.extend(header);
                let mut piece = vec![0; n];
                peer.read_exact(&mut piece).unwrap();
                wire.extend(piece);
                at += n;
            }
        }
        Self { sealed, header: header_len, truth, wire, frames }
    }

    /// The wire with a frame changed, but not the last; and how many bytes of the truth stand before the change.
    fn damaged(&self, input: &mut Rng) -> (Vec<u8>, usize, &'static str) {
        let k = input.below(self.frames.len() - 1);
        let (from, before) = self.frames[k];
        let (to, after) = self.frames[k + 1];
        let mut wire = self.wire.clone();
        let kind = match input.below(8) {
            0..=2 => {
                for _ in 0..=input.below(64) {
                    wire[from + input.below(to - from)] ^= 1 << input.below(8);
                }
                "flips anywhere"
            }
            3 => {
                for _ in 0..=input.below(8) {
                    wire[from + input.below(self.header)] ^= 1 << input.below(8);
                }
                "flips in the header"
            }
            4 => {
                let len = [0, 1, 17, 2048, 4000, 262_144, u32::MAX][input.below(7)] ^ input.below(4) as u32;
                wire[from..from + 4].copy_from_slice(&len.to_le_bytes());
                "another length"
            }
            5 => {
                wire.truncate(from + 1 + input.below(to - from - 1));
                "cut"
            }
            6 => {
                let at = from + input.below(to - from);
                let n = (1 + input.below(64)).min(to - at);
                wire.drain(at..at + n);
                "bytes lost"
            }
            _ => {
                // Behind its first byte, so that the frame itself does not come through.
                let at = from + 1 + input.below(to - from - 1);
                let n = (1 + input.below(64)).min(at);
                let copy = wire[at - n..at].to_vec();
                wire.splice(at..at, copy);
                "bytes twice"
            }
        };
        // Where equal bytes follow each other, those that come twice may be the next frame's damage.
        let before = if wire.starts_with(&self.wire[..to]) { after } else { before };
        (wire, before, kind)
    }
}

/// All that a link gives out, without what it says is not checked; its error, if any; and whether it waits for the end of a frame.
fn deliver(wire: &[u8], sealed: bool, closed: bool, input: &mut Rng) -> (Vec<u8>, Option<String>, bool) {
    let (mut peer, us) = unix();
    let mut link = TcpLink::over(vec![us], seals(sealed).1, &TcpOptions::default());
    // In pieces, so that frames come whole and in parts.
    let cuts = input.below(4);
    let mut rest = wire;
    let mut got = Vec::new();
    let mut error = None;
    let mut idle = 0;
    for i in 0..=cuts {
        let n = if i == cuts { rest.len() } else { input.below(rest.len() + 1) };
        peer.write_all(&rest[..n]).unwrap();
        rest = &rest[n..];
        if closed && i == cuts {
            peer.shutdown(Shutdown::Write).unwrap();
        }
        while error.is_none() {
            let step = if input.below(2) == 0 {
                let mut place = vec![0; 1 + input.below(6000)];
                link.take(&mut place).inspect(|&n| got.extend_from_slice(&place[..n]))
            } else {
                let ready = link.peek(1 + input.below(6000)).map(|ready| {
                    got.extend_from_slice(ready);
                    ready.len()
                });
                ready.inspect(|&n| link.consume(n))
            };
            match step {
                // The end of a connection may take a second look.
                Ok(0) if closed && i == cuts && idle < 9 => idle += 1,
                Ok(0) => break,
                Ok(_) => {}
                Err(e) => error = Some(e.0),
            }
        }
    }
    assert!(!sealed || link.unproven() == 0, "bytes of a sealed frame were given out before it was opened");
    got.truncate(got.len() - link.unproven());
    (got, error, link.progress().is_inside)
}

#[test]
fn no_damaged_frame_is_delivered() {
    deliver_damaged(CASES, false);
}

#[test]
fn no_damaged_sealed_frame_is_delivered() {
    deliver_damaged(SEALED_CASES, true);
}

fn deliver_damaged(cases: u64, sealed: bool) {
    let only: Option<u64> = std::env::var("COMITY_TEST_DAMAGE").ok().map(|n| n.parse().unwrap());
    let mut recording = None;
    let mut table: BTreeMap<(&str, String), u64> = BTreeMap::new();
    let mut alike = 0;
    for case in only.map_or(0..cases, |n| n..n + 1) {
        if recording.as_ref().is_none_or(|(of, _)| *of != case / SHARE) {
            let mut input = Rng::new((case / SHARE) | (1 << 40));
            recording = Some((case / SHARE, Recording::make(&mut input, sealed)));
        }
        let recording = &recording.as_ref().unwrap().1;
        let mut input = Rng::new(case);
        let (wire, before, kind) = recording.damaged(&mut input);
        if wire == recording.wire {
            // Bits that were flipped back.
            alike += 1;
            continue;
        }
        let closed = input.below(2) == 0;
        let (got, error, inside) = deliver(&wire, recording.sealed, closed, &mut input);
        assert!(recording.truth.starts_with(&got), "case {case}, {kind}: wrong bytes were delivered");
        assert!(got.len() <= before, "case {case}, {kind}: the frame was delivered");
        // The engine ends a wait inside a frame; only a connection that is still open has one.
        assert!(error.is_some() || inside && !closed, "case {case}, {kind}: no error");
        let error = error.unwrap_or_else(|| "waits for the rest".into());
        let words: String = error.chars().take_while(|c| !c.is_ascii_digit() && *c != '(').collect();
        *table.entry((kind, words)).or_default() += 1;
    }
    for ((kind, words), n) in &table {
        println!("{n:6} {kind}: {words}");
    }
    assert!(alike < cases / 500, "{alike} cases changed nothing");
}

#[test]
fn an_undamaged_stream_comes_whole() {
    for case in 0..200 {
        let mut input = Rng::new(case);
        let recording = Recording::make(&mut input, case % 2 == 1);
        let (got, error, inside) = deliver(&recording.wire, recording.sealed, false, &mut input);
        assert!(got == recording.truth && error.is_none() && !inside, "case {case}: {error:?}");
    }
}

/// Pass on what comes from one side to the other, with a bit flipped in byte `at`.
fn pass_on(mut from: TcpStream, mut to: TcpStream, at: usize, bit: usize) {
    let mut buf = [0; 5000];
    let mut passed = 0;
    while let Ok(n @ 1..) = from.read(&mut buf) {
        if (passed..passed + n).contains(&at) {
            buf[at - passed] ^= 1 << bit;
        }
        passed += n;
        if to.write_all(&buf[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

#[test]
fn a_bit_flipped_between_two_links_ends_both() {
    for case in 0..60 {
        let mut input = Rng::new(case);
        let (mut a, mut x) = streams(1);
        let (mut y, mut b) = streams(1);
        let x = x.remove(0);
        let y = y.remove(0);
        let back = x.try_clone().unwrap();
        let there = y.try_clone().unwrap();
        let sealed = case % 3 == 2;
        let (ours, theirs) = seals(sealed);
        let mut near = TcpLink::sealed(vec![a.remove(0)], ours).unwrap();
        let mut far = TcpLink::sealed(vec![b.remove(0)], theirs).unwrap();
        let truth = bytes(&mut input, 400_000);
        let at = input.below(390_000);
        let bit = input.below(8);
        let ways = [
            thread::spawn(move || pass_on(x, y, at, bit)),
            thread::spawn(move || pass_on(there, back, usize::MAX, 0)),
        ];
        let mut sent = 0;
        let mut got = Vec::new();
        let mut place = vec![0; 70_000];
        let error = eventually("an error", || {
            sent += near.put(&[], &truth[sent..]).unwrap_or(0);
            let step = far.take(&mut place);
            step.map(|n| got.extend_from_slice(&place[..n])).err()
        });
        got.truncate(got.len() - far.unproven());
        assert!(truth.starts_with(&got) && got.len() <= at, "case {case}: wrong bytes were delivered");
        let broken = sealed && error.0.starts_with("sent a frame that was changed on the way");
        assert!(broken || error.0.starts_with("sent a damaged frame"), "case {case}: {error:?}");
        assert_eq!(far.progress().path.unwrap().1, far.sockets[0].peer_addr().unwrap());
        drop(far);
        let error = eventually("the other end's error", || near.put(&[], &truth).err());
        assert!(error.0.contains("its connection"), "case {case}: {error:?}");
        drop(near);
        // WAIT: threads of this test, whose links have ended
        ways.into_iter().for_each(|w| w.join().unwrap());
    }
}
