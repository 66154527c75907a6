//! Frames between two queue pairs, of 24 bytes, some followed by a message, over one TCP connection for each direction.

use std::{
    io::{ErrorKind, Read},
    net::{Ipv4Addr, TcpStream},
};

pub(crate) const HEADER: usize = 24;
const MAGIC: u16 = 0x5356;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The first of a connection: who sends on it.
    Hello { from: Ipv4Addr, pair: u32 },
    /// Followed by so many bytes.
    Message { len: u32, immediate: Option<u32>, solicited: bool },
    /// Back to the sender, `apple` only: a receive of so many frames was posted.
    Credit { frames: u32 },
    /// Back to the sender, RC only: the oldest message arrived.
    Ack,
    /// Back to the sender, RC only: the oldest message ends with this status.
    Nak { status: u32 },
    /// Back to the sender, RC only: the oldest message waits for a receive.
    NotReady,
}

impl Frame {
    pub(crate) fn encode(self) -> [u8; HEADER] {
        let (kind, flags, fields) = match self {
            Self::Hello { from, pair } => (1, 0, [u32::from(from), pair]),
            Self::Message { len, immediate, solicited } => {
                let flags = u8::from(immediate.is_some()) | u8::from(solicited) << 1;
                (2, flags, [len, immediate.unwrap_or(0)])
            }
            Self::Credit { frames } => (3, 0, [frames, 0]),
            Self::Ack => (4, 0, [0, 0]),
            Self::Nak { status } => (5, 0, [status, 0]),
            Self::NotReady => (6, 0, [0, 0]),
        };
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&MAGIC.to_le_bytes());
        (bytes[2], bytes[3]) = (kind, flags);
        bytes[4..8].copy_from_slice(&fields[0].to_le_bytes());
        bytes[8..12].copy_from_slice(&fields[1].to_le_bytes());
        bytes
    }

    /// None: not of softverbs.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if u16::from_le_bytes([bytes[0], bytes[1]]) != MAGIC {
            return None;
        }
        Some(match bytes[2] {
            1 => Self::Hello { from: Ipv4Addr::from(word(4)), pair: word(8) },
            2 => Self::Message {
                len: word(4),
                immediate: (bytes[3] & 1 != 0).then(|| word(8)),
                solicited: bytes[3] & 2 != 0,
            },
            3 => Self::Credit { frames: word(4) },
            4 => Self::Ack,
            5 => Self::Nak { status: word(4) },
            6 => Self::NotReady,
            _ => return None,
        })
    }
}

/// Bytes of a connection that are not used yet: those from `from` to `to`.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

/// The other end closed the connection, or it broke.
#[derive(Debug, PartialEq)]
pub(crate) struct Closed;

impl Inbox {
    /// Take what has come; whether anything has.
    pub(crate) fn fill(&mut self, mut stream: &TcpStream) -> Result<bool, Closed> {
        self.bytes.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let room = self.wanted().max(64 << 10) + HEADER;
        if self.bytes.len() < room {
            self.bytes.resize(room, 0);
        }
        match stream.read(&mut self.bytes[self.to..]) {
            Ok(0) => Err(Closed),
            Ok(n) => {
                self.to += n;
                Ok(true)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(_) => Err(Closed),
        }
    }

    /// The length of the frame in front with its message, as far as it is known.
    fn wanted(&self) -> usize {
        match self.peek() {
            Some(Ok(Frame::Message { len, .. })) => HEADER + len as usize,
            _ => HEADER,
        }
    }

    fn peek(&self) -> Option<Result<Frame, Closed>> {
        let header = self.bytes[self.from..self.to].first_chunk()?;
        Some(Frame::decode(header).ok_or(Closed))
    }

    /// The frame in front and its message, if all of it is there. It stays until `take`.
    pub(crate) fn front(&self) -> Result<Option<(Frame, &[u8])>, Closed> {
        let Some(frame) = self.peek().transpose()? else { return Ok(None) };
        let end = self.from + self.wanted();
        Ok((end <= self.to).then(|| (frame, &self.bytes[self.from + HEADER..end])))
    }

    pub(crate) fn take(&mut self) {
        self.from += self.wanted();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_went() {
        for frame in [
            Frame::Hello { from: Ipv4Addr::new(127, 0, 0, 3), pair: 41_000 },
            Frame::Message { len: 5, immediate: None, solicited: true },
            Frame::Message { len: 0, immediate: Some(7), solicited: false },
            Frame::Credit { frames: 32 },
            Frame::Ack,
            Frame::Nak { status: 13 },
            Frame::NotReady,
        ] {
            assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }
        assert_eq!(Frame::decode(&[0; HEADER]), None);
    }
}
