//! Handshakes between two sides in memory: favourable, refused, repeated, damaged.

use super::*;
use proptest::prelude::*;
use std::io::{self, ErrorKind};

const HELLO: Hello = Hello {
    from: 3,
    to: 1,
    world: 9,
    group_id: 4,
    channel: Channel::Link { transport: 2, index: 1, of: 2 },
    sealed: true,
};

fn secret(key: u8, job: &str, epoch: u32) -> Secret {
    Secret::new(&Key::from([key; 32]), job, epoch)
}

/// A stream that gives one byte at a time, then says that there is no more for now.
struct Drip<'a>(&'a [u8]);

impl Read for Drip<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match (self.0, buf) {
            ([], _) => Err(ErrorKind::WouldBlock.into()),
            ([first, rest @ ..], [place, ..]) => {
                *place = *first;
                self.0 = rest;
                Ok(1)
            }
            _ => Ok(0),
        }
    }
}

fn yes(_: &Hello) -> HelloVerdict {
    HelloVerdict::Yes
}

/// Returns the listener and its response to `first`.
fn respond(secret: &Secret, first: &[u8], verdict: HelloVerdict) -> (Responder, HandshakeStep) {
    let mut r = Responder::new();
    let step = r.step(Drip(first), secret, &mut |_| verdict.clone());
    (r, step)
}

#[test]
fn padding_is_answered_in_kind_and_waited_for() {
    let s = secret(1, "job", 0);
    let (mut i, first) = Initiator::start(&s, &HELLO).unwrap();
    let first = [first, i.pad(8948)].concat();
    let mut r = Responder::new();
    let mut stream = Drip(&first);
    let HandshakeStep::Send(answer) = r.step(&mut stream, &s, &mut yes) else { panic!("no answer") };
    let HandshakeStep::Send(pad) = r.step(&mut stream, &s, &mut yes) else { panic!("no padding") };
    assert!(pad.len() > 8948 && pad.len() < 9000);
    // The answer alone is not enough.
    assert!(i.read(Drip(&answer)).unwrap().is_none());
    assert!(i.read(Drip(&pad[..pad.len() - 1])).unwrap().is_none());
    let Agreed { proof, .. } = i.read(Drip(&pad[pad.len() - 1..])).unwrap().unwrap();
    assert!(matches!(r.step(Drip(&proof), &s, &mut yes), HandshakeStep::Done(HELLO, Some(_))));
    // Whoever repeats a recorded hello is not answered for ever.
    let more = [&first[..], &i.pad(100)].concat();
    let mut r = Responder::new();
    let mut stream = Drip(&more);
    let steps: Vec<_> = (0..3).map(|_| r.step(&mut stream, &s, &mut yes)).collect();
    assert!(
        matches!(steps[..], [HandshakeStep::Send(_), HandshakeStep::Send(_), HandshakeStep::Close]),
        "{steps:?}"
    );
    // Whoever has not shown the key pads nothing.
    let mut stranger = Responder::new();
    let (mut i, _) = Initiator::start(&s, &HELLO).unwrap();
    assert!(matches!(stranger.step(Drip(&i.pad(100)), &s, &mut yes), HandshakeStep::Close));
}

#[test]
fn both_sides_agree() {
    let s = secret(1, "job", 0);
    let (mut i, first) = Initiator::start(&s, &HELLO).unwrap();
    let (mut r, step) = respond(&s, &first, HelloVerdict::Yes);
    let HandshakeStep::Send(answer) = step else { panic!("{step:?}") };
    assert!(r.knows_key());
    assert!(matches!(r.step(Drip(&[]), &s, &mut yes), HandshakeStep::More));
    let Agreed { proof, seals } = i.read(Drip(&answer)).unwrap().unwrap();
    // What follows the handshake is not touched.
    let all = [&proof[..], b"data"].concat();
    let mut stream = Drip(&all);
    let HandshakeStep::Done(HELLO, Some(theirs)) = r.step(&mut stream, &s, &mut yes) else {
        panic!("not done")
    };
    assert_eq!(stream.0, b"data");
    let ours = seals.unwrap();
    for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
        let mut data = *b"secret";
        let tag = from.send.seal_in_place(0, b"", &mut data).unwrap();
        assert_ne!(&data, b"secret");
        to.recv.open_in_place(0, b"", &mut data, tag).unwrap();
        assert_eq!(&data, b"secret");
    }
}

#[test]
fn words_reach_the_one_who_is_refused() {
    let s = secret(1, "job", 0);
    let off = HelloVerdict::RelayOff("é".repeat(600));
    let other = Denial::Other("é".repeat(600));
    for (verdict, long) in [(HelloVerdict::No(other), true), (off, true), (HelloVerdict::Busy, false)] {
        let (mut i, first) = Initiator::start(&s, &HELLO).unwrap();
        let (_, step) = respond(&s, &first, verdict);
        let HandshakeStep::SendAndClose(answer) = step else { panic!("{step:?}") };
        match i.read(Drip(&answer)).unwrap_err() {
            Refusal::No(Denial::Other(words)) | Refusal::RelayOff(words) => {
                assert!(long && words.starts_with("ééé"));
            }
            e => assert!(!long && e.is_passing()),
        }
    }
}

#[test]
fn a_reason_to_act_on_arrives_as_what_it_is() {
    let s = secret(1, "job", 0);
    for why in [Denial::NotTheOne, Denial::RelayFull, Denial::NotAMember] {
        let (mut i, first) = Initiator::start(&s, &HELLO).unwrap();
        let (_, step) = respond(&s, &first, HelloVerdict::No(why.clone()));
        let HandshakeStep::SendAndClose(answer) = step else { panic!("{step:?}") };
        let Refusal::No(heard) = i.read(Drip(&answer)).unwrap_err() else { panic!("{why:?}") };
        assert_eq!(heard, why);
    }
}

#[test]
fn key_job_and_epoch_are_checked_at_the_first_message() {
    let ours = secret(1, "job", 0);
    for theirs in [secret(2, "job", 0), secret(1, "other", 0), secret(1, "job", 1)] {
        let (mut i, first) = Initiator::start(&theirs, &HELLO).unwrap();
        let (r, step) = respond(&ours, &first, HelloVerdict::Yes);
        let HandshakeStep::Foreign(answer) = step else { panic!("{step:?}") };
        assert!(!r.knows_key());
        assert!(matches!(i.read(Drip(&answer)), Err(Refusal::Key)));
    }
}

#[test]
fn a_recording_is_not_let_in() {
    let s = secret(1, "job", 0);
    let (mut i, first) = Initiator::start(&s, &HELLO).unwrap();
    let (_, HandshakeStep::Send(answer)) = respond(&s, &first, HelloVerdict::Yes) else { panic!("refused") };
    let proof = i.read(Drip(&answer)).unwrap().unwrap().proof;
    let (mut r, HandshakeStep::Send(_)) = respond(&s, &first, HelloVerdict::Yes) else { panic!("refused") };
    assert!(matches!(r.step(Drip(&proof), &s, &mut yes), HandshakeStep::Close));
}

#[test]
fn another_version_is_named() {
    let s = secret(1, "job", 0);
    let (mut i, mut first) = Initiator::start(&s, &HELLO).unwrap();
    first[2] = (VERSION + 1) << 4 | MessageKind::Hello as u8;
    assert!(matches!(respond(&s, &first, HelloVerdict::Yes).1, HandshakeStep::SendAndClose(_)));
    let e =
        i.read(Drip(&[b'c', b'm', (VERSION + 1) << 4 | MessageKind::Unreadable as u8, 0, 0])).unwrap_err();
    assert!(
        matches!(e, Refusal::Version(n) if n == VERSION + 1)
            && e.to_string().contains(&format!("version {}", VERSION + 1))
    );
}

#[test]
fn nothing_secret_is_shown() {
    let s = secret(0x5a, "job", 0);
    assert_eq!(format!("{s:?}"), "Secret(..)");
    let (i, _) = Initiator::start(&s, &HELLO).unwrap();
    assert!(!format!("{i:?}").contains("90, 90, 90"), "{i:?}");
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_waited_for(bytes in prop::collection::vec(any::<u8>(), 0..1200), header: bool) {
        let s = secret(1, "job", 0);
        let bytes = if header { message(MessageKind::Hello, &bytes[..bytes.len().min(1024)]) } else { bytes };
        let (r, step) = respond(&s, &bytes, HelloVerdict::Yes);
        prop_assert!(!r.knows_key() && !matches!(step, HandshakeStep::Done(..) | HandshakeStep::Send(_)));
        prop_assert!(r.incoming.0.len() <= HEADER + MAX_BODY && r.incoming.0.capacity() <= 2 * (HEADER + MAX_BODY));
        let (mut i, _) = Initiator::start(&s, &HELLO).unwrap();
        prop_assert!(!matches!(i.read(Drip(&bytes)), Ok(Some(_))));
    }

    #[test]
    fn a_changed_bit_is_noticed(at in 0usize..200, bit in 0u8..8, which in 0..3) {
        let s = secret(1, "job", 0);
        let spoil = |m: &mut Vec<u8>| { let n = m.len(); m[at % n] ^= 1 << bit };
        let (mut i, mut first) = Initiator::start(&s, &HELLO).unwrap();
        if which == 0 { spoil(&mut first) }
        let (mut r, step) = respond(&s, &first, HelloVerdict::Yes);
        let HandshakeStep::Send(mut answer) = step else { prop_assert!(which == 0); return Ok(()) };
        prop_assert!(which != 0);
        if which == 1 { spoil(&mut answer) }
        let Ok(Some(Agreed { mut proof, .. })) = i.read(Drip(&answer)) else { prop_assert!(which == 1); return Ok(()) };
        prop_assert!(which != 1);
        spoil(&mut proof);
        prop_assert!(!matches!(r.step(Drip(&proof), &s, &mut yes), HandshakeStep::Done(..)));
    }

    #[test]
    fn hellos_round_trip(from: u32, to: u32, world: u64, group_id: u64, of in 1u16.., kind in 0..4, transport: u8, sealed: bool) {
        let channel = match kind {
            0 => Channel::Join,
            1 => Channel::Control,
            2 => Channel::Probe,
            _ => Channel::Link { transport, index: of - 1, of },
        };
        let hello = Hello { from, to, world, group_id, channel, sealed };
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }
}
