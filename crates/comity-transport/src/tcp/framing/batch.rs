//! Frames of long messages in batches for a thread that sends them, while this one makes, opens and combines others.
//!
//! Bytes that the thread does not send go as it would without one.

use super::super::{
    frame::SMALL,
    outbound::{Cut, FIRST, Outbound, window},
};
use super::{
    Framing, SendThread, SendThreads,
    thread::{BATCHES, PIECE},
};
use crate::LinkError;
use std::{collections::VecDeque, net::TcpStream, sync::Arc};

/// The thread has a long message while there is something to receive too, for alone sending is done sooner without; and if as much
/// of it is offered at once;
const CARRIED: usize = 64 << 10;
/// so many batches between two looks at what has come.
const PIECES: usize = 2;

/// Makes batches of frames for the send thread, over the framing that makes the frames.
#[derive(Debug)]
pub(super) struct Batching {
    /// Makes the frames.
    inner: Box<dyn Framing>,
    /// There is none before the first long message, and for as long as other links have all that may be.
    thread: Option<SendThread>,
    threads: Arc<SendThreads>,
    /// Bytes of the stream in each batch that it has.
    batches: VecDeque<usize>,
    /// Bytes in batches that are with the system, but were not accepted yet.
    gone: usize,
    /// The message that leaves is one for it.
    is_long: bool,
    /// Bytes of it in a batch.
    piece: usize,
}

impl Batching {
    pub(super) fn new(inner: Box<dyn Framing>, threads: Arc<SendThreads>) -> Self {
        let batches = VecDeque::new();
        Self { inner, thread: None, threads, batches, gone: 0, is_long: false, piece: PIECE }
    }

    /// Returns true if bytes that are offered again are in batches.
    fn is_begun(&self) -> bool {
        self.gone > 0 || !self.batches.is_empty()
    }

    /// Returns true if the thread is to have what is offered, `total` bytes. What was begun without it ends without it.
    fn is_for_thread(&self, total: usize) -> bool {
        self.is_begun() || self.is_long && total >= CARRIED && self.inner.is_between()
    }

    /// Put as [`Framing::put`] does, by the thread. Batches hold frames beyond what was accepted, of bytes that are offered again.
    fn put_batches(&mut self, out: &mut Outbound, head: &[u8], body: &[u8]) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        let Some(thread) = &mut self.thread else { return Ok(0) };
        for _ in 0..thread.went()? {
            self.gone += self.batches.pop_front().unwrap_or_default();
        }
        let accepted = self.gone.min(total);
        self.gone -= accepted;
        let mut at = accepted + self.gone + self.batches.iter().sum::<usize>();
        for _ in 0..PIECES {
            if at >= total || self.batches.len() == BATCHES || !out.is_there() {
                break;
            }
            let len = self.hand(out, head, body, at)?;
            at += len;
            self.batches.push_back(len);
        }
        Ok(accepted)
    }

    /// Hand over the next batch, from byte `at` of what is offered: a piece, and before it a head; how many bytes.
    fn hand(&mut self, out: &mut Outbound, head: &[u8], body: &[u8], at: usize) -> Result<usize, LinkError> {
        let Some(thread) = &mut self.thread else { return Ok(0) };
        let total = head.len() + body.len();
        let mut cuts = [None; 2];
        let mut len = 0;
        for place in &mut cuts {
            let behind = at + len;
            if behind < total {
                let cut = out.cut(head.len().saturating_sub(behind), total - behind, self.piece, SMALL);
                out.pass(&cut);
                *place = Some((cut, window(head, body, behind, cut.len)));
                len += cut.len;
                if !cut.is_head {
                    break;
                }
            }
        }
        thread.hand(|room| {
            let mut end = 0;
            for (cut, parts) in cuts.into_iter().flatten() {
                end += self.inner.write(&mut room[end..], &cut, parts)?;
            }
            Ok(end)
        })?;
        Ok(len)
    }
}

impl Framing for Batching {
    fn put(
        &mut self,
        out: &mut Outbound,
        sockets: &[TcpStream],
        head: &[u8],
        body: &[u8],
    ) -> Result<usize, LinkError> {
        let total = head.len() + body.len();
        if self.thread.is_none() || !self.is_for_thread(total) {
            return self.inner.put(out, sockets, head, body);
        }
        if self.is_begun() || out.is_there() {
            return self.put_batches(out, head, body);
        }
        // The first frame goes where there is no thread.
        let (first, rest) = body.split_at(if head.is_empty() { FIRST.min(body.len()) } else { 0 });
        let n = self.inner.put(out, sockets, head, first)?;
        Ok(n + if n == head.len() + first.len() { self.put_batches(out, &[], rest)? } else { 0 })
    }

    fn is_between(&self) -> bool {
        !self.is_begun() && self.inner.is_between()
    }

    fn write(&self, room: &mut [u8], cut: &Cut, parts: [&[u8]; 2]) -> Result<usize, LinkError> {
        self.inner.write(room, cut, parts)
    }

    fn announce(&mut self, out: &Outbound, sockets: &[TcpStream], len: usize, is_long: bool, is_busy: bool) {
        self.is_long = is_long && is_busy;
        if !self.is_long {
            return;
        }
        // The peer begins when the first batch is there; of a longer message that is a small part in any case.
        self.piece = if len < BATCHES * PIECE { PIECE / 2 } else { PIECE };
        if let Some(thread) = &self.thread {
            thread.rouse();
        } else if let Some(socket) = sockets.get(out.aside()) {
            // Others keep theirs as long as their links live; the next message asks again.
            self.thread = SendThread::start(socket, &self.threads).unwrap_or_else(|e| {
                tracing::debug!(%e, "no thread to send with");
                None
            });
        }
    }

    fn thread(&self) -> Option<&SendThread> {
        self.thread.as_ref()
    }

    fn is_threaded(&self) -> bool {
        !self.batches.is_empty()
    }

    fn end_thread(&mut self) {
        self.thread = None;
    }
}
