//! Sharded operations and layers on ranks that are threads, against the whole on one rank: forward and backward.

mod attention;
mod data_parallel;
mod embedding;
mod errors;
mod fully_shard;
mod killed;
mod linear;
mod load;
mod ops;
mod pipeline;
mod quantized;

use candle_core::{DType, Device, Tensor, Var};
use comity::Group;
use comity_candle::Error;
use std::time::Duration;

/// `f` on each of `n` ranks; the results by rank.
fn on_ranks<T: Send>(n: usize, f: impl Fn(&Group) -> comity_candle::Result<T> + Sync) -> Vec<T> {
    let results = try_on_ranks(n, f);
    // The cause, rather than what the others were told of it.
    let cause = results.iter().filter_map(|r| r.as_ref().err()).min_by_key(|e| matches!(e, Error::Group(_)));
    if let Some(cause) = cause {
        panic!("{cause}");
    }
    results.into_iter().map(Result::unwrap).collect()
}

fn try_on_ranks<T: Send>(
    n: usize,
    f: impl Fn(&Group) -> comity_candle::Result<T> + Sync,
) -> Vec<comity_candle::Result<T>> {
    scope::each(Group::local(n).unwrap(), |g| f(&g.with_timeout(Duration::from_secs(20))))
}

/// Numbers between -1 and 1, the same for the same seed.
fn noise(shape: impl Into<candle_core::Shape>, seed: u64) -> Tensor {
    let shape = shape.into();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    let values: Vec<f32> = (0..shape.elem_count())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn variable(x: &Tensor) -> Var {
    Var::from_tensor(&x.copy().unwrap()).unwrap()
}

/// Asserts that two tensors have the same shape and differ by less than `far` anywhere.
#[track_caller]
fn near(a: &Tensor, b: &Tensor, far: f32) {
    assert_eq!(a.dims(), b.dims());
    let d = (a.to_dtype(DType::F32).unwrap() - b.to_dtype(DType::F32).unwrap()).unwrap();
    let d = d.abs().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let worst = d.iter().fold(0f32, |m, x| if x.is_nan() { f32::INFINITY } else { m.max(*x) });
    assert!(worst <= far, "differs by {worst:e}: {a} {b}");
}
