//! Reference for tests: element by element, written from the table of `ReduceOp` and sharing nothing with
//! the loops.

use crate::{C64, DType, ReduceOp};
use half::{bf16, f16};
use std::cmp::Ordering;

/// Combines two elements of an integer type.
macro_rules! int {
    ($t:ty, $op:expr, $a:expr, $b:expr) => {{
        let a = <$t>::from_ne_bytes(first($a));
        let b = <$t>::from_ne_bytes(first($b));
        // 128 bits hold every result; the cast wraps.
        let wide_a = a as i128;
        let wide_b = b as i128;
        let r = match $op {
            ReduceOp::Sum | ReduceOp::Avg => (wide_a + wide_b) as $t,
            ReduceOp::Product => wide_a.wrapping_mul(wide_b) as $t,
            ReduceOp::Min => {
                if b < a {
                    b
                } else {
                    a
                }
            }
            ReduceOp::Max => {
                if b > a {
                    b
                } else {
                    a
                }
            }
            ReduceOp::And => a & b,
            ReduceOp::Or => a | b,
            ReduceOp::Xor => a ^ b,
        };
        padded(&r.to_ne_bytes())
    }};
}

/// `a ∘ b` in the first [`DType::size`] bytes, the rest 0. An average is added up only.
pub(super) fn scalar(dtype: DType, op: ReduceOp, a: &[u8], b: &[u8]) -> [u8; 8] {
    match dtype {
        DType::Bool => {
            let a = a[0] != 0;
            let b = b[0] != 0;
            let r = match op {
                ReduceOp::Sum | ReduceOp::Max | ReduceOp::Or | ReduceOp::Avg => a || b,
                ReduceOp::Product | ReduceOp::Min | ReduceOp::And => a && b,
                ReduceOp::Xor => a != b,
            };
            padded(&[u8::from(r)])
        }
        DType::U8 => int!(u8, op, a, b),
        DType::U16 => int!(u16, op, a, b),
        DType::U32 => int!(u32, op, a, b),
        DType::U64 => int!(u64, op, a, b),
        DType::I8 => int!(i8, op, a, b),
        DType::I16 => int!(i16, op, a, b),
        DType::I32 => int!(i32, op, a, b),
        DType::I64 => int!(i64, op, a, b),
        DType::F16 => {
            let r = single(op, f16::from_ne_bytes(first(a)).to_f32(), f16::from_ne_bytes(first(b)).to_f32());
            padded(&f16::from_f32(r).to_ne_bytes())
        }
        DType::BF16 => {
            let r =
                single(op, bf16::from_ne_bytes(first(a)).to_f32(), bf16::from_ne_bytes(first(b)).to_f32());
            padded(&bf16::from_f32(r).to_ne_bytes())
        }
        DType::F32 => {
            padded(&single(op, f32::from_ne_bytes(first(a)), f32::from_ne_bytes(first(b))).to_ne_bytes())
        }
        DType::F64 => {
            padded(&double(op, f64::from_ne_bytes(first(a)), f64::from_ne_bytes(first(b))).to_ne_bytes())
        }
        DType::C64 => {
            let r = complex(op, complex_from(a), complex_from(b));
            let mut bytes = padded(&r.re.to_ne_bytes());
            bytes[4..].copy_from_slice(&r.im.to_ne_bytes());
            bytes
        }
    }
}

/// The sum of an average by `ranks`.
pub(super) fn scalar_divide(dtype: DType, ranks: usize, a: &[u8]) -> [u8; 8] {
    macro_rules! mean {
        ($t:ty) => {
            padded(&((<$t>::from_ne_bytes(first(a)) as i128 / ranks as i128) as $t).to_ne_bytes())
        };
    }
    match dtype {
        DType::Bool => padded(&a[..1]),
        DType::U8 => mean!(u8),
        DType::U16 => mean!(u16),
        DType::U32 => mean!(u32),
        DType::U64 => mean!(u64),
        DType::I8 => mean!(i8),
        DType::I16 => mean!(i16),
        DType::I32 => mean!(i32),
        DType::I64 => mean!(i64),
        DType::F16 => {
            padded(&f16::from_f32(f16::from_ne_bytes(first(a)).to_f32() / ranks as f32).to_ne_bytes())
        }
        DType::BF16 => {
            padded(&bf16::from_f32(bf16::from_ne_bytes(first(a)).to_f32() / ranks as f32).to_ne_bytes())
        }
        DType::F32 => padded(&(f32::from_ne_bytes(first(a)) / ranks as f32).to_ne_bytes()),
        DType::F64 => padded(&(f64::from_ne_bytes(first(a)) / ranks as f64).to_ne_bytes()),
        DType::C64 => {
            let z = complex_from(a);
            let mut bytes = padded(&(z.re / ranks as f32).to_ne_bytes());
            bytes[4..].copy_from_slice(&(z.im / ranks as f32).to_ne_bytes());
            bytes
        }
    }
}

pub(super) fn single(op: ReduceOp, a: f32, b: f32) -> f32 {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => a + b,
        ReduceOp::Product => a * b,
        _ if a.is_nan() || b.is_nan() => f32::NAN,
        ReduceOp::Min if a.total_cmp(&b).is_le() => a,
        ReduceOp::Max if a.total_cmp(&b).is_ge() => a,
        _ => b,
    }
}

fn double(op: ReduceOp, a: f64, b: f64) -> f64 {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => a + b,
        ReduceOp::Product => a * b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        ReduceOp::Min if a.total_cmp(&b).is_le() => a,
        ReduceOp::Max if a.total_cmp(&b).is_ge() => a,
        _ => b,
    }
}

fn complex(op: ReduceOp, a: C64, b: C64) -> C64 {
    // A NaN wins: it is the least for min and the greatest for max, as a whole and part by part.
    let nan_wins = if op == ReduceOp::Min { Ordering::Less } else { Ordering::Greater };
    let part = |x: f32, y: f32| match (x.is_nan(), y.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => nan_wins,
        (false, true) => nan_wins.reverse(),
        (false, false) => x.total_cmp(&y),
    };
    let whole = |z: C64| if z.re.is_nan() || z.im.is_nan() { f32::NAN } else { 0.0 };
    let order = part(whole(a), whole(b)).then(part(a.re, b.re)).then(part(a.im, b.im));
    match op {
        ReduceOp::Sum | ReduceOp::Avg => C64 { re: a.re + b.re, im: a.im + b.im },
        ReduceOp::Product => C64 { re: a.re * b.re - a.im * b.im, im: a.re * b.im + a.im * b.re },
        ReduceOp::Min if order.is_le() => a,
        ReduceOp::Max if order.is_ge() => a,
        _ => b,
    }
}

fn complex_from(b: &[u8]) -> C64 {
    C64 { re: f32::from_ne_bytes(first(b)), im: f32::from_ne_bytes(first(&b[4..])) }
}

fn first<const N: usize>(b: &[u8]) -> [u8; N] {
    *b.first_chunk().expect("a whole element")
}

fn padded(b: &[u8]) -> [u8; 8] {
    let mut r = [0; 8];
    r[..b.len()].copy_from_slice(b);
    r
}
