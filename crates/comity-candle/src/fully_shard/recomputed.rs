//! A layer as one operation of candle's, which is computed again in the backward pass.

use super::{Compute, Inner, Pass};
use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor, Var, backend::BackendStorage};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// A layer as one operation, of its input and of this rank's part of its weights.
pub(super) struct Recomputed {
    pub(super) inner: Arc<Inner>,
    pub(super) compute: Compute,
    /// The output, until the graph has it.
    pub(super) output: Mutex<Option<Tensor>>,
}

impl CustomOp2 for Recomputed {
    fn name(&self) -> &'static str {
        "fully_sharded"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(y) = output else { candle_core::bail!("a fully sharded layer is computed once") };
        let (storage, layout) = y.storage_and_layout();
        match &*storage {
            candle_core::Storage::Cpu(storage) => Ok((storage.try_clone(layout)?, layout.shape().clone())),
            _ => candle_core::bail!("fully sharded layers compute on the CPU"),
        }
    }

    fn bwd(
        &self,
        x: &Tensor,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let inner = &self.inner;
        let flat = inner.whole(Pass::Backward)?;
        let mut variables = HashMap::new();
        for (name, w) in inner.tensors(&flat)? {
            variables.insert(name, Var::from_tensor(&w)?);
        }
        drop(flat);
        let tensors = variables.iter().map(|(name, v)| (name.clone(), v.as_tensor().clone())).collect();
        // A type without gradients is the input of a first layer.
        let input =
            if x.dtype().is_float() { Var::from_tensor(&x.detach())?.into_inner() } else { x.detach() };
        let y = (self.compute)(inner.builder(tensors), &input)?;
        let mut gradients = (y * gradient)?.sum_all()?.backward()?;
        let own = variables
            .iter()
            .filter_map(|(name, v)| Some((name.clone(), gradients.remove(v)?.detach())))
            .collect();
        let of_input = if input.is_variable() { gradients.remove(&input).map(|g| g.detach()) } else { None };
        drop(gradients);
        Ok((of_input, Some(inner.scatter(&own)?)))
    }
}
