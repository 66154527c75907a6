//! The loops with the `f16` conversions of NEON, which every aarch64 processor has.
//!
//! In assembly, because the intrinsics for them are younger than the oldest Rust we build with.

use super::generic::Isa;
use super::lane::WIDE;
use std::arch::aarch64::{float32x4_t, uint16x4_t, vld1_u16, vld1q_f32, vst1_u16, vst1q_f32};
use std::arch::asm;

#[derive(Clone, Copy, Debug)]
pub(super) struct Neon;

impl Isa for Neon {
    const F16: bool = true;

    #[inline(always)]
    fn widen(self, bytes: &[[u8; 2]; WIDE]) -> [f32; WIDE] {
        let mut values = [0.0; WIDE];
        for i in [0, 4, 8, 12] {
            // SAFETY: 4 of the 16 elements start at each `i`; the loads and stores need the alignment of a byte only;
            // the instruction is part of every aarch64 and touches its operands only.
            unsafe {
                let half = vld1_u16(bytes.as_ptr().add(i).cast());
                let single: float32x4_t;
                asm!("fcvtl {o:v}.4s, {i:v}.4h", o = lateout(vreg) single, i = in(vreg) half, options(pure, nomem, nostack, preserves_flags));
                vst1q_f32(values.as_mut_ptr().add(i), single);
            }
        }
        values
    }

    #[inline(always)]
    fn narrow(self, values: &[f32; WIDE]) -> [[u8; 2]; WIDE] {
        let mut bytes = [[0; 2]; WIDE];
        for i in [0, 4, 8, 12] {
            // SAFETY: as in `widen`.
            unsafe {
                let single = vld1q_f32(values.as_ptr().add(i));
                let half: uint16x4_t;
                asm!("fcvtn {o:v}.4h, {i:v}.4s", o = lateout(vreg) half, i = in(vreg) single, options(pure, nomem, nostack, preserves_flags));
                vst1_u16(bytes.as_mut_ptr().add(i).cast(), half);
            }
        }
        bytes
    }
}
