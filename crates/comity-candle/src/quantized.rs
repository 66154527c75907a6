//! Linear layers with quantized weights (GGUF's types), divided among the ranks block by block, without dequantizing them.
//!
//! The weights are not trained. Gradients pass through to the input, which candle's own `QMatMul` does not do.

use crate::{
    Parameter, Partition, Result, ShardedLinear, Sharding,
    ShardingType::{self, AllToSharded, ShardedToAll},
    linear::{check_shapes, check_width, divide, expect, layer},
    load::Area,
    ops,
};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Module, Shape, Tensor,
    quantized::{QStorage, QTensor},
};
use comity::Group;
use std::{borrow::Cow, sync::Arc};

/// A product with a quantized weight, through which gradients pass to the input.
struct FrozenProduct(Arc<QTensor>);

impl CustomOp1 for FrozenProduct {
    fn name(&self) -> &'static str {
        "quantized_matmul"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        self.0.cpu_fwd(storage, layout)
    }

    fn cuda_fwd(&self, storage: &CudaStorage, layout: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        self.0.cuda_fwd(storage, layout)
    }

    fn metal_fwd(
        &self,
        storage: &MetalStorage,
        layout: &Layout,
    ) -> candle_core::Result<(MetalStorage, Shape)> {
        self.0.metal_fwd(storage, layout)
    }

    /// `y = x W^T`, so the gradient of `x` is that of `y` times `W`.
    fn bwd(&self, x: &Tensor, _y: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let (outputs, _) = self.0.shape().dims2()?;
        let weight = self.0.dequantize(gradient.device())?.to_dtype(gradient.dtype())?;
        let rows = gradient.contiguous()?.reshape(((), outputs))?;
        rows.matmul(&weight)?.reshape(x.shape()).map(Some)
    }
}

/// A rank's weight and bias, and how the whole is divided: the outputs or the inputs, by the direction.
#[derive(Clone, Debug)]
pub(crate) struct QuantizedPart {
    pub(crate) group: Group,
    pub(crate) direction: ShardingType,
    weight: Arc<QTensor>,
    bias: Option<Tensor>,
    partition: Partition,
    name: String,
}

impl QuantizedPart {
    /// Tensors that this rank has, whose shapes are checked.
    pub(crate) fn new(
        group: &Group,
        direction: ShardingType,
        name: &str,
        weight: QTensor,
        bias: Option<Tensor>,
        partition: Partition,
    ) -> Result<Self> {
        check_shapes(group, direction, name, weight.shape().dims2()?, bias.as_ref(), &partition)?;
        Ok(Self {
            group: group.clone(),
            direction,
            weight: Arc::new(weight),
            bias,
            partition,
            name: name.into(),
        })
    }

    /// This rank's part of a whole weight and bias.
    fn shared(
        group: &Group,
        direction: ShardingType,
        weight: &QTensor,
        bias: Option<&Tensor>,
        sharding: &Sharding,
    ) -> Result<Self> {
        let dims = weight.shape().dims2()?;
        let block = weight.dtype().block_size();
        let (name, axis, sharding) = match direction {
            AllToSharded => ("QuantizedAllToShardedLinear", 0, sharding.clone()),
            ShardedToAll => ("QuantizedShardedToAllLinear", 1, sharding.clone().whole_blocks(block)),
        };
        let partition = divide(group, direction, dims, &sharding, name)?;
        let bias = match bias {
            Some(b) if direction == AllToSharded => {
                expect(group, name, "bias", b.dims(), &[partition.size()])?;
                Some(partition.take(b, 0, group.rank())?)
            }
            whole => whole.cloned(),
        };
        let area = Area::part(&[dims.0, dims.1], axis, partition.of(group.rank()));
        let data = weight.data()?;
        let runs = area.runs(weight.dtype().type_size(), block);
        let bytes = runs.flat_map(|run| &data[run.start as usize..run.end as usize]).copied().collect();
        let storage = QStorage::from_data(Cow::Owned(bytes), &weight.device(), weight.dtype())?;
        let weight = QTensor::new(storage, area.shape.as_slice())?;
        Self::new(group, direction, name, weight, bias, partition)
    }

    /// The bias, if there is one: quantized weights are no tensors of candle's.
    fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let of = |b: &Tensor| match self.direction {
            AllToSharded => {
                Parameter::sharded(format!("{prefix}.bias"), b.clone(), 0, self.partition.clone())
            }
            ShardedToAll => Parameter::whole(format!("{prefix}.bias"), b.clone()),
        };
        self.bias.iter().map(of).collect()
    }

    /// The output for an input whose gradient is summed over the ranks elsewhere.
    pub(crate) fn forward_part(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        check_width(&self.group, &self.name, x, self.weight.shape().dims2()?.1)?;
        let mut y = x.contiguous()?.apply_op1(FrozenProduct(self.weight.clone()))?;
        if self.direction == ShardedToAll {
            y = ops::all_sum(&self.group, &y)?;
        }
        self.bias.as_ref().map_or(Ok(y.clone()), |b| y.broadcast_add(&b.to_dtype(y.dtype())?))
    }
}

/// [`AllToShardedLinear`](crate::AllToShardedLinear) with a quantized weight, which is not trained.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor, quantized::{GgmlDType, QTensor}};
/// use comity_candle::{QuantizedAllToShardedLinear, QuantizedShardedToAllLinear, Sharding};
///
/// let group = comity::Group::single();
/// let quantize = |shape| QTensor::quantize(&Tensor::ones(shape, DType::F32, &Device::Cpu)?, GgmlDType::Q8_0);
/// // What lies between two layers is divided in whole blocks: Q8_0 has 32 elements in each.
/// let sharding = Sharding::balanced().unit(32);
/// let up = QuantizedAllToShardedLinear::from_quantized(&group, &quantize((64, 32))?, None, &sharding)?;
/// let down = QuantizedShardedToAllLinear::from_quantized(&group, &quantize((32, 64))?, None, &sharding)?;
/// let y = down.forward(&up.forward(&Tensor::ones((1, 32), DType::F32, &Device::Cpu)?)?)?;
/// assert_eq!(y.dims(), [1, 32]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QuantizedAllToShardedLinear {
    pub(crate) part: QuantizedPart,
}

impl QuantizedAllToShardedLinear {
    /// This rank's part of a quantized weight and a bias that every rank has whole.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when `sharding` does not fit the outputs.
    pub fn from_quantized(
        group: &Group,
        weight: &QTensor,
        bias: Option<&Tensor>,
        sharding: &Sharding,
    ) -> Result<Self> {
        Ok(Self { part: QuantizedPart::shared(group, AllToSharded, weight, bias, sharding)? })
    }

    /// This rank's rows of the weight.
    pub fn weight(&self) -> &QTensor {
        &self.part.weight
    }
}

layer!(QuantizedAllToShardedLinear: QuantizedPart of QTensor, AllToSharded outputs, "The bias, if there is one (quantized weights are no tensors of candle's)");

/// [`ShardedToAllLinear`](crate::ShardedToAllLinear) with a quantized weight, which is not trained. Each rank's part of the input is whole blocks: 32 elements,
/// or 256 of the types whose names end with K. [`QuantizedAllToShardedLinear`] has an example.
#[derive(Clone, Debug)]
pub struct QuantizedShardedToAllLinear {
    pub(crate) part: QuantizedPart,
}

impl QuantizedShardedToAllLinear {
    /// This rank's part of a quantized weight, and the whole bias, both of which every rank has whole.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when `sharding` does not fit the inputs in whole blocks.
    pub fn from_quantized(
        group: &Group,
        weight: &QTensor,
        bias: Option<&Tensor>,
        sharding: &Sharding,
    ) -> Result<Self> {
        Ok(Self { part: QuantizedPart::shared(group, ShardedToAll, weight, bias, sharding)? })
    }

    /// This rank's columns of the weight.
    pub fn weight(&self) -> &QTensor {
        &self.part.weight
    }
}

layer!(QuantizedShardedToAllLinear: QuantizedPart of QTensor, ShardedToAll inputs, "The bias, if there is one (quantized weights are no tensors of candle's)");

/// A layer that does the same as a quantized weight and a bias, which every rank has whole, with this rank's part of them.
///
/// # Errors
/// [`Error::Sharding`](crate::Error::Sharding) when `sharding` does not fit the layer.
pub fn shard_quantized(
    group: &Group,
    weight: &QTensor,
    bias: Option<&Tensor>,
    direction: ShardingType,
    sharding: &Sharding,
) -> Result<ShardedLinear> {
    Ok(QuantizedPart::shared(group, direction, weight, bias, sharding)?.into())
}
