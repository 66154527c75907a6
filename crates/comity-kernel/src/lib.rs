//! Element-wise reductions over type-erased bytes, at any alignment.
//!
//! ```text
//!   combine, combine_into, n_way_reduce ──> Level (once per call) ──> select (dtype, op) ──> a loop
//!
//!   lane.rs      what an element is: bytes to value and back, two values to one
//!   generic.rs   the loops, and the instruction set of the build target
//!   x86_64.rs    the same loops for AVX2 + F16C and for AVX-512
//!   aarch64.rs   the same loops with the conversions of NEON
//!   n_way_reduce.rs      many operands at once, in blocks that stay in the nearest cache
//!   wire.rs      smaller forms of elements for slow links
//!   crc32c.rs    the checksum of frames and messages
//! ```
//!
//! Every level gives the same bits (the payload of a NaN excepted).
//!
//! Callers pass equal lengths in whole elements and ask [`DType::supports`] first; should they not, nothing is
//! read or written out of bounds, and the shortest slice counts.
//!
//! This crate is Comity's own: what of it users see is in `comity`, and the rest may change with any release. It calls nothing of the
//! system, so Miri can interpret it; and it is small, so that a debug build, which leaves `comity` as it is, can optimise it.
#![allow(unsafe_code, reason = "vector instructions")]
#![allow(
    clippy::missing_safety_doc,
    reason = "to the lint a function with target features is unsafe, to the compiler it is not"
)]

/// Runs `$body` compiled for the instruction set of `$level`.
macro_rules! at {
    ($level:expr, $isa:ident => $body:expr) => {
        match $level {
            Level::Generic($isa) => $body,
            #[cfg(target_arch = "aarch64")]
            Level::Neon($isa) => $body,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2($isa) => $body,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512($isa) => $body,
        }
    };
}

mod named;

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod crc32c;
mod dtype;
mod generic;
mod lane;
mod n_way_reduce;
#[cfg(test)]
mod scalar;
#[cfg(test)]
mod tests;
mod wire;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use crc32c::{Crc32c, crc32c};
pub use dtype::{C64, DType, Element, ReduceOp};
use generic::{Generic, Isa};
use lane::{And, Bf16, F16, Lane, Max, Min, Numeric, Or, Product, Reduction, Sum, Truth, Xor};
use n_way_reduce::NWayReduce;
use std::sync::OnceLock;
pub use wire::{Wire, add_decoded, add_widened, decode, divide_sums, encode, narrow};

/// `dst = dst ∘ src`. An average is only added up here; the last step of one is an [`n_way_reduce()`].
pub fn combine(dtype: DType, op: ReduceOp, dst: &mut [u8], src: &[u8]) {
    Level::best().combine(dtype, op, dst, src);
}

/// `dst = a ∘ b`, as [`combine`].
pub fn combine_into(dtype: DType, op: ReduceOp, dst: &mut [u8], a: &[u8], b: &[u8]) {
    Level::best().combine_into(dtype, op, dst, a, b);
}

/// `dst = before[0] ∘ .. ∘ own ∘ after[0] ∘ ..`, in this order; without `own`, `dst` holds it.
///
/// `f16` and `bf16` are combined in `f32` and rounded once. An average is divided by `ranks` before that.
pub fn n_way_reduce(
    dtype: DType,
    op: ReduceOp,
    ranks: usize,
    dst: &mut [u8],
    own: Option<&[u8]>,
    before: &[&[u8]],
    after: &[&[u8]],
) {
    NWayReduce { dtype, op, ranks, own, before, after }.run(Level::best(), dst);
}

/// Divides each `f16` of `buf`, in `f32`, and rounds once.
pub fn divide_halves(buf: &mut [u8], by: f32) {
    at!(Level::best(), isa => isa.divide_halves(buf, by));
}

/// Makes every byte a valid `bool`: 1 for any but 0.
pub fn normalise_bool(buf: &mut [u8]) {
    for b in buf {
        *b = u8::from(*b != 0);
    }
}

/// The instruction set in use.
#[derive(Clone, Copy, Debug)]
enum Level {
    Generic(Generic),
    #[cfg(target_arch = "aarch64")]
    Neon(aarch64::Neon),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86_64::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86_64::Avx512),
}

impl Level {
    fn best() -> Self {
        static BEST: OnceLock<Level> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().next().unwrap_or(Self::Generic(Generic)))
    }

    /// Every level this machine has, best first.
    fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let special = [x86_64::Avx512::detect().map(Self::Avx512), x86_64::Avx2::detect().map(Self::Avx2)];
        #[cfg(target_arch = "aarch64")]
        let special = [Some(Self::Neon(aarch64::Neon))];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let special: [Option<Self>; 0] = [];
        special.into_iter().flatten().filter(|_| !cfg!(miri)).chain([Self::Generic(Generic)])
    }

    fn combine(self, dtype: DType, op: ReduceOp, dst: &mut [u8], src: &[u8]) {
        debug_assert!(dtype.supports(op), "{op} of {dtype}");
        debug_assert!(dst.len() == src.len() && dst.len().is_multiple_of(dtype.size()));
        at!(self, isa => select(dtype, op, Update { isa, dst, src }));
    }

    fn combine_into(self, dtype: DType, op: ReduceOp, dst: &mut [u8], a: &[u8], b: &[u8]) {
        debug_assert!(dtype.supports(op), "{op} of {dtype}");
        debug_assert!(dst.len() == a.len() && a.len() == b.len() && dst.len().is_multiple_of(dtype.size()));
        at!(self, isa => select(dtype, op, Zip { isa, dst, a, b }));
    }

    fn finish(self, dtype: DType, op: ReduceOp, ranks: usize, buf: &mut [u8]) {
        if op == ReduceOp::Avg && ranks > 1 {
            at!(self, isa => divide(isa, dtype, ranks, buf));
        }
    }
}

/// Work that waits for its types.
trait Work {
    fn run<L: Lane, O: Reduction<L::Value>>(self);
}

struct Update<'a, I> {
    isa: I,
    dst: &'a mut [u8],
    src: &'a [u8],
}

impl<I: Isa> Work for Update<'_, I> {
    #[inline(always)]
    fn run<L: Lane, O: Reduction<L::Value>>(self) {
        self.isa.update::<L, L, O>(self.dst, self.src);
    }
}

struct Zip<'a, I> {
    isa: I,
    dst: &'a mut [u8],
    a: &'a [u8],
    b: &'a [u8],
}

impl<I: Isa> Work for Zip<'_, I> {
    #[inline(always)]
    fn run<L: Lane, O: Reduction<L::Value>>(self) {
        self.isa.zip::<L, O>(self.dst, self.a, self.b);
    }
}

/// Finds the loop for `dtype` and `op`. Pairs with the same result share one: bits are bits, signed and
/// unsigned integers wrap alike, and a complex sum is twice as many sums.
#[inline(always)]
fn select<W: Work>(dtype: DType, op: ReduceOp, work: W) {
    use ReduceOp as R;
    match (dtype, op) {
        (DType::Bool, R::Sum | R::Max | R::Or | R::Avg) => work.run::<Truth, Or>(),
        (DType::Bool, R::Product | R::Min | R::And) => work.run::<Truth, And>(),
        (DType::Bool, R::Xor) => work.run::<Truth, Xor>(),
        (_, R::And) => work.run::<u8, And>(),
        (_, R::Or) => work.run::<u8, Or>(),
        (_, R::Xor) => work.run::<u8, Xor>(),
        (DType::C64, R::Sum | R::Avg) => work.run::<f32, Sum>(),
        (_, R::Sum | R::Avg) => arithmetic::<Sum, W>(dtype, work),
        (_, R::Product) => arithmetic::<Product, W>(dtype, work),
        (_, R::Min) => ordered::<Min, W>(dtype, work),
        (_, R::Max) => ordered::<Max, W>(dtype, work),
    }
}

#[inline(always)]
fn arithmetic<O: Numeric, W: Work>(dtype: DType, work: W) {
    match dtype {
        DType::Bool | DType::U8 | DType::I8 => work.run::<u8, O>(),
        DType::U16 | DType::I16 => work.run::<u16, O>(),
        DType::U32 | DType::I32 => work.run::<u32, O>(),
        DType::U64 | DType::I64 => work.run::<u64, O>(),
        DType::F16 => work.run::<F16, O>(),
        DType::BF16 => work.run::<Bf16, O>(),
        DType::F32 => work.run::<f32, O>(),
        DType::F64 => work.run::<f64, O>(),
        DType::C64 => work.run::<C64, O>(),
    }
}

#[inline(always)]
fn ordered<O: Numeric, W: Work>(dtype: DType, work: W) {
    match dtype {
        DType::I8 => work.run::<i8, O>(),
        DType::I16 => work.run::<i16, O>(),
        DType::I32 => work.run::<i32, O>(),
        DType::I64 => work.run::<i64, O>(),
        _ => arithmetic::<O, W>(dtype, work),
    }
}

fn divide<I: Isa>(isa: I, dtype: DType, n: usize, buf: &mut [u8]) {
    match dtype {
        DType::Bool => {}
        DType::U8 => isa.divide::<u8>(buf, n),
        DType::U16 => isa.divide::<u16>(buf, n),
        DType::U32 => isa.divide::<u32>(buf, n),
        DType::U64 => isa.divide::<u64>(buf, n),
        DType::I8 => isa.divide::<i8>(buf, n),
        DType::I16 => isa.divide::<i16>(buf, n),
        DType::I32 => isa.divide::<i32>(buf, n),
        DType::I64 => isa.divide::<i64>(buf, n),
        DType::F16 => isa.divide::<F16>(buf, n),
        DType::BF16 => isa.divide::<Bf16>(buf, n),
        DType::F32 | DType::C64 => isa.divide::<f32>(buf, n),
        DType::F64 => isa.divide::<f64>(buf, n),
    }
}
