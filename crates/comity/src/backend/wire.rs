//! Calls whose elements cross the links in a smaller form.
//!
//! ```text
//!   all_reduce of 2 ranks, part p belongs to rank p
//!     encode   a1, b0                   round, once, what is for another rank
//!     scatter  0 ──a1──> 1 ──b0──> 0    an all_to_all of bytes
//!     reduce   a0 + b0, a1 + b1         in f32 and in rank order; this rank's own as it was. Round the sum, once
//!     gather   0 <──sums──> 1           an all_gather of bytes
//!     decode   all sums, this rank's own too: the same bits everywhere
//! ```
//!
//! reduce_scatter ends with the sum as it is; all_gather begins with an encoded part of this rank.
//!
//! A long call goes in pieces: while one travels, a thread of the call works on its neighbours. In step t, the links carry what was
//! made in step t-1, and the thread takes what they brought then:
//!
//! ```text
//!   step      0   1   2   3   4   5
//!   thread    E0  E1  R0  R1  D0  D1      E encode, R reduce, D decode
//!   links         S0  S1  G0  G1          S scatter, G gather
//! ```
//!
//! All parts of a call announce the call itself, so ranks that disagree, also about the wire, are told in the first exchange: before anything is
//! written.

use super::{Backend, Bufs, Call, Whole};
use crate::{CallInfo, DType, ErrorKind, Op, ReduceOp, Result, Wire, sync::lock, sys::fnv, view::Memory};
use comity_kernel as kernel;
use comity_plan::{Buf, Slice};
use std::{
    mem,
    ops::Range,
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Elements of a piece, of all parts together: its bytes take some milliseconds at 1 Gbit/s, and its buffers are 16 MiB at most.
const PIECE: usize = 1 << 20;
/// A piece begins where a block of a wire may begin.
const BLOCK: usize = 256;

/// Makes the calls of a group that ask for a wire.
#[derive(Debug)]
pub(crate) struct WireCalls {
    rank: usize,
    size: usize,
    /// The piece that the links carry, and the one that is worked on: they change places with each step, and stay for the next call.
    carried: Stage,
    worked: Stage,
    sums: Vec<u8>,
}

/// Encoded bytes of a piece.
#[derive(Debug, Default)]
struct Stage {
    /// A part for each rank.
    out: Vec<u8>,
    /// This rank's part, by each rank.
    into: Vec<u8>,
    own: Vec<u8>,
    all: Vec<u8>,
}

/// The first bytes of a buffer, which grows as needed.
fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// Runs a call that is a part of another.
type Run<'a> = &'a mut dyn FnMut(&mut Call<'_>) -> Result<()>;

struct Pieces {
    wire: Wire,
    info: CallInfo,
    dtype: DType,
    rank: usize,
    /// Elements of each rank's part, and those before it.
    parts: Vec<(usize, usize)>,
    /// Elements of a part in one piece.
    step: usize,
    count: usize,
}

impl WireCalls {
    /// For a group in which this rank has that place.
    pub(crate) fn new(rank: usize, size: usize) -> Self {
        Self { rank, size, carried: Stage::default(), worked: Stage::default(), sums: Vec::new() }
    }

    /// Makes a call that asks for a wire. `begun` notes that it has begun.
    pub(crate) fn run(
        &mut self,
        backend: &mut dyn Backend,
        wire: Wire,
        call: &mut Call<'_>,
        limit: Duration,
        begun: &mut dyn FnMut(),
    ) -> Result<()> {
        if self.size == 1 {
            return backend.run_noted(call, limit, begun);
        }
        let until = Instant::now() + limit;
        let pieces = Pieces::new(wire, call, self.rank, self.size);
        let memory = &mut call.bufs.take().memory(pieces.own_bytes(), &mut []);
        let Self { carried, worked, sums, .. } = self;
        let mut part = |part: &mut Call<'_>| {
            let left = until.saturating_duration_since(Instant::now());
            backend.run_noted(part, left, begun).map_err(|e| match e.into_kind() {
                // The limit is that of the whole call.
                ErrorKind::Timeout { rank, call, waiting_for, stalled, crossed, .. } => {
                    ErrorKind::Timeout { rank, call, after: limit, waiting_for, stalled, crossed }.into()
                }
                other => other.into(),
            })
        };
        let steps = 0..pieces.count + 4;
        let work = Mutex::new((memory, sums));
        if pieces.count > 1
            && let Some(out) = pieces.work_beside(&work, carried, worked, steps.clone(), &mut part)
        {
            return out;
        }
        let (memory, sums) = &mut *lock(&work);
        for at in steps {
            pieces.work(worked, memory, sums, at);
            pieces.talk(carried, at, &mut part)?;
            mem::swap(carried, worked);
        }
        Ok(())
    }
}

impl Pieces {
    fn new(wire: Wire, call: &Call<'_>, rank: usize, size: usize) -> Self {
        let info = call.info;
        let share = |r: usize| info.count / size + usize::from(r < info.count % size);
        let len = |r: usize| match (info.op, call.counts.get(r)) {
            (_, Some(count)) => *count,
            (Op::AllReduce, None) => share(r),
            _ => info.count,
        };
        let mut before = 0;
        let parts = Vec::from_iter((0..size).map(|r| {
            let part = (len(r), before);
            before += part.0;
            part
        }));
        let step = (PIECE / size).next_multiple_of(BLOCK);
        let longest = parts.iter().map(|p| p.0).max().unwrap_or(0);
        let count = longest.div_ceil(step).max(1);
        Self { wire, info, dtype: info.dtype.unwrap_or(DType::F32), rank, parts, step, count }
    }

    fn scatters(&self) -> bool {
        self.info.op != Op::AllGather
    }

    fn gathers(&self) -> bool {
        self.info.op != Op::ReduceScatter
    }

    /// The piece that a stage so many steps behind the first one works on.
    fn at(&self, at: usize, behind: usize) -> Option<usize> {
        at.checked_sub(behind).filter(|k| *k < self.count)
    }

    /// Elements of rank `r`'s part in piece `k`.
    fn len(&self, r: usize, k: usize) -> usize {
        self.parts[r].0.saturating_sub(k * self.step).min(self.step)
    }

    /// The same in bytes on the wire.
    fn encoded(&self, r: usize, k: usize) -> usize {
        self.wire.bytes(self.len(r, k))
    }

    /// Those elements in the caller's buffer of all parts, or in one that holds this part alone.
    fn slice(&self, buf: Buf, r: usize, k: usize, alone: bool) -> Slice {
        let before = if alone { 0 } else { self.parts[r].1 };
        let elem = self.dtype.size();
        Slice::new(buf, (before + k * self.step) * elem, self.len(r, k) * elem)
    }

    /// Beginning and length of this rank's part, in bytes.
    fn own_bytes(&self) -> (usize, usize) {
        let (len, before) = self.parts[self.rank];
        (before * self.dtype.size(), len * self.dtype.size())
    }

    /// Computes what step `at` has to do.
    fn work(&self, stage: &mut Stage, memory: &mut Memory<'_>, sums: &mut Vec<u8>, at: usize) {
        if let Some(k) = self.at(at, 4).filter(|_| self.gathers()) {
            let mut all = &stage.all[..];
            for r in 0..self.parts.len() {
                let (coded, later) = all.split_at(self.encoded(r, k));
                kernel::decode(self.wire, self.dtype, memory.write(self.slice(Buf::Out, r, k, false)), coded);
                all = later;
            }
        }
        if let Some(k) = self.at(at, 2) {
            self.reduce(stage, memory, sums, k);
        }
        if let Some(k) = self.at(at, 0).filter(|_| self.scatters()) {
            let mut out = room(&mut stage.out, (0..self.parts.len()).map(|r| self.encoded(r, k)).sum());
            for r in 0..self.parts.len() {
                let (coded, later) = out.split_at_mut(self.encoded(r, k));
                if r != self.rank {
                    kernel::encode(
                        self.wire,
                        self.dtype,
                        coded,
                        memory.read(self.slice(Buf::In, r, k, false)),
                    );
                }
                out = later;
            }
        }
    }

    /// Adds up this rank's part of piece `k`. For an all_gather the part is what this rank gives.
    fn reduce(&self, stage: &mut Stage, memory: &mut Memory<'_>, sums: &mut Vec<u8>, k: usize) {
        let Self { wire, dtype, rank, .. } = *self;
        let size = self.encoded(rank, k);
        let own = memory.read(self.slice(Buf::In, rank, k, !self.scatters()));
        let result = room(&mut stage.own, size);
        if !self.scatters() {
            return kernel::encode(wire, dtype, result, own);
        }
        let sums = room(sums, self.len(rank, k) * DType::F32.size());
        sums.fill(0);
        for r in 0..self.parts.len() {
            match r == rank {
                true => kernel::add_widened(dtype, sums, own),
                false => kernel::add_decoded(wire, sums, &stage.into[r * size..(r + 1) * size]),
            }
        }
        if self.info.reduce == Some(ReduceOp::Avg) {
            kernel::divide_sums(sums, self.parts.len());
        }
        match self.gathers() {
            true => kernel::encode(wire, DType::F32, result, sums),
            false => kernel::narrow(dtype, memory.write(self.slice(Buf::Out, rank, k, true)), sums),
        }
    }

    /// Makes all steps with a thread that works while the links carry; none if the system gives no thread.
    fn work_beside(
        &self,
        work: &Mutex<(&mut Memory<'_>, &mut Vec<u8>)>,
        carried: &mut Stage,
        worked: &mut Stage,
        steps: Range<usize>,
        run: Run<'_>,
    ) -> Option<Result<()>> {
        // WAIT: a thread that computes
        thread::scope(|s| {
            // A stage goes to the thread, and comes back when its step is done.
            let (give, given) = mpsc::sync_channel::<(Stage, usize)>(1);
            let (done, back) = mpsc::sync_channel(1);
            let thread = move || {
                let (memory, sums) = &mut *lock(work);
                // WAIT(give): the next step; the other end is dropped with the call
                for (mut stage, at) in given {
                    self.work(&mut stage, memory, sums, at);
                    if done.send(stage).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().name("comity-wire".into()).spawn_scoped(s, thread).ok()?;
            for at in steps {
                // It fails only where the thread has panicked, which goes on here when it is joined.
                let _ = give.send((mem::take(worked), at));
                let out = self.talk(carried, at, run);
                // WAIT: a thread that computes
                *worked = back.recv().unwrap_or_default();
                if out.is_err() {
                    return Some(out);
                }
                mem::swap(carried, worked);
            }
            Some(Ok(()))
        })
    }

    /// Has the links carry what step `at` has for them.
    fn talk(&self, stage: &mut Stage, at: usize, run: Run<'_>) -> Result<()> {
        if let Some(k) = self.at(at, 1).filter(|_| self.scatters()) {
            self.scatter(stage, k, run)?;
        }
        match self.at(at, 3).filter(|_| self.gathers()) {
            Some(k) => self.gather(stage, k, run),
            None => Ok(()),
        }
    }

    /// Each rank gets all contributions to its part.
    fn scatter(&self, Stage { out, into, .. }: &mut Stage, k: usize, run: Run<'_>) -> Result<()> {
        let send = Vec::from_iter((0..self.parts.len()).map(|r| self.encoded(r, k)));
        let recv = vec![send[self.rank]; send.len()];
        let into = room(into, recv.iter().sum());
        let mut call = self.part(Op::AllToAll, Bufs::Both((&out[..send.iter().sum()]).into(), into.into()));
        call.counts = &send;
        call.recv_counts = &recv;
        run(&mut call)
    }

    /// Each rank gets the sums of all.
    fn gather(&self, Stage { own, all, .. }: &mut Stage, k: usize, run: Run<'_>) -> Result<()> {
        let counts = Vec::from_iter((0..self.parts.len()).map(|r| self.encoded(r, k)));
        let total = counts.iter().sum();
        let own = &own[..counts[self.rank]];
        let mut call = self.part(Op::AllGather, Bufs::Both(own.into(), room(all, total).into()));
        call.info.count = total;
        call.counts = &counts;
        run(&mut call)
    }

    fn part<'a>(&self, op: Op, bufs: Bufs<'a>) -> Call<'a> {
        let mut call = Call::new(op, bufs);
        let lens = self.parts.iter().map(|p| p.0 as u64);
        let shape = [fnv(b"wire"), self.step as u64].into_iter().chain(lens);
        let shape = shape.fold(0, |h: u64, w| (h ^ w).wrapping_mul(0x0100_0000_01b3));
        call.info.seq = self.info.seq;
        call.whole = Some(Whole { info: self.info, shape });
        call
    }
}
