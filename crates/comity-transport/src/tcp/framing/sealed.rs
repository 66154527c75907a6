//! Sealed frames: encrypted from the caller's memory into one buffer, two to a system call, and decrypted from where they arrived into
//! their place, or where they lie if they are lent.
//!
//! The peer can open a frame only whole, so none of it is accepted before all of it is with the system, and none of it is given out before
//! all of it has come.

use super::super::{
    CHUNK,
    frame::{self, Closed, SEALED_BATCH, SEALED_FRAME, SEALED_HEADER, SEALED_SMALL, SMALL},
    inbound::Inbound,
    outbound::{Cut, Outbound, window},
    socket::send,
};
use super::{Framing, Unframing};
use crate::{LinkError, channel::Seal};
use std::{collections::VecDeque, io::IoSlice, net::TcpStream};

/// The half that sends.
#[derive(Debug)]
pub(super) struct SealedSender {
    /// Seals, by connection.
    seals: Vec<Seal>,
    /// Holds the frames that are not yet wholly with the system, or earlier ones.
    frames: Box<[u8]>,
    /// Position in it at which they end.
    end: usize,
    /// Number of them that are with the system.
    sent: usize,
    /// End of each that is not wholly with the system, and number of bytes that it carries.
    leaving: VecDeque<(usize, usize)>,
    /// Bytes of frames that are with the system, but were not accepted yet.
    gone: usize,
}

impl SealedSender {
    pub(super) fn new(seals: Vec<Seal>) -> Self {
        // And a head's frame.
        let frames = vec![0; SEALED_HEADER + SMALL + SEALED_BATCH].into();
        Self { seals, frames, end: 0, sent: 0, leaving: VecDeque::new(), gone: 0 }
    }

    /// Fill the buffer with the frames that begin at byte `at` of what is offered and travel on one connection.
    fn fill(&mut self, out: &mut Outbound, head: &[u8], body: &[u8], mut at: usize) -> Result<(), LinkError> {
        let total = head.len() + body.len();
        self.sent = 0;
        self.end = 0;
        while at < total {
            let cut = out.cut(head.len().saturating_sub(at), total - at, SEALED_FRAME, SEALED_SMALL);
            let room = &mut self.frames[self.end..];
            let is_other = !self.leaving.is_empty() && cut.turn != out.turn;
            let Some(seal) = self.seals.get(cut.turn) else { break };
            if is_other || room.len() < SEALED_HEADER + cut.len {
                break;
            }
            let parts = window(head, body, at, cut.len);
            self.end += frame::seal(room, cut.number, parts, cut.next, seal)?;
            self.leaving.push_back((self.end, cut.len));
            out.pass(&cut);
            at += cut.len;
        }
        Ok(())
    }
}

impl Framing for SealedSender {
    /// Until a frame is with the system the same bytes are offered again, perhaps fewer at a time than it has.
    fn put(
        &mut self,
        out: &mut Outbound,
        sockets: &[TcpStream],
        head: &[u8],
        body: &[u8],
    ) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        let mut accepted = 0;
        let mut is_full = false;
        while accepted < total && accepted < CHUNK {
            if self.gone > 0 {
                let n = self.gone.min(total - accepted);
                self.gone -= n;
                accepted += n;
                continue;
            }
            if is_full {
                break;
            }
            if self.leaving.is_empty() {
                self.fill(out, head, body, accepted)?;
            }
            let Some(socket) = sockets.get(out.turn) else { break };
            self.sent += send(socket, &[IoSlice::new(&self.frames[self.sent..self.end])])?;
            is_full = self.sent < self.end;
            while let Some(&(end, text)) = self.leaving.front()
                && end <= self.sent
            {
                self.leaving.pop_front();
                self.gone += text;
            }
        }
        Ok(accepted)
    }

    fn is_between(&self) -> bool {
        self.leaving.is_empty() && self.gone == 0
    }

    fn write(&self, room: &mut [u8], cut: &Cut, parts: [&[u8]; 2]) -> Result<usize, LinkError> {
        // There is one for each connection.
        let seal = self.seals.get(cut.turn).ok_or_else(|| LinkError("has nothing to seal with".into()))?;
        frame::seal(room, cut.number, parts, cut.next, seal)
    }
}

/// Received part of the arriving frame.
#[derive(Clone, Copy, Debug)]
enum Frame {
    /// Not whole yet.
    Closed(Closed),
    /// Decrypted in the inbox; bytes that the reader has not had.
    Opened(usize),
}

/// The half that receives.
#[derive(Debug)]
pub(super) struct SealedReceiver {
    /// Seals, by connection.
    seals: Vec<Seal>,
    frame: Option<Frame>,
}

impl SealedReceiver {
    pub(super) fn new(seals: Vec<Seal>) -> Self {
        Self { seals, frame: None }
    }

    /// The arriving frame, if it is whole and not opened yet.
    fn closed(&mut self, line: &mut Inbound) -> Result<Option<Closed>, LinkError> {
        let frame = match self.frame {
            Some(Frame::Closed(frame)) => frame,
            Some(Frame::Opened(_)) => return Ok(None),
            None => {
                let Some((header, _)) = line.unread().split_first_chunk::<SEALED_HEADER>() else {
                    return Ok(None);
                };
                let frame = Closed::parse(header, line.number).map_err(|e| self.spoil(line, e))?;
                line.pass(SEALED_HEADER);
                line.next = frame.next;
                self.frame = Some(Frame::Closed(frame));
                frame
            }
        };
        Ok((line.unread().len() >= frame.len).then_some(frame))
    }

    /// The stream cannot go on.
    fn spoil(&mut self, line: &mut Inbound, e: LinkError) -> LinkError {
        self.frame = None;
        line.end();
        e
    }
}

impl Unframing for SealedReceiver {
    /// All of the frame once it is whole and opened, nothing before.
    fn run(&mut self, line: &mut Inbound) -> Result<usize, LinkError> {
        if let Some(Frame::Opened(left)) = self.frame {
            return Ok(left);
        }
        let Some(frame) = self.closed(line)? else { return Ok(0) };
        let number = line.number;
        let seal = &self.seals[line.turn];
        if let Err(e) = frame.open(number, line.front(frame.len), seal) {
            return Err(self.spoil(line, e));
        }
        self.frame = Some(Frame::Opened(frame.len));
        Ok(frame.len)
    }

    fn ready(&self) -> usize {
        match self.frame {
            Some(Frame::Opened(left)) => left,
            _ => 0,
        }
    }

    fn ends_after(&self, run: usize) -> bool {
        matches!(self.frame, Some(Frame::Opened(left)) if left == run)
    }

    fn advance(&mut self, line: &mut Inbound, n: usize) {
        line.pass(n);
        let Some(Frame::Opened(left)) = &mut self.frame else { return };
        *left -= n;
        if *left == 0 {
            self.frame = None;
            line.pass_frame();
        }
    }

    fn take_whole(&mut self, line: &mut Inbound, dst: &mut [u8]) -> Result<Option<usize>, LinkError> {
        let Some(frame) = self.closed(line)? else { return Ok(None) };
        let Some(out) = dst.get_mut(..frame.len) else { return Ok(None) };
        let piece = &line.unread()[..frame.len];
        if let Err(e) = frame.open_into(line.number, piece, out, &self.seals[line.turn]) {
            return Err(self.spoil(line, e));
        }
        self.frame = Some(Frame::Opened(frame.len));
        self.advance(line, frame.len);
        Ok(Some(frame.len))
    }

    /// Missing bytes of the frame, and of several frames, if so much is wanted and has come.
    fn read(
        &mut self,
        line: &mut Inbound,
        sockets: &[TcpStream],
        want: usize,
    ) -> Result<(usize, usize), LinkError> {
        let least = match &self.frame {
            Some(Frame::Closed(frame)) => frame.len,
            _ => SEALED_HEADER,
        };
        let want = want.min(CHUNK);
        let whole = least.max(want + want.div_ceil(SEALED_FRAME) * SEALED_HEADER);
        line.read(sockets, |inbox| inbox.room_for(whole))
    }

    fn read_for(
        &mut self,
        line: &mut Inbound,
        sockets: &[TcpStream],
        dst: &mut [u8],
        _: &mut usize,
    ) -> Result<bool, LinkError> {
        let (got, asked) = self.read(line, sockets, dst.len())?;
        Ok(got == asked)
    }

    fn is_inside(&self, line: &Inbound) -> bool {
        match &self.frame {
            Some(Frame::Closed(_)) => true,
            Some(Frame::Opened(_)) => false,
            None => !line.unread().is_empty(),
        }
    }

    fn has_more(&self, line: &Inbound) -> bool {
        let unread = line.unread();
        match self.frame {
            Some(Frame::Opened(_)) => true,
            Some(Frame::Closed(frame)) => unread.len() >= frame.len,
            None => {
                // Not checked yet: a guess, which a look at the frame confirms.
                let Some((len, _)) = unread.split_first_chunk() else { return false };
                unread.len() - SEALED_HEADER.min(unread.len()) >= frame::length(u32::from_le_bytes(*len)).0
            }
        }
    }
}
