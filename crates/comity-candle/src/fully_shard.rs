//! Fully sharded layers: each rank keeps a part of the weights, and has the whole of a layer only while it computes it.
//!
//! ```text
//! forward    gather 0 | layer 0 | layer 1 | layer 2      backward  gather 2 | layer 2 | scatter 2 | layer 1 | scatter 1 | ...
//!                     gather 1  | gather 2                                    gather 1            | gather 0
//! ```
//!
//! Weights travel while a layer is computed. A gradient does not: candle wants it when the layer's backward pass ends.
//!
//! Candle's graph keeps all that an operation has read, so a layer is one operation here: its inner results and its whole weights are
//! dropped after the forward pass, and computed again in the backward pass.

use crate::{
    Error, Parameter, Partition, Result, ShardingCause, ShardingError, Weights,
    collective::{CallKind, TensorCall, in_calls},
};
use candle_core::{
    CpuStorage, CustomOp2, DType, Device, Layout, Shape, Tensor, Var, backend::BackendStorage,
};
use candle_nn::VarBuilder;
use comity::{Group, Request};
use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

/// The computation of a layer from its weights and its input.
type Compute = Arc<dyn Fn(VarBuilder<'static>, &Tensor) -> Result<Tensor> + Send + Sync>;

/// A layer whose parameters are spread over the ranks, and come together only while it is used.
///
/// Each rank has its own share of the batch. The gradient of a rank's part is averaged over the ranks, so that any optimiser of
/// candle's, given [`variable`](Self::variable), takes the step of the whole model, and its own state is spread too.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, Optimizer, SGD, linear};
/// use comity_candle::fully_shard;
///
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let weights = || -> comity_candle::Result<_> {
///     let w = Tensor::ones((4, 4), DType::F32, &Device::Cpu)?;
///     Ok(vec![("weight".to_string(), w), ("bias".to_string(), Tensor::zeros(4, DType::F32, &Device::Cpu)?)])
/// };
/// let layers = fully_shard(&group, [weights()?, weights()?])?; // the same on every rank
/// let mut sgd = SGD::new(layers.iter().map(|l| l.variable().clone()).collect(), 0.1)?;
///
/// let mut x = Tensor::ones((2, 4), DType::F32, &Device::Cpu)?; // this rank's share of the batch
/// for layer in &layers {
///     x = layer.forward(&x, |vb, x| Ok(linear(4, 4, vb)?.forward(x)?))?;
/// }
/// sgd.backward_step(&x.sqr()?.mean_all()?)?;
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone)]
pub struct FullySharded {
    inner: Arc<Inner>,
}

struct Inner {
    group: Group,
    flat: Var,
    pieces: Vec<Piece>,
    compute_dtype: DType,
    chain: Arc<Chain>,
    /// Its place in the chain.
    index: usize,
}

/// Layers that follow each other, and the one whose whole weights are on their way.
#[derive(Default)]
struct Chain {
    layers: OnceLock<Vec<Weak<Inner>>>,
    coming: Mutex<Option<Coming>>,
}

/// Weights that were asked for before their layer's turn. They are for the next use of the chain: after another one, a step of the optimiser
/// may lie between.
struct Coming {
    layer: usize,
    pass: Pass,
    weights: Request<Tensor, Error>,
}

/// Direction in which layers are used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    Backward,
}

impl Chain {
    fn coming(&self) -> MutexGuard<'_, Option<Coming>> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A parameter: its shape, and each rank's rows.
struct Piece {
    name: String,
    shape: Shape,
    rows: Vec<Range<usize>>,
}

impl Piece {
    /// Balanced rows; the last ranks may have none.
    fn new(name: String, x: &Tensor, ranks: usize) -> Self {
        let height = x.dims().first().copied().unwrap_or(1);
        let mut at = 0;
        let rows = (0..ranks)
            .map(|r| {
                let end = at + height / ranks + usize::from(r < height % ranks);
                std::mem::replace(&mut at, end)..end
            })
            .collect();
        Self { name, shape: x.shape().clone(), rows }
    }

    fn width(&self) -> usize {
        self.shape.dims().iter().skip(1).product()
    }

    /// The number of elements that a rank has.
    fn count(&self, rank: usize) -> usize {
        self.rows[rank].len() * self.width()
    }
}

impl fmt::Debug for FullySharded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.inner.pieces.iter().map(|p| p.name.as_str()).collect();
        f.debug_struct("FullySharded").field("parameters", &names).finish_non_exhaustive()
    }
}

/// Spread the parameters of layers over the ranks, by their rows; every rank gives the same layers, with the same values.
///
/// While a layer is computed, the weights of the one after it travel, and backwards those of the one before.
///
/// # Errors
/// [`Error::Sharding`] that names the parameter, unless those of a layer have one type, of `f16`, `bf16`, `f32` and `f64`.
pub fn fully_shard(
    group: &Group,
    layers: impl IntoIterator<Item = Vec<(String, Tensor)>>,
) -> Result<Vec<FullySharded>> {
    fully_shard_as(group, layers, None)
}

/// The same as [`fully_shard`], with the type in which weights travel and are computed with, such as `bf16`; each rank's part keeps its own.
///
/// # Errors
/// Those of [`fully_shard`].
pub fn fully_shard_as(
    group: &Group,
    layers: impl IntoIterator<Item = Vec<(String, Tensor)>>,
    compute_dtype: Option<DType>,
) -> Result<Vec<FullySharded>> {
    let chain = Arc::new(Chain::default());
    let made: Vec<FullySharded> = layers
        .into_iter()
        .enumerate()
        .map(|(i, layer)| FullySharded::new(group, layer, compute_dtype, (chain.clone(), i)))
        .collect::<Result<_>>()?;
    // Set once: the chain is new.
    let _ = chain.layers.set(made.iter().map(|l| Arc::downgrade(&l.inner)).collect());
    Ok(made)
}

impl FullySharded {
    fn new(
        group: &Group,
        parameters: Vec<(String, Tensor)>,
        compute_dtype: Option<DType>,
        (chain, index): (Arc<Chain>, usize),
    ) -> Result<Self> {
        let dtype = parameters.first().map_or(DType::F32, |(_, x)| x.dtype());
        let is_float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
        if let Some((name, x)) = parameters.iter().find(|(_, x)| !is_float || x.dtype() != dtype) {
            let expected = if is_float { dtype.as_str() } else { "f16, bf16, f32 or f64" };
            let cause = ShardingCause::DType { expected: expected.into(), got: x.dtype().as_str().into() };
            return Err(ShardingError::new(name, "parameter", group.size(), cause).into());
        }
        let mut mine = Vec::new();
        let mut pieces = Vec::new();
        for (name, x) in parameters {
            let piece = Piece::new(name, &x, group.size());
            let rows = &piece.rows[group.rank()];
            let flat = x.detach().flatten_all()?;
            mine.push(flat.narrow(0, rows.start * piece.width(), rows.len() * piece.width())?);
            pieces.push(piece);
        }
        if mine.iter().all(|x| x.elem_count() == 0) {
            mine = vec![Tensor::zeros(1, dtype, &Device::Cpu)?];
        }
        let inner = Inner {
            group: group.clone(),
            flat: Var::from_tensor(&Tensor::cat(&mine, 0)?.copy()?)?,
            pieces,
            compute_dtype: compute_dtype.unwrap_or(dtype),
            chain,
            index,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// This rank's part of all parameters of the layer, end to end: for an optimiser that treats elements alike, as candle's do.
    pub fn variable(&self) -> &Var {
        &self.inner.flat
    }

    /// The same as a parameter, of this name: for [`clip_grad_norm_sharded`](crate::clip_grad_norm_sharded).
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{Module, linear};
    /// # use comity_candle::{clip_grad_norm_sharded, fully_shard};
    /// # let group = comity::Group::single();
    /// # let layer = vec![("weight".to_string(), Tensor::ones((2, 2), DType::F32, &Device::Cpu)?)];
    /// let layers = fully_shard(&group, [layer])?;
    /// # let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu)?;
    /// # let y = layers[0].forward(&x, |vb, x| Ok(x.matmul(&vb.get((2, 2), "weight")?)?))?;
    /// let mut gradients = y.sum_all()?.backward()?;
    /// let parameters: Vec<_> = layers.iter().map(|l| l.parameter("layer")).collect();
    /// assert_eq!(clip_grad_norm_sharded(&group, &parameters, &mut gradients, 1.0)?, 2.0);
    /// # Ok::<(), comity_candle::Error>(())
    /// ```
    pub fn parameter(&self, name: &str) -> Parameter {
        let mut at = 0;
        let mut ranges = Vec::new();
        for count in self.inner.counts() {
            ranges.push(at..at + count);
            at += count;
        }
        let flat = self.inner.flat.as_tensor().clone();
        Parameter::sharded(name, flat, 0, Partition::overlapping(at, ranges))
    }

    /// The layer's output for `x`. `compute` gets the whole weights, under their names, and is called once more in the backward
    /// pass, so that nothing else has to be kept.
    ///
    /// Every rank calls this, in the same order; `x` may differ.
    ///
    /// # Errors
    /// Errors of `compute`; [`Error::Group`] as from [`Group::all_gather`].
    pub fn forward(
        &self,
        x: &Tensor,
        compute: impl Fn(VarBuilder<'static>, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Tensor> {
        let compute: Compute = Arc::new(compute);
        let flat = self.inner.whole(Pass::Forward)?;
        let whole = self.inner.tensors(&flat)?;
        drop(flat);
        let y = compute(self.inner.builder(whole), &x.detach())?.contiguous()?;
        let op = Recomputed { inner: self.inner.clone(), compute, output: Mutex::new(Some(y.detach())) };
        Ok(x.apply_op2(&self.inner.flat, op)?)
    }

    /// This rank's rows of each parameter, for [`save_checkpoint`](crate::save_checkpoint).
    ///
    /// # Errors
    /// Candle's.
    pub fn parameters(&self, prefix: &str) -> Result<Vec<Parameter>> {
        let inner = &self.inner;
        let rank = self.inner.group.rank();
        let mut at = 0;
        let mut parameters = Vec::new();
        for p in &inner.pieces {
            let mut dims = p.shape.dims().to_vec();
            if let Some(first) = dims.first_mut() {
                *first = p.rows[rank].len();
            }
            let mine = inner.flat.as_detached_tensor().narrow(0, at, p.count(rank))?;
            at += p.count(rank);
            let name = format!("{prefix}.{}", p.name);
            parameters.push(match p.shape.rank() {
                // A scalar lies on rank 0.
                0 => Parameter::whole(
                    name,
                    if rank == 0 {
                        mine.reshape(())?
                    } else {
                        Tensor::zeros((), inner.flat.dtype(), &Device::Cpu)?
                    },
                ),
                _ => {
                    let partition = Partition::overlapping(p.shape.dims()[0], p.rows.iter().cloned());
                    Parameter::sharded(name, mine.reshape(dims)?, 0, partition)
                }
            });
        }
        Ok(parameters)
    }

    /// Take this rank's rows of each parameter from a checkpoint.
    ///
    /// # Errors
    /// Those of [`Weights::part`].
    pub fn load(&self, weights: &Weights) -> Result<()> {
        let inner = &self.inner;
        let rank = self.inner.group.rank();
        let mut mine = Vec::new();
        for p in inner.pieces.iter().filter(|p| p.count(rank) > 0) {
            let x = match p.shape.dims().first() {
                None => weights.tensor(&p.name)?,
                Some(height) => {
                    let partition = Partition::overlapping(*height, p.rows.iter().cloned());
                    weights.part_of(&p.name, 0, &partition)?
                }
            };
            mine.push(x.flatten_all()?.to_dtype(inner.flat.dtype())?.to_device(inner.flat.device())?);
        }
        if !mine.is_empty() {
            inner.flat.set(&Tensor::cat(&mine, 0)?)?;
        }
        *inner.chain.coming() = None;
        Ok(())
    }
}

impl Inner {
    /// The elements of each rank's part, with its padding.
    fn counts(&self) -> Vec<usize> {
        (0..self.group.size()).map(|r| self.count(r) + self.padding(r)).collect()
    }

    fn count(&self, rank: usize) -> usize {
        self.pieces.iter().map(|p| p.count(rank)).sum()
    }

    /// Number of elements that are added: 1 for a rank without any, since candle's optimisers cannot set an empty variable.
    fn padding(&self, rank: usize) -> usize {
        usize::from(self.count(rank) == 0)
    }

    fn gather(&self) -> Request<Tensor, Error> {
        let flat = self.flat.as_detached_tensor();
        let counts = self.counts();
        let dtype = self.compute_dtype;
        self.group.spawn_as(move |g| {
            let mine = flat.to_dtype(dtype)?;
            Ok(TensorCall::new(g, CallKind::Gather(counts)).apply(&mine)?)
        })
    }

    /// All ranks' parts, by rank. Those of the layer that comes after it in this pass begin to travel.
    fn whole(&self, pass: Pass) -> Result<Tensor> {
        let coming = self.chain.coming().take().filter(|c| c.layer == self.index && c.pass == pass);
        let weights = coming.map_or_else(|| self.gather(), |c| c.weights);
        // WAIT: a request, whose call has a deadline
        let flat = in_calls(|| weights.wait())?;
        let after = match pass {
            Pass::Forward => Some(self.index + 1),
            Pass::Backward => self.index.checked_sub(1),
        };
        let layers = self.chain.layers.get();
        let neighbour = after.and_then(|i| layers?.get(i)?.upgrade());
        *self.chain.coming() = neighbour.map(|n| Coming { layer: n.index, pass, weights: n.gather() });
        Ok(flat)
    }

    /// The parameters, out of all ranks' parts.
    fn tensors(&self, flat: &Tensor) -> Result<HashMap<String, Tensor>> {
        let ranks = self.group.size();
        let mut parts: Vec<Vec<Tensor>> = self.pieces.iter().map(|_| Vec::with_capacity(ranks)).collect();
        let mut at = 0;
        for rank in 0..ranks {
            for (piece, parts) in self.pieces.iter().zip(&mut parts) {
                let count = piece.count(rank);
                if count > 0 {
                    parts.push(flat.narrow(0, at, count)?);
                }
                at += count;
            }
            at += self.padding(rank);
        }
        let named = self.pieces.iter().zip(parts).map(|(p, parts)| {
            let x = if parts.is_empty() {
                Tensor::zeros(p.shape.clone(), flat.dtype(), flat.device())?
            } else {
                Tensor::cat(&parts, 0)?.reshape(p.shape.clone())?
            };
            Ok((p.name.clone(), x))
        });
        named.collect()
    }

    fn builder(&self, tensors: HashMap<String, Tensor>) -> VarBuilder<'static> {
        VarBuilder::from_tensors(tensors, self.compute_dtype, self.flat.device())
    }

    /// This rank's part of the average of all ranks' gradients.
    fn scatter(&self, gradients: &HashMap<String, Tensor>) -> Result<Tensor> {
        let ranks = self.group.size();
        let mut rows = Vec::new();
        for rank in 0..ranks {
            for p in self.pieces.iter().filter(|p| p.count(rank) > 0) {
                let start = p.rows[rank].start * p.width();
                rows.push(match gradients.get(&p.name) {
                    Some(g) => g.flatten_all()?.narrow(0, start, p.count(rank))?,
                    None => Tensor::zeros(p.count(rank), self.compute_dtype, self.flat.device())?,
                });
            }
            if self.padding(rank) > 0 {
                rows.push(Tensor::zeros(1, self.compute_dtype, self.flat.device())?);
            }
        }
        let sum =
            TensorCall::new(&self.group, CallKind::Scatter(self.counts())).apply(&Tensor::cat(&rows, 0)?)?;
        Ok((sum.to_dtype(self.flat.dtype())? / ranks as f64)?)
    }
}

/// A layer as one operation, of its input and of this rank's part of its weights.
struct Recomputed {
    inner: Arc<Inner>,
    compute: Compute,
    /// The output, until the graph has it.
    output: Mutex<Option<Tensor>>,
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
