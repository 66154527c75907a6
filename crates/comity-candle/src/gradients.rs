//! Averaging gradients: few large calls instead of one per variable; and clipping by the norm of all of them.
//!
//! ```text
//! bf16  [ w0 | b0 | w2 ]          one bucket per type, closed when it is full:
//! f32   [ w1 | b1 ] [ w3 | b3 ]   one all_reduce each, in the order in which they close
//! ```

use crate::{
    Error, Parameter, Result, ShardingCause, ShardingError,
    collective::{CallKind, TensorCall, in_calls},
};
use candle_core::{DType, Tensor, Var, backprop::GradStore};
use comity::{Group, ReduceOp};
use std::mem;

/// A bucket is reduced when the next gradient would take it past this: large enough for full bandwidth, small enough
/// that the copies stay a small part of a model's memory.
const BUCKET_BYTES: usize = 32 << 20;

/// Replace the gradient of each variable by its average over the ranks.
///
/// `variables` is the same list, in the same order, on every rank. Gradients are reduced in their own type, packed into
/// buckets of 32 MiB, so that many small ones cost one call. The averages are equal on all ranks bit for bit.
///
/// A variable that had no part in the loss has no gradient. When that is so on all ranks it stays without one; when only
/// some ranks lack it, theirs counts as zero and they get the average as well, so that every rank takes the same step.
///
/// The average weighs ranks alike. When their shares of the batch differ in size, divide the *sum* of each rank's losses
/// by `batch / ranks` instead of taking the mean: the average is then the gradient of the whole batch's mean loss.
///
/// On a slow network, `group.with_wire(Wire::Bf16)` in place of `group` sends half of the bytes of `f32`, and [`Wire::Int8Block`](comity::Wire) a
/// quarter. Gradients of `f64` go as they are.
///
/// Gradients that candle made hold the graph of the forward pass in memory; the averages do not.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
///
/// let group = comity::Group::single();
/// let w = Var::from_tensor(&Tensor::new(&[1f32, 2.0], &Device::Cpu)?)?;
/// let mut gradients = w.as_tensor().sqr()?.sum_all()?.backward()?;
/// comity_candle::average_gradients(&group, [&w], &mut gradients)?;
/// assert_eq!(gradients.get(&w).unwrap().to_vec1::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::DType`] for a variable that is not `f16`, `bf16`, `f32` or `f64`: nothing was sent, and the group can still
/// be used. [`Error::Group`] as [`Group::all_reduce`]. [`Error::Tensor`] when candle cannot read a gradient or make a
/// tensor. After the last two `gradients` may hold some averages already: compute them anew.
pub fn average_gradients<'a>(
    group: &Group,
    variables: impl IntoIterator<Item = &'a Var>,
    gradients: &mut GradStore,
) -> Result<()> {
    average_in_buckets(group, variables.into_iter().collect(), gradients, BUCKET_BYTES)
}

fn average_in_buckets(
    group: &Group,
    variables: Vec<&Var>,
    gradients: &mut GradStore,
    limit: usize,
) -> Result<()> {
    check_types(variables.iter().copied())?;
    // Ranks must agree on what goes into the buckets before they fill them.
    let mut present: Vec<bool> = variables.iter().map(|v| gradients.get(v).is_some()).collect();
    in_calls(|| group.with_wire(None).all_reduce(&mut present, ReduceOp::Or))?;

    let mut buckets: [Vec<&Var>; 4] = Default::default();
    for (v, _) in variables.into_iter().zip(present).filter(|(_, present)| *present) {
        let bucket = match v.dtype() {
            DType::F16 => &mut buckets[0],
            DType::BF16 => &mut buckets[1],
            DType::F64 => &mut buckets[3],
            _ => &mut buckets[2],
        };
        let bytes = |v: &Var| v.elem_count() * v.dtype().size_in_bytes();
        if !bucket.is_empty() && bucket.iter().copied().map(bytes).sum::<usize>() + bytes(v) > limit {
            average(group, bucket, gradients)?;
        }
        bucket.push(v);
    }
    buckets.iter_mut().try_for_each(|bucket| average(group, bucket, gradients))
}

/// Checks that the gradients of these can be averaged.
pub(crate) fn check_types<'a>(variables: impl Iterator<Item = &'a Var>) -> Result<()> {
    let is_wrong = |v: &Var| !matches!(v.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    match variables.enumerate().find(|(_, v)| is_wrong(v)) {
        Some((index, v)) => Err(Error::DType { index, dtype: v.dtype().as_str() }),
        None => Ok(()),
    }
}

/// Average the gradients of a bucket, put them back into the store, and leave it empty.
fn average(group: &Group, bucket: &mut Vec<&Var>, gradients: &mut GradStore) -> Result<()> {
    let bucket = mem::take(bucket);
    if bucket.is_empty() {
        return Ok(());
    }
    let mine: Vec<Tensor> = bucket
        .iter()
        .map(|v| gradients.get(v).map_or_else(|| v.zeros_like(), |g| Ok(g.clone())))
        .collect::<candle_core::Result<_>>()?;
    for (v, average) in bucket.into_iter().zip(averages(group, &mine)?) {
        gradients.insert(v, average);
    }
    Ok(())
}

/// Averages of tensors of one type over the ranks, by one call.
pub(crate) fn averages(group: &Group, mine: &[Tensor]) -> Result<Vec<Tensor>> {
    let flat = mine.iter().map(Tensor::flatten_all).collect::<candle_core::Result<Vec<_>>>()?;
    let all = Tensor::cat(&flat, 0)?.detach();
    if all.elem_count() == 0 {
        return Ok(mine.iter().map(Tensor::detach).collect());
    }
    // No wire carries f64.
    let plain = (all.dtype() == DType::F64).then(|| group.with_wire(None));
    let call = TensorCall::new(plain.as_ref().unwrap_or(group), CallKind::Reduce(ReduceOp::Avg));
    let all = call.apply(&all)?;
    let mut at = 0;
    let parts = mine.iter().map(|x| {
        let part = all.narrow(0, at, x.elem_count())?.reshape(x.shape());
        at += x.elem_count();
        part
    });
    Ok(parts.collect::<candle_core::Result<_>>()?)
}

/// Scale the gradients of these parameters so that their norm, over all ranks, is at most `max_norm`; return the norm before.
///
/// Each rank's part counts of a parameter that is divided among them; a parameter that every rank has whole counts once. The factor is
/// `min(1, max_norm / (norm + 1e-6))`, the same on every rank.
///
/// ```
/// use candle_core::{Device, Var};
/// use comity_candle::{Parameter, clip_grad_norm_sharded};
///
/// let group = comity::Group::single();
/// let w = Var::new(&[3f32, 4.0], &Device::Cpu)?;
/// let mut gradients = (w.sqr()? * 0.5)?.sum_all()?.backward()?;
/// let parameters = [Parameter::whole("w", w.as_tensor().clone())];
/// let norm = clip_grad_norm_sharded(&group, &parameters, &mut gradients, 1.0)?;
/// assert_eq!(norm, 5.0);
/// let clipped = gradients.get(&w).unwrap().to_vec1::<f32>()?;
/// assert!((clipped[0] - 0.6).abs() < 1e-5 && (clipped[1] - 0.8).abs() < 1e-5);
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Sharding`] when no rank has a gradient of any of them, as of the [`parameters`](crate::FullySharded::parameters) of a fully sharded
/// layer, which are copies: give its [`parameter`](crate::FullySharded::parameter). [`Error::Group`] as [`Group::all_reduce`];
/// [`Error::Tensor`] when candle cannot read a gradient.
pub fn clip_grad_norm_sharded(
    group: &Group,
    parameters: &[Parameter],
    gradients: &mut GradStore,
    max_norm: f64,
) -> Result<f64> {
    let mut squares = 0f64;
    let mut found = 0f64;
    for p in parameters {
        let counts = p.part.is_some() || group.rank() == 0;
        if let (Some(g), true) = (gradients.get(&p.tensor), counts) {
            squares += f64::from(g.to_dtype(DType::F32)?.sqr()?.sum_all()?.to_scalar::<f32>()?);
            found += 1.0;
        }
    }
    let mut all = [squares, found];
    in_calls(|| group.all_reduce(&mut all, ReduceOp::Sum)).map_err(Error::Group)?;
    if all[1] == 0.0 && !parameters.is_empty() {
        let name = &parameters[0].name;
        let cause = ShardingCause::NoGradient;
        return Err(ShardingError::new(name, "gradients", group.size(), cause).into());
    }
    let norm = all[0].sqrt();
    let factor = max_norm / (norm + 1e-6);
    if factor < 1.0 {
        for p in parameters {
            if let Some(g) = gradients.get(&p.tensor) {
                let clipped = (g * factor)?.detach();
                gradients.insert(&p.tensor, clipped);
            }
        }
    }
    Ok(norm)
}
