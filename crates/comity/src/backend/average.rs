//! Averages of `f16` where partial sums are stored: two contributions of 60,000 already exceed the type.
//!
//! ```text
//!   before:  each contribution / P, the number of ranks or the next power of two above    exact, unless it is tiny
//!   the plan adds: no partial sum exceeds the largest contribution
//!   after:   the sum / (ranks / P)                                                         rounds once
//! ```
//! Where nothing overflows and nothing is tiny, the bits are those of the sum, divided.

use crate::{CallInfo, DType, Op, ReduceOp, view::Memory};
use comity_kernel as kernel;

/// Returns true if a call is an average of `f16`.
pub(super) fn is_of_halves(info: &CallInfo) -> bool {
    let adds = matches!(info.op, Op::AllReduce | Op::Reduce | Op::ReduceScatter);
    adds && info.reduce == Some(ReduceOp::Avg) && info.dtype == Some(DType::F16)
}

pub(super) fn divide_before(contribution: &mut [u8], size: usize) {
    kernel::divide_halves(contribution, power(size));
}

pub(super) fn divide_after(sum: &mut [u8], size: usize) {
    if !size.is_power_of_two() {
        kernel::divide_halves(sum, size as f32 / power(size));
    }
}

/// Has a plan read the divided contribution, which is kept in `divided`.
pub(super) fn divide_input<'a>(memory: &mut Memory<'a>, divided: &'a mut Vec<u8>, size: usize) {
    divided.extend_from_slice(memory.input());
    divide_before(divided, size);
    memory.replace_input(divided);
}

fn power(size: usize) -> f32 {
    size.next_power_of_two() as f32
}
