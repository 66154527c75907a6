//! The receiving half: frames in order from the connections in turn, checked, lent where they lie
//! or received straight into their place.
//!
//! A small frame is lent when it is whole and right. The bytes of a large one are lent as they come, but for the last ones, and
//! [`Receiver::unproven`] says how many of them are out before the checksum could be compared.

use super::{
    CHUNK, Route,
    frame::{
        self, Arriving, Closed, HEADER, Place, SEALED_BATCH, SEALED_FRAME, SEALED_HEADER, SEALED_MOST, SMALL,
    },
    socket::receive,
};
use crate::{
    channel::Seal,
    transport::{LinkError, SMALL_WANT},
};
use std::{io::IoSliceMut, net::TcpStream};

/// Bytes of the buffer of a connection.
const INBOX: usize = (256 << 10) + 2 * AHEAD;
/// How far to read beyond what was asked for, to get the next header, or a small message whole,
/// with the same call. What of it must be copied again is little.
const AHEAD: usize = 4 << 10;

const _: () = assert!(SMALL + HEADER <= AHEAD && INBOX >= SEALED_MOST + SEALED_HEADER + AHEAD);
const _: () = assert!(INBOX >= SEALED_BATCH + AHEAD);

/// What was read from a connection ahead of its use: a header, or bytes to lend.
#[derive(Debug)]
struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    fn new() -> Self {
        // Zeroed memory comes untouched from the system, so what is never read into costs nothing.
        Self { bytes: vec![0; INBOX].into_boxed_slice(), start: 0, end: 0 }
    }

    fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn pass(&mut self, n: usize) {
        self.start += n;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Room for up to `n` more bytes behind the unread ones.
    fn room(&mut self, n: usize) -> &mut [u8] {
        // In the clear less than a header or a small want is unread then: moving that costs nothing. Sealed, it is part of a frame.
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let until = self.bytes.len().min(self.end.saturating_add(n));
        &mut self.bytes[self.end..until]
    }

    /// Room for what is missing of `whole` bytes, with a little more; unread bytes move only if they must.
    fn room_for(&mut self, whole: usize) -> &mut [u8] {
        if self.bytes.len() - self.start < whole + AHEAD {
            return self.room(whole.saturating_sub(self.end - self.start) + AHEAD);
        }
        &mut self.bytes[self.end..self.start + whole + AHEAD]
    }
}

/// What of the arriving frame there is.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "a link has one, in its place")]
enum Frame {
    /// In the clear, and counted into its checksum as it comes.
    Clear(Arriving),
    /// Sealed, and not whole yet.
    Closed(Closed),
    /// Sealed, and decrypted in the inbox; bytes that the reader has not had.
    Opened(usize),
}

/// Where the incoming stream stands.
#[derive(Debug)]
pub(super) struct Receiver {
    inboxes: Vec<Inbox>,
    /// The number of the arriving frame, or else of the next.
    number: u64,
    /// The connection that it travels on.
    pub(super) turn: usize,
    route: Route,
    frame: Option<Frame>,
    /// Where the frame after the arriving one travels.
    next: Place,
    /// One per connection; none where frames travel in the clear.
    seals: Vec<Seal>,
    /// Bytes at the front of the turn's inbox that belong to the frame and went into its checksum;
    /// if they are the frame's last, it was right.
    checked: usize,
    /// Bytes of several frames put together for a small want, in front of all others.
    joint: [u8; SMALL_WANT],
    joint_start: usize,
    joint_end: usize,
    /// Bytes received so far.
    pub(super) arrived: u64,
    /// Nothing more will come from the connections.
    ended: bool,
    /// What was given out of the frame that turned out to be damaged.
    spoilt: usize,
}

impl Receiver {
    pub(super) fn new(route: Route, seals: Vec<Seal>) -> Self {
        Self {
            inboxes: (0..route.connections).map(|_| Inbox::new()).collect(),
            number: 0,
            turn: route.connection(Place::Home),
            route,
            frame: None,
            next: Place::Home,
            seals,
            checked: 0,
            joint: [0; SMALL_WANT],
            joint_start: 0,
            joint_end: 0,
            arrived: 0,
            ended: false,
            spoilt: 0,
        }
    }

    /// The bytes that lie ready without a gap, as [`gather`](Self::gather) left them.
    pub(super) fn ready(&self) -> &[u8] {
        if self.joint_start < self.joint_end {
            &self.joint[self.joint_start..self.joint_end]
        } else {
            &self.inboxes[self.turn].unread()[..self.checked]
        }
    }

    /// How many bytes that were given out belong to a frame that is not checked yet.
    pub(super) fn unproven(&self) -> usize {
        match &self.frame {
            Some(Frame::Clear(frame)) if !frame.sound => frame.given,
            // A sealed one is opened before any of it is given out.
            _ => self.spoilt,
        }
    }

    /// Whether a frame has begun whose end has not come.
    pub(super) fn is_inside(&self) -> bool {
        match &self.frame {
            Some(Frame::Clear(frame)) => !frame.sound,
            Some(Frame::Closed(_)) => true,
            Some(Frame::Opened(_)) => false,
            None => !self.inboxes[self.turn].unread().is_empty(),
        }
    }

    /// Whether a sealed frame lies here whole.
    pub(super) fn has_more(&self) -> bool {
        let unread = self.inboxes[self.turn].unread();
        match self.frame {
            Some(Frame::Opened(_)) => true,
            Some(Frame::Closed(frame)) => unread.len() >= frame.len,
            None if !self.seals.is_empty() => {
                // Not checked yet: a guess, which a look at the frame confirms.
                let Some((len, _)) = unread.split_first_chunk() else { return false };
                unread.len() - SEALED_HEADER.min(unread.len()) >= frame::length(u32::from_le_bytes(*len)).0
            }
            _ => false,
        }
    }

    /// Give back `n` of the ready bytes.
    pub(super) fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.ready().len());
        let n = n.min(self.ready().len());
        if self.joint_start < self.joint_end { self.joint_start += n } else { self.advance(n) }
    }

    /// Make bytes ready: about `want`, and as many as the link's contract promises.
    pub(super) fn gather(&mut self, sockets: &[TcpStream], want: usize) -> Result<(), LinkError> {
        // An element must come whole, whatever is wanted.
        let least = if want <= SMALL_WANT { want.max(1) } else { size_of::<u64>() };
        if self.joint_start >= self.joint_end {
            (self.joint_start, self.joint_end) = (0, 0);
        }
        loop {
            let run = self.run()?;
            let joint = self.joint_end - self.joint_start;
            if joint >= least || (joint == 0 && run >= least) {
                return Ok(());
            }
            let frame_ends = match &self.frame {
                Some(Frame::Clear(f)) => f.left == run,
                Some(Frame::Opened(left)) => *left == run,
                Some(Frame::Closed(_)) | None => false,
            };
            if run > 0 && (joint > 0 || frame_ends) {
                self.join(run);
            } else if self.read(sockets, want)?.0 == 0 {
                return Ok(());
            }
        }
    }

    /// Move ready bytes to `dst`, and count them in `taken`: also those that came before an error.
    pub(super) fn take(
        &mut self,
        sockets: &[TcpStream],
        dst: &mut [u8],
        taken: &mut usize,
    ) -> Result<(), LinkError> {
        let end = dst.len().min(CHUNK);
        // A connection that gave less than was asked has no more.
        let mut drained = None;
        while *taken < end {
            let rest = &mut dst[*taken..];
            if self.joint_start >= self.joint_end
                && let Some(n) = self.open_into(rest)?
            {
                *taken += n;
                continue;
            }
            let run = if self.joint_start < self.joint_end { 0 } else { self.run()? };
            let ready = self.ready();
            debug_assert!(run == 0 || run == ready.len());
            if !ready.is_empty() {
                let n = ready.len().min(rest.len());
                rest[..n].copy_from_slice(&ready[..n]);
                self.consume(n);
                *taken += n;
                continue;
            }
            if self.ended || drained == Some(self.turn) {
                break;
            }
            let turn = self.turn;
            let all = if matches!(&self.frame, Some(Frame::Clear(f)) if f.is_large()) {
                self.receive_into(sockets, rest, taken)?
            } else {
                let want = if self.seals.is_empty() { 0 } else { rest.len() };
                let (got, asked) = self.read(sockets, want)?;
                got == asked
            };
            if !all {
                drained = Some(turn);
            }
        }
        Ok(())
    }

    /// Receive the frame's next bytes straight into `dst`, and what follows them into the inbox,
    /// which is empty. Whether as many came as were asked for.
    fn receive_into(
        &mut self,
        sockets: &[TcpStream],
        dst: &mut [u8],
        taken: &mut usize,
    ) -> Result<bool, LinkError> {
        let Some(Frame::Clear(frame)) = &mut self.frame else { return Ok(false) };
        let n = frame.left.min(dst.len());
        let inbox = &mut self.inboxes[self.turn];
        let ahead = inbox.room(AHEAD);
        let asked = n + ahead.len();
        let mut parts = [IoSliceMut::new(&mut dst[..n]), IoSliceMut::new(ahead)];
        let got = receive(&sockets[self.turn], &mut parts).inspect_err(|_| self.ended = true)?;
        self.arrived += got as u64;
        let direct = got.min(n);
        inbox.end += got - direct;
        frame.add(&dst[..direct]);
        if direct == frame.left
            && let Err(e) = frame.check()
        {
            // Not counted, so the engine makes no valid elements of them.
            dst[..direct].fill(0);
            return Err(self.spoilt(e));
        }
        *taken += direct;
        self.advance_frame(direct);
        Ok(got == asked)
    }

    /// Read into the inbox of the turn: about `want` bytes of the stream, or what is missing of a sealed frame, and what may
    /// follow. How many bytes came, of how many asked for.
    fn read(&mut self, sockets: &[TcpStream], want: usize) -> Result<(usize, usize), LinkError> {
        if self.ended {
            return Ok((0, 0));
        }
        let inbox = &mut self.inboxes[self.turn];
        let room = if self.seals.is_empty() {
            inbox.room(AHEAD.max(want.saturating_add(HEADER)))
        } else {
            let least = match &self.frame {
                Some(Frame::Closed(frame)) => frame.len,
                _ => SEALED_HEADER,
            };
            // Several frames, if so much is wanted and has come.
            let want = want.min(CHUNK);
            inbox.room_for(least.max(want + want.div_ceil(SEALED_FRAME) * SEALED_HEADER))
        };
        let asked = room.len();
        let got =
            receive(&sockets[self.turn], &mut [IoSliceMut::new(room)]).inspect_err(|_| self.ended = true)?;
        inbox.end += got;
        self.arrived += got as u64;
        Ok((got, asked))
    }

    /// How many bytes of the arriving frame lie in the inbox of the turn, all of them checked.
    fn run(&mut self) -> Result<usize, LinkError> {
        if !self.seals.is_empty() {
            return self.run_sealed();
        }
        let unread = self.inboxes[self.turn].unread();
        if self.frame.is_none() {
            let Some((header, _)) = unread.split_first_chunk::<HEADER>() else { return Ok(0) };
            let frame = match Arriving::parse(header, self.number) {
                Ok(frame) => frame,
                Err(e) => return Err(self.spoilt(e)),
            };
            self.inboxes[self.turn].pass(HEADER);
            self.next = frame.next;
            self.frame = Some(Frame::Clear(frame));
        }
        let Some(Frame::Clear(frame)) = &mut self.frame else { return Ok(0) };
        let unread = self.inboxes[self.turn].unread();
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
                return Err(self.spoilt(e));
            }
        }
        Ok(run)
    }

    /// As [`run`](Self::run): all of the frame once it is whole and opened, nothing before.
    fn run_sealed(&mut self) -> Result<usize, LinkError> {
        if let Some(Frame::Opened(left)) = self.frame {
            return Ok(left);
        }
        let Some(frame) = self.closed()? else { return Ok(0) };
        let inbox = &mut self.inboxes[self.turn];
        let piece = &mut inbox.bytes[inbox.start..inbox.start + frame.len];
        if let Err(e) = frame.open(self.number, piece, &self.seals[self.turn]) {
            return Err(self.spoilt(e));
        }
        self.frame = Some(Frame::Opened(frame.len));
        self.checked = frame.len;
        Ok(frame.len)
    }

    /// Decrypt the arriving frame straight into `dst` if it is whole, and no longer than that; its length.
    fn open_into(&mut self, dst: &mut [u8]) -> Result<Option<usize>, LinkError> {
        let Some(frame) = self.closed()? else { return Ok(None) };
        let Some(out) = dst.get_mut(..frame.len) else { return Ok(None) };
        let piece = &self.inboxes[self.turn].unread()[..frame.len];
        if let Err(e) = frame.open_into(self.number, piece, out, &self.seals[self.turn]) {
            return Err(self.spoilt(e));
        }
        self.frame = Some(Frame::Opened(frame.len));
        self.checked = frame.len;
        self.advance(frame.len);
        Ok(Some(frame.len))
    }

    /// The arriving sealed frame, if it is whole and not opened yet.
    fn closed(&mut self) -> Result<Option<Closed>, LinkError> {
        let frame = match self.frame {
            Some(Frame::Closed(frame)) => frame,
            None if !self.seals.is_empty() => {
                let unread = self.inboxes[self.turn].unread();
                let Some((header, _)) = unread.split_first_chunk::<SEALED_HEADER>() else { return Ok(None) };
                let frame = Closed::parse(header, self.number).map_err(|e| self.spoilt(e))?;
                self.inboxes[self.turn].pass(SEALED_HEADER);
                self.next = frame.next;
                self.frame = Some(Frame::Closed(frame));
                frame
            }
            _ => return Ok(None),
        };
        Ok((self.inboxes[self.turn].unread().len() >= frame.len).then_some(frame))
    }

    /// Give back `n` bytes of the run.
    fn advance(&mut self, n: usize) {
        self.inboxes[self.turn].pass(n);
        self.checked -= n;
        self.advance_frame(n);
    }

    fn advance_frame(&mut self, n: usize) {
        let left = match &mut self.frame {
            Some(Frame::Clear(frame)) => {
                frame.given += n;
                &mut frame.left
            }
            Some(Frame::Opened(left)) => left,
            Some(Frame::Closed(_)) | None => return,
        };
        *left -= n;
        if *left == 0 {
            self.frame = None;
            self.number += 1;
            self.turn = self.route.take(self.next);
        }
    }

    /// Move what fits of the run behind the joint bytes.
    fn join(&mut self, run: usize) {
        self.joint.copy_within(self.joint_start..self.joint_end, 0);
        (self.joint_start, self.joint_end) = (0, self.joint_end - self.joint_start);
        let n = run.min(self.joint.len() - self.joint_end);
        self.joint[self.joint_end..self.joint_end + n]
            .copy_from_slice(&self.inboxes[self.turn].unread()[..n]);
        self.joint_end += n;
        self.advance(n);
    }

    /// The stream cannot go on: forget what has arrived beyond this point.
    fn spoilt(&mut self, e: LinkError) -> LinkError {
        self.ended = true;
        self.spoilt = self.unproven();
        self.frame = None;
        self.checked = 0;
        for inbox in &mut self.inboxes {
            inbox.clear();
        }
        e
    }

    /// Swallow what lies unread in the sockets, within bounds, before they are closed.
    pub(super) fn drain(&mut self, sockets: &[TcpStream]) {
        const MOST: usize = 64 << 20;
        for (inbox, socket) in self.inboxes.iter_mut().zip(sockets) {
            let mut swallowed = 0;
            while swallowed < MOST {
                inbox.clear();
                match receive(socket, &mut [IoSliceMut::new(inbox.room(INBOX))]) {
                    Ok(n) if n > 0 => swallowed += n,
                    _ => break,
                }
            }
        }
    }
}
