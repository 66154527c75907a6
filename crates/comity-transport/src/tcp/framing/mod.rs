//! Interface by which a link's bytes become [frames](super::frame) on its connections, and frames become bytes, however frames travel.
//!
//! ```text
//!   clear    from the caller's memory to the system and back, a checksum in front
//!   sealed   encrypted in a buffer, decrypted where it arrived
//!   batch    frames of either kind, which a thread hands to the system; nothing of it shows where they arrive
//! ```
//!
//! Frames in the clear: bytes go from the caller's memory to the system and from there to the caller's memory, with a checksum in front.
//!
//! A small frame is lent when it is whole and right. The bytes of a large one are lent as they come, but for the last ones, and
//! [`Unframing::unproven`] says how many of them are out before the checksum could be compared.
//!
//! Sealed frames: encrypted from the caller's memory into one buffer, two to a system call, and decrypted from where they arrived into
//! their place, or where they lie if they are lent.
//!
//! The peer can open a frame only whole, so none of it is accepted before all of it is with the system, and none of it is given out before
//! all of it has come.

mod thread;

use super::{
    CHUNK,
    frame::{
        self, ArrivingFrame, Closed, FRAME, HEADER, SEALED_BATCH, SEALED_FRAME, SEALED_HEADER, SEALED_SMALL,
        SMALL, header,
    },
    positions::{AHEAD, Cut, Inbound, Outbound, window},
};
use crate::{
    LinkError,
    channel::Seal,
    socket::{receive, send},
};
use std::{
    collections::VecDeque,
    fmt,
    io::{IoSlice, IoSliceMut},
    sync::Arc,
};
#[cfg(test)]
pub(super) use thread::BATCHES;
use thread::Batching;
pub(super) use thread::SendThread;
pub(crate) use thread::SendThreads;

/// The half that sends.
pub(super) trait Framing: Send + fmt::Debug {
    /// Hand a prefix of `head` and `body` to the system, in the next frames; how many bytes of them.
    fn put(&mut self, out: &mut Outbound, head: &[u8], body: &[u8]) -> Result<usize, LinkError>;

    /// Returns true if nothing is under way: what was offered and has left was accepted too.
    fn is_between(&self) -> bool;

    /// Write the frame `cut`, whole, which carries `parts`, to the front of `room`, which it fits; its length.
    fn write(&self, room: &mut [u8], cut: &Cut, parts: [&[u8]; 2]) -> Result<usize, LinkError>;

    /// A message begins. It goes aside if it `is_long`, and has `len` bytes; `is_busy` if there is something to receive meanwhile.
    fn announce(&mut self, _out: &Outbound, _len: usize, _is_long: bool, _is_busy: bool) {}

    /// The thread that sends, where there is one.
    fn thread(&self) -> Option<&SendThread> {
        None
    }

    /// End that thread.
    fn end_thread(&mut self) {}
}

/// The half that receives. The bytes of the arriving frame that it has checked are a *run*, at the front of the inbox.
pub(super) trait Unframing: Send + fmt::Debug {
    /// Look at what lies in the inbox; how long the run is.
    fn run(&mut self, line: &mut Inbound) -> Result<usize, LinkError>;

    /// Length of the run at the last look, less what was given back.
    fn ready(&self) -> usize;

    /// Returns true if the arriving frame ends after the next `run` bytes.
    fn ends_after(&self, run: usize) -> bool;

    /// Give back the first `n` bytes of the run.
    fn advance(&mut self, line: &mut Inbound, n: usize);

    /// Make the arriving frame straight into `dst`, if it lies here whole, is not checked yet, and fits; how many bytes.
    fn take_whole(&mut self, _line: &mut Inbound, _dst: &mut [u8]) -> Result<Option<usize>, LinkError> {
        Ok(None)
    }

    /// Read into the inbox, about `want` bytes of the stream: how many bytes came, of how many asked for.
    fn read(&mut self, line: &mut Inbound, want: usize) -> Result<(usize, usize), LinkError>;

    /// Read on for `dst`, straight into it where that can be; `taken` counts that. Whether as many bytes came as were asked for.
    fn read_for(&mut self, line: &mut Inbound, dst: &mut [u8], taken: &mut usize) -> Result<bool, LinkError>;

    /// Number of bytes that were given out and belong to a frame that is not checked yet.
    fn unproven(&self) -> usize {
        0
    }

    /// Returns true if a frame has begun whose end has not come.
    fn is_inside(&self, line: &Inbound) -> bool;

    /// Returns true if a frame lies here whole, as far as can be told without a look at it.
    fn has_more(&self, _line: &Inbound) -> bool {
        false
    }
}

/// Frames over the connections of `out`: sealed if there is something to seal each with, and with a
/// thread if there may be one.
pub(super) fn framing(
    out: &Outbound,
    seals: Vec<Seal>,
    threads: Option<Arc<SendThreads>>,
) -> Box<dyn Framing> {
    let inner: Box<dyn Framing> =
        if seals.is_empty() { Box::<Clear>::default() } else { Box::new(SealedSender::new(seals)) };
    match threads {
        // What also carries the other direction is better left to one thread.
        Some(threads) if out.route.is_narrow() => Box::new(Batching::new(inner, threads)),
        _ => inner,
    }
}

/// The other end of [`framing`], whether batches are made there or not.
pub(super) fn unframing(seals: Vec<Seal>) -> Box<dyn Unframing> {
    if seals.is_empty() { Box::<Unclear>::default() } else { Box::new(SealedReceiver::new(seals)) }
}

/// A frame that has a header but is not yet wholly with the system.
#[derive(Debug)]
struct OpenFrame {
    header: [u8; HEADER],
    header_sent: usize,
    left: usize,
}

impl OpenFrame {
    /// The frame `cut`. All of it is at hand, so its checksum can travel in front.
    fn new(cut: &Cut, parts: [&[u8]; 2]) -> Self {
        Self { header: header(cut.number, parts, cut.next), header_sent: 0, left: cut.len }
    }

    /// `n` more bytes are with the system; how many of them are the header's.
    fn pass_header(&mut self, n: usize) -> usize {
        let of_header = n.min(HEADER - self.header_sent);
        self.header_sent += of_header;
        of_header
    }
}

/// The half that sends.
#[derive(Debug, Default)]
struct Clear {
    open: Option<OpenFrame>,
    /// The frame that leaves together with the open one.
    next: Option<OpenFrame>,
}

impl Clear {
    /// Begin the frame at byte `at` of what is offered, and the one behind it if that leaves in one go with it.
    fn open(&mut self, out: &mut Outbound, head: &[u8], body: &[u8], at: usize) {
        let total = head.len() + body.len();
        let cut = out.cut(head.len().saturating_sub(at), total - at, FRAME, SMALL);
        out.pass(&cut);
        self.open = Some(OpenFrame::new(&cut, window(head, body, at, cut.len)));
        let behind = at + cut.len;
        if cut.is_head && behind < total && out.next_turn() == out.turn {
            let second = out.cut(0, total - behind, FRAME, SMALL);
            out.pass(&second);
            self.next = Some(OpenFrame::new(&second, window(head, body, behind, second.len)));
        }
    }

    /// `sent` more bytes are with the system; how many of them are the stream's.
    fn pass(&mut self, sent: usize) -> usize {
        let mut accepted = 0;
        let mut rest = sent;
        while let Some(open) = &mut self.open {
            rest -= open.pass_header(rest);
            let n = rest.min(open.left);
            open.left -= n;
            accepted += n;
            rest -= n;
            if open.left > 0 {
                break;
            }
            self.open = self.next.take();
        }
        accepted
    }
}

impl Framing for Clear {
    fn put(&mut self, out: &mut Outbound, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        let mut accepted = 0;
        while accepted < total && accepted < CHUNK {
            if self.open.is_none() {
                self.open(out, head, body, accepted);
            }
            let Some((open, socket)) = self.open.as_ref().zip(out.sockets.get(out.turn)) else { break };
            let [h, b] = window(head, body, accepted, open.left);
            let start = &open.header[open.header_sent..];
            let (start2, [h2, b2]) = match &self.next {
                Some(next) if h.len() + b.len() == open.left => {
                    (&next.header[..], window(head, body, accepted + open.left, next.left))
                }
                _ => (&[][..], [&[][..]; 2]),
            };
            let parts = [start, h, b, start2, h2, b2];
            let asked: usize = parts.iter().map(|p| p.len()).sum();
            let sent = send(socket, &parts.map(IoSlice::new))?;
            accepted += self.pass(sent);
            if sent < asked {
                break;
            }
        }
        Ok(accepted)
    }

    fn is_between(&self) -> bool {
        self.open.is_none()
    }

    fn write(&self, room: &mut [u8], cut: &Cut, parts: [&[u8]; 2]) -> Result<usize, LinkError> {
        Ok(frame::copy(room, cut.number, parts, cut.next))
    }
}

/// The half that receives.
#[derive(Debug, Default)]
struct Unclear {
    /// Counted into its checksum as it comes.
    frame: Option<ArrivingFrame>,
    /// Bytes at the front of the inbox that belong to the frame and went into its checksum; if they are the frame's last, it was right.
    checked: usize,
    /// Bytes that were given out of the frame that turned out to be damaged.
    spoilt: usize,
}

impl Unclear {
    /// The stream cannot go on.
    fn spoil(&mut self, line: &mut Inbound, e: LinkError) -> LinkError {
        self.spoilt = self.unproven();
        self.frame = None;
        self.checked = 0;
        line.end();
        e
    }

    fn advance_frame(&mut self, line: &mut Inbound, n: usize) {
        let Some(frame) = &mut self.frame else { return };
        frame.given += n;
        frame.left -= n;
        if frame.left == 0 {
            self.frame = None;
            line.pass_frame();
        }
    }

    /// Receive the frame's next bytes straight into `dst`, and what follows them into the inbox, which is empty. Whether as many came as
    /// were asked for.
    fn receive_into(
        &mut self,
        line: &mut Inbound,
        dst: &mut [u8],
        taken: &mut usize,
    ) -> Result<bool, LinkError> {
        let Some(frame) = &mut self.frame else { return Ok(false) };
        let n = frame.left.min(dst.len());
        let inbox = &mut line.inboxes[line.turn];
        let ahead = inbox.room(AHEAD);
        let asked = n + ahead.len();
        let mut parts = [IoSliceMut::new(&mut dst[..n]), IoSliceMut::new(ahead)];
        let got = receive(&line.sockets[line.turn], &mut parts).inspect_err(|_| line.ended = true)?;
        line.arrived += got as u64;
        let direct = got.min(n);
        inbox.grow(got - direct);
        frame.add(&dst[..direct]);
        if direct == frame.left
            && let Err(e) = frame.check()
        {
            // Not counted, so the engine makes no valid elements of them.
            dst[..direct].fill(0);
            return Err(self.spoil(line, e));
        }
        *taken += direct;
        self.advance_frame(line, direct);
        Ok(got == asked)
    }
}

impl Unframing for Unclear {
    fn run(&mut self, line: &mut Inbound) -> Result<usize, LinkError> {
        if self.frame.is_none() {
            let Some((header, _)) = line.unread().split_first_chunk::<HEADER>() else { return Ok(0) };
            let frame = match ArrivingFrame::parse(header, line.number) {
                Ok(frame) => frame,
                Err(e) => return Err(self.spoil(line, e)),
            };
            line.pass(HEADER);
            line.next = frame.next;
            self.frame = Some(frame);
        }
        let Some(frame) = &mut self.frame else { return Ok(0) };
        let unread = line.unread();
        let run = unread.len().min(frame.left);
        if run < frame.left && !frame.is_large() {
            return Ok(0);
        }
        if run > self.checked {
            frame.add(&unread[self.checked..run]);
            self.checked = run;
            if run == frame.left
                && let Err(e) = frame.check()
            {
                return Err(self.spoil(line, e));
            }
        }
        Ok(run)
    }

    fn ready(&self) -> usize {
        self.checked
    }

    fn ends_after(&self, run: usize) -> bool {
        self.frame.is_some_and(|f| f.left == run)
    }

    fn advance(&mut self, line: &mut Inbound, n: usize) {
        line.pass(n);
        self.checked -= n;
        self.advance_frame(line, n);
    }

    fn read(&mut self, line: &mut Inbound, want: usize) -> Result<(usize, usize), LinkError> {
        line.read(|inbox| inbox.room(AHEAD.max(want.saturating_add(HEADER))))
    }

    fn read_for(&mut self, line: &mut Inbound, dst: &mut [u8], taken: &mut usize) -> Result<bool, LinkError> {
        if self.frame.is_some_and(|f| f.is_large()) {
            return self.receive_into(line, dst, taken);
        }
        let (got, asked) = self.read(line, 0)?;
        Ok(got == asked)
    }

    fn unproven(&self) -> usize {
        match &self.frame {
            Some(frame) if !frame.sound => frame.given,
            _ => self.spoilt,
        }
    }

    fn is_inside(&self, line: &Inbound) -> bool {
        match &self.frame {
            Some(frame) => !frame.sound,
            None => !line.unread().is_empty(),
        }
    }
}

/// The half that sends.
#[derive(Debug)]
struct SealedSender {
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
    fn new(seals: Vec<Seal>) -> Self {
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
    fn put(&mut self, out: &mut Outbound, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
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
            let Some(socket) = out.sockets.get(out.turn) else { break };
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
struct SealedReceiver {
    /// Seals, by connection.
    seals: Vec<Seal>,
    frame: Option<Frame>,
}

impl SealedReceiver {
    fn new(seals: Vec<Seal>) -> Self {
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
    fn read(&mut self, line: &mut Inbound, want: usize) -> Result<(usize, usize), LinkError> {
        let least = match &self.frame {
            Some(Frame::Closed(frame)) => frame.len,
            _ => SEALED_HEADER,
        };
        let want = want.min(CHUNK);
        let whole = least.max(want + want.div_ceil(SEALED_FRAME) * SEALED_HEADER);
        line.read(|inbox| inbox.room_for(whole + AHEAD))
    }

    fn read_for(&mut self, line: &mut Inbound, dst: &mut [u8], _: &mut usize) -> Result<bool, LinkError> {
        let (got, asked) = self.read(line, dst.len())?;
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
