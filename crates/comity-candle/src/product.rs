//! The product of a linear layer as one operation of candle's graph: the weight, the sum over the ranks, and the bias.
//!
//! Candle's own operations for it are six (two reshapes, a transpose, the product, the sum, the bias). In a backward pass each of them costs zeros as large
//! as its input and a sum onto them, and what is as wide as the model every rank does whole. Here the sum is made where the product lies.

use crate::{
    Result,
    collective::{sum_in_place, takes_on_device},
    ops,
};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{
    CpuStorage, CustomOp3, Layout, Result as CandleResult, Shape, Tensor,
    backend::{BackendDevice, BackendStorage},
    op::Add,
};
use comity::Group;

/// `x W^T`, added up over the ranks of a group if there is one, and then the bias, on every rank the same.
pub(crate) fn multiply(
    over: Option<&Group>,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> CandleResult<Tensor> {
    let over = over.filter(|group| group.size() > 1);
    let x = x.contiguous()?;
    let weight = weight.contiguous()?;
    if let Some(group) = over.filter(|g| !x.device().is_cpu() && !takes_on_device(g, x.device())) {
        let y = ops::all_sum(group, &multiply(None, &x, &weight, None)?)?;
        return bias.map_or(Ok(y.clone()), |b| y.broadcast_add(b));
    }
    let product = Product { over: over.cloned(), has_bias: bias.is_some() };
    x.apply_op3(&weight, bias.unwrap_or(&weight), product)
}

/// The operation: on `x`, the weight, and the bias or the weight once more.
struct Product {
    /// Ranks over which it is added up.
    over: Option<Group>,
    has_bias: bool,
}

/// Storages of which one lies beside its layout.
type Placed<'a, S> = (&'a S, &'a Layout);

impl Product {
    fn forward<S: BackendStorage>(
        &self,
        x: Placed<'_, S>,
        weight: Placed<'_, S>,
        bias: Placed<'_, S>,
        sum: impl FnOnce(&Group, &mut S) -> Result<()>,
    ) -> CandleResult<(S, Shape)>
    where
        S::Device: BackendDevice<Storage = S>,
    {
        let (outputs, inputs) = weight.1.shape().dims2()?;
        let mut dims = x.1.dims().to_vec();
        let rows = dims.iter().rev().skip(1).product();
        dims.pop();
        dims.push(outputs);
        let shape = Shape::from(dims);
        let mut y = if shape.elem_count() == 0 || inputs == 0 {
            x.0.device().zeros_impl(&shape, x.0.dtype())?
        } else {
            let left = Layout::contiguous_with_offset((rows, inputs), x.1.start_offset());
            x.0.matmul(weight.0, (1, rows, outputs, inputs), &left, &weight.1.transpose(0, 1)?)?
        };
        if let Some(group) = &self.over {
            sum(group, &mut y)?;
        }
        if self.has_bias {
            let layout = bias.1.broadcast_as(&shape)?;
            y = y.binary_impl::<Add>(bias.0, &Layout::contiguous(&shape), &layout)?;
        }
        Ok((y, shape))
    }
}

/// Refusal: [`multiply`] has the sum made in host memory.
#[cfg(feature = "metal")]
fn not_in_place(_: &Group, _: &mut MetalStorage) -> Result<()> {
    Err(candle_core::Error::Msg("a sum over ranks takes no Metal storage in its place".into()).into())
}

impl CustomOp3 for Product {
    fn name(&self) -> &'static str {
        "sharded_product"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> CandleResult<(CpuStorage, Shape)> {
        self.forward((x, x_layout), (weight, layout), (bias, bias_layout), sum_in_place)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        weight: &CudaStorage,
        layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> CandleResult<(CudaStorage, Shape)> {
        self.forward((x, x_layout), (weight, layout), (bias, bias_layout), crate::cuda::sum_in_place)
    }

    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        x_layout: &Layout,
        weight: &MetalStorage,
        layout: &Layout,
        bias: &MetalStorage,
        bias_layout: &Layout,
    ) -> CandleResult<(MetalStorage, Shape)> {
        self.forward((x, x_layout), (weight, layout), (bias, bias_layout), not_in_place)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        gradient: &Tensor,
    ) -> CandleResult<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        // `g W`, `g^T x`, and the sum of the rows of `g`. The sum over the ranks passes on what it gets.
        let (outputs, inputs) = weight.dims2()?;
        let rows = gradient.reshape(((), outputs))?;
        let of_x = || rows.matmul(&weight.detach())?.reshape(x.shape());
        let of_weight = || rows.t()?.matmul(&x.detach().reshape(((), inputs))?);
        let of_bias = || rows.sum(0);
        Ok((
            x.track_op().then(of_x).transpose()?,
            weight.track_op().then(of_weight).transpose()?,
            (self.has_bias && bias.track_op()).then(of_bias).transpose()?,
        ))
    }
}
