//! Operations between ranks with gradients.
//!
//! The crate's page has the mathematics.

use crate::{
    Result,
    collective::{Back, CallKind, TensorCall},
};
use candle_core::{DType, Device, Shape, Tensor, Var};
use comity::{Group, ReduceOp};

fn apply(group: &Group, x: &Tensor, kind: CallKind, back: Back) -> Result<Tensor> {
    if group.size() == 1 && matches!(kind, CallKind::Reduce(_)) {
        return Ok(x.clone());
    }
    let call = TensorCall { back, ..TensorCall::new(group, kind) };
    let device = x.device();
    let x = call.on_its_device(x)?.contiguous()?;
    Ok(x.apply_op1(call)?.to_device(device)?)
}

/// `f` on the rows of `x` seen along another axis.
fn along(x: &Tensor, axis: usize, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    if axis == 0 {
        return f(x);
    }
    Ok(f(&x.transpose(0, axis)?)?.transpose(0, axis)?.contiguous()?)
}

/// Add up every rank's `x`.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # let group = comity::Group::single();
/// let x = Tensor::new(&[1f32, 2.0], &Device::Cpu)?;
/// let sum = comity_candle::all_sum(&group, &x)?;
/// # assert_eq!(sum.to_vec1::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Group`](crate::Error::Group) as [`Group::all_reduce`].
pub fn all_sum(group: &Group, x: &Tensor) -> Result<Tensor> {
    apply(group, x, CallKind::Reduce(ReduceOp::Sum), Back::Same)
}

/// Greatest of every rank's `x`, element by element.
///
/// # Errors
/// [`Error::Group`](crate::Error::Group) as [`Group::all_reduce`].
pub fn all_max(group: &Group, x: &Tensor) -> Result<Tensor> {
    apply(group, x, CallKind::Reduce(ReduceOp::Max), Back::Extreme)
}

/// Least of every rank's `x`, element by element.
///
/// # Errors
/// [`Error::Group`](crate::Error::Group) as [`Group::all_reduce`].
pub fn all_min(group: &Group, x: &Tensor) -> Result<Tensor> {
    apply(group, x, CallKind::Reduce(ReduceOp::Min), Back::Extreme)
}

/// Join every rank's `x`, by rank, along an axis. All have the same shape.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # let group = comity::Group::single();
/// let mine = Tensor::new(&[[1f32, 2.0]], &Device::Cpu)?;
/// let all = comity_candle::all_gather(&group, &mine, 1)?; // 1 x 2 on each rank: 1 x 2n
/// # assert_eq!(all.dims(), [1, 2]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Group`](crate::Error::Group) as [`Group::all_gather`]; [`Error::Tensor`](crate::Error::Tensor) when `x` has no such axis.
pub fn all_gather(group: &Group, x: &Tensor, axis: usize) -> Result<Tensor> {
    let rows = vec![x.dim(axis)?; group.size()];
    all_gather_v(group, x, axis, &rows)
}

/// Join every rank's `x` along an axis, of which rank `r` has `sizes[r]`.
///
/// # Errors
/// Those of [`all_gather`]; [`Error::Group`](crate::Error::Group) when `sizes` is not one size for each rank, this one's its own.
pub fn all_gather_v(group: &Group, x: &Tensor, axis: usize, sizes: &[usize]) -> Result<Tensor> {
    let rank = group.rank();
    if group.size() == 1 && sizes == [x.dim(axis)?] {
        return Ok(x.clone());
    }
    let start = sizes.iter().take(rank).sum();
    let own = sizes.get(rank).copied().unwrap_or_default();
    along(x, axis, |x| apply(group, x, CallKind::Gather(sizes.to_vec()), Back::Rows(start, own)))
}

/// Add up every rank's `x`, and keep part `r` of the sum along an axis.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # let group = comity::Group::single();
/// let x = Tensor::new(&[1f32, 2.0, 3.0, 4.0], &Device::Cpu)?;
/// let mine = comity_candle::reduce_scatter(&group, &x, 0)?; // 4 / n elements
/// # assert_eq!(mine.dims(), [4]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Sharding`](crate::Error::Sharding) when the axis cannot be divided equally; [`Error::Group`](crate::Error::Group) as
/// [`Group::reduce_scatter`].
pub fn reduce_scatter(group: &Group, x: &Tensor, axis: usize) -> Result<Tensor> {
    let parts = crate::Sharding::even().partition(x.dim(axis)?, group.size());
    let sizes = parts.map_err(|e| e.at("reduce_scatter", &format!("axis {axis}")))?.sizes();
    reduce_scatter_v(group, x, axis, &sizes)
}

/// Add up every rank's `x`, and keep part `r` of the sum along an axis, of which rank `r` has `sizes[r]`.
///
/// # Errors
/// Those of [`reduce_scatter`]; [`Error::Group`](crate::Error::Group) when `sizes` do not add up to the axis.
pub fn reduce_scatter_v(group: &Group, x: &Tensor, axis: usize, sizes: &[usize]) -> Result<Tensor> {
    if group.size() == 1 && sizes == [x.dim(axis)?] {
        return Ok(x.clone());
    }
    let back = Back::Call(CallKind::Gather(sizes.to_vec()));
    along(x, axis, |x| apply(group, x, CallKind::Scatter(sizes.to_vec()), back))
}

/// Send part `r` of `x` along an axis to rank `r`; the result has one part from each rank, by rank.
///
/// # Errors
/// Those of [`reduce_scatter`].
pub fn all_to_all(group: &Group, x: &Tensor, axis: usize) -> Result<Tensor> {
    let parts = crate::Sharding::even().partition(x.dim(axis)?, group.size());
    parts.map_err(|e| e.at("all_to_all", &format!("axis {axis}")))?;
    if group.size() == 1 {
        return Ok(x.clone());
    }
    along(x, axis, |x| apply(group, x, CallKind::AllToAll, Back::Call(CallKind::AllToAll)))
}

/// Copy the root's `x` to every rank; all have the same shape and type.
///
/// # Errors
/// [`Error::Group`](crate::Error::Group) as [`Group::broadcast`].
pub fn broadcast(group: &Group, x: &Tensor, root: usize) -> Result<Tensor> {
    apply(group, x, CallKind::Broadcast(root), Back::Root(root))
}

/// Return `x`; its gradient is summed over all ranks.
///
/// ```
/// # use candle_core::{Device, Tensor, Var};
/// # use comity::Group;
/// # Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity_candle::Result<()> {
/// // On each rank of a group of two, which go on with different parts of x * w:
/// let w = Var::new(&[3f32], &Device::Cpu)?;
/// let y = comity_candle::sum_gradients(&group, &w)?;
/// let part = (y * (group.rank() as f64 + 1.0))?;
/// let loss = comity_candle::all_sum(&group, &part)?; // 3 * 1 + 3 * 2, on both
/// let gradients = loss.backward()?;
/// assert_eq!(gradients.get(&w).unwrap().to_vec1::<f32>()?, [3.0]);
/// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// Candle's. The group's come from `backward`.
pub fn sum_gradients(group: &Group, x: &Tensor) -> Result<Tensor> {
    if group.size() == 1 || !x.track_op() {
        return Ok(x.clone());
    }
    apply(group, x, CallKind::None, Back::Sum)
}

/// Send `x` to rank `to`, which receives it with [`recv`]; the gradient comes back from there.
///
/// The result is a zero that hangs on `x`. Add it to this rank's loss, or, where there is none, call `backward` on it:
/// that receives the gradient of `x` and goes on from it.
///
/// ```
/// # use candle_core::{DType, Device, Tensor, Var};
/// # use comity::Group;
/// # Group::local(2)?.into_iter().map(|group| std::thread::spawn(move || -> comity_candle::Result<()> {
/// // On each rank of a group of two:
/// let device = &Device::Cpu;
/// if group.rank() == 0 {
///     let w = Var::new(&[1f32, 2.0], device)?;
///     let sent = comity_candle::send(&group, &w.sqr()?, 1, 0)?;
///     let gradients = sent.backward()?;
///     assert_eq!(gradients.get(&w).unwrap().to_vec1::<f32>()?, [10.0, 20.0]);
/// } else {
///     let y = comity_candle::recv(&group, 2, DType::F32, device, 0, 0)?;
///     (y * 5.0)?.sum_all()?.backward()?;
/// }
/// # Ok(()) })).collect::<Vec<_>>().into_iter().try_for_each(|t| t.join().unwrap())?;
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Group`](crate::Error::Group) as [`Group::send`].
pub fn send(group: &Group, x: &Tensor, to: usize, tag: u32) -> Result<Tensor> {
    let back = Back::Receive { from: to, tag, shape: x.shape().clone() };
    apply(group, x, CallKind::Send { to, tag }, back)
}

/// Receive a tensor of this shape and type that rank `from` sends with [`send`]; its gradient goes back there.
///
/// # Errors
/// [`Error::Group`](crate::Error::Group) as [`Group::recv`].
pub fn recv(
    group: &Group,
    shape: impl Into<Shape>,
    dtype: DType,
    device: &Device,
    from: usize,
    tag: u32,
) -> Result<Tensor> {
    // Candle computes gradients only of what hangs on a variable.
    let anchor = Var::zeros(1, dtype, device)?;
    let kind = CallKind::Receive { from, tag, shape: shape.into() };
    Ok(apply(group, &anchor, kind, Back::Send { to: from, tag })?.to_device(device)?)
}
