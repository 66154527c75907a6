//! An operation of MPI under way, with the memory it works on.

use super::{Handle, Mpi};
use crate::{DType, ReduceOp, Result};
use std::ffi::c_int;

/// What to do with the two buffers of a [`Pending`]. Lengths are in bytes, save where an element type is named.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    /// `out` of the root into everyone's `out`.
    Broadcast { root: usize },
    /// `src` of all, combined, into `out`.
    AllReduce { dtype: DType, op: ReduceOp },
    /// The same, into `out` of the root.
    Reduce { dtype: DType, op: ReduceOp, root: usize },
    /// `src` of all, which are equally long, one after the other into `out`.
    AllGather,
    /// The same with these lengths.
    AllGatherV { lens: Vec<usize> },
    /// `src` of all, combined, cut into parts of so many elements; this rank's into `out`.
    ReduceScatter { dtype: DType, op: ReduceOp, counts: Vec<usize> },
    /// `src` of all into `out` of the root.
    Gather { root: usize },
    /// `src` of the root, in equal parts, into everyone's `out`.
    Scatter { root: usize },
    /// Part r of `src` to rank r; parts are equally long.
    AllToAll,
    /// The same with these lengths, out and in.
    AllToAllV { send: Vec<usize>, recv: Vec<usize> },
    /// `src` to one rank.
    Send { to: usize },
    /// From one rank into `out`.
    Recv { from: usize },
}

/// An operation under way. Dropped before it is done, it takes its memory with it, and MPI is not ended cleanly.
#[derive(Debug)]
pub(crate) struct Pending<H: Handle> {
    mpi: &'static Mpi<H>,
    request: H,
    done: bool,
    src: Vec<u8>,
    out: Vec<u8>,
    /// Lengths and offsets, which MPI reads until the end.
    tables: Vec<Vec<c_int>>,
}

impl<H: Handle> Pending<H> {
    /// Begin. Both buffers are shorter than 2 GiB, and the lengths are right for `what`: a bug in the backend otherwise.
    pub(crate) fn start(
        mpi: &'static Mpi<H>,
        comm: H,
        size: usize,
        what: &Move,
        src: Vec<u8>,
        mut out: Vec<u8>,
    ) -> Result<Self> {
        let int = |n: usize| c_int::try_from(n).expect("chunks are shorter than 2 GiB");
        let table = |lens: &[usize]| {
            let counts: Vec<c_int> = lens.iter().map(|&n| int(n)).collect();
            let mut at = 0;
            let offsets = lens
                .iter()
                .map(|&n| {
                    let o = at;
                    at += n;
                    int(o)
                })
                .collect::<Vec<_>>();
            (vec![counts, offsets], at)
        };
        let (call, byte) = (&mpi.call, mpi.byte());
        let (s, d) = (src.as_ptr().cast(), out.as_mut_ptr().cast());
        let (slen, dlen) = (int(src.len()), int(out.len()));
        let mut request = H::NONE;
        let mut tables = Vec::new();
        // Bounds that the unsafe calls below rest on.
        let fits = match what {
            Move::Broadcast { .. } | Move::Send { .. } | Move::Recv { .. } => true,
            Move::AllReduce { .. } => out.len() >= src.len(),
            Move::Reduce { .. } => out.len() >= src.len() || out.is_empty(),
            Move::AllGather => out.len() >= src.len() * size,
            Move::AllGatherV { lens } => lens.len() == size && lens.iter().sum::<usize>() <= out.len(),
            Move::ReduceScatter { counts, dtype, .. } => {
                counts.len() == size && counts.iter().sum::<usize>() * dtype.size() <= src.len()
            }
            Move::Gather { .. } => out.is_empty() || out.len() >= src.len() * size,
            Move::Scatter { .. } => src.is_empty() || src.len() >= out.len() * size,
            Move::AllToAll => src.len() == out.len() && src.len().is_multiple_of(size),
            Move::AllToAllV { send, recv } => {
                (send.len(), recv.len()) == (size, size)
                    && send.iter().sum::<usize>() <= src.len()
                    && recv.iter().sum::<usize>() <= out.len()
            }
        };
        assert!(fits, "buffers of {} and {} bytes for {what:?}", src.len(), out.len());
        let elements = |bytes: usize, d: DType| int(bytes / d.size());
        let guard = mpi.turn();
        // SAFETY: the handles are this library's; the buffers and tables live in the `Pending` until MPI is done with them, at
        // addresses that moving the vectors does not change, and are as long as checked above.
        let code = unsafe {
            match what {
                Move::Broadcast { root } => (call.broadcast)(d, dlen, byte, int(*root), comm, &mut request),
                Move::AllReduce { dtype, op } => {
                    let (t, o) = mpi.reduction(*dtype, *op)?;
                    (call.all_reduce)(s, d, elements(src.len(), *dtype), t, o, comm, &mut request)
                }
                Move::Reduce { dtype, op, root } => {
                    let (t, o) = mpi.reduction(*dtype, *op)?;
                    (call.reduce)(s, d, elements(src.len(), *dtype), t, o, int(*root), comm, &mut request)
                }
                Move::AllGather => (call.all_gather)(s, slen, byte, d, slen, byte, comm, &mut request),
                Move::AllGatherV { lens } => {
                    tables = table(lens).0;
                    let (n, at) = (tables[0].as_ptr(), tables[1].as_ptr());
                    (call.all_gather_v)(s, slen, byte, d, n, at, byte, comm, &mut request)
                }
                Move::ReduceScatter { dtype, op, counts } => {
                    let (t, o) = mpi.reduction(*dtype, *op)?;
                    tables = table(counts).0;
                    (call.reduce_scatter)(s, d, tables[0].as_ptr(), t, o, comm, &mut request)
                }
                Move::Gather { root } => {
                    (call.gather)(s, slen, byte, d, slen, byte, int(*root), comm, &mut request)
                }
                Move::Scatter { root } => {
                    (call.scatter)(s, dlen, byte, d, dlen, byte, int(*root), comm, &mut request)
                }
                Move::AllToAll => {
                    let part = slen / int(size).max(1);
                    (call.all_to_all)(s, part, byte, d, part, byte, comm, &mut request)
                }
                Move::AllToAllV { send, recv } => {
                    tables = table(send).0;
                    tables.extend(table(recv).0);
                    let t: Vec<_> = tables.iter().map(|t| t.as_ptr()).collect();
                    (call.all_to_all_v)(s, t[0], t[1], byte, d, t[2], t[3], byte, comm, &mut request)
                }
                Move::Send { to } => (call.send)(s, slen, byte, int(*to), 0, comm, &mut request),
                Move::Recv { from } => (call.recv)(d, dlen, byte, int(*from), 0, comm, &mut request),
            }
        };
        drop(guard);
        // Also what failed to begin may have taken the buffers: it is left unfinished then.
        let begun = Self { mpi, request, done: false, src, out, tables };
        mpi.ok(code, what.name())?;
        Ok(begun)
    }

    /// Whether it is done; gives MPI time to get on.
    pub(crate) fn test(&mut self) -> Result<bool> {
        if !self.done {
            let mut flag = 0;
            let turn = self.mpi.turn();
            // SAFETY: the request is under way; the flag is one int, the status is ignored.
            let code =
                unsafe { (self.mpi.call.test)(&mut self.request, &mut flag, self.mpi.status_ignore()) };
            drop(turn);
            self.mpi.ok(code, "MPI_Test")?;
            self.done = flag != 0;
        }
        Ok(self.done)
    }

    /// The buffers, of an operation that is done.
    pub(crate) fn finish(mut self) -> (Vec<u8>, Vec<u8>) {
        assert!(self.done, "an operation of MPI was taken for done");
        (std::mem::take(&mut self.src), std::mem::take(&mut self.out))
    }
}

impl<H: Handle> Drop for Pending<H> {
    fn drop(&mut self) {
        if !self.done {
            self.mpi.spoil();
            std::mem::forget((
                std::mem::take(&mut self.src),
                std::mem::take(&mut self.out),
                std::mem::take(&mut self.tables),
            ));
        }
    }
}

impl Move {
    fn name(&self) -> &'static str {
        match self {
            Self::Broadcast { .. } => "MPI_Ibcast",
            Self::AllReduce { .. } => "MPI_Iallreduce",
            Self::Reduce { .. } => "MPI_Ireduce",
            Self::AllGather => "MPI_Iallgather",
            Self::AllGatherV { .. } => "MPI_Iallgatherv",
            Self::ReduceScatter { .. } => "MPI_Ireduce_scatter",
            Self::Gather { .. } => "MPI_Igather",
            Self::Scatter { .. } => "MPI_Iscatter",
            Self::AllToAll => "MPI_Ialltoall",
            Self::AllToAllV { .. } => "MPI_Ialltoallv",
            Self::Send { .. } => "MPI_Isend",
            Self::Recv { .. } => "MPI_Irecv",
        }
    }
}
