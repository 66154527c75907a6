//! Samples of each rank: a shuffled order that all ranks know, and each rank's share of every batch.

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
pub(crate) fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
