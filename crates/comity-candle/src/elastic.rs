//! State of ranks that come while a job runs: they get the variables of the others.
//!
//! Groups form again by [`Group::reform`], and [`Group::joiners`] counts who waits: candle's tensors have no part in that.

use crate::{Result, collective::in_calls};
use candle_core::{DType, Device, Tensor, Var, WithDType};
use comity::{Element, Group, ViewMut};
use half::{bf16, f16};

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
    let values = variables.iter().map(|v| elements(v));
    let mut values: Vec<Box<dyn Elements>> = values.collect::<candle_core::Result<_>>()?;
    let mut views: Vec<_> = values.iter_mut().map(|x| x.view()).collect();
    let received = in_calls(|| group.sync(&mut views, holds))?;
    if received > 0 {
        for (v, value) in variables.into_iter().zip(values) {
            v.set(&value.tensor()?.reshape(v.shape())?.to_device(v.device())?)?;
        }
    }
    Ok(received)
}

/// Elements of a variable, one after the other.
trait Elements {
    fn view(&mut self) -> ViewMut<'_>;
    fn tensor(&self) -> candle_core::Result<Tensor>;
}

impl<T: WithDType + Element> Elements for Vec<T> {
    fn view(&mut self) -> ViewMut<'_> {
        self.into()
    }

    fn tensor(&self) -> candle_core::Result<Tensor> {
        Tensor::from_slice(self, self.len(), &Device::Cpu)
    }
}

fn elements(v: &Var) -> candle_core::Result<Box<dyn Elements>> {
    let x = v.as_detached_tensor().flatten_all()?;
    Ok(match x.dtype() {
        DType::F16 => Box::new(x.to_vec1::<f16>()?),
        DType::BF16 => Box::new(x.to_vec1::<bf16>()?),
        DType::F64 => Box::new(x.to_vec1::<f64>()?),
        _ => Box::new(x.to_vec1::<f32>()?),
    })
}
