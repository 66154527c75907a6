//! The sending half of a queue pair, and what goes wrong on its way by order of the configuration.
//!
//! UC completes a SEND when its bytes have left. RC completes it when the peer says that they arrived, and gives up, with the
//! statuses of the specification, when the peer has been away for 4.096 us x 2^timeout x (retries + 1), or had no receive posted
//! for as long as `rnr_retry` allows. In `apple` mode a SEND waits for a receive of the peer for ever (TN3205).

use crate::{
    abi::{IBV_QPS_RTS, IBV_WC_LOC_PROT_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SUCCESS},
    memory::gather,
    pair::{Pair, Send},
    wire::{Closed, Frame, Inbox},
    world::Host,
};
use std::{
    collections::VecDeque,
    io::{ErrorKind, Write},
    net::{SocketAddrV4, TcpStream},
    time::{Duration, Instant},
};

/// Time that a message which is to be overtaken waits for another.
const OVERTAKEN: Duration = Duration::from_millis(5);
/// Time until an `apple` pair looks for its peer again.
const AGAIN: Duration = Duration::from_millis(20);
/// Time that one try of `rnr_retry` stands for.
const NOT_READY: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct Sender {
    stream: Option<TcpStream>,
    /// The peer was there, or was looked for, and is not any more.
    lost: bool,
    again_at: Option<Instant>,
    answers: Inbox,
    writing: Option<Writing>,
    /// A message that the next one overtakes.
    held: Option<(Vec<u8>, Instant)>,
    pub(crate) waiting: VecDeque<Send>,
    /// RC: sent, and not answered yet.
    pub(crate) unacked: VecDeque<Send>,
    pub(crate) used: u32,
    /// Slots of requests that ended without a completion.
    pub(crate) unclaimed: u32,
    /// `apple`: receives that the peer has posted.
    credits: u32,
    /// RC: since when there was no sign of the peer while there was work.
    silent: Option<Instant>,
    /// RC: since when the peer says that it has no receive posted.
    not_ready: Option<Instant>,
}

/// Bytes on their way into the connection, and the request that they end.
#[derive(Debug)]
struct Writing {
    bytes: Vec<u8>,
    done: usize,
    send: Option<Send>,
}

impl Sender {
    pub(crate) fn disconnect(&mut self) {
        self.stream = None;
        self.writing = None;
        self.held = None;
    }

    /// Connection for which a thread has to wait, and whether it has something to write.
    pub(crate) fn waits_on(&self) -> Option<(&TcpStream, bool)> {
        self.stream.as_ref().map(|s| (s, self.writing.is_some()))
    }
}

impl Pair {
    /// Send what can be sent; `down`: the link is away.
    pub(crate) fn progress_send(&mut self, host: &mut Host, down: bool) -> bool {
        if down || self.peer.is_some_and(|p| !p.cabled) {
            return self.without_link(host);
        }
        let mut moved = self.connect(host);
        moved |= self.take_answers(host);
        if self.give_up(host) {
            return true;
        }
        while self.state == IBV_QPS_RTS {
            if self.sender.writing.is_none() && !self.next_message(host) {
                break;
            }
            match self.write(host) {
                Ok(true) => moved = true,
                Ok(false) => break,
                Err(Closed) => {
                    self.lose_peer(host);
                    break;
                }
            }
        }
        moved
    }

    /// Nothing gets through: UC does not notice, RC gives up in time, Apple waits.
    fn without_link(&mut self, host: &mut Host) -> bool {
        if self.reliable() {
            if !self.sender.waiting.is_empty() || !self.sender.unacked.is_empty() {
                self.sender.silent.get_or_insert_with(Instant::now);
            }
            return self.give_up(host);
        }
        if host.config.apple || self.state != IBV_QPS_RTS || self.sender.writing.is_some() {
            return false;
        }
        let mut moved = false;
        while let Some(send) = self.sender.waiting.pop_front() {
            self.complete_send(host, &send, IBV_WC_SUCCESS);
            moved = true;
        }
        moved
    }

    fn connect(&mut self, host: &Host) -> bool {
        let Some(peer) = self.peer else { return false };
        let sender = &mut self.sender;
        // In `apple` mode the peer's credits come over the connection, before there is anything to send.
        let wanted = host.config.apple || !sender.waiting.is_empty();
        let early = sender.again_at.is_some_and(|t| Instant::now() < t);
        if sender.stream.is_some() || sender.lost || !wanted || early {
            return false;
        }
        let to = SocketAddrV4::new(peer.address, u16::try_from(peer.number).unwrap_or(0));
        let made = TcpStream::connect_timeout(&to.into(), Duration::from_millis(200));
        let ready = made.and_then(|s| s.set_nonblocking(true).and_then(|()| s.set_nodelay(true)).map(|()| s));
        match ready {
            Ok(stream) => {
                let hello = Frame::Hello { from: self.address, pair: self.number }.encode().to_vec();
                sender.stream = Some(stream);
                sender.answers = Inbox::default();
                sender.writing = Some(Writing { bytes: hello, done: 0, send: None });
            }
            Err(_) => self.lose_peer(host),
        }
        true
    }

    fn take_answers(&mut self, host: &mut Host) -> bool {
        let Some(stream) = &self.sender.stream else { return false };
        let filled = self.sender.answers.fill(stream);
        let mut moved = filled == Ok(true);
        loop {
            let frame = match self.sender.answers.front() {
                Ok(Some((frame, _))) => frame,
                Ok(None) => break,
                Err(Closed) => {
                    self.lose_peer(host);
                    return true;
                }
            };
            self.sender.answers.take();
            moved = true;
            self.sender.silent = None;
            match frame {
                Frame::Credit { .. } => self.sender.credits += 1,
                Frame::Ack => {
                    self.sender.not_ready = None;
                    if let Some(send) = self.sender.unacked.pop_front() {
                        self.complete_send(host, &send, IBV_WC_SUCCESS);
                    }
                }
                Frame::Nak { status } => {
                    self.end_with(host, status);
                    return true;
                }
                Frame::NotReady => {
                    self.sender.not_ready.get_or_insert_with(Instant::now);
                }
                Frame::Hello { .. } | Frame::Message { .. } => {}
            }
        }
        if filled.is_err() {
            self.lose_peer(host);
        }
        moved
    }

    /// RC: whether the budget for the oldest request is used up, which then ends.
    fn give_up(&mut self, host: &mut Host) -> bool {
        if !self.reliable() || self.sender.waiting.is_empty() && self.sender.unacked.is_empty() {
            return false;
        }
        let attr = &self.attr;
        let silence = 4.096e-6 * f64::from(1u32 << attr.timeout.min(31)) * (f64::from(attr.retry_cnt) + 1.0);
        let silent = self.sender.silent.map_or(0.0, |t| t.elapsed().as_secs_f64());
        let not_ready = self.sender.not_ready.map_or(Duration::ZERO, |t| t.elapsed());
        if attr.timeout != 0 && silent > silence {
            self.end_with(host, IBV_WC_RETRY_EXC_ERR);
            true
        } else if attr.rnr_retry < 7 && not_ready > NOT_READY * (u32::from(attr.rnr_retry) + 1) {
            self.end_with(host, IBV_WC_RNR_RETRY_EXC_ERR);
            true
        } else {
            false
        }
    }

    /// The oldest request ends with an error, and the pair with it.
    fn end_with(&mut self, host: &mut Host, status: u32) {
        let writing = self.sender.writing.take().and_then(|w| w.send);
        self.sender.unacked.extend(writing);
        let oldest = self.sender.unacked.pop_front().or_else(|| self.sender.waiting.pop_front());
        if let Some(send) = oldest {
            self.complete_send(host, &send, status);
        }
        self.fail(host);
    }

    /// Make the next message ready for writing; false: there is none that may go.
    fn next_message(&mut self, host: &mut Host) -> bool {
        if self.sender.waiting.is_empty() {
            let due = |t: &Instant| t.elapsed() > OVERTAKEN;
            return self.sender.held.as_ref().is_some_and(|(_, since)| due(since)) && self.release();
        }
        let apple = host.config.apple;
        let lost = self.sender.lost;
        if self.sender.stream.is_none() && (apple || self.reliable() || !lost) {
            return false;
        }
        let Some(send) = self.sender.waiting.front() else { return false };
        if apple && self.sender.credits == 0 {
            return false;
        }
        let segments = host.regions.segments(&send.list, self.shape.domain, false);
        let Some(send) = self.sender.waiting.pop_front() else { return false };
        let mut bytes =
            Frame::Message { len: send.length as u32, immediate: send.immediate, solicited: send.solicited }
                .encode()
                .to_vec();
        match (&send.inline, segments) {
            (Some(data), _) => bytes.extend_from_slice(data),
            (None, Some(segments)) => gather(&segments, &mut bytes),
            (None, None) => {
                self.complete_send(host, &send, IBV_WC_LOC_PROT_ERR);
                self.fail(host);
                return false;
            }
        }
        self.sender.credits = self.sender.credits.saturating_sub(u32::from(apple));
        if !self.reliable() {
            if lost || self.dropped(host, send.length) {
                self.complete_send(host, &send, IBV_WC_SUCCESS);
                return self.next_message(host);
            }
            bytes = self.spoil(host, bytes);
            if self.sender.held.is_none() && host.strikes(host.config.faults.reorder) {
                self.sender.held = Some((bytes, Instant::now()));
                self.complete_send(host, &send, IBV_WC_SUCCESS);
                return self.next_message(host);
            }
        }
        self.sender.writing = Some(Writing { bytes, done: 0, send: Some(send) });
        true
    }

    fn release(&mut self) -> bool {
        let held = self.sender.held.take();
        self.sender.writing = held.map(|(bytes, _)| Writing { bytes, done: 0, send: None });
        self.sender.writing.is_some()
    }

    fn dropped(&self, host: &mut Host, length: usize) -> bool {
        let packet = 128usize << self.attr.path_mtu.clamp(1, 5);
        let packets = length.max(1).div_ceil(packet).min(1 << 20);
        let share = 1.0 - (1.0 - host.config.faults.drop).powi(packets as i32);
        host.strikes(share)
    }

    /// Flip a bit of the message, or send it twice, by chance.
    fn spoil(&mut self, host: &mut Host, mut bytes: Vec<u8>) -> Vec<u8> {
        let message = bytes.len() - crate::wire::HEADER;
        if message > 0 && host.strikes(host.config.faults.corrupt) {
            let at = crate::wire::HEADER + (host.random() * message as f64) as usize;
            bytes[at] ^= 0x40;
        }
        // With credits only where the peer has a receive for the second one.
        let room = !host.config.apple || self.sender.credits > 0;
        if room && host.strikes(host.config.faults.duplicate) {
            self.sender.credits = self.sender.credits.saturating_sub(1);
            bytes.extend_from_within(..);
        }
        bytes
    }

    /// Write what is ready; false: the connection takes no more.
    fn write(&mut self, host: &mut Host) -> Result<bool, Closed> {
        let (Some(writing), Some(stream)) = (&mut self.sender.writing, &mut self.sender.stream) else {
            return Ok(false);
        };
        match stream.write(&writing.bytes[writing.done..]) {
            Ok(n) => writing.done += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(false),
            Err(_) => return Err(Closed),
        }
        if writing.done == writing.bytes.len() {
            let sent = self.sender.writing.take().and_then(|w| w.send);
            match sent {
                Some(send) if self.reliable() => self.sender.unacked.push_back(send),
                Some(send) => {
                    self.complete_send(host, &send, IBV_WC_SUCCESS);
                    self.release();
                }
                None => {}
            }
        }
        Ok(true)
    }

    /// The connection is gone, or was never made.
    fn lose_peer(&mut self, host: &Host) {
        let writing = self.sender.writing.take().and_then(|w| w.send);
        if let Some(send) = writing {
            self.sender.waiting.push_front(send);
        }
        self.sender.disconnect();
        if host.config.apple {
            self.sender.again_at = Some(Instant::now() + AGAIN);
            self.sender.credits = 0;
        } else {
            self.sender.lost = true;
            if self.reliable() {
                self.sender.silent.get_or_insert_with(Instant::now);
            }
        }
    }
}
