//! Many operands at once: one pass over the result, in blocks that stay in the nearest cache.

use super::generic::Isa;
use super::lane::{Bf16, F16, Lane, Reduction};
use super::{Level, Work, select};
use crate::{DType, ReduceOp};

/// Bytes of a block of partial results. With the block of an operand it leaves room in a 32 KiB cache.
const BLOCK: usize = 8 << 10;
/// The same for calls so short that clearing the larger one would take longer than the work.
const SHORT: usize = 512;

/// The arguments of [`super::n_way_reduce()`] but for `dst`.
#[derive(Clone, Copy)]
pub(super) struct NWayReduce<'a> {
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
    pub(super) ranks: usize,
    pub(super) own: Option<&'a [u8]>,
    pub(super) before: &'a [&'a [u8]],
    pub(super) after: &'a [&'a [u8]],
}

impl<'a> NWayReduce<'a> {
    pub(super) fn run(self, level: Level, dst: &mut [u8]) {
        debug_assert!(self.operands().all(|s| s.len() == dst.len()));
        let len = self.operands().map(<[u8]>::len).fold(dst.len(), usize::min);
        let dst = &mut dst[..len / self.dtype.size() * self.dtype.size()];

        // The smallest and most frequent case: two ranks.
        if let (None, ([s], []) | ([], [s])) = (self.own, (self.before, self.after))
            && self.op != ReduceOp::Avg
        {
            return level.combine(self.dtype, self.op, dst, &s[..dst.len()]);
        }
        let half = matches!(self.dtype, DType::F16 | DType::BF16);
        let count = self.before.len() + 1 + self.after.len();
        if half && (count > 2 || self.op == ReduceOp::Avg) {
            with_block(dst.len() * 2, |acc| self.in_f32(level, dst, acc));
        } else if self.own.is_some() || self.before.len() < 2 {
            self.in_place(level, dst);
        } else {
            with_block(dst.len(), |acc| self.through(level, dst, acc));
        }
    }

    /// All operands but `dst`.
    fn operands(self) -> impl Iterator<Item = &'a [u8]> {
        self.before.iter().copied().chain(self.own).chain(self.after.iter().copied())
    }

    /// Without other memory: the first combination writes `dst`, or takes it as its second operand, which
    /// is the same because every reduction commutes.
    fn in_place(self, level: Level, dst: &mut [u8]) {
        let Self { dtype, op, ranks, .. } = self;
        for (at, dst) in blocks(dst, BLOCK) {
            let end = at + dst.len();
            let mut operands = self.operands().map(|s| &s[at..end]);
            if self.own.is_some() {
                match (operands.next(), operands.next()) {
                    (Some(a), Some(b)) => level.combine_into(dtype, op, dst, a, b),
                    (Some(a), None) => dst.copy_from_slice(a),
                    _ => {}
                }
            }
            operands.for_each(|s| level.combine(dtype, op, dst, s));
            level.finish(dtype, op, ranks, dst);
        }
    }

    /// `dst` holds this rank's operand and at least two come before it: they meet in `acc`.
    fn through(self, level: Level, dst: &mut [u8], acc: &mut [u8]) {
        let Self { dtype, op, ranks, .. } = self;
        for (at, dst) in blocks(dst, acc.len()) {
            let end = at + dst.len();
            let part = |s: &&'a [u8]| &s[at..end];
            let acc = &mut acc[..dst.len()];
            if let [first, second, rest @ ..] = self.before {
                level.combine_into(dtype, op, acc, part(first), part(second));
                rest.iter().map(part).for_each(|s| level.combine(dtype, op, acc, s));
            }
            level.combine(dtype, op, dst, acc);
            self.after.iter().map(part).for_each(|s| level.combine(dtype, op, dst, s));
            level.finish(dtype, op, ranks, dst);
        }
    }

    /// Halves are widened into `acc` and rounded once at the end.
    fn in_f32(self, level: Level, dst: &mut [u8], acc: &mut [u8]) {
        let Self { dtype, op, ranks, .. } = self;
        for (at, dst) in blocks(dst, acc.len() / 2) {
            let acc = &mut acc[..dst.len() * 2];
            let mut first = true;
            let mut take = |s: &[u8]| {
                if std::mem::take(&mut first) {
                    level.widen(dtype, acc, s);
                } else {
                    level.accumulate(dtype, op, acc, s);
                }
            };
            let end = at + dst.len();
            let part = |s: &&'a [u8]| &s[at..end];
            self.before.iter().map(part).for_each(&mut take);
            match &self.own {
                Some(own) => take(part(own)),
                None => take(dst),
            }
            self.after.iter().map(part).for_each(&mut take);
            level.finish(DType::F32, op, ranks, acc);
            level.narrow(dtype, dst, acc);
        }
    }
}

/// Consecutive parts of up to `len` bytes, with the position of each.
fn blocks(dst: &mut [u8], len: usize) -> impl Iterator<Item = (usize, &mut [u8])> {
    dst.chunks_mut(len).enumerate().map(move |(i, block)| (i * len, block))
}

fn with_block(len: usize, f: impl FnOnce(&mut [u8])) {
    if len <= SHORT { f(&mut [0; SHORT]) } else { f(&mut [0; BLOCK]) }
}

impl Level {
    /// `acc = acc ∘ src`, with `acc` in `f32`.
    pub(super) fn accumulate(self, dtype: DType, op: ReduceOp, acc: &mut [u8], src: &[u8]) {
        at!(self, isa => select(dtype, op, Accumulate { isa, acc, src }));
    }

    fn widen(self, dtype: DType, acc: &mut [u8], src: &[u8]) {
        match dtype {
            DType::BF16 => at!(self, isa => isa.convert::<f32, Bf16>(acc, src)),
            _ => at!(self, isa => isa.convert::<f32, F16>(acc, src)),
        }
    }

    pub(super) fn narrow(self, dtype: DType, dst: &mut [u8], acc: &[u8]) {
        match dtype {
            DType::BF16 => at!(self, isa => isa.convert::<Bf16, f32>(dst, acc)),
            _ => at!(self, isa => isa.convert::<F16, f32>(dst, acc)),
        }
    }
}

struct Accumulate<'a, I> {
    isa: I,
    acc: &'a mut [u8],
    src: &'a [u8],
}

impl<I: Isa> Work for Accumulate<'_, I> {
    #[inline(always)]
    fn run<L: Lane, O: Reduction<L::Value>>(self) {
        self.isa.update::<L::Acc, L, O>(self.acc, self.src);
    }
}
