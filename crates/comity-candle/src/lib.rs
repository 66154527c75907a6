//! Training with [candle](candle_core) across ranks.
//!
//! Data parallelism is one call between `backward` and the optimiser's step: [`average_gradients`].
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

mod attention;
mod cache;
mod checkpoint;
mod clip;
mod collective;
mod data_parallel;
mod embedding;
mod error;
mod fully_shard;
mod gradients;
mod linear;
mod load;
mod mesh;
mod ops;
mod parameter;
mod pipeline;
mod quantized;
mod sampler;
mod sampling;
mod sharding;

pub use attention::{AttentionLayers, Heads, ShardedAttention};
pub use cache::{KvCache, causal_mask};
pub use checkpoint::{load_checkpoint, save_checkpoint};
pub use clip::clip_grad_norm_sharded;
pub use collective::time_in_calls;
pub use data_parallel::DataParallel;
pub use embedding::{ShardedEmbedding, sharded_cross_entropy};
pub use error::{Error, Result};
pub use fully_shard::{FullySharded, fully_shard, fully_shard_as};
pub use gradients::average_gradients;
pub use linear::{AllToShardedLinear, ShardedLinear, ShardedToAllLinear, shard_linear};
pub use load::Weights;
pub use mesh::DeviceMesh;
pub use ops::{
    all_gather, all_gather_v, all_max, all_min, all_sum, all_to_all, broadcast, recv, reduce_scatter,
    reduce_scatter_v, send, sum_gradients,
};
pub use parameter::{Direction, Parameter, broadcast_variables, shard_in_place, variables};
pub use pipeline::{Passes, Pipeline, divide_layers};
pub use quantized::{QuantizedAllToShardedLinear, QuantizedShardedToAllLinear, shard_quantized};
pub use sampler::{Sampler, Share};
pub use sampling::Sampling;
pub use sharding::{Partition, Segments, Sharding, ShardingCause, ShardingError};

/// The example of the book is run as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/start/candle.md")]
struct Book;
