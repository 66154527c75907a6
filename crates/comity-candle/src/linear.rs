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

mod part;

use crate::{
    Parameter, Partition, QuantizedAllToShardedLinear, QuantizedShardedToAllLinear, Result, Sharding,
    ShardingType::{self, AllToSharded, ShardedToAll},
    ops,
    quantized::QuantizedPart,
};
use candle_core::{Module, Tensor, quantized::GgmlDType};
use candle_nn::{Linear, VarBuilder};
use comity::Group;
use part::name_of;

pub(crate) use part::{LinearPart, check_shapes, check_width, divide, expect};

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

    /// A layer of parts that this rank has, such as those that a file was read for; `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when their shapes are not those that `outputs` says.
    pub fn from_parts(
        group: &Group,
        name: &str,
        weight: Tensor,
        bias: Option<Tensor>,
        outputs: Partition,
    ) -> Result<Self> {
        Ok(Self { part: LinearPart::from_tensors(group, AllToSharded, name, weight, bias, outputs)? })
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

    /// Division of the outputs, and of the inputs of the layer that follows.
    pub fn outputs(&self) -> &Partition {
        &self.part.partition
    }

    /// This rank's part of the layer.
    pub fn local(&self) -> &Linear {
        &self.part.local
    }

    /// The weight and the bias, under the names that they have in a model.
    pub fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        self.part.parameters(prefix)
    }
}

impl Module for AllToShardedLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.part.forward_part(&ops::sum_gradients(&self.part.group, x)?)
    }
}

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

    /// A layer of parts that this rank has, such as those that a file was read for; `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when their shapes are not those that `inputs` says.
    pub fn from_parts(
        group: &Group,
        name: &str,
        weight: Tensor,
        bias: Option<Tensor>,
        inputs: Partition,
    ) -> Result<Self> {
        Ok(Self { part: LinearPart::from_tensors(group, ShardedToAll, name, weight, bias, inputs)? })
    }

    /// The same layer, still divided, with a quantized weight.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when a rank's inputs are not whole blocks of `dtype`.
    pub fn quantize(&self, dtype: GgmlDType) -> Result<QuantizedShardedToAllLinear> {
        Ok(QuantizedShardedToAllLinear { part: self.part.quantized(dtype)? })
    }

    /// Division of the inputs.
    pub fn inputs(&self) -> &Partition {
        &self.part.partition
    }

    /// This rank's part of the layer, with the whole bias.
    pub fn local(&self) -> &Linear {
        &self.part.local
    }

    /// The weight and the bias, under the names that they have in a model.
    pub fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        self.part.parameters(prefix)
    }
}

impl Module for ShardedToAllLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.part.forward_part(x)
    }
}

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
