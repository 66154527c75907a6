//! Random choices that all ranks make alike: a shuffled order of samples, of which each rank has its share, and the next token.

use crate::{Partition, Result, all_gather_v};
use candle_core::{D, DType, Tensor};
use comity::Group;

/// Order in which a job goes through its samples, the same on every rank for the same seed.
///
/// ```
/// use comity_candle::Sampler;
///
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let sampler = Sampler::new(1000, 64, 7);
/// for epoch in 0..3 {
///     for share in sampler.epoch(&group, epoch) {
///         // share.samples: this rank's of the batch's 64; multiply its mean loss by share.weight
///         assert_eq!(share.samples.len(), 64 / group.size());
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    samples: usize,
    batch: usize,
    seed: u64,
}

/// A rank's share of a batch.
///
/// ```
/// # let group = comity::Group::single();
/// let share = &comity_candle::Sampler::new(10, 10, 1).epoch(&group, 0)[0];
/// assert_eq!((share.samples.len(), share.weight), (10, 1.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Indices of this rank's samples.
    pub samples: Vec<usize>,
    /// Factor of the mean loss of these samples that makes the average over the ranks the batch's mean, though shares differ by a
    /// sample.
    pub weight: f64,
}

impl Sampler {
    /// So many samples, in batches of so many over all ranks, shuffled by a seed.
    pub fn new(samples: usize, batch: usize, seed: u64) -> Self {
        Self { samples, batch: batch.clamp(1, samples.max(1)), seed }
    }

    /// This rank's share of each batch of an epoch. Samples that do not fill a batch are left out; each epoch leaves out others.
    ///
    /// A batch smaller than the group leaves some ranks without samples.
    pub fn epoch(&self, group: &Group, epoch: usize) -> Vec<Share> {
        let mut order: Vec<usize> = (0..self.samples).collect();
        let mut random = self.seed.wrapping_add((epoch as u64).wrapping_mul(0xd1b5_4a32_d192_ed03));
        for i in (1..order.len()).rev() {
            order.swap(i, (next_random(&mut random) % (i as u64 + 1)) as usize);
        }
        let rank = group.rank();
        let ranks = group.size();
        order
            .chunks_exact(self.batch)
            .map(|chosen| {
                let samples: Vec<usize> = chosen.iter().copied().skip(rank).step_by(ranks).collect();
                let weight = (samples.len() * ranks) as f64 / self.batch as f64;
                Share { samples, weight }
            })
            .collect()
    }
}

/// SplitMix64: the same numbers on every rank and machine.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random choice of tokens by their scores. With the same seed, ranks that have the same scores choose alike.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use comity_candle::{Sampling, Sharding};
///
/// let group = comity::Group::single(); // under `comity launch`: comity::init()?
/// let vocabulary = Sharding::balanced().partition(4, group.size())?;
/// let scores = Tensor::new(&[[0f32, 9.0, 1.0, 2.0]], &Device::Cpu)?; // this rank's part of each request's
/// let mut greedy = Sampling::new(1).temperature(0.0);
/// assert_eq!(greedy.choose(&group, &scores, &vocabulary)?, [1]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampling {
    temperature: f64,
    top: usize,
    state: u64,
}

impl Sampling {
    /// Choice in proportion to the scores' exponentials, by this seed.
    pub fn new(seed: u64) -> Self {
        Self { temperature: 1.0, top: usize::MAX, state: seed }
    }

    /// Divisor of the scores; at 0 the token with the highest is chosen.
    #[must_use]
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = temperature;
        self
    }

    /// Choice among so many tokens with the highest scores.
    #[must_use]
    pub fn top(mut self, tokens: usize) -> Self {
        self.top = tokens.max(1);
        self
    }

    /// A token for each request, out of scores whose last axis is this rank's part of the vocabulary.
    ///
    /// # Errors
    /// [`Error::Group`](crate::Error::Group) as [`Group::all_gather`].
    pub fn choose(&mut self, group: &Group, scores: &Tensor, vocabulary: &Partition) -> Result<Vec<u32>> {
        let mine = scores.dim(D::Minus1)?;
        let scores = scores.detach().reshape(((), mine))?.to_dtype(DType::F32)?;
        let all = all_gather_v(group, &scores, 1, &vocabulary.sizes())?;
        let rows: Vec<Vec<f32>> = all.to_vec2()?;
        // Gathered scores stand by rank; a token's number is its place in the vocabulary.
        let tokens: Vec<u32> = (0..vocabulary.ranks())
            .flat_map(|r| vocabulary.of(r).iter().cloned().flatten())
            .map(|t| t as u32)
            .collect();
        Ok(rows.into_iter().map(|row| self.one(row.into_iter().zip(tokens.iter().copied()))).collect())
    }

    fn one(&mut self, scores: impl Iterator<Item = (f32, u32)>) -> u32 {
        let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        let mut best: Vec<(f32, u32)> = scores.collect();
        let top = if self.temperature <= 0.0 { 1 } else { self.top };
        if top < best.len() {
            // To sort a large vocabulary takes longer than to find its first few.
            best.select_nth_unstable_by(top, order);
            best.truncate(top);
        }
        best.sort_by(order);
        let Some(&(highest, first)) = best.first() else { return 0 };
        if self.temperature <= 0.0 {
            return first;
        }
        let weight = |score: f32| (f64::from(score - highest) / self.temperature).exp();
        let total: f64 = best.iter().map(|b| weight(b.0)).sum();
        let mut left = (next_random(&mut self.state) >> 11) as f64 / (1u64 << 53) as f64 * total;
        for &(score, token) in &best {
            left -= weight(score);
            if left < 0.0 {
                return token;
            }
        }
        first
    }
}
