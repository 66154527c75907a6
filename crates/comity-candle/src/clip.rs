//! Clipping by the norm of all gradients of a model that is spread over ranks.

use crate::{Error, Parameter, Result, ShardingCause, ShardingError, collective::in_calls};
use candle_core::{DType, backprop::GradStore};
use comity::{Group, ReduceOp};

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
        let e = ShardingError::new("gradients", group.size(), ShardingCause::NoGradient);
        return Err(e.at(&parameters[0].name, "gradients").into());
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
