//! The steps that NCCL carries out, and its numbers for types and reductions.

use crate::{DType, ErrorKind, ReduceOp, Result};
use std::ffi::c_int;

/// A step of a call, on device memory. Counts are in elements.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    AllReduce { src: usize, dst: usize, count: usize, dtype: DType, op: ReduceOp },
    Reduce { src: usize, dst: usize, count: usize, dtype: DType, op: ReduceOp, root: usize },
    Broadcast { src: usize, dst: usize, bytes: usize, root: usize },
    AllGather { src: usize, dst: usize, bytes: usize },
    ReduceScatter { src: usize, dst: usize, count: usize, dtype: DType, op: ReduceOp },
    Send { src: usize, bytes: usize, to: usize },
    Recv { dst: usize, bytes: usize, from: usize },
}

/// The number of `dtype` for NCCL with `op`, if NCCL has the pair and means by it what [`ReduceOp`] says.
pub fn native(dtype: DType, op: ReduceOp) -> Option<(DType, c_int, c_int, usize)> {
    use DType as D;
    use ReduceOp as R;
    let number = match dtype {
        D::I8 => 0,
        D::U8 => 1,
        D::I32 => 2,
        D::U32 => 3,
        D::I64 => 4,
        D::U64 => 5,
        D::F16 => 6,
        D::F32 => 7,
        D::F64 => 8,
        D::BF16 => 9,
        // A complex sum is twice as many sums; of 0 and 1 the largest is "or", the least "and".
        D::C64 if matches!(op, R::Sum | R::Avg) => {
            return Some((dtype, 7, if op == R::Avg { 4 } else { 0 }, 2));
        }
        D::Bool if matches!(op, R::Sum | R::Max | R::Or) => return Some((dtype, 1, 2, 1)),
        D::Bool if matches!(op, R::Product | R::Min | R::And) => return Some((dtype, 1, 3, 1)),
        _ => return None,
    };
    let float = matches!(dtype, D::F16 | D::BF16 | D::F32 | D::F64);
    let op = match op {
        R::Sum => 0,
        R::Product => 1,
        // NCCL drops a NaN here, and Comity's rule is that it wins.
        R::Max if !float => 2,
        R::Min if !float => 3,
        // NCCL multiplies integers before it adds them up.
        R::Avg if float => 4,
        _ => return None,
    };
    Some((dtype, number, op, 1))
}

/// Returns [`native`]'s answer for a pair that NCCL supports, else an error.
pub(super) fn known(dtype: DType, op: ReduceOp) -> Result<(DType, c_int, c_int, usize)> {
    let unknown = || ErrorKind::Library { library: "NCCL", code: 4, message: format!("no {op} on {dtype}") };
    Ok(native(dtype, op).ok_or_else(unknown)?)
}
