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

use crate::{Error, Parameter, Partition, Result, Sharding, ShardingCause, ShardingError, ShardingType, ops};
use candle_core::{D, Module, Tensor, Var};
use candle_nn::{Init, Linear, VarBuilder};
use comity::Group;

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
    group: Group,
    local: Linear,
    outputs: Partition,
    name: String,
}

impl AllToShardedLinear {
    /// A new layer out of a [`VarBuilder`] over variables, which then hold this rank's rows. The weights begin as those of
    /// [`candle_nn::linear()`] do. A bias follows if `bias`.
    ///
    /// # Errors
    /// [`Error::Sharding`] when `sharding` does not fit the outputs.
    pub fn new(
        group: &Group,
        inputs: usize,
        outputs: usize,
        bias: bool,
        sharding: &Sharding,
        vb: VarBuilder,
    ) -> Result<Self> {
        let name = name_of(&vb, "AllToShardedLinear");
        let outputs = sharding.partition(outputs, group.size()).map_err(|e| e.at(&name, "output"))?;
        Self::fresh(group, inputs, outputs, bias, &vb)
    }

    /// A new layer whose outputs are divided so.
    pub(crate) fn fresh(
        group: &Group,
        inputs: usize,
        outputs: Partition,
        bias: bool,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let rows = outputs.sizes()[group.rank()];
        let local = fresh(inputs, (rows, inputs), bias.then_some(rows), vb)?;
        Ok(Self { group: group.clone(), local, outputs, name: name_of(vb, "AllToShardedLinear") })
    }

    /// This rank's part of a layer that every rank has whole. Where its parameters are variables, those of the part are too.
    ///
    /// # Errors
    /// [`Error::Sharding`] when `sharding` does not fit the outputs.
    pub fn from_linear(group: &Group, linear: &Linear, sharding: &Sharding) -> Result<Self> {
        let name = "AllToShardedLinear";
        let (outputs, _) = linear.weight().dims2()?;
        let outputs = sharding.partition(outputs, group.size()).map_err(|e| e.at(name, "output"))?;
        Self::part_of(group, linear, outputs)
    }

    /// This rank's part of a layer whose outputs are divided so.
    pub(crate) fn part_of(group: &Group, linear: &Linear, outputs: Partition) -> Result<Self> {
        let name = "AllToShardedLinear";
        expect(group, name, "weight", linear.weight(), &[outputs.size(), linear.weight().dim(1)?])?;
        let weight = part(linear.weight(), Some((0, &outputs)), group.rank())?;
        let bias = linear.bias().map(|b| part(b, Some((0, &outputs)), group.rank())).transpose()?;
        Self::from_parts(group, name, weight, bias, outputs)
    }

    /// A layer of parts that this rank has, such as those that a file was read for; `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Sharding`] when their shapes are not those that `outputs` says.
    pub fn from_parts(
        group: &Group,
        name: &str,
        weight: Tensor,
        bias: Option<Tensor>,
        outputs: Partition,
    ) -> Result<Self> {
        let rows = outputs.sizes()[group.rank()];
        let (_, inputs) = weight.dims2()?;
        expect(group, name, "weight", &weight, &[rows, inputs])?;
        if let Some(b) = &bias {
            expect(group, name, "bias", b, &[rows])?;
        }
        Ok(Self { group: group.clone(), local: Linear::new(weight, bias), outputs, name: name.into() })
    }

    /// How the outputs are divided: the inputs of the layer that follows are too.
    pub fn outputs(&self) -> &Partition {
        &self.outputs
    }

    /// This rank's part of the layer.
    pub fn local(&self) -> &Linear {
        &self.local
    }

    /// The weight and the bias, under the names that they have in a model.
    pub fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let of = |name: &str, x: &Tensor| {
            Parameter::sharded(format!("{prefix}.{name}"), x.clone(), 0, self.outputs.clone())
        };
        let bias = self.local.bias().map(|b| of("bias", b));
        [of("weight", self.local.weight())].into_iter().chain(bias).collect()
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Module for AllToShardedLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.local.forward(&ops::sum_gradients(&self.group, x)?)
    }
}

/// A linear layer that takes each rank's part of the input and gives every rank the whole output.
///
/// Rank `r` holds its columns of the weight; every rank has the whole bias, which is added once, after the sum. Forward, the
/// output is summed over the ranks; backward, nothing travels. [`AllToShardedLinear`] has an example.
#[derive(Clone, Debug)]
pub struct ShardedToAllLinear {
    group: Group,
    local: Linear,
    inputs: Partition,
    name: String,
}

impl ShardedToAllLinear {
    /// A new layer out of a [`VarBuilder`] over variables, which then hold this rank's columns. The bias, if there is one, is each
    /// rank's own variable: start with [`broadcast_variables`](crate::broadcast_variables).
    ///
    /// # Errors
    /// [`Error::Sharding`] when `sharding` does not fit the inputs.
    pub fn new(
        group: &Group,
        inputs: usize,
        outputs: usize,
        bias: bool,
        sharding: &Sharding,
        vb: VarBuilder,
    ) -> Result<Self> {
        let name = name_of(&vb, "ShardedToAllLinear");
        let inputs = sharding.partition(inputs, group.size()).map_err(|e| e.at(&name, "input"))?;
        Self::fresh(group, inputs, outputs, bias, &vb)
    }

    /// A new layer whose inputs are divided so.
    pub(crate) fn fresh(
        group: &Group,
        inputs: Partition,
        outputs: usize,
        bias: bool,
        vb: &VarBuilder,
    ) -> Result<Self> {
        let columns = inputs.sizes()[group.rank()];
        let local = fresh(inputs.size(), (outputs, columns), bias.then_some(outputs), vb)?;
        Ok(Self { group: group.clone(), local, inputs, name: name_of(vb, "ShardedToAllLinear") })
    }

    /// This rank's part of a layer that every rank has whole. Where its parameters are variables, those of the part are too.
    ///
    /// # Errors
    /// [`Error::Sharding`] when `sharding` does not fit the inputs.
    pub fn from_linear(group: &Group, linear: &Linear, sharding: &Sharding) -> Result<Self> {
        let name = "ShardedToAllLinear";
        let (_, inputs) = linear.weight().dims2()?;
        let inputs = sharding.partition(inputs, group.size()).map_err(|e| e.at(name, "input"))?;
        Self::part_of(group, linear, inputs)
    }

    /// This rank's part of a layer whose inputs are divided so.
    pub(crate) fn part_of(group: &Group, linear: &Linear, inputs: Partition) -> Result<Self> {
        let name = "ShardedToAllLinear";
        expect(group, name, "weight", linear.weight(), &[linear.weight().dim(0)?, inputs.size()])?;
        let weight = part(linear.weight(), Some((1, &inputs)), group.rank())?;
        let bias = linear.bias().map(|b| part(b, None, group.rank())).transpose()?;
        Self::from_parts(group, name, weight, bias, inputs)
    }

    /// A layer of parts that this rank has, such as those that a file was read for; `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Sharding`] when their shapes are not those that `inputs` says.
    pub fn from_parts(
        group: &Group,
        name: &str,
        weight: Tensor,
        bias: Option<Tensor>,
        inputs: Partition,
    ) -> Result<Self> {
        let (outputs, _) = weight.dims2()?;
        expect(group, name, "weight", &weight, &[outputs, inputs.sizes()[group.rank()]])?;
        if let Some(b) = &bias {
            expect(group, name, "bias", b, &[outputs])?;
        }
        Ok(Self { group: group.clone(), local: Linear::new(weight, bias), inputs, name: name.into() })
    }

    /// How the inputs are divided.
    pub fn inputs(&self) -> &Partition {
        &self.inputs
    }

    /// This rank's part of the layer, with the whole bias.
    pub fn local(&self) -> &Linear {
        &self.local
    }

    /// The weight and the bias, under the names that they have in a model.
    pub fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let weight = self.local.weight().clone();
        let weight = Parameter::sharded(format!("{prefix}.weight"), weight, 1, self.inputs.clone());
        let bias = self.local.bias().map(|b| Parameter::whole(format!("{prefix}.bias"), b.clone()));
        [weight].into_iter().chain(bias).collect()
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Module for ShardedToAllLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        check_input(&self.group, &self.name, x, &self.inputs)?;
        let y = Linear::new(self.local.weight().clone(), None).forward(x)?;
        let y = ops::all_sum(&self.group, &y)?;
        self.local.bias().map_or(Ok(y.clone()), |b| y.broadcast_add(b))
    }
}

/// This rank's part of a parameter, in memory of its own; a variable where the whole is one.
fn part(x: &Tensor, along: Option<(usize, &Partition)>, rank: usize) -> candle_core::Result<Tensor> {
    let mine = match along {
        Some((axis, partition)) => partition.take(x, axis, rank)?,
        None => x.detach(),
    };
    if x.is_variable() { Ok(Var::from_tensor(&mine.copy()?)?.into_inner()) } else { Ok(mine) }
}

/// Variables of a new layer, which begin as those of `candle_nn::linear` with so many inputs do.
fn fresh(inputs: usize, weight: (usize, usize), bias: Option<usize>, vb: &VarBuilder) -> Result<Linear> {
    // Candle's initial weights go by the inputs of the whole layer, not of the part.
    let deviation = (2.0 / inputs as f64).sqrt();
    let weight = vb.get_with_hints(weight, "weight", Init::Randn { mean: 0.0, stdev: deviation })?;
    let bound = 1.0 / (inputs as f64).sqrt();
    let uniform = Init::Uniform { lo: -bound, up: bound };
    let bias = bias.map(|size| vb.get_with_hints(size, "bias", uniform)).transpose()?;
    Ok(Linear::new(weight, bias))
}

fn name_of(vb: &VarBuilder, kind: &str) -> String {
    let prefix = vb.prefix();
    if prefix.is_empty() { kind.into() } else { prefix }
}

pub(crate) fn expect(group: &Group, layer: &str, tensor: &str, x: &Tensor, dims: &[usize]) -> Result<()> {
    if x.dims() == dims {
        return Ok(());
    }
    let cause = ShardingCause::Shape { expected: dims.to_vec(), got: x.dims().to_vec() };
    Err(ShardingError::new(tensor, group.size(), cause).at(layer, tensor).into())
}

/// Whether the last axis of `x` is this rank's part of the layer's input.
pub(crate) fn check_input(group: &Group, layer: &str, x: &Tensor, inputs: &Partition) -> Result<()> {
    let mine = inputs.sizes()[group.rank()];
    if x.dim(D::Minus1)? == mine {
        return Ok(());
    }
    let mut expected = x.dims().to_vec();
    if let Some(last) = expected.last_mut() {
        *last = mine;
    }
    expect(group, layer, "input", x, &expected)
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
    QuantizedAllToSharded(crate::QuantizedAllToShardedLinear),
    /// Divided input, whole output, a quantized weight.
    QuantizedShardedToAll(crate::QuantizedShardedToAllLinear),
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
/// [`Error::Sharding`] when `sharding` does not fit the layer.
pub fn shard_linear(
    group: &Group,
    linear: &Linear,
    direction: ShardingType,
    sharding: &Sharding,
) -> Result<ShardedLinear, Error> {
    Ok(match direction {
        ShardingType::AllToSharded => {
            ShardedLinear::AllToSharded(AllToShardedLinear::from_linear(group, linear, sharding)?)
        }
        ShardingType::ShardedToAll => {
            ShardedLinear::ShardedToAll(ShardedToAllLinear::from_linear(group, linear, sharding)?)
        }
    })
}
