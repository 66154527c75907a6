//! Averaging gradients: few large calls instead of one per variable.
//!
//! ```text
//! bf16  [ w0 | b0 | w2 ]          one bucket per type, closed when it is full:
//! f32   [ w1 | b1 ] [ w3 | b3 ]   one all_reduce each, in the order in which they close
//! ```

use crate::{Error, Result};
use candle_core::{DType, Device, Tensor, Var, WithDType, backprop::GradStore};
use comity::{Element, Group, ReduceOp};
use half::{bf16, f16};
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
    for (index, v) in variables.iter().enumerate() {
        if !matches!(v.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(Error::DType { index, dtype: v.dtype().as_str() });
        }
    }
    // Ranks must agree on what goes into the buckets before they fill them.
    let mut present: Vec<bool> = variables.iter().map(|v| gradients.get(v).is_some()).collect();
    group.all_reduce(&mut present, ReduceOp::Or)?;

    let mut halves = Bucket::<f16>::new(limit);
    let mut brains = Bucket::<bf16>::new(limit);
    let mut singles = Bucket::<f32>::new(limit);
    let mut doubles = Bucket::<f64>::new(limit);
    for (v, _) in variables.into_iter().zip(present).filter(|(_, present)| *present) {
        match v.dtype() {
            DType::F16 => halves.add(v, group, gradients)?,
            DType::BF16 => brains.add(v, group, gradients)?,
            DType::F64 => doubles.add(v, group, gradients)?,
            _ => singles.add(v, group, gradients)?,
        }
    }
    halves.average(group, gradients)?;
    brains.average(group, gradients)?;
    singles.average(group, gradients)?;
    doubles.average(group, gradients)
}

/// Gradients of one type, end to end.
struct Bucket<'a, T> {
    variables: Vec<&'a Var>,
    data: Vec<T>,
    limit: usize,
}

impl<'a, T: WithDType + Element> Bucket<'a, T> {
    fn new(limit: usize) -> Self {
        Self { variables: Vec::new(), data: Vec::new(), limit }
    }

    fn add(&mut self, v: &'a Var, group: &Group, gradients: &mut GradStore) -> Result<()> {
        let count = v.elem_count();
        if !self.data.is_empty() && (self.data.len() + count) * size_of::<T>() > self.limit {
            self.average(group, gradients)?;
        }
        match gradients.get(v) {
            Some(g) => self.data.extend(g.flatten_all()?.to_vec1::<T>()?),
            None => self.data.resize(self.data.len() + count, T::zero()),
        }
        self.variables.push(v);
        Ok(())
    }

    /// Average what is in the bucket, put it back into the store, and start again empty.
    fn average(&mut self, group: &Group, gradients: &mut GradStore) -> Result<()> {
        if self.data.is_empty() {
            self.variables.clear();
            return Ok(());
        }
        group.all_reduce(&mut self.data, ReduceOp::Avg)?;
        let mut rest = &self.data[..];
        for v in mem::take(&mut self.variables) {
            let (mine, others) = rest.split_at(v.elem_count());
            let average = Tensor::from_slice(mine, v.shape(), &Device::Cpu)?.to_device(v.device())?;
            gradients.insert(v, average);
            rest = others;
        }
        self.data.clear();
        Ok(())
    }
}
