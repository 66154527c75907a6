//! A rank's part of a linear layer, in either direction.

use crate::{
    Error, Parameter, Partition, Result, Sharding, ShardingCause, ShardingError, ShardingType, product,
    quantized::QuantizedPart,
};
use candle_core::{
    D, Tensor, Var,
    quantized::{GgmlDType, QTensor},
};
use candle_nn::{Init, Linear, VarBuilder};
use comity::Group;

/// Weight and bias of one rank, and how the whole is divided: the outputs or the inputs, by the direction.
#[derive(Clone, Debug)]
pub(crate) struct LinearPart {
    pub(crate) group: Group,
    pub(crate) direction: ShardingType,
    pub(crate) local: Linear,
    pub(crate) partition: Partition,
    pub(crate) name: String,
}

impl LinearPart {
    /// Variables of a new layer, which begin as those of `candle_nn::linear` do; `other` is the length of the axis that stays whole.
    pub(crate) fn fresh(
        group: &Group,
        direction: ShardingType,
        other: usize,
        partition: Partition,
        bias: bool,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let mine = partition.sizes()[group.rank()];
        // Candle's initial weights go by the inputs of the whole layer, not of the part.
        let (inputs, shape) = match direction {
            ShardingType::AllToSharded => (other, (mine, other)),
            ShardingType::ShardedToAll => (partition.size(), (other, mine)),
        };
        let deviation = (2.0 / inputs as f64).sqrt();
        let weight = vb.get_with_hints(shape, "weight", Init::Randn { mean: 0.0, stdev: deviation })?;
        let bound = 1.0 / (inputs as f64).sqrt();
        let uniform = Init::Uniform { lo: -bound, up: bound };
        let bias = bias.then(|| vb.get_with_hints(shape.0, "bias", uniform)).transpose()?;
        let name = name_of(vb, direction);
        Ok(Self { group: group.clone(), direction, local: Linear::new(weight, bias), partition, name })
    }

    /// This rank's part of a whole layer, by a rule.
    pub(crate) fn shared(
        group: &Group,
        direction: ShardingType,
        linear: &Linear,
        sharding: &Sharding,
    ) -> Result<Self> {
        let partition = divide(group, direction, linear.weight().dims2()?, sharding, layer(direction))?;
        Self::of_whole(group, direction, linear, partition)
    }

    /// This rank's part of a whole layer.
    pub(crate) fn of_whole(
        group: &Group,
        direction: ShardingType,
        linear: &Linear,
        partition: Partition,
    ) -> Result<Self> {
        let name = layer(direction);
        let take = |parameter: &str, x: &Tensor| -> Result<Tensor> {
            let axis = direction.axis(parameter, x);
            let mut dims = x.dims().to_vec();
            if let Some(size) = axis.and_then(|axis| dims.get_mut(axis)) {
                *size = partition.size();
            }
            expect(group, name, parameter, x.dims(), &dims)?;
            Ok(take(x, axis.map(|axis| (axis, &partition)), group.rank())?)
        };
        let weight = take("weight", linear.weight())?;
        let bias = linear.bias().map(|b| take("bias", b)).transpose()?;
        Self::from_tensors(group, direction, name, weight, bias, partition)
    }

    /// Tensors that this rank has, whose shapes are checked.
    pub(crate) fn from_tensors(
        group: &Group,
        direction: ShardingType,
        name: &str,
        weight: Tensor,
        bias: Option<Tensor>,
        partition: Partition,
    ) -> Result<Self> {
        check_shapes(group, direction, name, weight.dims2()?, bias.as_ref(), &partition)?;
        let local = Linear::new(weight, bias);
        Ok(Self { group: group.clone(), direction, local, partition, name: name.into() })
    }

    /// The weight and the bias, under the names that they have in a model.
    pub(crate) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let of = |name: &str, x: &Tensor| {
            let full = format!("{prefix}.{name}");
            match self.direction.axis(name, x) {
                Some(axis) => Parameter::sharded(full, x.clone(), axis, self.partition.clone()),
                None => Parameter::whole(full, x.clone()),
            }
        };
        let bias = self.local.bias().map(|b| of("bias", b));
        [of("weight", self.local.weight())].into_iter().chain(bias).collect()
    }

    /// The product of this rank's weight, summed over the ranks where the inputs are divided, and the bias. The gradient of `x` is this rank's.
    pub(crate) fn forward_part(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.check_input(x)?;
        let over = (self.direction == ShardingType::ShardedToAll).then_some(&self.group);
        product::multiply(over, x, self.local.weight(), self.local.bias())
    }

    /// Checks that the layer can take `x`: its width and its type.
    fn check_input(&self, x: &Tensor) -> Result<()> {
        let weight = self.local.weight();
        check_width(&self.group, &self.name, x, weight.dim(1)?)?;
        if x.dtype() == weight.dtype() {
            return Ok(());
        }
        let name = |x: &Tensor| x.dtype().as_str().to_string();
        let cause = ShardingCause::DType { expected: name(weight), got: name(x) };
        Err(ShardingError::new("input", self.group.size(), cause).at(&self.name, "input").into())
    }

    /// The part with its weight quantized, and the bias without its gradient. Where one rank's blocks are not whole, no rank quantizes.
    pub(crate) fn quantized(&self, dtype: GgmlDType) -> Result<QuantizedPart> {
        let unit = dtype.block_size();
        let sizes = match self.direction {
            ShardingType::AllToSharded => vec![self.local.weight().dim(1)?; self.group.size()],
            ShardingType::ShardedToAll => self.partition.sizes(),
        };
        if sizes.iter().any(|size| !size.is_multiple_of(unit)) {
            let cause = ShardingCause::Misaligned { sizes, unit };
            return Err(ShardingError::new("input", self.group.size(), cause).at(&self.name, "input").into());
        }
        let weight = QTensor::quantize(&self.local.weight().detach(), dtype)?;
        let bias = self.local.bias().map(Tensor::detach);
        QuantizedPart::new(&self.group, self.direction, &self.name, weight, bias, self.partition.clone())
    }
}

fn layer(direction: ShardingType) -> &'static str {
    match direction {
        ShardingType::AllToSharded => "AllToShardedLinear",
        ShardingType::ShardedToAll => "ShardedToAllLinear",
    }
}

/// Shares of a layer's outputs or inputs.
pub(crate) fn divide(
    group: &Group,
    direction: ShardingType,
    (outputs, inputs): (usize, usize),
    sharding: &Sharding,
    name: &str,
) -> Result<Partition> {
    let (axis, size) = match direction {
        ShardingType::AllToSharded => ("output", outputs),
        ShardingType::ShardedToAll => ("input", inputs),
    };
    Ok(sharding.partition(size, group.size()).map_err(|e| e.at(name, axis))?)
}

/// Checks that a weight and a bias have the shapes that this rank needs.
pub(crate) fn check_shapes(
    group: &Group,
    direction: ShardingType,
    name: &str,
    (outputs, inputs): (usize, usize),
    bias: Option<&Tensor>,
    partition: &Partition,
) -> Result<()> {
    let mine = partition.sizes()[group.rank()];
    let dims = match direction {
        ShardingType::AllToSharded => [mine, inputs],
        ShardingType::ShardedToAll => [outputs, mine],
    };
    expect(group, name, "weight", &[outputs, inputs], &dims)?;
    bias.map_or(Ok(()), |b| expect(group, name, "bias", b.dims(), &dims[..1]))
}

/// Name of a new layer in errors.
pub(crate) fn name_of(vb: &VarBuilder, direction: ShardingType) -> String {
    let prefix = vb.prefix();
    if prefix.is_empty() { layer(direction).into() } else { prefix }
}

/// This rank's part of a parameter, in memory of its own; a variable where the whole is one.
fn take(x: &Tensor, along: Option<(usize, &Partition)>, rank: usize) -> candle_core::Result<Tensor> {
    let mine = match along {
        Some((axis, partition)) => partition.take(x, axis, rank)?,
        None => x.detach(),
    };
    if x.is_variable() { Ok(Var::from_tensor(&mine.copy()?)?.into_inner()) } else { Ok(mine) }
}

/// Checks that a tensor has the shape that this rank needs.
pub(crate) fn expect(
    group: &Group,
    layer: &str,
    tensor: &str,
    found: &[usize],
    dims: &[usize],
) -> Result<()> {
    if found == dims {
        return Ok(());
    }
    let cause = ShardingCause::Shape { expected: dims.to_vec(), got: found.to_vec() };
    Err(Error::from(ShardingError::new(tensor, group.size(), cause).at(layer, tensor)))
}

/// Checks that the last axis of `x` is as long as this rank's part of the layer's input.
pub(crate) fn check_width(group: &Group, layer: &str, x: &Tensor, width: usize) -> Result<()> {
    if x.dim(D::Minus1)? == width {
        return Ok(());
    }
    let mut expected = x.dims().to_vec();
    if let Some(last) = expected.last_mut() {
        *last = width;
    }
    expect(group, layer, "input", x.dims(), &expected)
}
