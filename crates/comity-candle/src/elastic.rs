//! State of ranks that come while a job runs: they get the variables of the others.
//!
//! Groups form again by [`Group::reform`], and [`Group::joiners`] counts who waits: candle's tensors have no part in that.

use crate::{Result, collective::in_calls, gradients::Bundle};
use candle_core::Var;
use comity::Group;

/// Give all ranks the variables of those that hold them, with the same bits on all: the candle form of [`Group::sync`]. Only variables that
/// differ are sent.
///
/// Every rank calls this with variables of the same types and shapes in the same order: `f16`, `bf16`, `f32` or `f64`. `holds` says that
/// this rank's are right: true on those that went on training, false on those that have just joined. Returns the number of bytes that this
/// rank received.
///
/// ```
/// use candle_core::{Device, Var};
///
/// let group = comity::Group::single(); // after `reform`: its group
/// let w = Var::zeros(4, candle_core::DType::F32, &Device::Cpu)?;
/// assert_eq!(comity_candle::sync_variables(&group, [&w], true)?, 0);
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Group`](crate::Error::Group) as [`Group::sync`], such as where no rank holds them; [`Error::Tensor`](crate::Error::Tensor) for
/// variables of other types.
pub fn sync_variables<'a>(
    group: &Group,
    variables: impl IntoIterator<Item = &'a Var>,
    holds: bool,
) -> Result<usize> {
    let variables: Vec<&Var> = variables.into_iter().collect();
    let values = variables.iter().map(|v| Bundle::of(&[v.as_detached_tensor()]));
    let mut values: Vec<Bundle> = values.collect::<Result<_>>()?;
    let mut views: Vec<_> = values.iter_mut().map(Bundle::view).collect();
    let received = in_calls(|| group.sync(&mut views, holds))?;
    if received > 0 {
        for (v, value) in variables.into_iter().zip(values) {
            value.split([v].into_iter())?.into_iter().try_for_each(|x| v.set(&x))?;
        }
    }
    Ok(received)
}
