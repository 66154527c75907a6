//! The handshake that every connection begins with.
//!
//! Noise NNpsk0 under the job's key: one round trip, after which both sides know that the other holds the key, and who it
//! says it is. The first message already carries the (encrypted) hello; a wrong key, job or epoch is refused there. The third
//! message proves that the first was not a recording; nobody waits for it but the listener. After it the connection is clear, or
//! sealed with keys of its own if the hello says so.
//!
//! A message is `"cm"`, its kind, a length and at most 1 KiB; nothing larger is ever allocated for a stranger.

use super::wire::{Malformed, Reader, Writer};
use crate::{Key, seal::Seals, sys::traceless};
use snow::{Builder, HandshakeState, TransportState};
use std::{
    fmt,
    io::{self, ErrorKind, Read},
    sync::{Arc, LazyLock},
};

/// Part of the prologue, and the high half of every message's kind.
const VERSION: u8 = 4;
const HEADER: usize = 5;
/// The longest body of a message.
const MAX_BODY: usize = 1024;
/// Room for words in an answer, after Noise's own bytes.
const MAX_WORDS: usize = 900;

/// The rank of the store, which has none.
pub(super) const STORE: u32 = u32::MAX;

static PATTERN: LazyLock<Option<snow::params::NoiseParams>> =
    LazyLock::new(|| "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s".parse().ok());

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    /// To the store.
    Join,
    Control,
    /// Hands over shared memory, then wakes.
    Shm,
    /// One of several that make a link.
    Tcp {
        index: u16,
        of: u16,
    },
    /// Goes beside the RDMA wires of a pair.
    Rdma,
}

/// Who connects to whom, for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) from: u32,
    pub(super) to: u32,
    /// Drawn anew by the store for each group of processes; 0 towards the store.
    pub(super) world: u64,
    /// The group, for `Shm`, `Tcp` and `Rdma`.
    pub(super) context: u64,
    pub(super) channel: Channel,
    /// What follows the handshake is encrypted.
    pub(super) sealed: bool,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.from);
        w.u32(self.to);
        w.u64(self.world);
        w.u64(self.context);
        let (kind, index, of) = match self.channel {
            Channel::Join => (0, 0, 0),
            Channel::Control => (1, 0, 0),
            Channel::Shm => (2, 0, 0),
            Channel::Tcp { index, of } => (3, index, of),
            Channel::Rdma => (4, 0, 0),
        };
        w.u8(kind);
        w.u16(index);
        w.u16(of);
        w.u8(u8::from(self.sealed));
        w.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let (from, to, world, context) = (r.u32()?, r.u32()?, r.u64()?, r.u64()?);
        let channel = match (r.u8()?, r.u16()?, r.u16()?) {
            (0, 0, 0) => Channel::Join,
            (1, 0, 0) => Channel::Control,
            (2, 0, 0) => Channel::Shm,
            (3, index, of) if index < of => Channel::Tcp { index, of },
            (4, 0, 0) => Channel::Rdma,
            _ => return Err(Malformed),
        };
        let sealed = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed),
        };
        r.end(Self { from, to, world, context, channel, sealed })
    }
}

/// What both ends must know beforehand.
#[derive(Clone)]
pub(super) struct Secret {
    /// All zero for a job that the user wanted without a key.
    key: Key,
    prologue: Arc<[u8]>,
}

impl Secret {
    pub(super) fn new(key: &Key, job: &str, epoch: u32) -> Self {
        let mut w = Writer::default();
        w.0.extend(b"comity");
        w.u8(VERSION);
        w.text(job);
        w.u32(epoch);
        Self { key: key.clone(), prologue: w.0.into() }
    }

    fn builder(&self) -> Option<Builder<'_>> {
        let pattern = (*PATTERN).clone()?;
        Builder::new(pattern).prologue(&self.prologue).ok()?.psk(0, self.key.bytes()).ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Kinds of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Hello = 1,
    Answer = 2,
    Proof = 3,
    /// In the clear, to one who lacks the key: "I cannot read you".
    Unreadable = 4,
}

fn message(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    w.0.extend(b"cm");
    w.u8(VERSION << 4 | kind as u8);
    w.u16(body.len() as u16);
    w.0.extend(body);
    w.0
}

/// A message as it arrives; takes no byte beyond its end.
#[derive(Debug, Default)]
struct Incoming(Vec<u8>);

impl Incoming {
    /// Read on; the body once it is whole, `None` when the stream has no more for now.
    fn read(&mut self, mut stream: impl Read, want: Kind) -> Result<Option<Vec<u8>>, Refusal> {
        loop {
            let missing = match self.0.as_slice() {
                [b'c', b'm', kind, high, low, body @ ..] => {
                    if kind >> 4 != VERSION {
                        return Err(Refusal::Version(kind >> 4));
                    }
                    if *kind == VERSION << 4 | Kind::Unreadable as u8 && want == Kind::Answer {
                        return Err(Refusal::Key);
                    }
                    let n = usize::from(u16::from_be_bytes([*high, *low]));
                    if *kind != VERSION << 4 | want as u8 || n > MAX_BODY {
                        return Err(Refusal::Stranger);
                    }
                    if body.len() == n {
                        return Ok(Some(body.to_vec()));
                    }
                    n - body.len()
                }
                // Tell a stranger early, before it has sent a whole header.
                [] | [b'c'] | [b'c', b'm', ..] => HEADER - self.0.len(),
                _ => return Err(Refusal::Stranger),
            };
            let mut chunk = [0; MAX_BODY];
            let Some(chunk) = chunk.get_mut(..missing) else { return Err(Refusal::Stranger) };
            match stream.read(chunk) {
                Ok(0) => return Err(Refusal::Ended(None)),
                Ok(n) => self.0.extend(chunk.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Refusal::Ended(Some(e))),
            }
        }
    }
}

/// Why a handshake did not come about.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The connection ended; it may be worth another try.
    Ended(Option<io::Error>),
    /// Not a rank of Comity at all.
    Stranger,
    /// Another version of Comity's protocol.
    Version(u8),
    /// Another job or another key.
    Key,
    /// The other side knows us and says no, in words.
    No(String),
    /// The other side has no room now; worth another try.
    Busy,
}

impl Refusal {
    /// Whether another try may do better.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Busy)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(None) => f.write_str("it closed the connection"),
            Self::Ended(Some(e)) => write!(f, "{e}"),
            Self::Stranger => f.write_str("what listens there is not Comity"),
            Self::Version(v) => write!(
                f,
                "it speaks version {v} of Comity's protocol, this process version {VERSION}; use one version of Comity everywhere"
            ),
            Self::Key => f.write_str(
                "it belongs to another job or holds another key; every rank needs the same job (COMITY_JOB) and key (COMITY_KEY_FD or COMITY_KEY_FILE)",
            ),
            Self::No(words) => f.write_str(words),
            Self::Busy => f.write_str("it is busy"),
        }
    }
}

/// The connecting side.
#[derive(Debug)]
pub(super) struct Initiator {
    /// Taken by the answer.
    noise: Option<Box<HandshakeState>>,
    incoming: Incoming,
    sealed: bool,
}

/// What is left to do for the connecting side once the answer is there.
#[derive(Debug)]
pub(super) struct Agreed {
    /// The bytes to send last.
    pub(super) proof: Vec<u8>,
    pub(super) seals: Option<Box<Seals>>,
}

/// Where the key goes in the handshake.
const PSK: usize = 0;

/// The keys that encrypt what follows the handshake.
fn seals(noise: &mut HandshakeState, is_initiator: bool) -> Option<Box<Seals>> {
    let transcript = noise.get_handshake_hash().to_vec();
    Seals::derive(noise.dangerously_get_raw_split(), &transcript, is_initiator)
}

impl Initiator {
    /// And the bytes to send first.
    pub(super) fn start(secret: &Secret, hello: &Hello) -> Option<(Self, Vec<u8>)> {
        traceless(|| {
            let mut noise = Box::new(secret.builder()?.build_initiator().ok()?);
            let mut body = [0; MAX_BODY];
            let n = noise.write_message(&hello.encode(), &mut body).ok()?;
            // It has done its work, and this is the only copy outside of the stack.
            noise.set_psk(PSK, &[0; 32]).ok()?;
            let first = message(Kind::Hello, body.get(..n)?);
            let new = Self { noise: Some(noise), incoming: Incoming::default(), sealed: hello.sealed };
            Some((new, first))
        })
    }

    /// Read the answer; once it is there and favourable, what remains to do. `None`: wait for more.
    pub(super) fn read(&mut self, stream: impl Read) -> Result<Option<Agreed>, Refusal> {
        let Some(body) = self.incoming.read(stream, Kind::Answer)? else { return Ok(None) };
        traceless(|| self.agree(&body)).map(Some)
    }

    fn agree(&mut self, body: &[u8]) -> Result<Agreed, Refusal> {
        let mut noise = self.noise.take().ok_or(Refusal::Ended(None))?;
        let mut payload = [0; MAX_BODY];
        let n = noise.read_message(body, &mut payload).map_err(|_| Refusal::Key)?;
        match payload.get(..n) {
            Some([0]) => {}
            Some([1, words @ ..]) => return Err(Refusal::No(String::from_utf8_lossy(words).into_owned())),
            Some([2]) => return Err(Refusal::Busy),
            _ => return Err(Refusal::Stranger),
        }
        // A handshake that is over cannot be extended: prove with the keys that came of it.
        let proof = noise.get_handshake_hash().to_vec();
        let seals = match self.sealed {
            true => Some(seals(&mut noise, true).ok_or(Refusal::Stranger)?),
            false => None,
        };
        let mut out = [0; MAX_BODY];
        let mut transport = noise.into_transport_mode().map_err(|_| Refusal::Stranger)?;
        let n = transport.write_message(&proof, &mut out).map_err(|_| Refusal::Stranger)?;
        Ok(Agreed { proof: message(Kind::Proof, out.get(..n).unwrap_or_default()), seals })
    }
}

/// What the listener says to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Yes,
    No(String),
    Busy,
}

/// The listening side.
#[derive(Debug)]
pub(super) struct Responder {
    incoming: Incoming,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Hello,
    Proof(Box<TransportState>, Vec<u8>, Hello, Option<Box<Seals>>),
}

/// How far a [`Responder`] came.
#[derive(Debug)]
pub(super) enum Step {
    /// Wait for more.
    More,
    /// Send these bytes, then step again.
    Send(Vec<u8>),
    /// Send these bytes, then close.
    SendAndClose(Vec<u8>),
    /// Close.
    Close,
    /// The connection is authenticated.
    Done(Hello, Option<Box<Seals>>),
}

impl Responder {
    pub(super) fn new() -> Self {
        Self { incoming: Incoming::default(), stage: Stage::Hello }
    }

    /// Whether the other side has shown that it holds the key (or a recording of one who did).
    pub(super) fn knows_key(&self) -> bool {
        matches!(self.stage, Stage::Proof(..))
    }

    pub(super) fn step(
        &mut self,
        stream: impl Read,
        secret: &Secret,
        judge: &mut dyn FnMut(&Hello) -> Verdict,
    ) -> Step {
        match &mut self.stage {
            Stage::Hello => {
                let body = match self.incoming.read(stream, Kind::Hello) {
                    Ok(None) => return Step::More,
                    Ok(Some(body)) => body,
                    Err(Refusal::Version(_)) => return Step::SendAndClose(message(Kind::Unreadable, &[])),
                    Err(_) => return Step::Close,
                };
                traceless(|| self.answer(&body, secret, judge)).unwrap_or(Step::Close)
            }
            Stage::Proof(transport, hash, hello, seals) => match self.incoming.read(stream, Kind::Proof) {
                Ok(None) => Step::More,
                Ok(Some(body)) => {
                    let mut proof = [0; MAX_BODY];
                    match transport.read_message(&body, &mut proof) {
                        Ok(n) if proof.get(..n) == Some(hash.as_slice()) => Step::Done(*hello, seals.take()),
                        _ => Step::Close,
                    }
                }
                Err(_) => Step::Close,
            },
        }
    }

    fn answer(
        &mut self,
        body: &[u8],
        secret: &Secret,
        judge: &mut dyn FnMut(&Hello) -> Verdict,
    ) -> Option<Step> {
        let mut noise = Box::new(secret.builder()?.build_responder().ok()?);
        let mut payload = [0; MAX_BODY];
        let read = noise.read_message(body, &mut payload);
        noise.set_psk(PSK, &[0; 32]).ok()?;
        let Ok(n) = read else {
            return Some(Step::SendAndClose(message(Kind::Unreadable, &[])));
        };
        let hello = Hello::decode(payload.get(..n)?).ok()?;
        let verdict = judge(&hello);
        let words = match &verdict {
            Verdict::Yes => vec![0],
            Verdict::No(words) => {
                let mut w = vec![1];
                w.extend(words.bytes().take(MAX_WORDS));
                w
            }
            Verdict::Busy => vec![2],
        };
        let mut out = [0; MAX_BODY];
        let n = noise.write_message(&words, &mut out).ok()?;
        let answer = message(Kind::Answer, out.get(..n)?);
        if verdict != Verdict::Yes {
            return Some(Step::SendAndClose(answer));
        }
        let hash = noise.get_handshake_hash().to_vec();
        let seals = if hello.sealed { Some(seals(&mut noise, false)?) } else { None };
        self.stage = Stage::Proof(Box::new(noise.into_transport_mode().ok()?), hash, hello, seals);
        self.incoming = Incoming::default();
        Some(Step::Send(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HELLO: Hello = Hello {
        from: 3,
        to: 1,
        world: 9,
        context: 4,
        channel: Channel::Tcp { index: 1, of: 2 },
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

    fn yes(_: &Hello) -> Verdict {
        Verdict::Yes
    }

    /// What the listener says to `first`, and the listener.
    fn respond(secret: &Secret, first: &[u8], verdict: Verdict) -> (Responder, Step) {
        let mut r = Responder::new();
        let step = r.step(Drip(first), secret, &mut |_| verdict.clone());
        (r, step)
    }

    #[test]
    fn both_sides_agree() {
        let s = secret(1, "job", 0);
        let (mut i, first) = Initiator::start(&s, &HELLO).unwrap();
        let (mut r, step) = respond(&s, &first, Verdict::Yes);
        let Step::Send(answer) = step else { panic!("{step:?}") };
        assert!(r.knows_key());
        assert!(matches!(r.step(Drip(&[]), &s, &mut yes), Step::More));
        let Agreed { proof, seals } = i.read(Drip(&answer)).unwrap().unwrap();
        // What follows the handshake is not touched.
        let all = [&proof[..], b"data"].concat();
        let mut stream = Drip(&all);
        let Step::Done(HELLO, Some(theirs)) = r.step(&mut stream, &s, &mut yes) else { panic!("not done") };
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
        for (verdict, long) in [(Verdict::No("é".repeat(600)), true), (Verdict::Busy, false)] {
            let (mut i, first) = Initiator::start(&s, &HELLO).unwrap();
            let (_, step) = respond(&s, &first, verdict);
            let Step::SendAndClose(answer) = step else { panic!("{step:?}") };
            match i.read(Drip(&answer)).unwrap_err() {
                Refusal::No(words) => assert!(long && words.starts_with("ééé")),
                e => assert!(!long && e.is_passing()),
            }
        }
    }

    #[test]
    fn key_job_and_epoch_are_checked_at_the_first_message() {
        let ours = secret(1, "job", 0);
        for theirs in [secret(2, "job", 0), secret(1, "other", 0), secret(1, "job", 1)] {
            let (mut i, first) = Initiator::start(&theirs, &HELLO).unwrap();
            let (r, step) = respond(&ours, &first, Verdict::Yes);
            let Step::SendAndClose(answer) = step else { panic!("{step:?}") };
            assert!(!r.knows_key());
            assert!(matches!(i.read(Drip(&answer)), Err(Refusal::Key)));
        }
    }

    #[test]
    fn a_recording_is_not_let_in() {
        let s = secret(1, "job", 0);
        let (mut i, first) = Initiator::start(&s, &HELLO).unwrap();
        let (_, Step::Send(answer)) = respond(&s, &first, Verdict::Yes) else { panic!("refused") };
        let proof = i.read(Drip(&answer)).unwrap().unwrap().proof;
        let (mut r, Step::Send(_)) = respond(&s, &first, Verdict::Yes) else { panic!("refused") };
        assert!(matches!(r.step(Drip(&proof), &s, &mut yes), Step::Close));
    }

    #[test]
    fn another_version_is_named() {
        let s = secret(1, "job", 0);
        let (mut i, mut first) = Initiator::start(&s, &HELLO).unwrap();
        first[2] = (VERSION + 1) << 4 | Kind::Hello as u8;
        assert!(matches!(respond(&s, &first, Verdict::Yes).1, Step::SendAndClose(_)));
        let e = i.read(Drip(&[b'c', b'm', 7 << 4 | Kind::Unreadable as u8, 0, 0])).unwrap_err();
        assert!(matches!(e, Refusal::Version(7)) && e.to_string().contains("version 7"));
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
            let bytes = if header { message(Kind::Hello, &bytes[..bytes.len().min(1024)]) } else { bytes };
            let (r, step) = respond(&s, &bytes, Verdict::Yes);
            prop_assert!(!r.knows_key() && !matches!(step, Step::Done(..) | Step::Send(_)));
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
            let (mut r, step) = respond(&s, &first, Verdict::Yes);
            let Step::Send(mut answer) = step else { prop_assert!(which == 0); return Ok(()) };
            prop_assert!(which != 0);
            if which == 1 { spoil(&mut answer) }
            let Ok(Some(Agreed { mut proof, .. })) = i.read(Drip(&answer)) else { prop_assert!(which == 1); return Ok(()) };
            prop_assert!(which != 1);
            spoil(&mut proof);
            prop_assert!(!matches!(r.step(Drip(&proof), &s, &mut yes), Step::Done(..)));
        }

        #[test]
        fn hellos_round_trip(from: u32, to: u32, world: u64, context: u64, of in 1u16.., kind in 0..5, sealed: bool) {
            let channel = match kind {
                0 => Channel::Join,
                1 => Channel::Control,
                2 => Channel::Shm,
                3 => Channel::Rdma,
                _ => Channel::Tcp { index: of - 1, of },
            };
            let hello = Hello { from, to, world, context, channel, sealed };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
    }
}
