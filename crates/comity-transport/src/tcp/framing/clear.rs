//! Frames in the clear: bytes go from the caller's memory to the system and from there to the caller's memory, with a checksum in front.
//!
//! A small frame is lent when it is whole and right. The bytes of a large one are lent as they come, but for the last ones, and
//! [`Unframing::unproven`] says how many of them are out before the checksum could be compared.

use super::super::{
    CHUNK,
    frame::{self, ArrivingFrame, FRAME, HEADER, SMALL, header},
    inbound::{AHEAD, Inbound},
    outbound::{Cut, Outbound, window},
    socket::{receive, send},
};
use super::{Framing, Unframing};
use crate::LinkError;
use std::{
    io::{IoSlice, IoSliceMut},
    net::TcpStream,
};

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
pub(super) struct Clear {
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
    fn put(
        &mut self,
        out: &mut Outbound,
        sockets: &[TcpStream],
        head: &[u8],
        body: &[u8],
    ) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        let mut accepted = 0;
        while accepted < total && accepted < CHUNK {
            if self.open.is_none() {
                self.open(out, head, body, accepted);
            }
            let Some((open, socket)) = self.open.as_ref().zip(sockets.get(out.turn)) else { break };
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
pub(super) struct Unclear {
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
        sockets: &[TcpStream],
        dst: &mut [u8],
        taken: &mut usize,
    ) -> Result<bool, LinkError> {
        let Some(frame) = &mut self.frame else { return Ok(false) };
        let n = frame.left.min(dst.len());
        let inbox = &mut line.inboxes[line.turn];
        let ahead = inbox.room(AHEAD);
        let asked = n + ahead.len();
        let mut parts = [IoSliceMut::new(&mut dst[..n]), IoSliceMut::new(ahead)];
        let got = receive(&sockets[line.turn], &mut parts).inspect_err(|_| line.ended = true)?;
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

    fn read(
        &mut self,
        line: &mut Inbound,
        sockets: &[TcpStream],
        want: usize,
    ) -> Result<(usize, usize), LinkError> {
        line.read(sockets, |inbox| inbox.room(AHEAD.max(want.saturating_add(HEADER))))
    }

    fn read_for(
        &mut self,
        line: &mut Inbound,
        sockets: &[TcpStream],
        dst: &mut [u8],
        taken: &mut usize,
    ) -> Result<bool, LinkError> {
        if self.frame.is_some_and(|f| f.is_large()) {
            return self.receive_into(line, sockets, dst, taken);
        }
        let (got, asked) = self.read(line, sockets, 0)?;
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
