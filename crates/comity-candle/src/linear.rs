//! Linear layers whose weights are divided among the ranks.
//!
//! ```text
//!        rank 0: W1[0..k,:]   h[..k]    W2[:,0..k]  \
//! x  ->  rank 1: W1[k..,:]    h[k..]    W2[:,k..]   -> sum -> + b -> y on every rank
//!        AllToShardedLinear   element-  ShardedToAllLinear
//!                             wise work
//! ```
//!
//! A layer of the first kind, work on single elements or heads, and a layer of the second kind need one sum over the ranks
//! together, and another one backwards.

use crate::{
    Parameter, Partition, QuantizedAllToShardedLinear, QuantizedShardedToAllLinear, Result, Sharding,
    ShardingCause, ShardingError,
    ShardingType::{self, AllToSharded, ShardedToAll},
    ops, product,
    quantized::QuantizedPart,
};
use candle_core::{
    D, Module, Tensor, Var,
    quantized::{GgmlDType, QTensor},
};
use candle_nn::{Init, Linear, VarBuilder};
use comity::Group;

/// The parts of a layer as they are made and told, and the layer as candle's module.
macro_rules! layer {
    ($layer:ident: $part:ident of $weight:ty, $direction:ident $divided:ident, $parameters:literal) => {
        impl $layer {
            /// A layer of parts that this rank has, such as those that a file was read for; `name` is for errors.
            ///
            /// # Errors
            #[doc = concat!("[`Error::Sharding`](crate::Error::Sharding) when their shapes are not those that `", stringify!($divided), "` says.")]
            pub fn from_parts(
                group: &Group,
                name: &str,
                weight: $weight,
                bias: Option<Tensor>,
                $divided: Partition,
            ) -> Result<Self> {
                Ok(Self { part: $part::new(group, $direction, name, weight, bias, $divided)? })
            }

            #[doc = concat!("Division of the ", stringify!($divided), ".")]
            pub fn $divided(&self) -> &Partition {
                &self.part.partition
            }

            #[doc = concat!($parameters, ", under the names that they have in a model.")]
            pub fn parameters(&self, prefix: &str) -> Vec<Parameter> {
                self.part.parameters(prefix)
            }
        }

        impl Module for $layer {
            fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
                self.part.forward_part(&$direction.input(&self.part.group, x)?)
            }
        }
    };
}
pub(crate) use layer;

/// A linear layer that takes the whole input on every rank and gives each rank its part of the outputs.
///
/// Rank `r` holds its rows of the weight and of the bias. Forward, nothing travels; backward, the input's gradient is
/// summed over the ranks.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use comity_candle::{AllToShardedLinear, ShardedToAllLinear, Sharding};
///
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let up = AllToShardedLinear::new(&group, 8, 32, true, &Sharding::balanced(), vb.pp("up"))?;
/// let down = ShardedToAllLinear::new(&group, 32, 8, true, &Sharding::balanced(), vb.pp("down"))?;
///
/// let x = Tensor::ones((2, 8), DType::F32, &Device::Cpu)?;
/// let y = down.forward(&up.forward(&x)?.relu()?)?;
/// assert_eq!(y.dims(), [2, 8]); // the same on every rank
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AllToShardedLinear {
    part: LinearPart,
}

impl AllToShardedLinear {
    /// A new layer out of a [`VarBuilder`] over variables, which then hold this rank's rows. The weights begin as those of
    /// [`candle_nn::linear()`] do. A bias follows if `bias`.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when `sharding` does not fit the outputs.
    pub fn new(
        group: &Group,
        inputs: usize,
        outputs: usize,
        bias: bool,
        sharding: &Sharding,
        vb: VarBuilder,
    ) -> Result<Self> {
        let outputs = divide(group, AllToSharded, (outputs, inputs), sharding, &name_of(&vb, AllToSharded))?;
        Ok(Self { part: LinearPart::fresh(group, AllToSharded, inputs, outputs, bias, &vb)? })
    }

    /// This rank's part of a layer that every rank has whole. Where its parameters are variables, those of the part are too.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when `sharding` does not fit the outputs.
    pub fn from_linear(group: &Group, linear: &Linear, sharding: &Sharding) -> Result<Self> {
        Ok(Self { part: LinearPart::shared(group, AllToSharded, linear, sharding)? })
    }

    /// Outputs of this layer and of another one for the same input, such as those of a gated product. The input's gradient is then summed over the
    /// ranks once, not for each layer.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when `x` has another width or type than the weights. The group's come from `backward`.
    pub fn forward_both(&self, other: &Self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let x = ops::sum_gradients(&self.part.group, x)?;
        Ok((self.part.forward_part(&x)?, other.part.forward_part(&x)?))
    }

    /// The same layer, still divided, with a quantized weight.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when the inputs are not whole blocks of `dtype`.
    pub fn quantize(&self, dtype: GgmlDType) -> Result<QuantizedAllToShardedLinear> {
        Ok(QuantizedAllToShardedLinear { part: self.part.quantized(dtype)? })
    }

    /// This rank's part of the layer.
    pub fn local(&self) -> &Linear {
        &self.part.local
    }
}

layer!(AllToShardedLinear: LinearPart of Tensor, AllToSharded outputs, "The weight and the bias");

/// A linear layer that takes each rank's part of the input and gives every rank the whole output.
///
/// Rank `r` holds its columns of the weight; every rank has the whole bias, which is added once, after the sum. Forward, the
/// output is summed over the ranks; backward, nothing travels. [`AllToShardedLinear`] has an example.
#[derive(Clone, Debug)]
pub struct ShardedToAllLinear {
    part: LinearPart,
}

impl ShardedToAllLinear {
    /// A new layer out of a [`VarBuilder`] over variables, which then hold this rank's columns. The bias, if there is one, is each
    /// rank's own variable: start with [`broadcast_variables`](crate::broadcast_variables).
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when `sharding` does not fit the inputs.
    pub fn new(
        group: &Group,
        inputs: usize,
        outputs: usize,
        bias: bool,
        sharding: &Sharding,
        vb: VarBuilder,
    ) -> Result<Self> {
        let inputs = divide(group, ShardedToAll, (outputs, inputs), sharding, &name_of(&vb, ShardedToAll))?;
        Ok(Self { part: LinearPart::fresh(group, ShardedToAll, outputs, inputs, bias, &vb)? })
    }

    /// This rank's part of a layer that every rank has whole. Where its parameters are variables, those of the part are too.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when `sharding` does not fit the inputs.
    pub fn from_linear(group: &Group, linear: &Linear, sharding: &Sharding) -> Result<Self> {
        Ok(Self { part: LinearPart::shared(group, ShardedToAll, linear, sharding)? })
    }

    /// The same layer, still divided, with a quantized weight.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when a rank's inputs are not whole blocks of `dtype`.
    pub fn quantize(&self, dtype: GgmlDType) -> Result<QuantizedShardedToAllLinear> {
        Ok(QuantizedShardedToAllLinear { part: self.part.quantized(dtype)? })
    }

    /// This rank's part of the layer, with the whole bias.
    pub fn local(&self) -> &Linear {
        &self.part.local
    }
}

layer!(ShardedToAllLinear: LinearPart of Tensor, ShardedToAll inputs, "The weight and the bias");

/// Any of the layers that are divided among the ranks, for models that take what a file has.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::Linear;
/// use comity_candle::{ShardingType, Sharding, shard_linear};
///
/// let group = comity::Group::single();
/// let whole = Linear::new(Tensor::ones((6, 4), DType::F32, &Device::Cpu)?, None);
/// let layer = shard_linear(&group, &whole, ShardingType::ShardedToAll, &Sharding::balanced())?;
/// let mine = 4 / group.size();
/// let y = layer.forward(&Tensor::ones((1, mine), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[4.0; 6]]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum ShardedLinear {
    /// Whole input, divided outputs.
    AllToSharded(AllToShardedLinear),
    /// Divided input, whole output.
    ShardedToAll(ShardedToAllLinear),
    /// Whole input, divided outputs, a quantized weight.
    QuantizedAllToSharded(QuantizedAllToShardedLinear),
    /// Divided input, whole output, a quantized weight.
    QuantizedShardedToAll(QuantizedShardedToAllLinear),
}

impl ShardedLinear {
    /// The parameters that are tensors, under the names that they have in a model: those of a quantized layer are its bias.
    pub fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        match self {
            Self::AllToSharded(layer) => layer.parameters(prefix),
            Self::ShardedToAll(layer) => layer.parameters(prefix),
            Self::QuantizedAllToSharded(layer) => layer.parameters(prefix),
            Self::QuantizedShardedToAll(layer) => layer.parameters(prefix),
        }
    }

    /// The output for an input whose gradient is summed over the ranks elsewhere.
    pub(crate) fn forward_part(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::AllToSharded(layer) => layer.part.forward_part(x),
            Self::QuantizedAllToSharded(layer) => layer.part.forward_part(x),
            other => other.forward(x),
        }
    }
}

impl ShardingType {
    /// The input of a layer, whose gradient is summed over the ranks where each has the whole.
    pub(crate) fn input(self, group: &Group, x: &Tensor) -> Result<Tensor> {
        match self {
            AllToSharded => ops::sum_gradients(group, x),
            ShardedToAll => Ok(x.clone()),
        }
    }
}

impl From<LinearPart> for ShardedLinear {
    fn from(part: LinearPart) -> Self {
        match part.direction {
            AllToSharded => Self::AllToSharded(AllToShardedLinear { part }),
            ShardedToAll => Self::ShardedToAll(ShardedToAllLinear { part }),
        }
    }
}

impl From<QuantizedPart> for ShardedLinear {
    fn from(part: QuantizedPart) -> Self {
        match part.direction {
            AllToSharded => Self::QuantizedAllToSharded(QuantizedAllToShardedLinear { part }),
            ShardedToAll => Self::QuantizedShardedToAll(QuantizedShardedToAllLinear { part }),
        }
    }
}

impl Module for ShardedLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::AllToSharded(layer) => layer.forward(x),
            Self::ShardedToAll(layer) => layer.forward(x),
            Self::QuantizedAllToSharded(layer) => layer.forward(x),
            Self::QuantizedShardedToAll(layer) => layer.forward(x),
        }
    }
}

/// A layer that does the same as `linear`, which every rank has whole, with this rank's part of its parameters.
///
/// # Errors
/// [`Error::Sharding`](crate::Error::Sharding) when `sharding` does not fit the layer.
pub fn shard_linear(
    group: &Group,
    linear: &Linear,
    direction: ShardingType,
    sharding: &Sharding,
) -> Result<ShardedLinear> {
    Ok(LinearPart::shared(group, direction, linear, sharding)?.into())
}

/// Weight and bias of one rank, and how the whole is divided: the outputs or the inputs, by the direction.
#[derive(Clone, Debug)]
pub(crate) struct LinearPart {
    group: Group,
    direction: ShardingType,
    local: Linear,
    partition: Partition,
    name: String,
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
            AllToSharded => (other, (mine, other)),
            ShardedToAll => (partition.size(), (other, mine)),
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
    fn shared(group: &Group, direction: ShardingType, linear: &Linear, sharding: &Sharding) -> Result<Self> {
        let partition = divide(group, direction, linear.weight().dims2()?, sharding, layer_name(direction))?;
        Self::of_whole(group, direction, linear, partition)
    }

    /// This rank's part of a whole layer.
    pub(crate) fn of_whole(
        group: &Group,
        direction: ShardingType,
        linear: &Linear,
        partition: Partition,
    ) -> Result<Self> {
        let name = layer_name(direction);
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
        Self::new(group, direction, name, weight, bias, partition)
    }

    /// Tensors that this rank has, whose shapes are checked.
    pub(crate) fn new(
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
    fn parameters(&self, prefix: &str) -> Vec<Parameter> {
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
        let over = (self.direction == ShardedToAll).then_some(&self.group);
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
        Err(ShardingError::new(&self.name, "input", self.group.size(), cause).into())
    }

    /// The part with its weight quantized, and the bias without its gradient. Where one rank's blocks are not whole, no rank quantizes.
    fn quantized(&self, dtype: GgmlDType) -> Result<QuantizedPart> {
        let unit = dtype.block_size();
        let sizes = match self.direction {
            AllToSharded => vec![self.local.weight().dim(1)?; self.group.size()],
            ShardedToAll => self.partition.sizes(),
        };
        if sizes.iter().any(|size| !size.is_multiple_of(unit)) {
            let cause = ShardingCause::Misaligned { sizes, unit };
            return Err(ShardingError::new(&self.name, "input", self.group.size(), cause).into());
        }
        let weight = QTensor::quantize(&self.local.weight().detach(), dtype)?;
        let bias = self.local.bias().map(Tensor::detach);
        QuantizedPart::new(&self.group, self.direction, &self.name, weight, bias, self.partition.clone())
    }
}

fn layer_name(direction: ShardingType) -> &'static str {
    match direction {
        AllToSharded => "AllToShardedLinear",
        ShardedToAll => "ShardedToAllLinear",
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
        AllToSharded => ("output", outputs),
        ShardedToAll => ("input", inputs),
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
        AllToSharded => [mine, inputs],
        ShardedToAll => [outputs, mine],
    };
    expect(group, name, "weight", &[outputs, inputs], &dims)?;
    bias.map_or(Ok(()), |b| expect(group, name, "bias", b.dims(), &dims[..1]))
}

/// Name of a new layer in errors.
fn name_of(vb: &VarBuilder, direction: ShardingType) -> String {
    let prefix = vb.prefix();
    if prefix.is_empty() { layer_name(direction).into() } else { prefix }
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
    Err(ShardingError::new(layer, tensor, group.size(), cause).into())
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
