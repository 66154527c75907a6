//! send, recv and sendrecv: a header with the first bytes, then chunks.
//!
//! All travel under one tag of MPI, which keeps them in order; the header has the caller's tag. So a receive that asks for a later
//! tag takes what is before it out of the sender's way, and keeps it until its own receive is called.

use super::{MpiBackend, StepResult, Stop, Waiting, put};
use crate::{
    CallInfo, DType,
    backend::{
        Call,
        external::{fits, room, wait},
    },
    status::{HEADER, Header},
    sys::mpi::{Move, MpiHandle, Pending},
    view::Memory,
};
use comity_plan::{Buf, Slice};
use std::ops::Range;

/// Bytes that travel with the header.
const FIRST: usize = 4096;
const CHUNK: usize = 4 << 20;

struct Sender<H: MpiHandle> {
    to: usize,
    header: Header,
    len: usize,
    sent: usize,
    begun: bool,
    pending: Option<Pending<H>>,
}

struct Receiver<H: MpiHandle> {
    from: usize,
    /// Call as errors name it.
    call: CallInfo,
    wanted: CallInfo,
    len: usize,
    got: usize,
    /// Message of another tag that is in the way.
    other: Option<(Header, Vec<u8>)>,
    begun: bool,
    done: bool,
    pending: Option<Pending<H>>,
}

/// Returns the range of the bytes after the first `at`.
fn next(at: usize, len: usize) -> Range<usize> {
    at..(at + CHUNK).min(len)
}

impl<H: MpiHandle> MpiBackend<H> {
    pub(super) fn pair(&mut self, call: Call<'_>, waiting: &mut Waiting) -> StepResult<()> {
        let (mut out, mut into) = self.ends(&call);
        let mut memory = call.bufs.memory((0, 0), &mut []);
        if let Some(r) = &mut into {
            self.unstash(r, &mut memory)?;
        }
        // Both get on while either waits.
        let mut sent = out.is_none();
        let mut came = into.is_none();
        loop {
            if let Some(s) = &mut out {
                sent = self.push(s, &memory)?;
            }
            if let Some(r) = &mut into {
                came = self.pull(r, &mut memory)?;
            }
            if sent && came {
                return Ok(());
            }
            let sending = out.as_mut().and_then(|s| s.pending.as_mut());
            let coming = into.as_mut().and_then(|r| r.pending.as_mut());
            let mut both = [sending, coming];
            // WAIT(waiting): MPI, to the deadline of the call
            wait(&self.members, waiting, || {
                for p in both.iter_mut().flatten() {
                    if p.test()? {
                        return Ok(true);
                    }
                }
                Ok(false)
            })?;
        }
    }

    /// The message that leaves in `call`, and the one that comes.
    fn ends(&self, call: &Call<'_>) -> (Option<Sender<H>>, Option<Receiver<H>>) {
        let info = call.info;
        let to = call.counts.first().copied();
        let from = call.recv_counts.first().copied();
        let message =
            |count, dtype: DType, other| CallInfo::sent(count, dtype, other, Some(info.tag.unwrap_or(0)));
        let (src, dst) = call.bufs.messages();
        let group_id = self.members.group_id as u32;
        let out = src.zip(to).map(|((count, dtype), to)| Sender {
            to,
            header: Header { info: message(count, dtype, to), shape: 0, group_id, lends: false },
            len: count * dtype.size(),
            sent: 0,
            begun: false,
            pending: None,
        });
        let into = dst.zip(from).map(|((count, dtype), from)| Receiver {
            from,
            call: info,
            wanted: message(count, dtype, from),
            len: count * dtype.size(),
            got: 0,
            other: None,
            begun: false,
            done: false,
            pending: None,
        });
        (out, into)
    }

    /// Send on; true when all has left.
    fn push(&mut self, s: &mut Sender<H>, memory: &Memory<'_>) -> StepResult<bool> {
        if let Some(mut p) = s.pending.take() {
            if !p.test()? {
                s.pending = Some(p);
                return Ok(false);
            }
            let (src, out) = p.finish();
            self.keep([src, out]);
        }
        if s.begun && s.sent == s.len {
            return Ok(true);
        }
        let mut src = self.buffer(0);
        let range = if s.begun { next(s.sent, s.len) } else { 0..s.len.min(FIRST) };
        if !s.begun {
            src.extend_from_slice(&s.header.encode());
        }
        src.extend_from_slice(memory.read(Slice::new(Buf::In, range.start, range.len())));
        self.members.counters.add_sent(range.len() as u64);
        s.begun = true;
        s.sent = range.end;
        s.pending = Some(self.start(&Move::Send { to: s.to }, src, Vec::new())?);
        // A short one may be gone already.
        self.push_done(s)
    }

    fn push_done(&mut self, s: &mut Sender<H>) -> StepResult<bool> {
        let Some(p) = &mut s.pending else { return Ok(false) };
        Ok(p.test()? && s.sent == s.len)
    }

    /// Receive on; true when all has come.
    fn pull(&mut self, r: &mut Receiver<H>, memory: &mut Memory<'_>) -> StepResult<bool> {
        loop {
            if r.done {
                return Ok(true);
            }
            let Some(mut p) = r.pending.take() else {
                let len = match (&r.other, r.begun) {
                    (Some((h, bytes)), _) => next(bytes.len(), h.pair_bytes().unwrap_or(0)).len(),
                    (None, true) => next(r.got, r.len).len(),
                    (None, false) => HEADER + FIRST,
                };
                let out = self.buffer(len);
                r.pending = Some(self.start(&Move::Recv { from: r.from }, Vec::new(), out)?);
                continue;
            };
            if !p.test()? {
                r.pending = Some(p);
                return Ok(false);
            }
            let (src, out) = p.finish();
            self.take(r, &out, memory)?;
            self.keep([src, out]);
        }
    }

    fn take(&mut self, r: &mut Receiver<H>, bytes: &[u8], memory: &mut Memory<'_>) -> StepResult<()> {
        let is_bool = r.wanted.dtype == Some(DType::Bool);
        if let Some((h, kept)) = &mut r.other {
            kept.extend_from_slice(bytes);
            if kept.len() == h.pair_bytes().unwrap_or(0) {
                self.stash[r.from].extend(r.other.take());
            }
        } else if r.begun {
            put(memory, r.got, bytes, is_bool);
            r.got += bytes.len();
            r.done = r.got == r.len;
        } else {
            let (head, first) = bytes.split_at(HEADER);
            let header = head.try_into().ok().and_then(|h| Header::decode(h, r.from));
            let theirs = header.and_then(|h| Some((h, h.pair_bytes()?)));
            let Some((header, len)) = theirs else {
                return Err(Stop::Peer(r.from, "sent a message that this version does not know".into()));
            };
            let first = first.get(..len.min(FIRST)).unwrap_or_default();
            if header.info.tag != r.wanted.tag {
                let kept: usize = self.stash[r.from].iter().map(|(_, b)| b.len()).sum();
                room(kept, len, r.from, header.info)?;
                if first.len() == len {
                    self.stash[r.from].push_back((header, first.to_vec()));
                } else {
                    r.other = Some((header, first.to_vec()));
                }
                return Ok(());
            }
            fits(r.from, r.call, header.info, r.wanted)?;
            put(memory, 0, first, is_bool);
            r.begun = true;
            r.got = first.len();
            r.done = r.got == r.len;
        }
        Ok(())
    }

    fn unstash(&mut self, r: &mut Receiver<H>, memory: &mut Memory<'_>) -> StepResult<()> {
        let kept = &mut self.stash[r.from];
        let Some(i) = kept.iter().position(|(h, _)| h.info.tag == r.wanted.tag) else { return Ok(()) };
        let Some((header, bytes)) = kept.remove(i) else { return Ok(()) };
        fits(r.from, r.call, header.info, r.wanted)?;
        put(memory, 0, &bytes, r.wanted.dtype == Some(DType::Bool));
        r.done = true;
        Ok(())
    }
}
