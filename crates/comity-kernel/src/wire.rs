//! Smaller forms of `f32` elements, for slow links, and the loops between both.
//!
//! ```text
//!   Bf16, F16    2 bytes an element
//!   Int8Block    blocks of 256 elements: [scale: f32 | 256 codes of a byte], the last block shorter
//!
//!   code    -126 ..= 126   element / scale, rounded; scale = the block's largest finite magnitude / 126
//!           127, -127      infinity, minus infinity
//!           -128           NaN
//! ```
//!
//! Elements are `f32`, `f16` or `bf16`: [`Wire::carries`].

use super::generic::Isa;
use super::lane::{Bf16, F16, Lane};
use super::{Level, ReduceOp};
use crate::{DType, named};

#[cfg(test)]
mod tests;

/// Elements that share a scale in [`Wire::Int8Block`].
pub(super) const BLOCK: usize = 256;
const SCALE: usize = size_of::<f32>();
const LARGEST: f32 = 126.0;
const PLUS_INFINITY: i32 = 127;
const MINUS_INFINITY: i32 = -127;
const NOT_A_NUMBER: i32 = -128;

named! {
    /// Form in which elements cross the links: fewer bytes for less precision. A call that asks for one rounds each contribution once and
    /// the sum once, whatever the number of ranks; the sum itself is one of `f32`, in the order of ranks, and all ranks get the same bits.
    ///
    /// | wire | bytes an element | a contribution is off by up to | NaN, infinities |
    /// |---|---|---|---|
    /// | `Bf16` | 2 | 1/256 of itself; above 3.38e38 it becomes infinite | kept |
    /// | `F16` | 2 | 1/2048 of itself, or 3e-8; above 65,504 it becomes infinite | kept |
    /// | `Int8Block` | 1 and 1/64 | 1/251 of the largest of its block of 256, or 6e-39 | kept, and the finite elements beside them |
    ///
    /// ```
    /// # extern crate comity_kernel as comity;
    /// use comity::Wire;
    ///
    /// assert_eq!(Wire::from_name("int8"), Some(Wire::Int8Block));
    /// assert_eq!(Wire::ALL.map(|wire| wire.bytes(1024)), [2048, 2048, 1040]);
    /// ```
    #[non_exhaustive]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum Wire: "wire" {
        /// The upper half of an `f32`: its range, and 8 bits of its 24.
        Bf16 = 1 => "bf16",
        /// IEEE 754 half precision: 11 bits, up to 65,504.
        F16 = 2 => "f16",
        /// Blocks of 256 elements as integers of 8 bits, with one scale for each.
        Int8Block = 3 => "int8",
    }
}

impl Wire {
    /// The wire of this number; `None` for 0 and any other.
    #[doc(hidden)]
    pub const fn from_number(n: u8) -> Option<Self> {
        match n {
            1 => Some(Self::Bf16),
            2 => Some(Self::F16),
            3 => Some(Self::Int8Block),
            _ => None,
        }
    }

    /// Bytes that `count` elements take on a link.
    pub const fn bytes(self, count: usize) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2 * count,
            Self::Int8Block => count + SCALE * count.div_ceil(BLOCK),
        }
    }

    /// Returns true if elements of this type can be sent in another form: `f32`, `f16` and `bf16`.
    pub const fn carries(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Returns true if sums in another form are defined for this reduction: sum and average.
    pub const fn reduces(op: ReduceOp) -> bool {
        matches!(op, ReduceOp::Sum | ReduceOp::Avg)
    }
}

/// Puts elements of `dtype` on the wire: `dst` has [`Wire::bytes`] of their number.
pub fn encode(wire: Wire, dtype: DType, dst: &mut [u8], src: &[u8]) {
    Level::best().encode(wire, dtype, dst, src);
}

/// Takes elements of `dtype` from the wire.
pub fn decode(wire: Wire, dtype: DType, dst: &mut [u8], src: &[u8]) {
    Level::best().decode(wire, dtype, dst, src);
}

/// Adds elements on the wire to sums of `f32`.
pub fn add_decoded(wire: Wire, sums: &mut [u8], src: &[u8]) {
    Level::best().add_decoded(wire, sums, src);
}

/// Adds elements of `dtype` to sums of `f32`.
pub fn add_widened(dtype: DType, sums: &mut [u8], src: &[u8]) {
    Level::best().accumulate(dtype, ReduceOp::Sum, sums, src);
}

/// Makes averages of sums of `f32`.
pub fn divide_sums(sums: &mut [u8], ranks: usize) {
    Level::best().finish(DType::F32, ReduceOp::Avg, ranks, sums);
}

/// Rounds sums of `f32` to `dtype`.
pub fn narrow(dtype: DType, dst: &mut [u8], sums: &[u8]) {
    at!(Level::best(), isa => to_dtype::<f32, _>(isa, dtype, dst, sums));
}

impl Level {
    pub(super) fn encode(self, wire: Wire, dtype: DType, dst: &mut [u8], src: &[u8]) {
        debug_assert!(Wire::carries(dtype) && dst.len() == wire.bytes(src.len() / dtype.size()));
        match wire {
            Wire::Bf16 => at!(self, isa => from_dtype::<Bf16, _>(isa, dtype, dst, src)),
            Wire::F16 => at!(self, isa => from_dtype::<F16, _>(isa, dtype, dst, src)),
            Wire::Int8Block => {
                let room = &mut [0; BLOCK * 4];
                let blocks = dst.chunks_mut(SCALE + BLOCK).zip(src.chunks(BLOCK * dtype.size()));
                for (dst, src) in blocks {
                    let (scale, codes) = dst.split_at_mut(SCALE);
                    let values = if dtype == DType::F32 {
                        src
                    } else {
                        let values = &mut room[..codes.len() * 4];
                        at!(self, isa => from_dtype::<f32, _>(isa, dtype, values, src));
                        values
                    };
                    let made = at!(self, isa => isa.quantise(codes, values));
                    scale.copy_from_slice(&made.to_ne_bytes());
                }
            }
        }
    }

    pub(super) fn decode(self, wire: Wire, dtype: DType, dst: &mut [u8], src: &[u8]) {
        debug_assert!(Wire::carries(dtype) && src.len() == wire.bytes(dst.len() / dtype.size()));
        match wire {
            Wire::Bf16 => at!(self, isa => to_dtype::<Bf16, _>(isa, dtype, dst, src)),
            Wire::F16 => at!(self, isa => to_dtype::<F16, _>(isa, dtype, dst, src)),
            Wire::Int8Block => {
                let room = &mut [0; BLOCK * 4];
                for (dst, src) in dst.chunks_mut(BLOCK * dtype.size()).zip(src.chunks(SCALE + BLOCK)) {
                    if dtype == DType::F32 {
                        self.restore(dst, src);
                        continue;
                    }
                    let values = &mut room[..dst.len() / dtype.size() * 4];
                    self.restore(values, src);
                    at!(self, isa => to_dtype::<f32, _>(isa, dtype, dst, values));
                }
            }
        }
    }

    pub(super) fn add_decoded(self, wire: Wire, sums: &mut [u8], src: &[u8]) {
        match wire {
            Wire::Bf16 => self.accumulate(DType::BF16, ReduceOp::Sum, sums, src),
            Wire::F16 => self.accumulate(DType::F16, ReduceOp::Sum, sums, src),
            Wire::Int8Block => {
                let room = &mut [0; BLOCK * 4];
                for (sums, src) in sums.chunks_mut(BLOCK * 4).zip(src.chunks(SCALE + BLOCK)) {
                    let values = &mut room[..sums.len()];
                    self.restore(values, src);
                    self.combine(DType::F32, ReduceOp::Sum, sums, values);
                }
            }
        }
    }

    /// The `f32` elements of a block.
    fn restore(self, values: &mut [u8], block: &[u8]) {
        let Some((scale, codes)) = block.split_first_chunk::<SCALE>() else { return };
        at!(self, isa => isa.dequantise(values, codes, f32::from_ne_bytes(*scale)));
    }
}

#[inline(always)]
fn from_dtype<D: Lane<Value = f32>, I: Isa>(isa: I, dtype: DType, dst: &mut [u8], src: &[u8]) {
    match dtype {
        DType::BF16 => isa.convert::<D, Bf16>(dst, src),
        DType::F16 => isa.convert::<D, F16>(dst, src),
        _ => isa.convert::<D, f32>(dst, src),
    }
}

#[inline(always)]
fn to_dtype<S: Lane<Value = f32>, I: Isa>(isa: I, dtype: DType, dst: &mut [u8], src: &[u8]) {
    match dtype {
        DType::BF16 => isa.convert::<Bf16, S>(dst, src),
        DType::F16 => isa.convert::<F16, S>(dst, src),
        _ => isa.convert::<f32, S>(dst, src),
    }
}

/// The codes of `f32` values, and their scale.
#[inline(always)]
pub(super) fn quantise(codes: &mut [u8], values: &[u8]) -> f32 {
    /// The sum with it has the rounded integer in its lowest bits.
    const ROUNDER: f32 = 12_582_912.0;
    const INFINITE: u32 = f32::INFINITY.to_bits();
    const SIGN: u32 = 1 << 31;
    let values = f32::split(values);
    // In bits, where the order of magnitudes is that of integers, and step by step: the compiler makes vectors of each loop.
    let mut wide = [0u32; BLOCK];
    for (bits, v) in wide.iter_mut().zip(values) {
        *bits = u32::from_ne_bytes(*v);
    }
    let mut largest = 0;
    for bits in wide {
        let magnitude = bits & !SIGN;
        largest = largest.max(if magnitude < INFINITE { magnitude } else { 0 });
    }
    let scale = (f32::from_bits(largest) / LARGEST).max(f32::MIN_POSITIVE);
    let by = 1.0 / scale;
    for bits in &mut wide {
        let magnitude = *bits & !SIGN;
        let infinity = if *bits & SIGN == 0 { PLUS_INFINITY } else { MINUS_INFINITY };
        let special = if magnitude > INFINITE { NOT_A_NUMBER } else { infinity };
        let rounded = (f32::from_bits(*bits) * by + ROUNDER).to_bits();
        *bits = if magnitude < INFINITE { rounded } else { special.cast_unsigned() };
    }
    for (code, bits) in codes.iter_mut().zip(&wide) {
        *code = *bits as u8;
    }
    scale
}

/// The `f32` values of codes.
#[inline(always)]
pub(super) fn dequantise(values: &mut [u8], codes: &[u8], scale: f32) {
    for (v, code) in f32::split_mut(values).iter_mut().zip(codes) {
        let code = i32::from(code.cast_signed());
        // The largest `f32` may come back rounded up.
        let x = (code as f32 * scale).clamp(f32::MIN, f32::MAX);
        let x = if code == PLUS_INFINITY { f32::INFINITY } else { x };
        let x = if code == MINUS_INFINITY { f32::NEG_INFINITY } else { x };
        let x = if code == NOT_A_NUMBER { f32::NAN } else { x };
        *v = x.to_ne_bytes();
    }
}
