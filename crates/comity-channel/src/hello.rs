//! The handshake that every connection begins with.
//!
//! Noise NNpsk0 under the job's key: one round trip, after which both sides know that the other holds the key, and who it
//! says it is. The first message already carries the (encrypted) hello; a wrong key, job or epoch is refused there. The third
//! message proves that the first was not a recording; nobody waits for it but the listener. After it the connection is clear, or
//! sealed with keys of its own if the hello says so.
//!
//! A message is `"cm"`, its kind, a length and at most 1 KiB; nothing larger is ever allocated for a stranger. Connections of links are
//! made with packets as full as the path allows: behind the hello comes padding, and the answer to it has as much.

use super::fields::{Malformed, Reader, Writer};
use super::stream::Seals;
use crate::{Key, sys::traceless};
use snow::{Builder, HandshakeState, TransportState};
use std::{
    fmt,
    io::{self, ErrorKind, Read},
    sync::{Arc, LazyLock},
};

/// Part of the prologue, and the high half of every message's kind.
const VERSION: u8 = 11;
const HEADER: usize = 5;
/// The longest body of a message.
const MAX_BODY: usize = 1024;

/// The longest padding: more than a packet of any network that hosts share.
const MAX_PADDING: usize = 16 * 1024;

/// Kinds of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    Hello = 1,
    Answer = 2,
    Proof = 3,
    /// In the clear, to one who lacks the key: "I cannot read you".
    Unreadable = 4,
    /// Nothing: it fills a packet. See [`Initiator::pad`].
    Padding = 5,
}

fn message(kind: MessageKind, body: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    w.0.extend(b"cm");
    w.u8(VERSION << 4 | kind as u8);
    w.u16(body.len() as u16);
    w.0.extend(body);
    w.0
}

/// A message of so many bytes that say nothing.
fn padding(len: usize) -> Vec<u8> {
    message(MessageKind::Padding, &vec![0; len.min(MAX_PADDING)])
}

/// A message as it arrives; takes no byte beyond its end.
#[derive(Debug, Default)]
struct IncomingMessage(Vec<u8>);

impl IncomingMessage {
    /// Read on; the body once it is whole, `None` when the stream has no more for now.
    fn read(&mut self, stream: impl Read, want: MessageKind) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(self.read_one(stream, want, want)?.map(|(_, body)| body))
    }

    /// Read a message of either kind; also which it is.
    fn read_one(
        &mut self,
        mut stream: impl Read,
        want: MessageKind,
        or: MessageKind,
    ) -> Result<Option<(MessageKind, Vec<u8>)>, Refusal> {
        loop {
            let missing = match self.0.as_slice() {
                [b'c', b'm', kind, high, low, body @ ..] => {
                    if kind >> 4 != VERSION {
                        return Err(Refusal::Version(kind >> 4));
                    }
                    if *kind == VERSION << 4 | MessageKind::Unreadable as u8 && want == MessageKind::Answer {
                        return Err(Refusal::Key);
                    }
                    let n = usize::from(u16::from_be_bytes([*high, *low]));
                    let found = [want, or].into_iter().find(|k| *kind == VERSION << 4 | *k as u8);
                    let most = if found == Some(MessageKind::Padding) { MAX_PADDING } else { MAX_BODY };
                    let Some(found) = found.filter(|_| n <= most) else { return Err(Refusal::Stranger) };
                    if body.len() == n {
                        return Ok(Some((found, body.to_vec())));
                    }
                    n - body.len()
                }
                // Tell a stranger early, before it has sent a whole header.
                [] | [b'c'] | [b'c', b'm', ..] => HEADER - self.0.len(),
                _ => return Err(Refusal::Stranger),
            };
            let mut chunk = [0; MAX_BODY];
            let Some(chunk) = chunk.get_mut(..missing.min(MAX_BODY)) else { return Err(Refusal::Stranger) };
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

/// Reason for which a handshake did not come about.
#[derive(Debug)]
pub enum Refusal {
    /// The connection ended; it may be worth another try.
    Ended(Option<io::Error>),
    /// Not a rank of Comity at all.
    Stranger,
    /// Another version of Comity's protocol.
    Version(u8),
    /// Another job or another key.
    Key,
    /// The other side knows us and says no.
    No(Denial),
    /// The other side, a rank of this name, may not pass on what others say.
    RelayOff(String),
    /// The other side has no room now; worth another try.
    Busy,
}

/// Reason for which a process that knows us says no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// It was taken for another: the process that the address belongs to may be on another host.
    NotTheOne,
    /// It relays as many connections as it may.
    RelayFull,
    /// It has given up the rank that asks.
    NotAMember,
    /// Another reason, which only a person reads.
    Other(String),
}

impl From<&str> for Denial {
    fn from(words: &str) -> Self {
        Self::Other(words.into())
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotTheOne => "it is not the rank, or not of the group, that you look for",
            Self::RelayFull => {
                "it passes on what others say over 256 connections already, and takes no more; a cable or a network that the two hosts share needs none of them"
            }
            Self::NotAMember => "you are not a member any more",
            Self::Other(words) => words,
        })
    }
}

impl Refusal {
    /// Returns true if another try may succeed.
    pub(crate) fn is_passing(&self) -> bool {
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
            Self::No(why) => why.fmt(f),
            Self::RelayOff(rank) => {
                write!(f, "it passes nothing on, for it was started with COMITY_RELAY=0 ({rank})")
            }
            Self::Busy => f.write_str("it is busy"),
        }
    }
}

#[cfg(test)]
mod tests;

/// Room for words in an answer, after Noise's own bytes.
const MAX_WORDS: usize = 900;

/// The rank of the store, which has none.
pub const STORE: u32 = u32::MAX;

static PATTERN: LazyLock<Option<snow::params::NoiseParams>> =
    LazyLock::new(|| "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s".parse().ok());

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// To the store.
    Join,
    Control,
    /// A connection of a link. The transport has this number.
    Link {
        transport: u8,
        index: u16,
        of: u16,
    },
    /// Only to see whether the other lives: its control connection may be late.
    Probe,
}

/// First message of a connection: its sender, its addressee and its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub from: u32,
    pub to: u32,
    /// Drawn anew by the store for each group of processes; 0 towards the store.
    pub world: u64,
    /// The group, for `Link`.
    pub group_id: u64,
    pub channel: Channel,
    /// True if everything after the handshake is encrypted.
    pub sealed: bool,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.from);
        w.u32(self.to);
        w.u64(self.world);
        w.u64(self.group_id);
        let (kind, transport, index, of) = match self.channel {
            Channel::Join => (0, 0, 0, 0),
            Channel::Control => (1, 0, 0, 0),
            Channel::Link { transport, index, of } => (2, transport, index, of),
            Channel::Probe => (3, 0, 0, 0),
        };
        w.u8(kind);
        w.u8(transport);
        w.u16(index);
        w.u16(of);
        w.u8(u8::from(self.sealed));
        w.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let from = r.u32()?;
        let to = r.u32()?;
        let world = r.u64()?;
        let group_id = r.u64()?;
        let channel = match (r.u8()?, r.u8()?, r.u16()?, r.u16()?) {
            (0, 0, 0, 0) => Channel::Join,
            (1, 0, 0, 0) => Channel::Control,
            (2, transport, index, of) if index < of => Channel::Link { transport, index, of },
            (3, 0, 0, 0) => Channel::Probe,
            _ => return Err(Malformed),
        };
        let sealed = r.flag()?;
        r.end(Self { from, to, world, group_id, channel, sealed })
    }
}

/// Knowledge that both ends must share beforehand.
#[derive(Clone)]
pub struct Secret {
    /// All zero for a job that the user wanted without a key.
    key: Key,
    prologue: Arc<[u8]>,
}

impl Secret {
    pub fn new(key: &Key, job: &str, epoch: u32) -> Self {
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

/// The connecting side.
#[derive(Debug)]
pub struct Initiator {
    /// Taken by the answer.
    noise: Option<Box<HandshakeState>>,
    incoming: IncomingMessage,
    sealed: bool,
    /// The answer is followed by padding.
    is_padded: bool,
    /// Result of the answer, until the padding is there.
    agreed: Option<Agreed>,
}

/// Last steps of the connecting side, once the answer is there.
#[derive(Debug)]
pub struct Agreed {
    /// The bytes to send last.
    pub proof: Vec<u8>,
    pub(crate) seals: Option<Box<Seals>>,
}

/// Position of the key in the handshake.
const PSK: usize = 0;

/// The keys that encrypt what follows the handshake.
fn seals(noise: &mut HandshakeState, is_initiator: bool) -> Option<Box<Seals>> {
    let transcript = noise.get_handshake_hash().to_vec();
    Seals::derive(noise.dangerously_get_raw_split(), &transcript, is_initiator)
}

impl Initiator {
    /// And the bytes to send first.
    pub fn start(secret: &Secret, hello: &Hello) -> Option<(Self, Vec<u8>)> {
        traceless(|| {
            let mut noise = Box::new(secret.builder()?.build_initiator().ok()?);
            let mut body = [0; MAX_BODY];
            let n = noise.write_message(&hello.encode(), &mut body).ok()?;
            // It has done its work, and this is the only copy outside of the stack.
            noise.set_psk(PSK, &[0; 32]).ok()?;
            let first = message(MessageKind::Hello, body.get(..n)?);
            let new = Self {
                noise: Some(noise),
                incoming: IncomingMessage::default(),
                sealed: hello.sealed,
                is_padded: false,
                agreed: None,
            };
            Some((new, first))
        })
    }

    /// Returns the padding to send behind the first bytes, so that they fill a packet of `len` bytes; the other side answers in kind. Some paths
    /// carry small packets only, and drop others silently: that must show before the connection is used.
    pub(crate) fn pad(&mut self, len: usize) -> Vec<u8> {
        self.is_padded = true;
        padding(len)
    }

    /// Read the answer; once it is there and favourable, what remains to do. `None`: wait for more.
    pub fn read(&mut self, mut stream: impl Read) -> Result<Option<Agreed>, Refusal> {
        if self.agreed.is_none() {
            let Some(body) = self.incoming.read(&mut stream, MessageKind::Answer)? else { return Ok(None) };
            self.agreed = Some(traceless(|| self.agree(&body))?);
            self.incoming = IncomingMessage::default();
        }
        if self.is_padded && self.incoming.read(&mut stream, MessageKind::Padding)?.is_none() {
            return Ok(None);
        }
        Ok(self.agreed.take())
    }

    fn agree(&mut self, body: &[u8]) -> Result<Agreed, Refusal> {
        let mut noise = self.noise.take().ok_or(Refusal::Ended(None))?;
        let mut payload = [0; MAX_BODY];
        let n = noise.read_message(body, &mut payload).map_err(|_| Refusal::Key)?;
        match payload.get(..n) {
            Some([0]) => {}
            Some([1, words @ ..]) => return Err(Refusal::No((&*String::from_utf8_lossy(words)).into())),
            Some([2]) => return Err(Refusal::Busy),
            Some([3, rank @ ..]) => {
                return Err(Refusal::RelayOff(String::from_utf8_lossy(rank).into_owned()));
            }
            Some([4]) => return Err(Refusal::No(Denial::NotTheOne)),
            Some([5]) => return Err(Refusal::No(Denial::RelayFull)),
            Some([6]) => return Err(Refusal::No(Denial::NotAMember)),
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
        Ok(Agreed { proof: message(MessageKind::Proof, out.get(..n).unwrap_or_default()), seals })
    }
}

/// The listener's decision on a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloVerdict {
    Yes,
    No(Denial),
    Busy,
    /// It is for another, and this rank, of this name, may not pass it on.
    RelayOff(String),
    /// It is for another, and goes on to that one as it came.
    PassOn,
}

/// The listening side.
#[derive(Debug)]
pub(crate) struct Responder {
    incoming: IncomingMessage,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Hello,
    Proof {
        transport: Box<TransportState>,
        hash: Vec<u8>,
        hello: Hello,
        seals: Option<Box<Seals>>,
        /// Padding has come. It comes once: who repeats a recorded hello shall not be answered for ever.
        padded: bool,
    },
}

/// Next action that a [`Responder`] asks for.
#[derive(Debug)]
pub(crate) enum HandshakeStep {
    /// Wait for more.
    More,
    /// Send these bytes, then step again.
    Send(Vec<u8>),
    /// Send these bytes, then close.
    SendAndClose(Vec<u8>),
    /// Send these bytes, then close: the other has another key, or is of another job.
    Foreign(Vec<u8>),
    /// Close.
    Close,
    /// It is for another, to whom these bytes go first.
    PassOn(Vec<u8>),
    /// The connection is authenticated.
    Done(Hello, Option<Box<Seals>>),
}

impl Responder {
    pub(crate) fn new() -> Self {
        Self { incoming: IncomingMessage::default(), stage: Stage::Hello }
    }

    /// Returns true if the other side has shown that it holds the key (or a recording of a peer that did).
    pub(crate) fn knows_key(&self) -> bool {
        matches!(self.stage, Stage::Proof { .. })
    }

    /// Returns the hello that was answered, whose sender has to prove now that it is no recording.
    pub(crate) fn admitted(&self) -> Option<&Hello> {
        match &self.stage {
            Stage::Hello => None,
            Stage::Proof { hello, .. } => Some(hello),
        }
    }

    pub(crate) fn step(
        &mut self,
        stream: impl Read,
        secret: &Secret,
        judge: &mut dyn FnMut(&Hello) -> HelloVerdict,
    ) -> HandshakeStep {
        match &mut self.stage {
            Stage::Hello => {
                let body = match self.incoming.read(stream, MessageKind::Hello) {
                    Ok(None) => return HandshakeStep::More,
                    Ok(Some(body)) => body,
                    Err(Refusal::Version(_)) => {
                        return HandshakeStep::SendAndClose(message(MessageKind::Unreadable, &[]));
                    }
                    Err(_) => return HandshakeStep::Close,
                };
                traceless(|| self.answer(&body, secret, judge)).unwrap_or(HandshakeStep::Close)
            }
            Stage::Proof { transport, hash, hello, seals, padded } => {
                match self.incoming.read_one(stream, MessageKind::Proof, MessageKind::Padding) {
                    Ok(None) => HandshakeStep::More,
                    Ok(Some((MessageKind::Padding, _))) if *padded => HandshakeStep::Close,
                    Ok(Some((MessageKind::Padding, body))) => {
                        *padded = true;
                        self.incoming = IncomingMessage::default();
                        HandshakeStep::Send(padding(body.len()))
                    }
                    Ok(Some((_, body))) => {
                        let mut proof = [0; MAX_BODY];
                        match transport.read_message(&body, &mut proof) {
                            Ok(n) if proof.get(..n) == Some(hash.as_slice()) => {
                                HandshakeStep::Done(*hello, seals.take())
                            }
                            _ => HandshakeStep::Close,
                        }
                    }
                    Err(_) => HandshakeStep::Close,
                }
            }
        }
    }

    fn answer(
        &mut self,
        body: &[u8],
        secret: &Secret,
        judge: &mut dyn FnMut(&Hello) -> HelloVerdict,
    ) -> Option<HandshakeStep> {
        let mut noise = Box::new(secret.builder()?.build_responder().ok()?);
        let mut payload = [0; MAX_BODY];
        let read = noise.read_message(body, &mut payload);
        noise.set_psk(PSK, &[0; 32]).ok()?;
        let Ok(n) = read else {
            return Some(HandshakeStep::Foreign(message(MessageKind::Unreadable, &[])));
        };
        let hello = Hello::decode(payload.get(..n)?).ok()?;
        let verdict = judge(&hello);
        let words = match &verdict {
            HelloVerdict::PassOn => {
                let whole = std::mem::take(&mut self.incoming).0;
                return Some(HandshakeStep::PassOn(whole));
            }
            HelloVerdict::Yes => vec![0],
            HelloVerdict::No(Denial::Other(words)) => {
                [1].into_iter().chain(words.bytes().take(MAX_WORDS)).collect()
            }
            HelloVerdict::No(Denial::NotTheOne) => vec![4],
            HelloVerdict::No(Denial::RelayFull) => vec![5],
            HelloVerdict::No(Denial::NotAMember) => vec![6],
            HelloVerdict::Busy => vec![2],
            HelloVerdict::RelayOff(rank) => [3].into_iter().chain(rank.bytes().take(MAX_WORDS)).collect(),
        };
        let mut out = [0; MAX_BODY];
        let n = noise.write_message(&words, &mut out).ok()?;
        let answer = message(MessageKind::Answer, out.get(..n)?);
        if verdict != HelloVerdict::Yes {
            return Some(HandshakeStep::SendAndClose(answer));
        }
        let hash = noise.get_handshake_hash().to_vec();
        let seals = if hello.sealed { Some(seals(&mut noise, false)?) } else { None };
        let transport = Box::new(noise.into_transport_mode().ok()?);
        self.stage = Stage::Proof { transport, hash, hello, seals, padded: false };
        self.incoming = IncomingMessage::default();
        Some(HandshakeStep::Send(answer))
    }
}
