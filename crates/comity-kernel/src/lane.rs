//! An element in the loops: how its bytes become a value, and what can be done with two values.
//!
//! Everything here is free of branches where it can be, so that the compiler turns the loops of
//! `generic` into vector code at every instruction set they are compiled for.

use super::generic::Isa;
use crate::C64;

/// Elements that [`Isa::widen`] and [`Isa::narrow`] take at once.
pub(super) const WIDE: usize = 16;

/// An element as it lies in memory, at any alignment.
pub(super) trait Lane {
    /// `[u8; size]`.
    type Bytes: Copy;
    /// Type in which the loops compute: `f32` for the half types, else the element itself.
    type Value: Copy;
    /// Memory for partial results that are not rounded.
    type Acc: Lane<Value = Self::Value>;
    /// True if [`Isa`] may have instructions to load and store it.
    const F16: bool = false;

    fn split(bytes: &[u8]) -> &[Self::Bytes];
    fn split_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
    fn load(bytes: Self::Bytes) -> Self::Value;
    fn store(value: Self::Value) -> Self::Bytes;

    #[inline(always)]
    fn load_wide<I: Isa>(_: I, bytes: &[Self::Bytes; WIDE]) -> [Self::Value; WIDE] {
        bytes.map(Self::load)
    }

    #[inline(always)]
    fn store_wide<I: Isa>(_: I, values: &[Self::Value; WIDE]) -> [Self::Bytes; WIDE] {
        values.map(Self::store)
    }
}

/// A reduction of two values. All of them commute, bit for bit but for the payload of a NaN.
pub(super) trait Reduction<T> {
    fn apply(a: T, b: T) -> T;
}

/// The arithmetic of one value type; the table is in the doc of `ReduceOp`.
pub(super) trait Number: Copy {
    fn sum(self, o: Self) -> Self;
    fn product(self, o: Self) -> Self;
    fn min(self, o: Self) -> Self;
    fn max(self, o: Self) -> Self;
}

/// The division of an average, by `n >= 1`; toward zero for integers.
pub(super) trait Divide {
    fn divide(self, n: usize) -> Self;
}

/// An operation on every type that is not a bool.
pub(super) trait Numeric:
    Reduction<u8>
    + Reduction<u16>
    + Reduction<u32>
    + Reduction<u64>
    + Reduction<i8>
    + Reduction<i16>
    + Reduction<i32>
    + Reduction<i64>
    + Reduction<f32>
    + Reduction<f64>
    + Reduction<C64>
{
}

macro_rules! ops {
    ($($op:ident: $bound:path, $f:expr;)*) => {$(
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $op;
        impl<T: $bound> Reduction<T> for $op {
            #[inline(always)]
            fn apply(a: T, b: T) -> T {
                $f(a, b)
            }
        }
        impl Numeric for $op {}
    )*};
}
ops! {
    Sum: Number, Number::sum;
    Product: Number, Number::product;
    Min: Number, Number::min;
    Max: Number, Number::max;
}

macro_rules! bit_ops {
    ($($op:ident $f:tt),*) => {$(
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $op;
        impl Reduction<u8> for $op {
            #[inline(always)]
            fn apply(a: u8, b: u8) -> u8 {
                a $f b
            }
        }
    )*};
}
bit_ops! { And &, Or |, Xor ^ }

macro_rules! lane {
    ($lane:ty, $value:ty, $size:literal, $acc:ty, |$b:pat_param| $load:expr, |$v:pat_param| $store:expr $(, $wide:item)*) => {
        impl Lane for $lane {
            type Bytes = [u8; $size];
            type Value = $value;
            type Acc = $acc;
            $($wide)*
            #[inline(always)]
            fn split(bytes: &[u8]) -> &[[u8; $size]] {
                bytes.as_chunks().0
            }
            #[inline(always)]
            fn split_mut(bytes: &mut [u8]) -> &mut [[u8; $size]] {
                bytes.as_chunks_mut().0
            }
            #[inline(always)]
            fn load($b: [u8; $size]) -> $value {
                $load
            }
            #[inline(always)]
            fn store($v: $value) -> [u8; $size] {
                $store
            }
        }
    };
}
macro_rules! plain_lane {
    ($($t:ty: $size:literal),*) => {$( lane!($t, $t, $size, $t, |b| <$t>::from_ne_bytes(b), |v| v.to_ne_bytes()); )*};
}
plain_lane! { u8: 1, u16: 2, u32: 4, u64: 8, i8: 1, i16: 2, i32: 4, i64: 8, f32: 4, f64: 8 }

/// A bool: any byte but 0 is read as true, only 0 and 1 are written.
#[derive(Debug)]
pub(super) struct Truth;
lane!(Truth, u8, 1, Self, |[b]| u8::from(b != 0), |b| [b]);

#[derive(Debug)]
pub(super) struct Bf16;
lane!(Bf16, f32, 2, f32, |b| bf16_widen(u16::from_ne_bytes(b)), |v| bf16_narrow(v).to_ne_bytes());

#[derive(Debug)]
pub(super) struct F16;
lane!(
    F16,
    f32,
    2,
    f32,
    |b| f16_widen(u16::from_ne_bytes(b)),
    |v| f16_narrow(v).to_ne_bytes(),
    const F16: bool = true;,
    #[inline(always)]
    fn load_wide<I: Isa>(isa: I, bytes: &[[u8; 2]; WIDE]) -> [f32; WIDE] {
        isa.widen(bytes)
    },
    #[inline(always)]
    fn store_wide<I: Isa>(isa: I, values: &[f32; WIDE]) -> [[u8; 2]; WIDE] {
        isa.narrow(values)
    }
);

lane!(
    C64,
    Self,
    8,
    Self,
    |[a, b, c, d, e, f, g, h]| Self {
        re: f32::from_ne_bytes([a, b, c, d]),
        im: f32::from_ne_bytes([e, f, g, h]),
    },
    |z| {
        let [a, b, c, d] = z.re.to_ne_bytes();
        let [e, f, g, h] = z.im.to_ne_bytes();
        [a, b, c, d, e, f, g, h]
    }
);

macro_rules! integer {
    ($($t:ty: |$a:ident, $n:ident| $divide:expr),* $(,)?) => {$(
        impl Number for $t {
            #[inline(always)]
            fn sum(self, o: Self) -> Self {
                self.wrapping_add(o)
            }
            #[inline(always)]
            fn product(self, o: Self) -> Self {
                self.wrapping_mul(o)
            }
            #[inline(always)]
            fn min(self, o: Self) -> Self {
                Ord::min(self, o)
            }
            #[inline(always)]
            fn max(self, o: Self) -> Self {
                Ord::max(self, o)
            }
        }
        impl Divide for $t {
            #[inline(always)]
            fn divide(self, $n: usize) -> Self {
                let $a = self;
                $divide
            }
        }
    )*};
}
// Division of integers is not vector code, that of floats is. It is exact enough where the float holds every
// integer: a quotient below an integer k is below by more than half a unit in the last place of k.
integer! {
    u8: |a, n| (f32::from(a) / n as f32) as u8,
    u16: |a, n| (f32::from(a) / n as f32) as u16,
    u32: |a, n| (f64::from(a) / n as f64) as u32,
    u64: |a, n| a.checked_div(n as u64).unwrap_or(a),
    i8: |a, n| (f32::from(a) / n as f32) as i8,
    i16: |a, n| (f32::from(a) / n as f32) as i16,
    i32: |a, n| (f64::from(a) / n as f64) as i32,
    i64: |a, n| i64::try_from(n).ok().and_then(|n| a.checked_div(n)).unwrap_or(0),
}

macro_rules! float {
    ($($t:ty),*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn sum(self, o: Self) -> Self {
                self + o
            }
            #[inline(always)]
            fn product(self, o: Self) -> Self {
                self * o
            }
            // The comparison is false when either is NaN, which leaves `o`: right unless only `self` is NaN.
            // Equal numbers differ at most in the sign of zero: `|` keeps a minus, `&` drops it.
            #[inline(always)]
            fn min(self, o: Self) -> Self {
                let r = if self < o { self } else { o };
                let r = if self == o { Self::from_bits(self.to_bits() | o.to_bits()) } else { r };
                if self.is_nan() { self } else { r }
            }
            #[inline(always)]
            fn max(self, o: Self) -> Self {
                let r = if self > o { self } else { o };
                let r = if self == o { Self::from_bits(self.to_bits() & o.to_bits()) } else { r };
                if self.is_nan() { self } else { r }
            }
        }
        impl Divide for $t {
            #[inline(always)]
            fn divide(self, n: usize) -> Self {
                self / n as Self
            }
        }
    )*};
}
float! { f32, f64 }

impl Number for C64 {
    #[inline(always)]
    fn sum(self, o: Self) -> Self {
        Self { re: self.re + o.re, im: self.im + o.im }
    }
    #[inline(always)]
    fn product(self, o: Self) -> Self {
        Self { re: self.re * o.re - self.im * o.im, im: self.re * o.im + self.im * o.re }
    }
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        if rank(self, i32::MIN) <= rank(o, i32::MIN) { self } else { o }
    }
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        if rank(self, i32::MAX) >= rank(o, i32::MAX) { self } else { o }
    }
}

/// Orders complex numbers; `nan` is the extreme that a NaN takes, so that two numbers with NaN parts
/// have an order too and every rank chooses the same.
#[inline(always)]
fn rank(z: C64, nan: i32) -> (i32, i32, i32) {
    let part = |x: f32| {
        let b = x.to_bits().cast_signed();
        // Of negative numbers all bits but the sign count backwards.
        if x.is_nan() { nan } else { b ^ ((b >> 31) & i32::MAX) }
    };
    (if z.re.is_nan() || z.im.is_nan() { nan } else { 0 }, part(z.re), part(z.im))
}

#[inline(always)]
fn bf16_widen(h: u16) -> f32 {
    f32::from_bits(u32::from(h) << 16)
}

/// To nearest even: half of the last place is added, less one bit when the result is even.
#[inline(always)]
fn bf16_narrow(x: f32) -> u16 {
    let b = x.to_bits();
    let rounded = b.wrapping_add(0x7fff + ((b >> 16) & 1)) >> 16;
    let quiet = (b >> 16) | 0x40;
    (if x.is_nan() { quiet } else { rounded }) as u16
}

/// `half` asks the processor at every element; these few selects become vector code instead.
#[inline(always)]
fn f16_widen(h: u16) -> f32 {
    const REBIAS: u32 = (127 - 15) << 23;
    let sign = (u32::from(h) & 0x8000) << 16;
    let magnitude = u32::from(h) & 0x7fff;
    let normal = (magnitude << 13) + REBIAS;
    let special = normal + REBIAS;
    // A subnormal is its mantissa times 2^-24: exact, and never subnormal as `f32`.
    let small = (magnitude.cast_signed() as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    let r = if magnitude >= 0x7c00 { special } else { normal };
    f32::from_bits(sign | if magnitude < 0x400 { small } else { r })
}

#[inline(always)]
fn f16_narrow(x: f32) -> u16 {
    const REBIAS: u32 = (127 - 15) << 23;
    const FIRST_NORMAL: u32 = (127 - 14) << 23;
    const TOO_LARGE: u32 = (127 + 16) << 23;
    let sign = (x.to_bits() >> 16) & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let rounded = (magnitude + 0xfff + ((magnitude >> 13) & 1)).wrapping_sub(REBIAS);
    // The last place of 0.5 is 2^-24, that of a subnormal `f16`: the addition rounds.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let r = if magnitude < FIRST_NORMAL { small } else { rounded >> 13 };
    let r = if magnitude >= TOO_LARGE { 0x7c00 } else { r };
    let quiet = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    (sign | if x.is_nan() { quiet } else { r }) as u16
}
