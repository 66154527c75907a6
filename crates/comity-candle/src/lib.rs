//! Models of [candle](candle_core) across ranks: data-, tensor- and pipeline-parallel, and fully sharded.
//!
//! Data parallelism is one call between `backward` and the optimiser's step: [`average_gradients`]. The layers of tensor parallelism are
//! candle's modules: [`AllToShardedLinear`] and [`ShardedToAllLinear`] take the place of two linear layers.
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! use comity::Group;
//! use comity_candle::average_gradients;
//!
//! let group = Group::single(); // under `comity launch`: comity::init()?
//! let w = Var::from_tensor(&Tensor::new(&[1f32, 2.0], &Device::Cpu)?)?;
//! let mine = Tensor::full(group.rank() as f32 + 1.0, 2, &Device::Cpu)?; // this rank's share of the batch
//!
//! let loss = (w.as_tensor() * &mine)?.sum_all()?;
//! let mut gradients = loss.backward()?;
//! average_gradients(&group, [&w], &mut gradients)?;
//! for w in [&w] {
//!     if let Some(gradient) = gradients.get(w) {
//!         w.set(&(w.as_tensor() - (gradient * 0.1)?)?)?;
//!     }
//! }
//! assert_eq!(w.to_vec1::<f32>()?, [0.9, 1.9]);
//! # Ok::<(), comity_candle::Error>(())
//! ```
//!
//! # Gradients of operations
//!
//! The loss is the same on every rank, because the operations before it made it so. The derivative of that one loss by each rank's own
//! input follows. With `g` the gradient of the result:
//!
//! | operation | forward on rank `r` of `n` | gradient of rank `r`'s input |
//! |---|---|---|
//! | [`all_sum`] | `y = x_0 + ... + x_(n-1)` | `g` |
//! | [`all_max`], [`all_min`] | `y = max(x_0, ..., x_(n-1))` | `g` where `x_r` is the extreme, in equal parts to the ranks that have it; else 0 |
//! | [`all_gather`] | `y = x_0, ..., x_(n-1)` joined | part `r` of `g` |
//! | [`reduce_scatter`] | `y_r` = part `r` of `x_0 + ... + x_(n-1)` | `g_0, ..., g_(n-1)` joined |
//! | [`all_to_all`] | part `s` of `y_r` = part `r` of `x_s` | part `s` = part `r` of `g_s` |
//! | [`broadcast`] | `y = x_root` | `g` on the root, else 0 |
//! | [`send`], [`recv`] | `y` on the receiver `= x` on the sender | `g` travels back |
//! | [`sum_gradients`] | `y = x` | `g_0 + ... + g_(n-1)` |
//!
//! [`sum_gradients`] stands where ranks go on with different parts of the same `x`: the layers with divided outputs do it themselves.
//! PyTorch's functional `all_reduce` and burn's have another convention, in which each rank has a loss of its own: their gradient of a sum
//! is summed once more.
//!
//! # Beside MLX's layers
//!
//! | MLX (`mlx.nn`, `mx.distributed`) | Swift port | here |
//! |---|---|---|
//! | `init`, `is_available`, `Group` and its `split` | `initialize`, `isAvailable`, `Group`, `split` | [`comity::init`], [`comity::Group`], [`split`](comity::Group::split) with every backend; [`DeviceMesh`] |
//! | `all_sum`, `all_max`, `all_min` | `allSum`, `allMax`, `allMin` | [`all_sum`], [`all_max`], [`all_min`]; the extreme's gradient goes to who has it, in MLX to everyone |
//! | `all_gather` | `allGather` | [`all_gather`], [`all_gather_v`]; along any axis |
//! | `sum_scatter` | `sumScatter` | [`reduce_scatter`], [`reduce_scatter_v`]; with a gradient, along any axis |
//! | `all_to_all` (in a branch) | none | [`all_to_all`] |
//! | `send`, `recv`, `recv_like` | `send`, `recv`, `recvLike` | [`send`], [`recv`]; with gradients |
//! | none | none | [`broadcast`], [`broadcast_variables`] |
//! | `sum_gradients` | `sumGradients` | [`sum_gradients`] |
//! | `AllToShardedLinear`, `ShardedToAllLinear` | the same | [`AllToShardedLinear`], [`ShardedToAllLinear`] |
//! | none | subclasses of `Linear`, for LoRA | [`AllToShardedLinear::local`], [`ShardedToAllLinear::local`] give this rank's [`candle_nn::Linear`] |
//! | `from_linear` | `fromLinear` | [`AllToShardedLinear::from_linear`], [`ShardedToAllLinear::from_linear`] |
//! | `QuantizedAllToShardedLinear`, `QuantizedShardedToAllLinear` | the same | [`QuantizedAllToShardedLinear`], [`QuantizedShardedToAllLinear`]: GGUF's types, not `affine`, `mxfp4`, `mxfp8`, `nvfp4`; whole blocks on each rank |
//! | `from_quantized_linear` | `fromQuantizedLinear` | [`QuantizedAllToShardedLinear::from_quantized`], [`QuantizedShardedToAllLinear::from_quantized`] |
//! | none | `toQuantized` of a sharded layer | [`AllToShardedLinear::quantize`], [`ShardedToAllLinear::quantize`] |
//! | `freeze`, `unfreeze`: quantized weights stay frozen | the same | the same: quantized weights are no variables |
//! | `shard_linear` | `shardLinear` | [`shard_linear`], [`shard_quantized`] |
//! | `shard_inplace`: `"all-to-sharded"`, `"sharded-to-all"` or a predicate | `shardInPlace`, `ShardingType` | [`shard_in_place`] with [`ShardingType::axis`] or a rule; experts of three axes too |
//! | `segments`: a number, indices, fractions | `Segments` | [`Segments`] |
//! | errors when a result is evaluated | `checkedEval`, `withError` | each call returns its error; a backward pass returns those of its calls |
//! | `ValueError` | `ShardingError` | [`ShardingError`], [`ShardingCause`] |
//! | equal shares only | equal shares only | [`Sharding`]: balanced, by weights, or equal; in whole units |
//! | `average_gradients` | `averageGradients` | [`average_gradients`], [`DataParallel`]: overlapped with the backward pass |
//! | `all_reduce_size`, `communication_stream` of it | `allReduceSize` | no knobs: buckets of up to 32 MiB; [`DataParallel`] makes smaller ones, so that the first leave early |
//! | `communication_type` (until 2026-03) | `communicationType` (a first port) | [`comity::Group::with_wire`] |
//! | none | `groupBySize` | no use for it: buckets are made inside |
//! | `clip_grad_norm_sharded` | none | [`clip_grad_norm_sharded`] |
//! | `fsdp_apply_gradients` (2026-03 to 2026-07) | none | [`fully_shard`], which took its place |
//! | `fully_shard`, `FullyShardedModule`, `compute_dtype` of it | `fullyShard` | [`fully_shard`], [`FullySharded`], [`fully_shard_as`]: uneven, with prefetch; scalars lie on rank 0, where MLX refuses them |
//! | `as_linear` of a fully sharded embedding | `asLinear` | [`FullySharded::forward`] with other work: the closure gets the whole weights |
//! | none | none | [`ShardedEmbedding`], [`sharded_cross_entropy`], [`ShardedAttention`], [`KvCache`], [`Sampling`], [`Sampler`], [`DiLoCo`], [`sync_variables`] |
//! | `PipelineMixin` of mlx-lm | none | [`Pipeline`], [`divide_layers`]: also for training |
//! | `sharded_load` of mlx-lm | none | [`Weights`]; [`save_checkpoint`], [`load_checkpoint`] |
//!
//! Candle has neither `vmap` nor `jvp`, which MLX's operations have. The deep check `candle` looks for each function of the installed MLX in this table.
//!
//! Platforms: all of it ran on the CPU, on Linux. With the feature `cuda` and a group over NCCL, operations, layers, [`DataParallel`] and [`average_gradients`]
//! take tensors on the group's CUDA [`device()`] as they are, on candle's stream (run by hand). With the feature `metal` they take tensors on a Metal device,
//! through memory that both processors share (compiled only). With other backends tensors on a GPU travel through host memory. Fully sharded layers compute on
//! the CPU, and so does the overlap of [`DataParallel`].

mod attention;
mod checkpoint;
mod collective;
#[cfg(feature = "cuda")]
mod cuda;
mod data_parallel;
mod diloco;
mod embedding;
mod error;
mod fully_shard;
mod gradients;
mod linear;
mod load;
mod mesh;
#[cfg(feature = "metal")]
mod metal;
mod ops;
mod parameter;
mod pipeline;
mod product;
mod quantized;
mod random;
mod sharding;

pub use attention::{AttentionLayers, Heads, KvCache, ShardedAttention, causal_mask};
pub use checkpoint::{load_checkpoint, save_checkpoint};
pub use collective::{device, time_in_calls};
pub use data_parallel::DataParallel;
pub use diloco::{DiLoCo, OuterSteps};
pub use embedding::{ShardedEmbedding, sharded_cross_entropy};
pub use error::{Error, Result};
pub use fully_shard::{FullySharded, fully_shard, fully_shard_as};
pub use gradients::{average_gradients, clip_grad_norm_sharded};
pub use linear::{AllToShardedLinear, ShardedLinear, ShardedToAllLinear, shard_linear};
pub use load::Weights;
pub use mesh::DeviceMesh;
pub use ops::{
    all_gather, all_gather_v, all_max, all_min, all_sum, all_to_all, broadcast, recv, reduce_scatter,
    reduce_scatter_v, send, sum_gradients,
};
pub use parameter::{
    Parameter, ShardingType, broadcast_variables, shard_in_place, sync_variables, variables, whole_parameters,
};
pub use pipeline::{Passes, Pipeline, divide_layers};
pub use quantized::{QuantizedAllToShardedLinear, QuantizedShardedToAllLinear, shard_quantized};
pub use random::{Sampler, Sampling, Share};
pub use sharding::{Partition, Segments, Sharding, ShardingCause, ShardingError};

/// The example of the book is run as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/start/candle.md")]
struct Book;
