//! The frames of the handshake as they arrive, and the words for one that does not come about.

use crate::fields::Writer;
use std::{
    fmt,
    io::{self, ErrorKind, Read},
};

/// Part of the prologue, and the high half of every message's kind.
pub(super) const VERSION: u8 = 10;
pub(super) const HEADER: usize = 5;
/// The longest body of a message.
pub(super) const MAX_BODY: usize = 1024;

/// The longest padding: more than a packet of any network that hosts share.
pub(super) const MAX_PADDING: usize = 16 * 1024;

/// Kinds of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Hello = 1,
    Answer = 2,
    Proof = 3,
    /// In the clear, to one who lacks the key: "I cannot read you".
    Unreadable = 4,
    /// Nothing: it fills a packet. See [`Initiator::pad`](super::Initiator::pad).
    Padding = 5,
}

pub(super) fn message(kind: MessageKind, body: &[u8]) -> Vec<u8> {
    let mut w = Writer::default();
    w.0.extend(b"cm");
    w.u8(VERSION << 4 | kind as u8);
    w.u16(body.len() as u16);
    w.0.extend(body);
    w.0
}

/// A message of so many bytes that say nothing.
pub(super) fn padding(len: usize) -> Vec<u8> {
    message(MessageKind::Padding, &vec![0; len.min(MAX_PADDING)])
}

/// A message as it arrives; takes no byte beyond its end.
#[derive(Debug, Default)]
pub(super) struct IncomingMessage(pub(super) Vec<u8>);

impl IncomingMessage {
    /// Read on; the body once it is whole, `None` when the stream has no more for now.
    pub(super) fn read(&mut self, stream: impl Read, want: MessageKind) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(self.read_one(stream, want, want)?.map(|(_, body)| body))
    }

    /// Read a message of either kind; also which it is.
    pub(super) fn read_one(
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
