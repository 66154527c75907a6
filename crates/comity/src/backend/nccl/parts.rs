//! A call as NCCL's own, in bytes and addresses of the device.
//!
//! send, recv and sendrecv of device memory: NCCL has no tags and matches sends and receives in their order. So each send is announced over the
//! links first: tag, type and length. A receive that asks for a later tag takes what is before it into memory of its own.

use super::{
    NcclBackend, Spot, StepResult, Stop, Waiting,
    guard::{DeviceComm, WatchedCall},
};
use crate::{
    CallInfo, DType, Op,
    backend::{
        Backend, Bufs, Call, Elements,
        external::{fits, room},
    },
    status::ANNOUNCE,
    sys::{cuda::DeviceMemory, nccl::Part},
};
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct StreamWork {
    /// Copies within the device: from, to, bytes. They go first.
    pub(super) copies: Vec<(usize, usize, usize)>,
    pub(super) parts: Vec<Part>,
    /// Bytes that leave this rank, about.
    pub(super) bytes: usize,
    /// Memory that the parts read, given back in the stream's order.
    pub(super) scratch: Option<DeviceMemory>,
}

pub(super) type AddressRange = (usize, usize);

/// Address and bytes of what is read and of what is written; one of them stands for both in place.
pub(super) fn ends(bufs: &Bufs<'_>) -> (Option<AddressRange>, Option<AddressRange>) {
    match bufs {
        Bufs::None => (None, None),
        Bufs::In(v) => (Some((v.addr(), v.len_bytes())), None),
        Bufs::Both(s, d) => (Some((s.addr(), s.len_bytes())), Some((d.addr(), d.len_bytes()))),
        Bufs::Out(v) | Bufs::InPlace(v) | Bufs::OwnIn(v) | Bufs::OwnOut(v) => {
            (None, Some((v.addr(), v.len_bytes())))
        }
    }
}

/// Returns the first byte and the number of elements of each part; one after the other.
fn offsets(counts: &[usize], elem: usize) -> Vec<(usize, usize)> {
    let mut at = 0;
    let place = |&count: &usize| {
        let begin = at * elem;
        at += count;
        (begin, count)
    };
    counts.iter().map(place).collect()
}

/// The parts of a collective call.
pub(super) fn of(
    call: &Call<'_>,
    rank: usize,
    size: usize,
    device_comm: &DeviceComm,
    spot: Spot,
) -> StepResult<StreamWork> {
    let info = &call.info;
    let elem = info.dtype.map_or(1, |d| d.size());
    let count = info.count;
    let root = info.root.unwrap_or(0);
    let part = count * elem;
    let (src, dst) = ends(&call.bufs);
    let s = src.or(dst).map_or(0, |e| e.0);
    let d = dst.or(src).map_or(0, |e| e.0);
    let mut w = StreamWork { bytes: part, ..StreamWork::default() };
    match (info.op, info.dtype.zip(info.reduce)) {
        (Op::AllToAll, _) => {
            let mut from = s;
            if src.is_none() {
                // What leaves must not be overwritten by what comes.
                let len = dst.map_or(0, |e| e.1);
                let held = device_comm.device.alloc(len, Some(spot.stream))?;
                w.copies.push((d, held.addr(), len));
                from = held.addr();
                w.scratch = Some(held);
            }
            w.all_to_all(call, rank, size, from, d, elem);
        }
        (Op::Gather | Op::Scatter, _) if part > 0 => w.rooted(info.op, rank, size, root, (s, d), part),
        _ if !call.counts.is_empty() => w.unequal(call, rank, s, d, elem),
        _ if count == 0 => {}
        (Op::AllReduce, Some((dtype, op))) => {
            w.parts.push(Part::AllReduce { src: s, dst: d, count, dtype, op });
        }
        (Op::Reduce, Some((dtype, op))) => {
            w.parts.push(Part::Reduce { src: s, dst: d, count, dtype, op, root });
        }
        (Op::Broadcast, _) => w.parts.push(Part::Broadcast { src: s, dst: d, bytes: part, root }),
        (Op::AllGather | Op::Split, _) => {
            let own = if matches!(call.bufs, Bufs::OwnIn(_)) { s + rank * part } else { s };
            w.parts.push(Part::AllGather { src: own, dst: d, bytes: part });
        }
        (Op::ReduceScatter, Some((dtype, op))) => {
            let own = if matches!(call.bufs, Bufs::OwnOut(_)) { d + rank * part } else { d };
            w.parts.push(Part::ReduceScatter { src: s, dst: own, count, dtype, op });
        }
        _ => {}
    }
    w.copies.retain(|&(a, b, n)| n > 0 && a != b);
    Ok(w)
}

impl StreamWork {
    /// An all_gather or reduce_scatter of unequal parts from address `s` to `d`: a call for each part.
    fn unequal(&mut self, call: &Call<'_>, rank: usize, s: usize, d: usize, elem: usize) {
        let info = &call.info;
        let parts = offsets(call.counts, elem).into_iter().enumerate().filter(|(_, (_, c))| *c > 0);
        match (info.op, info.dtype.zip(info.reduce)) {
            (Op::AllGather | Op::Split, _) => self.parts.extend(parts.map(|(r, (o, c))| {
                let from = if r == rank { s } else { d + o };
                Part::Broadcast { src: from, dst: d + o, bytes: c * elem, root: r }
            })),
            (Op::ReduceScatter, Some((dtype, op))) => self.parts.extend(parts.map(|(r, (o, count))| {
                // Only the root's destination is written.
                let to = if r == rank { d } else { s + o };
                Part::Reduce { src: s + o, dst: to, count, dtype, op, root: r }
            })),
            _ => {}
        }
    }

    /// A gather or scatter of parts of `part` bytes.
    fn rooted(&mut self, op: Op, rank: usize, size: usize, root: usize, (s, d): (usize, usize), part: usize) {
        let others = (0..size).filter(|&r| r != rank);
        match (op, rank == root) {
            (Op::Gather, true) => {
                self.copies.push((s, d + rank * part, part));
                self.parts.extend(others.map(|r| Part::Recv { dst: d + r * part, bytes: part, from: r }));
            }
            (Op::Gather, false) => self.parts.push(Part::Send { src: s, bytes: part, to: root }),
            (_, true) => {
                self.copies.push((s + rank * part, d, part));
                self.parts.extend(others.map(|r| Part::Send { src: s + r * part, bytes: part, to: r }));
            }
            (_, false) => self.parts.push(Part::Recv { dst: d, bytes: part, from: root }),
        }
    }

    fn all_to_all(&mut self, call: &Call<'_>, rank: usize, size: usize, from: usize, d: usize, elem: usize) {
        let (out, into) = if call.counts.is_empty() {
            let equal = offsets(&vec![call.info.count; size], elem);
            (equal.clone(), equal)
        } else {
            (offsets(call.counts, elem), offsets(call.recv_counts, elem))
        };
        for r in 0..size {
            let (o, c) = out[r];
            let (i, n) = into[r];
            if r == rank {
                self.copies.push((from + o, d + i, c * elem));
                continue;
            }
            if c > 0 {
                self.parts.push(Part::Send { src: from + o, bytes: c * elem, to: r });
                self.bytes += c * elem;
            }
            if n > 0 {
                self.parts.push(Part::Recv { dst: d + i, bytes: n * elem, from: r });
            }
        }
    }
}

/// A send whose receive was not called yet, and its bytes.
#[derive(Debug)]
pub(super) struct UnmatchedSend {
    info: CallInfo,
    bytes: DeviceMemory,
}

/// Returns the work that sends so many bytes from there, if there is a receiver.
fn sending(what: Option<(usize, (usize, usize))>) -> StreamWork {
    let mut work = StreamWork::default();
    if let Some((to, (src, bytes))) = what.filter(|(_, (_, bytes))| *bytes > 0) {
        work.parts.push(Part::Send { src, bytes, to });
        work.bytes = bytes;
    }
    work
}

impl NcclBackend {
    pub(super) fn pair(
        &mut self,
        call: Call<'_>,
        spot: Spot,
        until: Instant,
        waiting: &mut Waiting,
    ) -> StepResult<()> {
        let info = call.info;
        let watched = (info, (until, waiting.limit()));
        let to = call.counts.first().copied();
        let from = call.recv_counts.first().copied();
        let (src, dst) = ends(&call.bufs);
        let (out, want) = call.bufs.messages();
        if let (Some(to), Some(out)) = (to, out) {
            self.announce(to, info, out, until)?;
        }
        let mut work = sending(to.zip(src));
        let Some((from, (count, dtype))) = from.zip(want) else {
            return self.put(&work, spot, watched);
        };
        let (at, bytes) = dst.unwrap_or_default();
        let wanted = CallInfo::sent(count, dtype, from, info.tag);
        let kept = self.stash[from].iter().position(|a| a.info.tag == info.tag);
        if let Some(kept) = kept.and_then(|i| self.stash[from].remove(i)) {
            fits(from, info, kept.info, wanted)?;
            work.copies.push((kept.bytes.addr(), at, bytes));
            self.put(&work, spot, watched)?;
            // What was kept is read until the stream has come past the copy.
            return self.device_comm.until_passed(&self.members, spot.stream, waiting);
        }
        loop {
            let theirs = self.announced(from, until)?;
            let len = length(&theirs);
            if theirs.tag == info.tag {
                fits(from, info, theirs, wanted)?;
                if len > 0 {
                    work.parts.push(Part::Recv { dst: at, bytes: len, from });
                }
                return self.put(&work, spot, watched);
            }
            let kept = self.stash[from].iter().map(|a| length(&a.info)).sum();
            room(kept, len, from, theirs)?;
            let held = self.device_comm.device.alloc(len, None)?;
            if len > 0 {
                work.parts.push(Part::Recv { dst: held.addr(), bytes: len, from });
            }
            self.put(&work, spot, watched)?;
            work = StreamWork::default();
            self.device_comm.until_passed(&self.members, spot.stream, waiting)?;
            self.stash[from].push_back(UnmatchedSend { info: theirs, bytes: held });
        }
    }

    /// Tell `to` of the send in `call`: so many elements of a type.
    fn announce(
        &mut self,
        to: usize,
        call: CallInfo,
        (count, dtype): Elements,
        until: Instant,
    ) -> StepResult<()> {
        let words = [u64::from(call.tag.unwrap_or(0)), dtype as u64, count as u64];
        let mut tell = Call::new(Op::Send, Bufs::In((&words).into()));
        tell.info.root = Some(to);
        tell.info.tag = Some(ANNOUNCE);
        let peers = [to];
        tell.counts = &peers;
        self.native.run(tell, until.saturating_duration_since(Instant::now())).map_err(Stop::Told)
    }

    fn put(&self, work: &StreamWork, spot: Spot, watched: WatchedCall) -> StepResult<()> {
        self.members.counters.add_sent(work.bytes as u64);
        self.device_comm.put(work, spot, watched)
    }

    /// The next send of `from`, in its own words.
    fn announced(&mut self, from: usize, until: Instant) -> StepResult<CallInfo> {
        let mut words = [0u64; 3];
        let peers = [from];
        let mut hear = Call::new(Op::Recv, Bufs::Out((&mut words).into()));
        hear.info.root = Some(from);
        hear.info.tag = Some(ANNOUNCE);
        hear.recv_counts = &peers;
        self.native.run(hear, until.saturating_duration_since(Instant::now())).map_err(Stop::Told)?;
        let dtype = usize::try_from(words[1]).ok().and_then(|d| DType::ALL.get(d).copied());
        let tag = u32::try_from(words[0]).ok().filter(|&t| t <= crate::MAX_TAG);
        let count = usize::try_from(words[2]).ok().filter(|&n| n.checked_mul(8).is_some());
        match (dtype, tag, count) {
            (Some(d), Some(tag), Some(count)) => Ok(CallInfo::sent(count, d, from, Some(tag))),
            _ => Err(Stop::Peer(from, "announced a send that this version does not know".into())),
        }
    }
}

/// Bytes of a send that was announced: a count that does not overflow was checked there.
fn length(theirs: &CallInfo) -> usize {
    theirs.count * theirs.dtype.map_or(1, DType::size)
}
