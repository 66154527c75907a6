//! Element types a collective can move and reduce, and the reductions.

use crate::named;
use half::{bf16, f16};

named! {
    /// The type of one element of a buffer: the 14 types of MLX.
    ///
    /// ```
    /// # extern crate comity_kernel as comity;
    /// use comity::{DType, ReduceOp};
    ///
    /// assert_eq!((DType::BF16.name(), DType::BF16.size()), ("bf16", 2));
    /// assert_eq!(DType::from_name("f32"), Some(DType::F32));
    /// assert!(DType::I32.supports(ReduceOp::Xor) && !DType::F32.supports(ReduceOp::Xor));
    /// assert_eq!(DType::ALL.len(), 14);
    /// ```
    #[non_exhaustive]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum DType: "type" {
        /// A byte, 0 or 1.
        Bool = 0 => "bool",
        /// Unsigned 8 bits.
        U8 = 1 => "u8",
        /// Unsigned 16 bits.
        U16 = 2 => "u16",
        /// Unsigned 32 bits.
        U32 = 3 => "u32",
        /// Unsigned 64 bits.
        U64 = 4 => "u64",
        /// Signed 8 bits.
        I8 = 5 => "i8",
        /// Signed 16 bits.
        I16 = 6 => "i16",
        /// Signed 32 bits.
        I32 = 7 => "i32",
        /// Signed 64 bits.
        I64 = 8 => "i64",
        /// IEEE 754 half precision.
        F16 = 9 => "f16",
        /// The upper half of an `f32`.
        BF16 = 10 => "bf16",
        /// IEEE 754 single precision.
        F32 = 11 => "f32",
        /// IEEE 754 double precision.
        F64 = 12 => "f64",
        /// Two `f32`: real, then imaginary part.
        C64 = 13 => "c64",
    }
}

impl DType {
    /// The size of one element, in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::C64 => 8,
        }
    }

    /// Returns whether `op` is defined on this type; see [`ReduceOp`].
    pub const fn supports(self, op: ReduceOp) -> bool {
        let float = matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64 | Self::C64);
        match op {
            ReduceOp::Sum | ReduceOp::Product | ReduceOp::Min | ReduceOp::Max => true,
            ReduceOp::Avg => !matches!(self, Self::Bool),
            ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => !float,
        }
    }
}

named! {
    /// Reduction: the way in which elements of different ranks are combined.
    ///
    /// | op | `bool` | integers | floats | `c64` |
    /// |---|---|---|---|---|
    /// | `Sum` | or | wraps | IEEE | per part |
    /// | `Product` | and | wraps | IEEE | complex product |
    /// | `Min`, `Max` | and, or | | NaN wins; -0 < +0 | lexicographic: real part, then imaginary; a NaN part wins |
    /// | `Avg` | refused | wrapping sum, then division toward zero | sum, then division | sum, then division |
    /// | `And`, `Or`, `Xor` | logical | bitwise | refused | refused |
    ///
    /// `f16` and `bf16` are combined in `f32` and rounded to nearest even. Where a plan brings all
    /// contributions to an element together, they are added in `f32` and rounded once; elsewhere
    /// each partial result is rounded. Every rank gets the same bits (the payload of a NaN excepted).
    ///
    /// An average is right where the sum fits the type, and for `f16` where the average does, over every link and by every algorithm. A
    /// partial sum of `f16` would soon be too large. So a plan that rounds partial results divides each contribution by a power of two
    /// first, the number of ranks or the next one above, and the sum by the rest. That changes no other bit, but contributions below 6e-5
    /// times that power lose precision.
    ///
    /// ```
    /// # extern crate comity_kernel as comity;
    /// use comity::ReduceOp;
    ///
    /// assert_eq!(ReduceOp::Avg.name(), "avg");
    /// assert_eq!(ReduceOp::from_name("max"), Some(ReduceOp::Max));
    /// assert_eq!(ReduceOp::ALL.len(), 8);
    /// ```
    #[non_exhaustive]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum ReduceOp: "reduction" {
        /// Addition.
        Sum = 0 => "sum",
        /// Multiplication.
        Product = 1 => "product",
        /// The least element.
        Min = 2 => "min",
        /// The greatest element.
        Max = 3 => "max",
        /// Addition, then division by the number of ranks.
        Avg = 4 => "avg",
        /// Bitwise and; logical on `bool`.
        And = 5 => "and",
        /// Bitwise or; logical on `bool`.
        Or = 6 => "or",
        /// Bitwise exclusive or; logical on `bool`.
        Xor = 7 => "xor",
    }
}

/// A complex number of two `f32`, laid out as C, NumPy and MLX lay out `complex64`.
///
/// ```
/// # extern crate comity_kernel as comity;
/// use comity::{C64, DType, Element};
///
/// // Two `f32` each: a buffer of four takes 32 bytes.
/// let x = [C64 { re: 1.0, im: -2.0 }; 4];
/// assert_eq!((C64::DTYPE, size_of_val(&x)), (DType::C64, 32));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct C64 {
    /// Real part.
    pub re: f32,
    /// Imaginary part.
    pub im: f32,
}

/// A Rust type with a [`DType`]. Slices, vectors and arrays of it are buffers of calls.
///
/// You cannot implement it; use it as a bound:
///
/// ```
/// # extern crate comity_kernel as comity;
/// use comity::Element;
///
/// fn bytes<T: Element>(x: &[T]) -> usize {
///     x.len() * T::DTYPE.size()
/// }
/// assert_eq!(bytes(&[1f64; 8]), 64);
/// ```
///
/// # Safety
/// `Self` is plain data of `Self::DTYPE.size()` bytes without padding, and every value that the
/// reductions of its `DType` can write is a valid `Self`.
pub unsafe trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The matching dynamic type.
    const DTYPE: DType;
}

mod sealed {
    #[allow(unnameable_types, reason = "what nobody can name, nobody else can implement")]
    pub trait Sealed {}
}

macro_rules! element {
    ($($t:ty => $d:ident),* $(,)?) => {$(
        impl sealed::Sealed for $t {}
        // SAFETY: plain data of the stated size; bool buffers are normalised to 0 and 1 on receipt.
        unsafe impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
        const _: () = assert!(size_of::<$t>() == DType::$d.size());
    )*};
}
element! {
    bool => Bool, u8 => U8, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, C64 => C64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_round_trip() {
        for (i, d) in DType::ALL.into_iter().enumerate() {
            assert_eq!(d as usize, i);
            assert_eq!(DType::from_name(d.name()), Some(d));
        }
        for (i, o) in ReduceOp::ALL.into_iter().enumerate() {
            assert_eq!(o as usize, i);
            assert_eq!(ReduceOp::from_name(o.name()), Some(o));
        }
        assert_eq!(DType::from_name("f128"), None);
    }
}
