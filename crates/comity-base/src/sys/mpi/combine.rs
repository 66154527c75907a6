//! Comity's reductions as operations of MPI.

use super::{Combine, DataMut};
use crate::{DType, ReduceOp};
use comity_kernel as kernel;
use std::ffi::c_int;

/// The reduction as MPI calls it: Comity's own kernels, so that every type and every rule of [`ReduceOp`] holds.
pub(super) fn combine(dtype: DType, op: ReduceOp) -> Combine {
    /// Combine the elements of `src` into those of `dst`.
    ///
    /// # Safety
    /// MPI calls it with two buffers of `*count` elements of the type it was made for.
    unsafe extern "C" fn run<const D: usize, const R: usize>(
        src: DataMut,
        dst: DataMut,
        count: *mut c_int,
        _: DataMut,
    ) {
        let dtype = DType::ALL[D];
        let op = ReduceOp::ALL[R];
        // SAFETY: MPI gives two buffers of `*count` elements of the type that goes with this function, which do not overlap.
        let (src, dst) = unsafe {
            let bytes = (*count).max(0) as usize * dtype.size();
            (
                std::slice::from_raw_parts(src.cast::<u8>(), bytes),
                std::slice::from_raw_parts_mut(dst.cast::<u8>(), bytes),
            )
        };
        kernel::combine(dtype, op, dst, src);
    }
    /// A row for each type, with a column for each reduction.
    macro_rules! table {
        ($($d:literal)*) => { [$(table!(row $d: 0 1 2 3 4 5 6 7)),*] };
        (row $d:literal: $($r:literal)*) => { [$(run::<$d, $r>),*] };
    }
    const TABLE: [[Combine; ReduceOp::ALL.len()]; DType::ALL.len()] = table!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);
    TABLE[dtype as usize][op as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_is_the_kernel_of_its_type() {
        let f = combine(DType::BF16, ReduceOp::Sum);
        let bits = |x: f32| half::bf16::from_f32(x).to_bits().to_ne_bytes();
        let mut src: Vec<u8> = [1.0, 2.0, -8.0].into_iter().flat_map(bits).collect();
        let mut dst: Vec<u8> = [10.0, 20.0, 30.0].into_iter().flat_map(bits).collect();
        let mut count = 3;
        // SAFETY: three elements each.
        unsafe { f(src.as_mut_ptr().cast(), dst.as_mut_ptr().cast(), &mut count, std::ptr::null_mut()) };
        assert_eq!(dst, [11.0, 22.0, 22.0].into_iter().flat_map(bits).collect::<Vec<u8>>());
        let f = combine(DType::F32, ReduceOp::Max);
        let mut a = f32::NAN;
        let mut b = 1f32;
        let mut one = 1;
        // SAFETY: one element each.
        unsafe { f((&raw mut a).cast(), (&raw mut b).cast(), &mut one, std::ptr::null_mut()) };
        assert!(b.is_nan());
    }
}
