//! Parameters of a model that is spread over ranks: name, tensor, and which part of the whole it is; the same values for all.

use crate::{Error, Partition, Result, Sharding, ShardingCause, ShardingError, collective::in_calls};
use candle_core::{DType, Device, Tensor, Var, WithDType};
use candle_nn::VarMap;
use comity::{Element, Group, ViewMut};
use half::{bf16, f16};
use std::{collections::HashMap, sync::PoisonError};

/// A parameter, or this rank's part of one.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use comity_candle::{Parameter, Sharding};
///
/// let parts = Sharding::balanced().partition(6, 3)?;
/// let mine = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
/// let p = Parameter::sharded("up.weight", mine, 0, parts);
/// assert_eq!(p.whole_shape(), [6, 4]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name in the model.
    pub name: String,
    /// The range that this rank holds.
    pub tensor: Tensor,
    /// The axis that is divided and how; `None` when every rank has the whole.
    pub part: Option<(usize, Partition)>,
}

impl Parameter {
    /// A parameter that every rank holds whole.
    pub fn whole(name: impl Into<String>, tensor: Tensor) -> Self {
        Self { name: name.into(), tensor, part: None }
    }

    /// This rank's part of a parameter.
    pub fn sharded(name: impl Into<String>, tensor: Tensor, axis: usize, partition: Partition) -> Self {
        Self { name: name.into(), tensor, part: Some((axis, partition)) }
    }

    /// The variable that an optimiser changes, where the tensor is one.
    pub fn variable(&self) -> Option<Var> {
        if self.tensor.is_variable() { Var::from_tensor(&self.tensor).ok() } else { None }
    }

    /// The shape of the whole parameter.
    pub fn whole_shape(&self) -> Vec<usize> {
        let mut dims = self.tensor.dims().to_vec();
        if let Some((axis, partition)) = &self.part
            && let Some(dim) = dims.get_mut(*axis)
        {
            *dim = partition.size();
        }
        dims
    }
}

/// The variables among parameters, in their order: for an optimiser.
///
/// ```
/// use candle_core::{Device, Var};
/// use comity_candle::{Parameter, variables};
///
/// let w = Var::new(&[1f32], &Device::Cpu)?;
/// assert_eq!(variables(&[Parameter::whole("w", w.as_tensor().clone())]).len(), 1);
/// # Ok::<(), comity_candle::Error>(())
/// ```
pub fn variables<'a>(parameters: impl IntoIterator<Item = &'a Parameter>) -> Vec<Var> {
    parameters.into_iter().filter_map(Parameter::variable).collect()
}

/// The variables of a map as parameters that every rank has whole, by name: in one order on all ranks, which [`VarMap::all_vars`] has not.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_nn::{VarBuilder, VarMap, linear};
/// use comity_candle::{broadcast_variables, variables, whole_parameters};
///
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let vars = VarMap::new();
/// linear(4, 2, VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu).pp("up"))?;
/// let parameters = whole_parameters(&vars);
/// broadcast_variables(&group, &variables(&parameters), 0)?;
/// assert_eq!(parameters[0].name, "up.bias");
/// # Ok::<(), comity_candle::Error>(())
/// ```
pub fn whole_parameters(vars: &VarMap) -> Vec<Parameter> {
    let data = vars.data().lock().unwrap_or_else(PoisonError::into_inner);
    let mut all: Vec<Parameter> =
        data.iter().map(|(name, v)| Parameter::whole(name, v.as_tensor().clone())).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Side of a weight that is divided: its outputs or its inputs.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use comity_candle::ShardingType;
///
/// let weight = Tensor::zeros((8, 4), DType::F32, &Device::Cpu)?;
/// assert_eq!(ShardingType::AllToSharded.axis("up.weight", &weight), Some(0));
/// assert_eq!(ShardingType::ShardedToAll.axis("down.weight", &weight), Some(1));
/// assert_eq!(ShardingType::ShardedToAll.axis("down.bias", &weight.get(0)?), None); // kept whole
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardingType {
    /// Every rank has the whole input, and computes its part of the outputs.
    AllToSharded,
    /// Every rank has its part of the input; a sum over the ranks gives all of them the whole output.
    ShardedToAll,
}

impl ShardingType {
    /// The axis of a parameter that is divided; `None` for one that stays whole, which a bias does where inputs are divided.
    ///
    /// A layer that adds a whole bias before the sum adds it once for each rank: [`ShardedToAllLinear`](crate::ShardedToAllLinear)
    /// adds it after.
    pub fn axis(self, name: &str, tensor: &Tensor) -> Option<usize> {
        let bias = name.ends_with("bias");
        let rank = tensor.rank();
        match self {
            Self::AllToSharded if bias => rank.checked_sub(1),
            Self::AllToSharded => (rank > 0).then_some(rank.saturating_sub(2)),
            Self::ShardedToAll if bias => None,
            Self::ShardedToAll => rank.checked_sub(1),
        }
    }
}

/// Leave this rank's part of named tensors in the place of the whole, and return how each was divided. Adds no communication.
///
/// `rule` gives the axis and the sharding of a tensor, or `None` to keep it whole. Made into a
/// [`VarBuilder`](candle_nn::VarBuilder), the tensors build any model of candle's with this rank's sizes, such as its number of
/// heads.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use comity_candle::{ShardingType, Sharding, shard_in_place};
///
/// let group = comity::Group::single();
/// let mut tensors = [("up.weight".to_string(), Tensor::zeros((8, 4), DType::F32, &Device::Cpu)?)].into();
/// let rule = |name: &str, x: &Tensor| Some((ShardingType::AllToSharded.axis(name, x)?, Sharding::balanced()));
/// shard_in_place(&group, &mut tensors, rule)?;
/// assert_eq!(tensors["up.weight"].dims(), [8 / group.size(), 4]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Sharding`] with the tensor's name: nothing was changed.
pub fn shard_in_place(
    group: &Group,
    tensors: &mut HashMap<String, Tensor>,
    rule: impl Fn(&str, &Tensor) -> Option<(usize, Sharding)>,
) -> Result<HashMap<String, (usize, Partition)>> {
    let mut parts = HashMap::new();
    let mut mine = Vec::new();
    for (name, x) in tensors.iter() {
        let Some((axis, sharding)) = rule(name, x) else { continue };
        let (part, partition) = take_part(group, name, x, axis, &sharding)?;
        mine.push((name.clone(), part));
        parts.insert(name.clone(), (axis, partition));
    }
    tensors.extend(mine);
    Ok(parts)
}

/// Checks that all ranks describe their parameters alike; `owner` is for errors.
pub(crate) fn agree(group: &Group, owner: &str, description: &[u8]) -> Result<()> {
    let sum = fnv(FNV, description);
    let mut sums = vec![0u64; group.size()];
    in_calls(|| group.all_gather(&[sum], &mut sums))?;
    let differing: Vec<usize> = (0..sums.len()).filter(|&r| sums[r] != sums[0]).collect();
    if differing.is_empty() {
        return Ok(());
    }
    let cause = ShardingCause::Parameters { differing };
    Err(ShardingError::new(owner, "parameters", group.size(), cause).into())
}

/// Beginning of [`fnv`].
pub(crate) const FNV: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a of some bytes more: the same on every machine.
pub(crate) fn fnv(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// This rank's part of a tensor, with a name for errors.
pub(crate) fn take_part(
    group: &Group,
    name: &str,
    x: &Tensor,
    axis: usize,
    sharding: &Sharding,
) -> Result<(Tensor, Partition)> {
    let partition = sharding.partition_axis(name, x.dims(), axis, group.size())?;
    let part = partition.take(x, axis, group.rank())?;
    // What an optimiser changes stays a variable.
    let part = if x.is_variable() { Var::from_tensor(&part)?.into_inner() } else { part };
    Ok((part, partition))
}

/// Give every rank the values that rank `root` has of these variables: the same start for all.
///
/// ```
/// use candle_core::{Device, Var};
///
/// let group = comity::Group::single();
/// let w = Var::rand(-1f32, 1.0, 4, &Device::Cpu)?; // candle's random numbers differ from rank to rank
/// comity_candle::broadcast_variables(&group, [&w], 0)?;
/// # Ok::<(), comity_candle::Error>(())
/// ```
///
/// # Errors
/// [`Error::Group`] as [`Group::broadcast`], such as a mismatch when the ranks' variables differ in shape.
pub fn broadcast_variables<'a>(
    group: &Group,
    variables: impl IntoIterator<Item = &'a Var>,
    root: usize,
) -> Result<()> {
    for v in variables {
        v.set(&crate::broadcast(group, &v.as_detached_tensor(), root)?.detach()).map_err(Error::Tensor)?;
    }
    Ok(())
}

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
