//! Reductions as NCCL makes them: its types, its numbers, and its ways with NaN.

use half::{bf16, f16};

/// Bytes of an element of this type.
pub(crate) fn size(dtype: i32) -> Option<usize> {
    Some(match dtype {
        0 | 1 => 1,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        6 | 9 => 2,
        _ => return None,
    })
}

const SUM: i32 = 0;
const PRODUCT: i32 = 1;
const MAX: i32 = 2;
const MIN: i32 = 3;
const AVG: i32 = 4;

/// Return whether NCCL has that reduction.
pub(crate) fn is_known(op: i32) -> bool {
    (SUM..=AVG).contains(&op)
}

macro_rules! whole {
    ($t:ty, $op:expr, $parts:expr, $out:expr) => {{
        let at = |bytes: &[u8], i: usize| <$t>::from_ne_bytes(bytes[i..][..size_of::<$t>()].try_into().unwrap_or_default());
        // An average divides each rank's part before it is added, as NCCL's multiplication does for whole numbers.
        let n = <$t>::try_from($parts.len()).unwrap_or(<$t>::MAX);
        let part = |x: $t| if $op == AVG { x / n } else { x };
        for i in (0..$out.len()).step_by(size_of::<$t>()) {
            let mut all = $parts.iter().map(|p| part(at(p, i)));
            let first = all.next().unwrap_or_default();
            let x = all.fold(first, |a, b| match $op {
                PRODUCT => a.wrapping_mul(b),
                MAX => a.max(b),
                MIN => a.min(b),
                _ => a.wrapping_add(b),
            });
            $out[i..][..size_of::<$t>()].copy_from_slice(&x.to_ne_bytes());
        }
    }};
}

macro_rules! float {
    ($t:ty, $wide:ty, $to:expr, $from:expr, $op:expr, $parts:expr, $out:expr) => {{
        let at = |bytes: &[u8], i: usize| -> $wide {
            $to(<$t>::from_ne_bytes(bytes[i..][..size_of::<$t>()].try_into().unwrap_or_default()))
        };
        let n = $parts.len() as $wide;
        for i in (0..$out.len()).step_by(size_of::<$t>()) {
            let mut all = $parts.iter().map(|p| at(p, i));
            let first = all.next().unwrap_or_default();
            // Rounded after each step, as on the device.
            let x = all.fold(first, |a, b| {
                $to($from(match $op {
                    PRODUCT => a * b,
                    // These drop a NaN.
                    MAX => a.max(b),
                    MIN => a.min(b),
                    _ => a + b,
                }))
            });
            let x = if $op == AVG { x / n } else { x };
            $out[i..][..size_of::<$t>()].copy_from_slice(&$from(x).to_ne_bytes());
        }
    }};
}

/// Reduce the contributions of all ranks, in the order of ranks.
pub(crate) fn reduce(dtype: i32, op: i32, parts: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![0; parts[0].len()];
    match dtype {
        0 => whole!(i8, op, parts, out),
        1 => whole!(u8, op, parts, out),
        2 => whole!(i32, op, parts, out),
        3 => whole!(u32, op, parts, out),
        4 => whole!(i64, op, parts, out),
        5 => whole!(u64, op, parts, out),
        6 => float!(f16, f32, f16::to_f32, f16::from_f32, op, parts, out),
        7 => float!(f32, f32, f32::from, f32::from, op, parts, out),
        8 => float!(f64, f64, f64::from, f64::from, op, parts, out),
        9 => float!(bf16, f32, bf16::to_f32, bf16::from_f32, op, parts, out),
        _ => {}
    }
    out
}
