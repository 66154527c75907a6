//! The loops, written once; `Isa` is what they are compiled for.

use super::lane::{Divide, F16, Lane, Reduction, WIDE};
use super::wire;
use std::array::from_fn;

/// An instruction set. A value of an implementing type is the proof that the processor has it.
///
/// The loops are methods so that a set which the build target lacks can enable it around them. Shorter slices
/// end a loop; bytes after the last whole element stay as they are.
pub(super) trait Isa: Copy {
    /// True if [`widen`](Self::widen) and [`narrow`](Self::narrow) are instructions.
    const F16: bool;

    /// `f16` to `f32`.
    fn widen(self, bytes: &[[u8; 2]; WIDE]) -> [f32; WIDE];
    /// `f32` to `f16`, to nearest even.
    fn narrow(self, values: &[f32; WIDE]) -> [[u8; 2]; WIDE];

    /// `d = d ∘ s`
    fn update<D: Lane, S: Lane<Value = D::Value>, O: Reduction<D::Value>>(self, d: &mut [u8], s: &[u8]) {
        update::<Self, D, S, O>(self, d, s);
    }

    /// `d = a ∘ b`
    fn zip<D: Lane, O: Reduction<D::Value>>(self, d: &mut [u8], a: &[u8], b: &[u8]) {
        zip::<Self, D, O>(self, d, a, b);
    }

    /// `d = s`
    fn convert<D: Lane, S: Lane<Value = D::Value>>(self, d: &mut [u8], s: &[u8]) {
        convert::<Self, D, S>(self, d, s);
    }

    /// `d = d / n`
    fn divide<D: Lane<Value: Divide>>(self, d: &mut [u8], n: usize) {
        divide::<Self, D>(self, d, |x| x.divide(n));
    }

    /// `d = d / by`, of `f16`
    fn divide_halves(self, d: &mut [u8], by: f32) {
        divide::<Self, F16>(self, d, |x| x / by);
    }

    fn quantise(self, codes: &mut [u8], values: &[u8]) -> f32 {
        wire::quantise(codes, values)
    }

    fn dequantise(self, values: &mut [u8], codes: &[u8], scale: f32) {
        wire::dequantise(values, codes, scale);
    }
}

/// Whatever every processor of the build target has, without instructions for `f16`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Generic;

impl Isa for Generic {
    const F16: bool = false;

    #[inline(always)]
    fn widen(self, bytes: &[[u8; 2]; WIDE]) -> [f32; WIDE] {
        bytes.map(F16::load)
    }

    #[inline(always)]
    fn narrow(self, values: &[f32; WIDE]) -> [[u8; 2]; WIDE] {
        values.map(F16::store)
    }
}

// Each body is inlined into a function that has the instruction set enabled. The wide part is for `f16`
// only: of all other types the compiler makes vectors from the plain loop.

#[inline(always)]
pub(super) fn update<I: Isa, D: Lane, S: Lane<Value = D::Value>, O: Reduction<D::Value>>(
    isa: I,
    d: &mut [u8],
    s: &[u8],
) {
    let d = D::split_mut(d);
    let s = S::split(s);
    let n = d.len().min(s.len());
    let mut d = &mut d[..n];
    let mut s = &s[..n];
    if I::F16 && (D::F16 || S::F16) {
        let (wide_d, wide_s);
        (wide_d, d) = d.as_chunks_mut::<WIDE>();
        (wide_s, s) = s.as_chunks::<WIDE>();
        for (d, s) in wide_d.iter_mut().zip(wide_s) {
            let x = D::load_wide(isa, d);
            let y = S::load_wide(isa, s);
            *d = D::store_wide(isa, &from_fn(|i| O::apply(x[i], y[i])));
        }
    }
    for (d, s) in d.iter_mut().zip(s) {
        *d = D::store(O::apply(D::load(*d), S::load(*s)));
    }
}

#[inline(always)]
pub(super) fn zip<I: Isa, D: Lane, O: Reduction<D::Value>>(isa: I, d: &mut [u8], a: &[u8], b: &[u8]) {
    let d = D::split_mut(d);
    let a = D::split(a);
    let b = D::split(b);
    let n = d.len().min(a.len()).min(b.len());
    let mut d = &mut d[..n];
    let mut a = &a[..n];
    let mut b = &b[..n];
    if I::F16 && D::F16 {
        let (wide_d, wide_a, wide_b);
        (wide_d, d) = d.as_chunks_mut::<WIDE>();
        (wide_a, a) = a.as_chunks::<WIDE>();
        (wide_b, b) = b.as_chunks::<WIDE>();
        for ((d, a), b) in wide_d.iter_mut().zip(wide_a).zip(wide_b) {
            let x = D::load_wide(isa, a);
            let y = D::load_wide(isa, b);
            *d = D::store_wide(isa, &from_fn(|i| O::apply(x[i], y[i])));
        }
    }
    for ((d, a), b) in d.iter_mut().zip(a).zip(b) {
        *d = D::store(O::apply(D::load(*a), D::load(*b)));
    }
}

#[inline(always)]
pub(super) fn convert<I: Isa, D: Lane, S: Lane<Value = D::Value>>(isa: I, d: &mut [u8], s: &[u8]) {
    let d = D::split_mut(d);
    let s = S::split(s);
    let n = d.len().min(s.len());
    let mut d = &mut d[..n];
    let mut s = &s[..n];
    if I::F16 && (D::F16 || S::F16) {
        let (wide_d, wide_s);
        (wide_d, d) = d.as_chunks_mut::<WIDE>();
        (wide_s, s) = s.as_chunks::<WIDE>();
        for (d, s) in wide_d.iter_mut().zip(wide_s) {
            *d = D::store_wide(isa, &S::load_wide(isa, s));
        }
    }
    for (d, s) in d.iter_mut().zip(s) {
        *d = D::store(S::load(*s));
    }
}

#[inline(always)]
pub(super) fn divide<I: Isa, D: Lane>(isa: I, d: &mut [u8], quotient: impl Fn(D::Value) -> D::Value) {
    let mut d = D::split_mut(d);
    if I::F16 && D::F16 {
        let wide;
        (wide, d) = d.as_chunks_mut::<WIDE>();
        for d in wide {
            *d = D::store_wide(isa, &D::load_wide(isa, d).map(&quotient));
        }
    }
    for d in d {
        *d = D::store(quotient(D::load(*d)));
    }
}
