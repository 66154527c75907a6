//! A call as NCCL's own, in bytes and addresses of the device.

use super::{Spot, StepResult, device_comm::DeviceComm};
use crate::{
    Op,
    backend::{Bufs, Call},
    sys::{cuda::DeviceMemory, nccl::Part},
};

/// Work that goes on the stream for a call.
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

/// An address, and bytes from there.
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

    /// An all_to_all from address `from` to `d`.
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
