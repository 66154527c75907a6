//! A call as NCCL's own, in bytes and addresses of the device.

use super::{Spot, Stopped, lane::Lane};
use crate::{
    Op,
    backend::{Bufs, Call},
    sys::{cuda::DeviceMemory, nccl::Part},
};

/// What goes on the stream for a call.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Copies within the device: from, to, bytes. They go first.
    pub(super) copies: Vec<(usize, usize, usize)>,
    pub(super) parts: Vec<Part>,
    /// Bytes that leave this rank, about.
    pub(super) bytes: usize,
    /// Memory that the parts read, given back in the stream's order.
    pub(super) scratch: Option<DeviceMemory>,
}

/// An address, and bytes from there.
pub(super) type Extent = (usize, usize);

/// Address and bytes of what is read and of what is written; one of them stands for both in place.
pub(super) fn ends(bufs: &Bufs<'_>) -> (Option<Extent>, Option<Extent>) {
    match bufs {
        Bufs::None => (None, None),
        Bufs::In(v) => (Some((v.ptr.expose_provenance(), v.len_bytes())), None),
        Bufs::Both(s, d) => (
            Some((s.ptr.expose_provenance(), s.len_bytes())),
            Some((d.ptr.expose_provenance(), d.len_bytes())),
        ),
        Bufs::Out(v) | Bufs::InPlace(v) | Bufs::OwnIn(v) | Bufs::OwnOut(v) => {
            (None, Some((v.ptr.expose_provenance(), v.len_bytes())))
        }
    }
}

/// The parts of a collective call.
pub(super) fn of(call: &Call<'_>, rank: usize, size: usize, lane: &Lane, spot: Spot) -> Stopped<Work> {
    let info = &call.info;
    let (elem, count, root) = (info.dtype.map_or(1, |d| d.size()), info.count, info.root.unwrap_or(0));
    let part = count * elem;
    let (src, dst) = ends(&call.bufs);
    let (s, d) = (src.or(dst).map_or(0, |e| e.0), dst.or(src).map_or(0, |e| e.0));
    let mut w = Work { bytes: part, ..Work::default() };
    let reduction = info.dtype.zip(info.reduce);
    let offsets = |counts: &[usize]| {
        let mut at = 0;
        counts
            .iter()
            .map(|&c| {
                let o = at * elem;
                at += c;
                (o, c)
            })
            .collect::<Vec<_>>()
    };
    match (info.op, reduction) {
        (Op::AllReduce, Some((dtype, op))) if count > 0 => {
            w.parts.push(Part::AllReduce { src: s, dst: d, count, dtype, op });
        }
        (Op::Reduce, Some((dtype, op))) if count > 0 => {
            w.parts.push(Part::Reduce { src: s, dst: d, count, dtype, op, root });
        }
        (Op::Broadcast, _) if count > 0 => {
            w.parts.push(Part::Broadcast { src: s, dst: d, bytes: part, root })
        }
        (Op::AllGather | Op::Split, _) if call.counts.is_empty() && count > 0 => {
            let own = if matches!(call.bufs, Bufs::OwnIn(_)) { s + rank * part } else { s };
            w.parts.push(Part::AllGather { src: own, dst: d, bytes: part });
        }
        (Op::AllGather | Op::Split, _) => {
            for (r, (o, c)) in offsets(call.counts).into_iter().enumerate().filter(|(_, (_, c))| *c > 0) {
                let from = if r == rank { s } else { d + o };
                w.parts.push(Part::Broadcast { src: from, dst: d + o, bytes: c * elem, root: r });
            }
        }
        (Op::ReduceScatter, Some((dtype, op))) if call.counts.is_empty() && count > 0 => {
            let own = if matches!(call.bufs, Bufs::OwnOut(_)) { d + rank * part } else { d };
            w.parts.push(Part::ReduceScatter { src: s, dst: own, count, dtype, op });
        }
        (Op::ReduceScatter, Some((dtype, op))) => {
            for (r, (o, c)) in offsets(call.counts).into_iter().enumerate().filter(|(_, (_, c))| *c > 0) {
                // Only the root's destination is written.
                let to = if r == rank { d } else { s + o };
                w.parts.push(Part::Reduce { src: s + o, dst: to, count: c, dtype, op, root: r });
            }
        }
        (Op::Gather, _) if part > 0 && rank == root => {
            w.copies.push((s, d + rank * part, part));
            w.parts.extend((0..size).filter(|&r| r != rank).map(|r| Part::Recv {
                dst: d + r * part,
                bytes: part,
                from: r,
            }));
        }
        (Op::Gather, _) if part > 0 => w.parts.push(Part::Send { src: s, bytes: part, to: root }),
        (Op::Scatter, _) if part > 0 && rank == root => {
            w.copies.push((s + rank * part, d, part));
            w.parts.extend((0..size).filter(|&r| r != rank).map(|r| Part::Send {
                src: s + r * part,
                bytes: part,
                to: r,
            }));
        }
        (Op::Scatter, _) if part > 0 => w.parts.push(Part::Recv { dst: d, bytes: part, from: root }),
        (Op::AllToAll, _) => {
            let (out, into) = if call.counts.is_empty() {
                (offsets(&vec![count; size]), offsets(&vec![count; size]))
            } else {
                (offsets(call.counts), offsets(call.recv_counts))
            };
            let mut from = s;
            if src.is_none() {
                // What leaves must not be overwritten by what comes.
                let len = dst.map_or(0, |e| e.1);
                let held = lane.device.alloc_on(len, spot.stream)?;
                w.copies.push((d, held.addr(), len));
                from = held.addr();
                w.scratch = Some(held);
            }
            for r in 0..size {
                let ((o, c), (i, n)) = (out[r], into[r]);
                if r == rank {
                    w.copies.push((from + o, d + i, c * elem));
                    continue;
                }
                if c > 0 {
                    w.parts.push(Part::Send { src: from + o, bytes: c * elem, to: r });
                    w.bytes += c * elem;
                }
                if n > 0 {
                    w.parts.push(Part::Recv { dst: d + i, bytes: n * elem, from: r });
                }
            }
        }
        _ => {}
    }
    w.copies.retain(|&(a, b, n)| n > 0 && a != b);
    Ok(w)
}
