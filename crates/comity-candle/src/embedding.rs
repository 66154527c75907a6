//! Embeddings whose vocabulary is divided among the ranks, and the loss that goes with them.

use crate::{
    Parameter, Partition, Result, Sharding,
    collective::{CallKind, TensorCall},
    linear::expect,
    ops,
    parameter::take_part,
};
use candle_core::{D, DType, Module, Tensor};
use candle_nn::{Embedding, Init, VarBuilder};
use comity::{Group, ReduceOp};

/// An embedding of which each rank holds a part of the vocabulary.
///
/// Forward, each rank looks up the tokens that it has, and the sum over the ranks gives all of them every row. Used as the last layer,
/// it gives each rank the scores of its part of the vocabulary, from which [`sharded_cross_entropy`] computes the loss.
///
/// ```
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use comity_candle::{ShardedEmbedding, Sharding, sharded_cross_entropy};
///
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let tokens = ShardedEmbedding::new(&group, 100, 16, &Sharding::balanced(), vb.pp("tokens"))?;
///
/// let ids = Tensor::new(&[[7u32, 99, 0]], &Device::Cpu)?;
/// let x = tokens.forward(&ids)?; // 1 x 3 x 16, the same on every rank
/// let scores = tokens.as_linear(&x)?; // 1 x 3 x this rank's part of 100
/// let loss = sharded_cross_entropy(&group, &scores, &ids, tokens.vocabulary())?;
/// loss.backward()?;
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShardedEmbedding {
    group: Group,
    rows: Tensor,
    vocabulary: Partition,
}

impl ShardedEmbedding {
    /// A new embedding out of a [`VarBuilder`] over variables, which then hold this rank's rows. It begins as
    /// [`candle_nn::embedding()`] does.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when `sharding` does not fit the vocabulary.
    pub fn new(
        group: &Group,
        vocabulary: usize,
        width: usize,
        sharding: &Sharding,
        vb: VarBuilder,
    ) -> Result<Self> {
        let name = vb.prefix();
        let vocabulary =
            sharding.partition(vocabulary, group.size()).map_err(|e| e.at(&name, "vocabulary"))?;
        let shape = (vocabulary.sizes()[group.rank()], width);
        let rows = vb.get_with_hints(shape, "weight", Init::Randn { mean: 0.0, stdev: 1.0 })?;
        Ok(Self { group: group.clone(), rows, vocabulary })
    }

    /// This rank's part of an embedding that every rank has whole. Where its rows are a variable, those of the part are too.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when `sharding` does not fit the vocabulary.
    pub fn from_embedding(group: &Group, embedding: &Embedding, sharding: &Sharding) -> Result<Self> {
        let (rows, vocabulary) = take_part(group, "ShardedEmbedding", embedding.embeddings(), 0, sharding)?;
        Ok(Self { group: group.clone(), rows, vocabulary })
    }

    /// An embedding of rows that this rank has, such as those that a file was read for; `name` is for errors.
    ///
    /// # Errors
    /// [`Error::Sharding`](crate::Error::Sharding) when there are not as many rows as `vocabulary` says.
    pub fn from_parts(group: &Group, name: &str, rows: Tensor, vocabulary: Partition) -> Result<Self> {
        let (_, width) = rows.dims2()?;
        expect(group, name, "vocabulary", rows.dims(), &[vocabulary.sizes()[group.rank()], width])?;
        Ok(Self { group: group.clone(), rows, vocabulary })
    }

    /// Division of the vocabulary.
    pub fn vocabulary(&self) -> &Partition {
        &self.vocabulary
    }

    /// Scores of this rank's part of the vocabulary for each row of `x`: the embedding as the last layer of a model.
    ///
    /// # Errors
    /// Candle's.
    pub fn as_linear(&self, x: &Tensor) -> Result<Tensor> {
        let x = ops::sum_gradients(&self.group, x)?;
        Ok(candle_nn::Linear::new(self.rows.clone(), None).forward(&x)?)
    }

    /// The rows, under the name that they have in a model.
    pub fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        vec![Parameter::sharded(format!("{prefix}.weight"), self.rows.clone(), 0, self.vocabulary.clone())]
    }
}

impl Module for ShardedEmbedding {
    fn forward(&self, ids: &Tensor) -> candle_core::Result<Tensor> {
        let owned = OwnedTokens::find(ids, &self.vocabulary, self.group.rank())?;
        let width = self.rows.dim(1)?;
        let rows = self.rows.index_select(&owned.at, 0)?;
        let rows = rows.broadcast_mul(&owned.mask.to_dtype(rows.dtype())?.unsqueeze(1)?)?;
        let mut dims = ids.dims().to_vec();
        dims.push(width);
        Ok(ops::all_sum(&self.group, &rows.reshape(dims)?)?)
    }
}

/// Tokens of which a rank has the row: where in its part, and 1 where it is there.
struct OwnedTokens {
    at: Tensor,
    mask: Tensor,
}

impl OwnedTokens {
    fn find(ids: &Tensor, vocabulary: &Partition, rank: usize) -> candle_core::Result<Self> {
        let all: Vec<u32> = ids.flatten_all()?.to_dtype(DType::U32)?.to_vec1()?;
        let mut at = Vec::with_capacity(all.len());
        let mut mask = Vec::with_capacity(all.len());
        for id in all {
            if id as usize >= vocabulary.size() {
                candle_core::bail!("token {id} is outside a vocabulary of {}", vocabulary.size());
            }
            let place = place(vocabulary, rank, id as usize);
            at.push(place.unwrap_or_default());
            mask.push(f32::from(u8::from(place.is_some())));
        }
        let count = at.len();
        Ok(Self {
            at: Tensor::from_vec(at, count, ids.device())?,
            mask: Tensor::from_vec(mask, count, ids.device())?,
        })
    }
}

/// The row of a token in a rank's part.
fn place(vocabulary: &Partition, rank: usize, id: usize) -> Option<u32> {
    let mut before = 0;
    for range in vocabulary.of(rank) {
        if range.contains(&id) {
            return Some((before + id - range.start) as u32);
        }
        before += range.len();
    }
    None
}

/// Mean cross-entropy of scores whose vocabulary is divided among the ranks, without gathering them.
///
/// `scores` has this rank's part of the vocabulary as its last axis, `targets` the axes before it. With `z_v` the scores,
/// `m` their greatest and `t` the target, over all ranks:
///
/// ```text
/// loss = m + log(sum over v of exp(z_v - m)) - z_t
/// ```
///
/// The greatest, the sum and the target's score each take one small call. The loss is computed in `f32` and is the same on every
/// rank; the gradient of this rank's `z_v` is `exp(z_v - m) / sum - [v = t]`, over the number of targets. [`ShardedEmbedding`] has
/// an example.
///
/// # Errors
/// [`Error::Sharding`](crate::Error::Sharding) when the last axis is not this rank's part of `vocabulary`;
/// [`Error::Group`](crate::Error::Group) as [`Group::all_reduce`].
pub fn sharded_cross_entropy(
    group: &Group,
    scores: &Tensor,
    targets: &Tensor,
    vocabulary: &Partition,
) -> Result<Tensor> {
    let part = vocabulary.sizes()[group.rank()];
    crate::linear::check_width(group, "sharded_cross_entropy", scores, part)?;
    let mine = scores.dim(D::Minus1)?;
    let z = scores.reshape(((), mine))?.to_dtype(DType::F32)?;
    let greatest = z.detach().max_keepdim(1)?;
    let greatest = match group.size() {
        1 => greatest,
        _ => TensorCall::new(group, CallKind::Reduce(ReduceOp::Max)).apply(&greatest)?,
    };
    let z = z.broadcast_sub(&greatest)?;
    let total = ops::all_sum(group, &z.exp()?.sum(1)?)?;
    let owned = OwnedTokens::find(targets, vocabulary, group.rank())?;
    let target = (z.gather(&owned.at.unsqueeze(1)?, 1)?.squeeze(1)? * owned.mask)?;
    let target = ops::all_sum(group, &target)?;
    Ok((total.log()? - target)?.mean_all()?)
}
