//! Collective calls: the headers of all, then chunks.

use super::{MpiBackend, StepResult, Stop, Waiting, put};
use crate::{
    CallInfo, DType, Op, ReduceOp,
    backend::{
        Call, Whole, average,
        external::{announce, wait},
    },
    status::{Differs, HEADER, Header},
    sys::mpi::{Move, MpiHandle, Pending},
    view::Memory,
};
use comity_kernel as kernel;
use comity_plan::{Buf, Kind, Slice};
use std::{collections::VecDeque, ops::Range};

/// Bytes that a chunk takes in the larger of its two buffers, about.
const CHUNK: usize = 4 << 20;
/// Chunks under way at once: one is copied while another travels.
const DEPTH: usize = 2;
/// Length of a rank's announcement, in bytes: its header and a number of the call's own.
const WORD: usize = HEADER + 8;

/// Chunks of a call: the bytes of each buffer that leave in chunk `k`, and the place of those that come.
struct Cut {
    op: Op,
    rank: usize,
    size: usize,
    root: usize,
    elem: usize,
    dtype: DType,
    reduce: ReduceOp,
    /// Bytes of each rank's part; one entry for a call without parts.
    parts: Vec<usize>,
    /// Bytes from each rank, for all_to_all.
    recv_parts: Vec<usize>,
    /// Bytes of a part that travel in one chunk.
    step: usize,
    chunks: usize,
    equal: bool,
}

impl<H: MpiHandle> MpiBackend<H> {
    pub(super) fn collective(&mut self, call: Call<'_>, waiting: &mut Waiting) -> StepResult<()> {
        let info = call.info;
        let elem = info.dtype.map_or(1, DType::size);
        let pairwise = info.op == Op::AllToAll && !call.counts.is_empty() && call.whole.is_none();
        let most = call.counts.iter().chain(call.recv_counts).copied().max().unwrap_or(0);
        let shape = if pairwise { 1 } else { hash(call.counts) };
        let whole = call.whole.unwrap_or(Whole { info, shape });
        let most = self.agree(whole, pairwise, most * elem, waiting)?;
        if info.op == Op::Barrier {
            // Nobody hears all before all have come.
            return Ok(());
        }
        if pairwise {
            self.agree_pairs(info, call.counts, call.recv_counts, waiting)?;
        }
        let cut = Cut::new(self.members.rank, self.size(), &call, elem, most);
        let part = info.count * elem;
        let mut memory = call.bufs.memory((self.members.rank * part, part), &mut []);
        let mut flight: VecDeque<(usize, Pending<H>)> = VecDeque::new();
        for k in 0..cut.chunks {
            if flight.len() == DEPTH {
                self.land(&mut flight, &cut, &mut memory, waiting)?;
            }
            let mut src = self.buffer(cut.src_len(k));
            let mut out = self.buffer(0);
            out.resize(cut.out_len(k), 0);
            cut.fill(k, &memory, &mut src);
            if cut.op == Op::Broadcast && cut.rank == cut.root {
                std::mem::swap(&mut src, &mut out);
            }
            self.members.counters.add_sent(src.len().max(out.len()) as u64);
            flight.push_back((k, self.start(&cut.moves(k), src, out)?));
        }
        while !flight.is_empty() {
            self.land(&mut flight, &cut, &mut memory, waiting)?;
        }
        Ok(())
    }

    /// Wait for the oldest chunk and give the caller what it brought.
    fn land(
        &mut self,
        flight: &mut VecDeque<(usize, Pending<H>)>,
        cut: &Cut,
        memory: &mut Memory<'_>,
        waiting: &mut Waiting,
    ) -> StepResult<()> {
        let Some((k, pending)) = flight.pop_front() else { return Ok(()) };
        let (src, mut out) = self.finish(pending, waiting)?;
        cut.empty(k, memory, &mut out);
        self.keep([src, out]);
        Ok(())
    }

    fn finish(&self, mut pending: Pending<H>, waiting: &mut Waiting) -> StepResult<(Vec<u8>, Vec<u8>)> {
        // WAIT(waiting): MPI, to the deadline of the call
        wait(&self.members, waiting, || Ok(pending.test()?))?;
        Ok(pending.finish())
    }

    /// Tell all what this rank calls, and hear what they call. The largest of everyone's numbers.
    fn agree(
        &mut self,
        Whole { info, shape }: Whole,
        pairwise: bool,
        most: usize,
        waiting: &mut Waiting,
    ) -> StepResult<usize> {
        // With parts that differ by pair nobody knows the others' totals.
        let mut told = info;
        if pairwise {
            told.count = 0;
        }
        let ours = Header { info: told, shape, group_id: self.members.group_id as u32, lends: false };
        announce(&self.members, ours, waiting);
        let mut src = self.buffer(0);
        src.extend_from_slice(&ours.encode());
        src.extend_from_slice(&(most as u64).to_le_bytes());
        let out = self.buffer(WORD * self.size());
        let pending = self.start(&Move::AllGather, src, out)?;
        let (src, out) = self.finish(pending, waiting)?;
        let mut top = most;
        for (peer, word) in out.chunks_exact(WORD).enumerate() {
            let (head, number) = word.split_at(HEADER);
            let head = head.try_into().ok().and_then(|h| Header::decode(h, peer));
            let Some(theirs) = head else {
                return Err(Stop::Peer(peer, "announced a call that this version does not know".into()));
            };
            if let Some(differs) = ours.difference(&theirs) {
                let calls = Differs { ours: info, theirs: theirs.info, what: differs };
                return Err(Stop::Differs(peer, Box::new(calls)));
            }
            top = top.max(u64::from_le_bytes(number.try_into().unwrap_or_default()) as usize);
        }
        self.keep([src, out]);
        Ok(top)
    }

    /// For parts that differ by pair: what each rank sends here, against what this rank expects of it.
    fn agree_pairs(
        &mut self,
        info: CallInfo,
        send: &[usize],
        recv: &[usize],
        waiting: &mut Waiting,
    ) -> StepResult<()> {
        let mut src = self.buffer(0);
        src.extend(send.iter().flat_map(|&n| (n as u64).to_le_bytes()));
        let out = self.buffer(src.len());
        let pending = self.start(&Move::AllToAll, src, out)?;
        let (src, out) = self.finish(pending, waiting)?;
        for (peer, (theirs, &ours)) in out.chunks_exact(8).zip(recv).enumerate() {
            let theirs = u64::from_le_bytes(theirs.try_into().unwrap_or_default()) as usize;
            if theirs != ours {
                let mut calls = Differs { ours: info, theirs: info, what: "elements for this rank" };
                calls.theirs.count = theirs;
                return Err(Stop::Differs(peer, Box::new(calls)));
            }
        }
        self.keep([src, out]);
        Ok(())
    }
}

impl Cut {
    fn new(rank: usize, size: usize, call: &Call<'_>, elem: usize, most: usize) -> Self {
        let info = call.info;
        let in_bytes = |counts: &[usize]| counts.iter().map(|&c| c * elem).collect::<Vec<_>>();
        let part = info.count * elem;
        let parted = !matches!(info.op, Op::AllReduce | Op::Reduce | Op::Broadcast | Op::Barrier);
        let equal = call.counts.is_empty();
        let parts = match (parted, equal) {
            (false, _) => vec![part],
            (true, true) => vec![part; size],
            (true, false) => in_bytes(call.counts),
        };
        let recv_parts = if equal { parts.clone() } else { in_bytes(call.recv_counts) };
        // Of parts that differ by pair every rank must know the longest anywhere.
        let longest = if equal { part } else { most };
        let step = (CHUNK / parts.len() / elem).max(1) * elem;
        Self {
            op: info.op,
            rank,
            size,
            root: info.root.unwrap_or(0),
            elem,
            dtype: info.dtype.unwrap_or(DType::U8),
            reduce: info.reduce.unwrap_or(ReduceOp::Sum),
            parts,
            recv_parts,
            step,
            chunks: longest.div_ceil(step),
            equal,
        }
    }

    /// Returns the bytes of a part of `len` that travel in chunk `k`.
    fn piece(&self, k: usize, len: usize) -> Range<usize> {
        (k * self.step).min(len)..((k + 1) * self.step).min(len)
    }

    fn pieces<'a>(&'a self, k: usize, parts: &'a [usize]) -> impl Iterator<Item = Range<usize>> + 'a {
        let mut at = 0;
        parts.iter().map(move |&len| {
            let p = self.piece(k, len);
            let range = at + p.start..at + p.end;
            at += len;
            range
        })
    }

    fn lens(&self, k: usize, parts: &[usize]) -> Vec<usize> {
        self.pieces(k, parts).map(|p| p.len()).collect()
    }

    fn own(&self, k: usize) -> Range<usize> {
        self.piece(k, self.parts.get(self.rank).or_else(|| self.parts.first()).copied().unwrap_or(0))
    }

    /// Ranges of the caller's input that leave, in the order of the buffer.
    fn outgoing(&self, k: usize) -> Vec<Range<usize>> {
        match self.op {
            Op::AllReduce | Op::Reduce | Op::AllGather | Op::Split | Op::Gather => vec![self.own(k)],
            Op::Broadcast if self.rank == self.root => vec![self.own(k)],
            Op::Scatter if self.rank == self.root => self.pieces(k, &self.parts).collect(),
            Op::ReduceScatter | Op::AllToAll => self.pieces(k, &self.parts).collect(),
            _ => Vec::new(),
        }
    }

    /// Ranges of the caller's output that are filled, in the order of the buffer.
    fn incoming(&self, k: usize) -> Vec<Range<usize>> {
        match self.op {
            Op::AllReduce | Op::Broadcast => vec![self.own(k)],
            Op::Reduce if self.rank == self.root => vec![self.own(k)],
            Op::AllGather | Op::Split => self.pieces(k, &self.parts).collect(),
            Op::Gather if self.rank == self.root => self.pieces(k, &self.parts).collect(),
            Op::ReduceScatter | Op::Scatter => vec![self.own(k)],
            Op::AllToAll => self.pieces(k, &self.recv_parts).collect(),
            _ => Vec::new(),
        }
    }

    fn src_len(&self, k: usize) -> usize {
        self.outgoing(k).iter().map(Range::len).sum()
    }

    fn out_len(&self, k: usize) -> usize {
        self.incoming(k).iter().map(Range::len).sum()
    }

    fn fill(&self, k: usize, memory: &Memory<'_>, src: &mut [u8]) {
        let mut at = 0;
        for r in self.outgoing(k) {
            let len = r.len();
            src[at..at + len].copy_from_slice(memory.read(Slice::new(Buf::In, r.start, len)));
            at += len;
        }
        if self.divides_first() {
            average::divide_before(src, self.size);
        }
    }

    /// Returns true if each contribution is divided before it is added: MPI stores partial sums.
    fn divides_first(&self) -> bool {
        self.averages() && self.dtype == DType::F16
    }

    fn averages(&self) -> bool {
        self.reduce == ReduceOp::Avg && matches!(self.op, Op::AllReduce | Op::Reduce | Op::ReduceScatter)
    }

    fn empty(&self, k: usize, memory: &mut Memory<'_>, out: &mut [u8]) {
        if self.divides_first() {
            average::divide_after(out, self.size);
        } else if self.averages() {
            kernel::n_way_reduce(self.dtype, self.reduce, self.size, out, None, &[], &[]);
        }
        let mut at = 0;
        for r in self.incoming(k) {
            put(memory, r.start, &out[at..at + r.len()], self.dtype == DType::Bool);
            at += r.len();
        }
    }

    fn moves(&self, k: usize) -> Move {
        let dtype = self.dtype;
        let op = self.reduce;
        let root = self.root;
        // Barriers and messages between two are made elsewhere; a chunk of nothing says nothing.
        let Some(kind) = self.op.kind() else { return Move::Broadcast { root } };
        match kind {
            Kind::AllReduce => Move::AllReduce { dtype, op },
            Kind::Reduce => Move::Reduce { dtype, op, root },
            Kind::Broadcast | Kind::Barrier => Move::Broadcast { root },
            Kind::AllGather if self.equal => Move::AllGather,
            Kind::AllGather => Move::AllGatherV { lens: self.lens(k, &self.parts) },
            Kind::ReduceScatter => {
                let counts = self.lens(k, &self.parts).into_iter().map(|n| n / self.elem).collect();
                Move::ReduceScatter { dtype, op, counts }
            }
            Kind::Gather => Move::Gather { root },
            Kind::Scatter => Move::Scatter { root },
            Kind::AllToAll if self.equal => Move::AllToAll,
            Kind::AllToAll => {
                Move::AllToAllV { send: self.lens(k, &self.parts), recv: self.lens(k, &self.recv_parts) }
            }
        }
    }
}

/// Hashes the facts, besides the call's arguments, that ranks must agree on (FNV-1a).
fn hash(counts: &[usize]) -> u64 {
    counts.iter().fold(0xcbf2_9ce4_8422_2325, |h, &w| (h ^ w as u64).wrapping_mul(0x0100_0000_01b3))
}
