//! An operation of MPI under way, with the memory it works on.

use super::{Mpi, MpiHandle};
use crate::{DType, ReduceOp, Result};
use std::ffi::c_int;

/// Operation on the two buffers of a [`Pending`]. Lengths are in bytes, save where an element type is named.
#[derive(Clone, Debug)]
pub enum Move {
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
pub struct Pending<H: MpiHandle> {
    mpi: &'static Mpi<H>,
    request: H,
    done: bool,
    src: Vec<u8>,
    out: Vec<u8>,
    /// Lengths and offsets, which MPI reads until the end.
    tables: Vec<Vec<c_int>>,
}

impl<H: MpiHandle> Pending<H> {
    /// Begin. Both buffers are shorter than 2 GiB, and the lengths are right for `what`: a bug in the backend otherwise.
    pub fn start(
        mpi: &'static Mpi<H>,
        comm: H,
        size: usize,
        what: &Move,
        src: Vec<u8>,
        out: Vec<u8>,
    ) -> Result<Self> {
        // The unsafe calls rest on it.
        assert!(
            what.fits(size, src.len(), out.len()),
            "buffers of {} and {} bytes for {what:?}",
            src.len(),
            out.len()
        );
        let tables = what.tables();
        let mut begun = Self { mpi, request: H::NONE, done: true, src, out, tables };
        let guard = mpi.turn();
        // SAFETY: the buffers and tables live in the `Pending` until MPI is done with them, at addresses that moving the vectors does
        // not change, and are as long as checked above.
        let code = unsafe { what.call(&mut begun, comm, size) }?;
        drop(guard);
        // Also what failed to begin may have taken the buffers: it is left unfinished then.
        begun.done = false;
        mpi.ok(code, what.name())?;
        Ok(begun)
    }

    /// Returns true if it is done; gives MPI time to get on.
    pub fn test(&mut self) -> Result<bool> {
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
    pub fn finish(mut self) -> (Vec<u8>, Vec<u8>) {
        assert!(self.done, "an operation of MPI was taken for done");
        (std::mem::take(&mut self.src), std::mem::take(&mut self.out))
    }
}

impl<H: MpiHandle> Drop for Pending<H> {
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

fn int(n: usize) -> c_int {
    c_int::try_from(n).expect("chunks are shorter than 2 GiB")
}

/// Lengths and offsets.
fn table(lens: &[usize]) -> [Vec<c_int>; 2] {
    let mut at = 0;
    let place = |&n: &usize| {
        let begin = int(at);
        at += n;
        begin
    };
    [lens.iter().map(|&n| int(n)).collect(), lens.iter().map(place).collect()]
}

impl Move {
    /// Returns true if buffers of `src` and `out` bytes are long enough among `size` ranks.
    fn fits(&self, size: usize, src: usize, out: usize) -> bool {
        match self {
            Self::Broadcast { .. } | Self::Send { .. } | Self::Recv { .. } => true,
            Self::AllReduce { .. } => out >= src,
            Self::Reduce { .. } => out >= src || out == 0,
            Self::AllGather => out >= src * size,
            Self::AllGatherV { lens } => lens.len() == size && lens.iter().sum::<usize>() <= out,
            Self::ReduceScatter { counts, dtype, .. } => {
                counts.len() == size && counts.iter().sum::<usize>() * dtype.size() <= src
            }
            Self::Gather { .. } => out == 0 || out >= src * size,
            Self::Scatter { .. } => src == 0 || src >= out * size,
            Self::AllToAll => src == out && src.is_multiple_of(size),
            Self::AllToAllV { send, recv } => {
                (send.len(), recv.len()) == (size, size)
                    && send.iter().sum::<usize>() <= src
                    && recv.iter().sum::<usize>() <= out
            }
        }
    }

    /// The tables that MPI reads until the end.
    fn tables(&self) -> Vec<Vec<c_int>> {
        match self {
            Self::AllGatherV { lens } => table(lens).into(),
            Self::ReduceScatter { counts, .. } => table(counts).into(),
            Self::AllToAllV { send, recv } => table(send).into_iter().chain(table(recv)).collect(),
            _ => Vec::new(),
        }
    }

    /// MPI's function for it among `size` ranks, and the code that it returns. The turn is held.
    ///
    /// # Safety
    /// The buffers of `on` and its tables, which are this operation's, stay where they are until its request is done, and the buffers are as
    /// long as [`fits`](Self::fits) says. Nobody else uses them meanwhile.
    unsafe fn call<H: MpiHandle>(&self, on: &mut Pending<H>, comm: H, size: usize) -> Result<c_int> {
        let mpi = on.mpi;
        let call = &mpi.call;
        let byte = mpi.byte();
        let s = on.src.as_ptr().cast();
        let d = on.out.as_mut_ptr().cast();
        let slen = int(on.src.len());
        let dlen = int(on.out.len());
        let elements = |d: &DType| int(on.src.len() / d.size());
        let at = |i: usize| on.tables[i].as_ptr();
        let request = &mut on.request;
        // SAFETY: the handles are this library's; for the rest, the caller's promise.
        Ok(unsafe {
            match self {
                Self::Broadcast { root } => (call.broadcast)(d, dlen, byte, int(*root), comm, request),
                Self::AllReduce { dtype, op } => {
                    let (t, o) = mpi.reduction(*dtype, *op)?;
                    (call.all_reduce)(s, d, elements(dtype), t, o, comm, request)
                }
                Self::Reduce { dtype, op, root } => {
                    let (t, o) = mpi.reduction(*dtype, *op)?;
                    (call.reduce)(s, d, elements(dtype), t, o, int(*root), comm, request)
                }
                Self::AllGather => (call.all_gather)(s, slen, byte, d, slen, byte, comm, request),
                Self::AllGatherV { .. } => {
                    (call.all_gather_v)(s, slen, byte, d, at(0), at(1), byte, comm, request)
                }
                Self::ReduceScatter { dtype, op, .. } => {
                    let (t, o) = mpi.reduction(*dtype, *op)?;
                    (call.reduce_scatter)(s, d, at(0), t, o, comm, request)
                }
                Self::Gather { root } => {
                    (call.gather)(s, slen, byte, d, slen, byte, int(*root), comm, request)
                }
                Self::Scatter { root } => {
                    (call.scatter)(s, dlen, byte, d, dlen, byte, int(*root), comm, request)
                }
                Self::AllToAll => {
                    let part = slen / int(size).max(1);
                    (call.all_to_all)(s, part, byte, d, part, byte, comm, request)
                }
                Self::AllToAllV { .. } => {
                    (call.all_to_all_v)(s, at(0), at(1), byte, d, at(2), at(3), byte, comm, request)
                }
                Self::Send { to } => (call.send)(s, slen, byte, int(*to), 0, comm, request),
                Self::Recv { from } => (call.recv)(d, dlen, byte, int(*from), 0, comm, request),
            }
        })
    }

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
