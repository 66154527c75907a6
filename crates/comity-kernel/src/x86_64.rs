//! The loops compiled for AVX2 with F16C, and for AVX-512.
//!
//! AVX512-BF16 is left out: it flushes subnormals, so results would depend on the machine.

use super::generic::{self, Isa};
use super::lane::{Divide, F16, Lane, Reduction, WIDE};
use super::wire;
use std::arch::x86_64::{
    _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_loadu_ps, _mm256_storeu_ps,
};

macro_rules! isa {
    ($(#[$doc:meta])* $name:ident: $($feature:tt),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name(());

        impl $name {
            /// `Some` where the processor and the OS have all of it; the same for the life of the process.
            pub(super) fn detect() -> Option<Self> {
                ($(is_x86_feature_detected!($feature))&&+).then_some(Self(()))
            }
        }

        impl Isa for $name {
            const F16: bool = true;

            #[inline(always)]
            fn widen(self, bytes: &[[u8; 2]; WIDE]) -> [f32; WIDE] {
                // SAFETY: `detect`, the only maker of this type, found F16C.
                unsafe { widen(bytes) }
            }

            #[inline(always)]
            fn narrow(self, values: &[f32; WIDE]) -> [[u8; 2]; WIDE] {
                // SAFETY: `detect`, the only maker of this type, found F16C.
                unsafe { narrow(values) }
            }

            fn update<D: Lane, S: Lane<Value = D::Value>, O: Reduction<D::Value>>(self, d: &mut [u8], s: &[u8]) {
                $(#[target_feature(enable = $feature)])+
                fn body<D: Lane, S: Lane<Value = D::Value>, O: Reduction<D::Value>>(isa: $name, d: &mut [u8], s: &[u8]) {
                    generic::update::<$name, D, S, O>(isa, d, s);
                }
                // SAFETY: `detect`, the only maker of this type, found the features.
                unsafe { body::<D, S, O>(self, d, s) }
            }

            fn zip<D: Lane, O: Reduction<D::Value>>(self, d: &mut [u8], a: &[u8], b: &[u8]) {
                $(#[target_feature(enable = $feature)])+
                fn body<D: Lane, O: Reduction<D::Value>>(isa: $name, d: &mut [u8], a: &[u8], b: &[u8]) {
                    generic::zip::<$name, D, O>(isa, d, a, b);
                }
                // SAFETY: `detect`, the only maker of this type, found the features.
                unsafe { body::<D, O>(self, d, a, b) }
            }

            fn convert<D: Lane, S: Lane<Value = D::Value>>(self, d: &mut [u8], s: &[u8]) {
                $(#[target_feature(enable = $feature)])+
                fn body<D: Lane, S: Lane<Value = D::Value>>(isa: $name, d: &mut [u8], s: &[u8]) {
                    generic::convert::<$name, D, S>(isa, d, s);
                }
                // SAFETY: `detect`, the only maker of this type, found the features.
                unsafe { body::<D, S>(self, d, s) }
            }

            fn divide<D: Lane<Value: Divide>>(self, d: &mut [u8], n: usize) {
                $(#[target_feature(enable = $feature)])+
                fn body<D: Lane<Value: Divide>>(isa: $name, d: &mut [u8], n: usize) {
                    generic::divide::<$name, D>(isa, d, |x| x.divide(n));
                }
                // SAFETY: `detect`, the only maker of this type, found the features.
                unsafe { body::<D>(self, d, n) }
            }

            fn divide_halves(self, d: &mut [u8], by: f32) {
                $(#[target_feature(enable = $feature)])+
                fn body(isa: $name, d: &mut [u8], by: f32) {
                    generic::divide::<$name, F16>(isa, d, |x| x / by);
                }
                // SAFETY: `detect`, the only maker of this type, found the features.
                unsafe { body(self, d, by) }
            }

            fn quantise(self, codes: &mut [u8], values: &[u8]) -> f32 {
                $(#[target_feature(enable = $feature)])+
                fn body(codes: &mut [u8], values: &[u8]) -> f32 {
                    wire::quantise(codes, values)
                }
                // SAFETY: `detect`, the only maker of this type, found the features.
                unsafe { body(codes, values) }
            }

            fn dequantise(self, values: &mut [u8], codes: &[u8], scale: f32) {
                $(#[target_feature(enable = $feature)])+
                fn body(values: &mut [u8], codes: &[u8], scale: f32) {
                    wire::dequantise(values, codes, scale);
                }
                // SAFETY: `detect`, the only maker of this type, found the features.
                unsafe { body(values, codes, scale) }
            }
        }
    };
}

isa! {
    /// Every x86-64 server and desktop since about 2015.
    Avx2: "avx2", "f16c"
}
isa! {
    /// 64-byte vectors.
    Avx512: "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "f16c"
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn widen(bytes: &[[u8; 2]; WIDE]) -> [f32; WIDE] {
    let mut values = [0.0; WIDE];
    for i in [0, 8] {
        // SAFETY: 8 of the 16 elements start at 0 and at 8; no alignment is needed.
        unsafe {
            let half = _mm_loadu_si128(bytes.as_ptr().add(i).cast());
            _mm256_storeu_ps(values.as_mut_ptr().add(i), _mm256_cvtph_ps(half));
        }
    }
    values
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn narrow(values: &[f32; WIDE]) -> [[u8; 2]; WIDE] {
    let mut bytes = [[0; 2]; WIDE];
    for i in [0, 8] {
        // SAFETY: as in `widen`.
        unsafe {
            let single = _mm256_loadu_ps(values.as_ptr().add(i));
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(single);
            _mm_storeu_si128(bytes.as_mut_ptr().add(i).cast(), half);
        }
    }
    bytes
}
