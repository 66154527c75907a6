//! A Llama whose layers are divided among the ranks of one group, and whose blocks are divided among those of another.
//!
//! ```text
//! --pipeline 2 on 4 ranks     ranks 0, 1: tokens, blocks 0..k, each half of every layer
//!                             ranks 2, 3: blocks k.., scores, each half of every layer
//! ```

use super::{Result, config::Config};
use candle_core::{DType, Module, Tensor};
use candle_nn::{RmsNorm, rotary_emb};
use comity::Group;
use comity_candle::{
    Heads, KvCache, Partition, ShardedAttention, ShardedEmbedding, ShardedLinear, Sharding, ShardingType,
    Weights, divide_layers,
};
use std::ops::Range;

struct Block {
    attention: ShardedAttention,
    up: ShardedLinear,
    gate: ShardedLinear,
    down: ShardedLinear,
    norms: [RmsNorm; 2],
    cache: KvCache,
}

/// The layer that gives scores: of its own, or the embedding again.
enum Scores {
    Own(ShardedLinear, Partition),
    Tied(ShardedEmbedding),
}

pub(crate) struct Model {
    config: Config,
    dtype: DType,
    /// Ranks that hold the same blocks, and those that hold the others.
    tensor: Group,
    pipeline: Group,
    tokens: Option<ShardedEmbedding>,
    blocks: Vec<Block>,
    end: Option<(RmsNorm, Scores)>,
    cos: Tensor,
    sin: Tensor,
}

fn norm(weights: &Weights, name: &str, eps: f64) -> Result<RmsNorm> {
    Ok(RmsNorm::new(weights.tensor(&format!("{name}.weight"))?, eps))
}

impl Block {
    fn load(weights: &Weights, config: &Config) -> Result<Self> {
        let names = &config.names;
        let ranks = weights.group().size();
        // As many heads together as fill whole blocks of the layer after them.
        let block = weights.block_size(&format!("{}.weight", names.attention[3]))?;
        let together = (1..=block).find(|n| (n * config.head_width).is_multiple_of(block)).unwrap_or(1);
        let share = Sharding::balanced().unit(together);
        let heads = Heads::with(config.heads, config.keys, config.head_width, ranks, share)?;
        let [up, gate, down] = names.product;
        let share = Sharding::balanced().unit(weights.block_size(&format!("{down}.weight"))?);
        Ok(Self {
            attention: weights.attention(names.attention, &heads)?,
            up: weights.linear(up, ShardingType::AllToSharded, &share)?,
            gate: weights.linear(gate, ShardingType::AllToSharded, &share)?,
            down: weights.linear(down, ShardingType::ShardedToAll, &share)?,
            norms: [
                norm(weights, names.norms[0], config.norm_eps)?,
                norm(weights, names.norms[1], config.norm_eps)?,
            ],
            cache: KvCache::default(),
        })
    }

    fn forward(
        &mut self,
        x: &Tensor,
        turn: impl Fn(&Tensor) -> Result<Tensor>,
        requests: &[usize],
    ) -> Result<Tensor> {
        let (q, k, v) = self.attention.project(&self.norms[0].forward(x)?)?;
        let q = turn(&q)?;
        let k = turn(&k)?;
        let x = (self.attention.attend_cached(&q, &k, &v, &mut self.cache, requests)? + x)?;
        let h = self.norms[1].forward(&x)?;
        let h = (self.gate.forward(&h)?.silu()? * self.up.forward(&h)?)?;
        Ok((self.down.forward(&h)? + x)?)
    }
}

/// This rank's blocks, such that the largest stage is as small as it can be. Tokens lie with the first block, scores with the last.
fn share(weights: &Weights, config: &Config, pipeline: &Group) -> Result<Range<usize>> {
    let names = &config.names;
    let size = |name: &str| {
        let shape = weights.shape(&format!("{name}.weight"));
        shape.map_or(0, |s| s.iter().product::<usize>() as u64)
    };
    let block = |i| {
        let parts = names.attention.iter().chain(&names.product);
        parts.map(|part| size(&format!("{}.{i}.{part}", names.layers))).sum()
    };
    let mut sizes: Vec<u64> = (0..config.layers).map(block).collect();
    let tokens = size(names.tokens);
    let scores = if tied(weights, config) { tokens } else { size(names.scores) };
    sizes.iter_mut().take(1).for_each(|first| *first += tokens);
    sizes.iter_mut().rev().take(1).for_each(|last| *last += scores);
    Ok(divide_layers(&sizes, pipeline.size())?[pipeline.rank()].clone())
}

/// True if the embedding gives the scores too.
fn tied(weights: &Weights, config: &Config) -> bool {
    weights.shape(&format!("{}.weight", config.names.scores)).is_none()
}

impl Model {
    pub(crate) fn load(
        weights: &Weights,
        config: Config,
        dtype: DType,
        tensor: &Group,
        pipeline: &Group,
    ) -> Result<Self> {
        let weights = weights.for_group(tensor);
        let names = config.names;
        let first = pipeline.rank() == 0;
        let last = pipeline.rank() + 1 == pipeline.size();
        let even = Sharding::balanced();
        let tied = tied(&weights, &config);
        let tokens = || weights.embedding(names.tokens, &even);
        let scores = || -> Result<Scores> {
            if tied {
                return Ok(Scores::Tied(tokens()?));
            }
            let height = weights.shape(&format!("{}.weight", names.scores)).map_or(0, |s| s[0]);
            let layer = weights.linear(names.scores, ShardingType::AllToSharded, &even)?;
            Ok(Scores::Own(layer, even.partition(height, tensor.size())?))
        };
        let end = || -> Result<_> { Ok((norm(&weights, names.norm, config.norm_eps)?, scores()?)) };
        let blocks = share(&weights, &config, pipeline)?
            .map(|i| Block::load(&weights.pp(names.layers).pp(i), &config))
            .collect::<Result<_>>()?;
        let half = config.head_width / 2;
        let angles: Vec<f32> = (0..config.context * half)
            .map(|i| {
                let turns = config.rope_base.powf(-((i % half) as f64) / half as f64);
                ((i / half) as f64 * turns) as f32
            })
            .collect();
        let angles = Tensor::from_vec(angles, (config.context, half), weights.device())?;
        Ok(Self {
            tokens: if first { Some(tokens()?) } else { None },
            end: if last { Some(end()?) } else { None },
            blocks,
            cos: angles.cos()?.to_dtype(dtype)?,
            sin: angles.sin()?.to_dtype(dtype)?,
            tensor: tensor.clone(),
            pipeline: pipeline.clone(),
            config,
            dtype,
        })
    }

    /// Scores of the token after each request's last one, and how they are divided; none but on the last stage.
    ///
    /// `ids` has a row of new tokens for each request, all of one length.
    pub(crate) fn forward(
        &mut self,
        ids: &Tensor,
        requests: &[usize],
    ) -> Result<Option<(Tensor, Partition)>> {
        let (batch, time) = ids.dims2()?;
        let rank = self.pipeline.rank();
        let stages = self.pipeline.size();
        let mut x = match &self.tokens {
            Some(tokens) => tokens.forward(ids)?.to_dtype(self.dtype)?,
            None => {
                let shape = (batch, time, self.config.width);
                comity_candle::recv(&self.pipeline, shape, self.dtype, ids.device(), rank - 1, 0)?.detach()
            }
        };
        let mut places = Vec::new();
        for &request in requests {
            let before = self.blocks.first().map_or(0, |b| b.cache.len(request));
            if before + time > self.config.context {
                return Err(
                    format!("a request is longer than the model's {} tokens", self.config.context).into()
                );
            }
            places.extend((before..before + time).map(|p| p as u32));
        }
        let places = Tensor::new(places, ids.device())?;
        let of = |table: &Tensor| table.index_select(&places, 0)?.reshape((batch, time, ()));
        let cos = of(&self.cos)?;
        let sin = of(&self.sin)?;
        let turn = |x: &Tensor| -> Result<Tensor> {
            let turn = if self.config.interleaved { rotary_emb::rope_i } else { rotary_emb::rope };
            Ok(turn(&x.contiguous()?, &cos, &sin)?)
        };
        for block in &mut self.blocks {
            x = block.forward(&x, turn, requests)?;
        }
        let Some((norm, scores)) = &self.end else {
            if rank + 1 < stages {
                comity_candle::send(&self.pipeline, &x, rank + 1, 0)?;
            }
            return Ok(None);
        };
        let x = norm.forward(&x.narrow(1, time - 1, 1)?.contiguous()?)?;
        Ok(Some(match scores {
            Scores::Own(layer, partition) => (layer.forward(&x)?, partition.clone()),
            Scores::Tied(tokens) => (tokens.as_linear(&x)?, tokens.vocabulary().clone()),
        }))
    }

    /// Ranks that hold the same blocks.
    pub(crate) fn tensor(&self) -> &Group {
        &self.tensor
    }

    /// Ranks that hold the other blocks.
    pub(crate) fn pipeline(&self) -> &Group {
        &self.pipeline
    }
}
