//! Root mean square norm with a gradient, in one pass each way: candle's fused one has no gradient, and of single operations it takes some twenty
//! passes over memory. Every rank of a tensor-parallel model makes it whole, so it holds back the speed-up.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Storage, Tensor};

const EPSILON: f32 = 1e-5;

/// `x` over its root mean square along the last axis, times `weight`; in f32. On a GPU of single operations.
pub(crate) fn normal(x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
    if !x.device().is_cpu() {
        return candle_nn::ops::rms_norm_slow(x, weight, EPSILON);
    }
    x.contiguous()?.apply_op2(&weight.contiguous()?, Normal)
}

struct Normal;

/// Elements of a contiguous storage.
fn elements<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [f32]> {
    let (CpuStorage::F32(all), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
        candle_core::bail!("the norm needs contiguous tensors of f32");
    };
    Ok(&all[start..end])
}

fn with_elements<T>(x: &Tensor, f: impl FnOnce(&[f32]) -> candle_core::Result<T>) -> candle_core::Result<T> {
    let (storage, layout) = x.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(elements(storage, layout)?),
        _ => candle_core::bail!("the norm is made on the CPU"),
    }
}

/// The sum of `f(0)` to `f(n - 1)`, in several sums at a time, so that the compiler can use vectors.
fn sum(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0f32; 16];
    let whole = n / sums.len() * sums.len();
    for i in (0..whole).step_by(sums.len()) {
        for (j, sum) in sums.iter_mut().enumerate() {
            *sum += f(i + j);
        }
    }
    sums.iter().sum::<f32>() + (whole..n).map(f).sum::<f32>()
}

/// Inverse of the root mean square.
fn scale(row: &[f32]) -> f32 {
    1.0 / (sum(row.len(), |i| row[i] * row[i]) / row.len() as f32 + EPSILON).sqrt()
}

impl CustomOp2 for Normal {
    fn name(&self) -> &'static str {
        "normal"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let x = elements(x, layout)?;
        let weight = elements(weight, weight_layout)?;
        let mut y = Vec::with_capacity(x.len());
        for row in x.chunks_exact(weight.len()) {
            let scale = scale(row);
            y.extend(row.iter().zip(weight).map(|(x, w)| x * scale * w));
        }
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    /// With `s` the scale and `m` the mean of `g w x`: `s g w - s^3 m x`, and for the weight the sum of `g s x` over the rows.
    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let gradient = gradient.contiguous()?;
        let width = weight.elem_count();
        let mut of_x = Vec::with_capacity(x.elem_count());
        let mut of_weight = vec![0f32; width];
        with_elements(x, |x| {
            with_elements(weight, |w| {
                with_elements(&gradient, |g| {
                    for (x, g) in x.chunks_exact(width).zip(g.chunks_exact(width)) {
                        let s = scale(x);
                        let dot = sum(width, |i| x[i] * g[i] * w[i]);
                        let back = s * s * s * dot / width as f32;
                        of_x.extend(x.iter().zip(g).zip(w).map(|((x, g), w)| s * g * w - back * x));
                        of_weight.iter_mut().zip(x).zip(g).for_each(|((sum, x), g)| *sum += g * s * x);
                    }
                    Ok(())
                })
            })
        })?;
        let of_x = Tensor::from_vec(of_x, x.shape(), x.device())?;
        let of_weight = Tensor::from_vec(of_weight, weight.shape(), x.device())?;
        Ok((Some(of_x), Some(of_weight)))
    }
}
