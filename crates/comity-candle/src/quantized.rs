//! Linear layers with quantized weights (GGUF's types), divided among the ranks block by block, without dequantizing them.
//!
//! The weights are not trained. Gradients pass through to the input, which candle's own `QMatMul` does not do.

use crate::{
    Parameter, Partition, Result, ShardedLinear, Sharding, ShardingType,
    linear::{check_width, expect},
    ops,
};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Module, Shape, Tensor,
    quantized::{QStorage, QTensor},
};
use comity::Group;
use std::{borrow::Cow, ops::Range, sync::Arc};

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

fn multiply(weight: &Arc<QTensor>, x: &Tensor) -> candle_core::Result<Tensor> {
    x.contiguous()?.apply_op1(FrozenProduct(weight.clone()))
}

/// Rows of a quantized matrix.
fn rows(q: &QTensor, ranges: &[Range<usize>]) -> candle_core::Result<QTensor> {
    let (_, columns) = q.shape().dims2()?;
    let row = columns / q.dtype().block_size() * q.dtype().type_size();
    let data = q.data()?;
    let bytes: Vec<u8> = ranges.iter().flat_map(|r| &data[r.start * row..r.end * row]).copied().collect();
    from_bytes(q, bytes, (ranges.iter().map(Range::len).sum(), columns))
}

/// Columns of a quantized matrix, which begin and end with a block.
fn columns(q: &QTensor, ranges: &[Range<usize>]) -> candle_core::Result<QTensor> {
    let (height, columns) = q.shape().dims2()?;
    let block = q.dtype().block_size();
    let size = q.dtype().type_size();
    let row = columns / block * size;
    let data = q.data()?;
    let mut bytes = Vec::new();
    for line in data.chunks_exact(row.max(1)).take(height) {
        for r in ranges {
            bytes.extend_from_slice(&line[r.start / block * size..r.end / block * size]);
        }
    }
    from_bytes(q, bytes, (height, ranges.iter().map(Range::len).sum()))
}

fn from_bytes(like: &QTensor, bytes: Vec<u8>, shape: (usize, usize)) -> candle_core::Result<QTensor> {
    let storage = QStorage::from_data(Cow::Owned(bytes), &like.device(), like.dtype())?;
    QTensor::new(storage, shape)
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
    group: Group,
    weight: Arc<QTensor>,
    bias: Option<Tensor>,
    outputs: Partition,
    name: String,
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
        let name = "QuantizedAllToShardedLinear";
        let (outputs, _) = weight.shape().dims2()?;
        let outputs = sharding.partition(outputs, group.size()).map_err(|e| e.at(name, "output"))?;
        if let Some(b) = bias {
            expect(group, name, "bias", b.dims(), &[outputs.size()])?;
        }
        let bias = bias.map(|b| outputs.take(b, 0, group.rank())).transpose()?;
        let weight = rows(weight, outputs.of(group.rank()))?;
        Self::from_parts(group, name, weight, bias, outputs)
    }

    /// A layer of parts that this rank has; `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when their shapes are not those that `outputs` says.
    pub fn from_parts(
        group: &Group,
        name: &str,
        weight: QTensor,
        bias: Option<Tensor>,
        outputs: Partition,
    ) -> Result<Self> {
        let (_, inputs) = weight.shape().dims2()?;
        let mine = outputs.sizes()[group.rank()];
        expect(group, name, "weight", weight.shape().dims(), &[mine, inputs])?;
        if let Some(b) = &bias {
            expect(group, name, "bias", b.dims(), &[mine])?;
        }
        Ok(Self { group: group.clone(), weight: Arc::new(weight), bias, outputs, name: name.into() })
    }

    /// Division of the outputs.
    pub fn outputs(&self) -> &Partition {
        &self.outputs
    }

    /// This rank's rows of the weight.
    pub fn weight(&self) -> &QTensor {
        &self.weight
    }

    /// The bias, if there is one: quantized weights are no tensors of candle's.
    pub fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let bias = self.bias.iter();
        bias.map(|b| Parameter::sharded(format!("{prefix}.bias"), b.clone(), 0, self.outputs.clone()))
            .collect()
    }
}

impl QuantizedAllToShardedLinear {
    /// The output for an input whose gradient is summed over the ranks elsewhere.
    pub(crate) fn forward_part(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        check_width(&self.group, &self.name, x, self.weight.shape().dims2()?.1)?;
        let y = multiply(&self.weight, x)?;
        self.bias.as_ref().map_or(Ok(y.clone()), |b| y.broadcast_add(&b.to_dtype(y.dtype())?))
    }
}

impl Module for QuantizedAllToShardedLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.forward_part(&ops::sum_gradients(&self.group, x)?)
    }
}

/// [`ShardedToAllLinear`](crate::ShardedToAllLinear) with a quantized weight, which is not trained. Each rank's part of the input is whole blocks: 32 elements,
/// or 256 of the types whose names end with K. [`QuantizedAllToShardedLinear`] has an example.
#[derive(Clone, Debug)]
pub struct QuantizedShardedToAllLinear {
    group: Group,
    weight: Arc<QTensor>,
    bias: Option<Tensor>,
    inputs: Partition,
    name: String,
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
        let name = "QuantizedShardedToAllLinear";
        let (_, inputs) = weight.shape().dims2()?;
        let sharding = sharding.clone().whole_blocks(weight.dtype().block_size());
        let inputs = sharding.partition(inputs, group.size()).map_err(|e| e.at(name, "input"))?;
        let weight = columns(weight, inputs.of(group.rank()))?;
        Self::from_parts(group, name, weight, bias.cloned(), inputs)
    }

    /// A layer of parts that this rank has; `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when their shapes are not those that `inputs` says.
    pub fn from_parts(
        group: &Group,
        name: &str,
        weight: QTensor,
        bias: Option<Tensor>,
        inputs: Partition,
    ) -> Result<Self> {
        let (outputs, _) = weight.shape().dims2()?;
        expect(group, name, "weight", weight.shape().dims(), &[outputs, inputs.sizes()[group.rank()]])?;
        if let Some(b) = &bias {
            expect(group, name, "bias", b.dims(), &[outputs])?;
        }
        Ok(Self { group: group.clone(), weight: Arc::new(weight), bias, inputs, name: name.into() })
    }

    /// Division of the inputs.
    pub fn inputs(&self) -> &Partition {
        &self.inputs
    }

    /// This rank's columns of the weight.
    pub fn weight(&self) -> &QTensor {
        &self.weight
    }

    /// The bias, if there is one: quantized weights are no tensors of candle's.
    pub fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        self.bias.iter().map(|b| Parameter::whole(format!("{prefix}.bias"), b.clone())).collect()
    }
}

impl Module for QuantizedShardedToAllLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        check_width(&self.group, &self.name, x, self.inputs.sizes()[self.group.rank()])?;
        let y = ops::all_sum(&self.group, &multiply(&self.weight, x)?)?;
        self.bias.as_ref().map_or(Ok(y.clone()), |b| y.broadcast_add(&b.to_dtype(y.dtype())?))
    }
}

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
    Ok(match direction {
        ShardingType::AllToSharded => ShardedLinear::QuantizedAllToSharded(
            QuantizedAllToShardedLinear::from_quantized(group, weight, bias, sharding)?,
        ),
        ShardingType::ShardedToAll => ShardedLinear::QuantizedShardedToAll(
            QuantizedShardedToAllLinear::from_quantized(group, weight, bias, sharding)?,
        ),
    })
}
