//! Division of an axis among the ranks: even, uneven, by weights, in whole blocks, for each segment of a fused weight.
//!
//! ```text
//! fused q, k, v on 2 ranks      | q q q q | k k | v v |
//! Segments::Indices([4, 6])     rank 0: q q k v          rank 1: q q k v
//! ```

mod cause;

pub use cause::{ShardingCause, ShardingError};

use candle_core::Tensor;
use std::ops::Range;

/// Parts of a fused axis, such as queries, keys and values in one weight. Each is divided among the ranks by itself.
///
/// ```
/// use comity_candle::{Segments, Sharding};
///
/// // 4 rows of queries, 2 of keys and 2 of values; rank 1 of 2 has the second half of each.
/// let fused = Sharding::even().segments(Segments::Indices(vec![4, 6]));
/// assert_eq!(fused.partition(8, 2)?.of(1), [2..4, 5..6, 7..8]);
/// # Ok::<(), comity_candle::ShardingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Segments {
    /// So many parts of equal length.
    Count(usize),
    /// Parts that end before these indices, and the rest.
    Indices(Vec<usize>),
    /// Parts that end at these fractions of the axis, rounded down, and the rest.
    Fractions(Vec<f64>),
}

impl Segments {
    /// The ends of the segments of an axis of this length, 0 and `size` among them.
    fn bounds(&self, size: usize) -> Option<Vec<usize>> {
        let inner: Vec<usize> = match self {
            Self::Count(n) => {
                let step = (*n > 0 && size.is_multiple_of(*n)).then(|| size / n)?;
                (1..*n).map(|i| i * step).collect()
            }
            Self::Indices(indices) => indices.clone(),
            Self::Fractions(fractions) => fractions.iter().map(|f| (f * size as f64) as usize).collect(),
        };
        let ends: Vec<usize> = [0].into_iter().chain(inner).chain([size]).collect();
        ends.windows(2).all(|w| w[0] < w[1]).then_some(ends)
    }
}

/// Shares of the ranks.
#[derive(Clone, Debug, PartialEq)]
enum Shares {
    Even,
    Balanced,
    Weighted(Vec<f64>),
}

/// Rule by which an axis is divided among the ranks.
///
/// Two layers that follow each other need the same rule, since one's output is the other's input.
///
/// ```
/// use comity_candle::Sharding;
///
/// // 10 columns on 4 ranks; the first ranks have one more.
/// assert_eq!(Sharding::balanced().partition(10, 4)?.sizes(), [3, 3, 2, 2]);
/// // In whole blocks of 32, for a machine with twice the memory of the others.
/// let by_memory = Sharding::weighted([2.0, 1.0, 1.0]).unit(32);
/// assert_eq!(by_memory.partition(256, 3)?.sizes(), [128, 64, 64]);
/// // The same share for all, or an error that names the sizes that work.
/// let e = Sharding::even().partition(10, 4).unwrap_err();
/// assert!(e.to_string().contains("8 and 12 can"), "{e}");
/// # Ok::<(), comity_candle::ShardingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sharding {
    shares: Shares,
    segments: Segments,
    units: Vec<usize>,
}

impl Default for Sharding {
    fn default() -> Self {
        Self::balanced()
    }
}

impl Sharding {
    /// Shares that differ by at most one unit: any number of ranks works, up to the number of units.
    pub fn balanced() -> Self {
        Self::of(Shares::Balanced)
    }

    /// Equal shares, or an error.
    pub fn even() -> Self {
        Self::of(Shares::Even)
    }

    /// Shares in proportion to these weights, one for each rank, such as its memory or its speed; at least one unit each.
    pub fn weighted(weights: impl Into<Vec<f64>>) -> Self {
        Self::of(Shares::Weighted(weights.into()))
    }

    fn of(shares: Shares) -> Self {
        Self { shares, segments: Segments::Count(1), units: vec![1] }
    }

    /// This rule for each segment of a fused axis.
    #[must_use]
    pub fn segments(mut self, segments: Segments) -> Self {
        self.segments = segments;
        self
    }

    /// Shares of whole units: a head's rows, or the elements of a quantization block.
    #[must_use]
    pub fn unit(self, unit: usize) -> Self {
        self.units([unit])
    }

    /// A unit for each segment, such as those of grouped queries, whose heads follow the keys'.
    #[must_use]
    pub fn units(mut self, units: impl Into<Vec<usize>>) -> Self {
        self.units = units.into();
        self
    }

    /// The same rule with units that are multiples of `block` too.
    #[must_use]
    pub(crate) fn whole_blocks(mut self, block: usize) -> Self {
        for unit in &mut self.units {
            *unit = least_common_multiple(*unit, block);
        }
        self
    }

    /// Every rank's part of an axis of this size. Mistakes show on one rank too.
    ///
    /// # Errors
    /// [`ShardingError`] with the sizes or the number of ranks that would work.
    pub fn partition(&self, size: usize, ranks: usize) -> Result<Partition, ShardingError> {
        let fail = |cause| ShardingError::new("axis", ranks, cause);
        let bounds = self
            .segments
            .bounds(size)
            .ok_or_else(|| fail(ShardingCause::Segments { segments: self.segments.clone(), size }))?;
        let count = bounds.len() - 1;
        if self.units.contains(&0) || (self.units.len() != 1 && self.units.len() != count) {
            return Err(fail(ShardingCause::Units { units: self.units.clone(), segments: count }));
        }
        let mut parts = vec![Vec::with_capacity(count); ranks];
        for (i, ends) in bounds.windows(2).enumerate() {
            let unit = self.units[if self.units.len() == 1 { 0 } else { i }];
            let mut at = ends[0];
            for (rank, units) in self.shares(ends[1] - ends[0], unit, ranks).map_err(fail)?.iter().enumerate()
            {
                parts[rank].push(at..at + units * unit);
                at += units * unit;
            }
        }
        Ok(Partition { size, parts })
    }

    /// Number of units of a segment that each rank has.
    fn shares(&self, size: usize, unit: usize, ranks: usize) -> Result<Vec<usize>, ShardingCause> {
        let even = self.shares == Shares::Even;
        if !size.is_multiple_of(if even { unit * ranks } else { unit }) {
            return Err(ShardingCause::Indivisible { size, unit, even });
        }
        let units = size / unit;
        if units < ranks {
            return Err(ShardingCause::TooManyRanks { units, unit });
        }
        match &self.shares {
            Shares::Weighted(weights) => apportion(units, weights, ranks),
            _ => Ok((0..ranks).map(|r| units / ranks + usize::from(r < units % ranks)).collect()),
        }
    }
}

/// Whole units in proportion to the weights, at least one each.
fn apportion(units: usize, weights: &[f64], ranks: usize) -> Result<Vec<usize>, ShardingCause> {
    if weights.len() != ranks || weights.iter().any(|w| !(w.is_finite() && *w > 0.0)) {
        return Err(ShardingCause::Weights(weights.to_vec()));
    }
    let total: f64 = weights.iter().sum();
    let ideal: Vec<f64> = weights.iter().map(|w| w / total * units as f64).collect();
    let mut shares: Vec<usize> = ideal.iter().map(|x| (*x as usize).max(1)).collect();
    // Rounding is off by less than one for each rank.
    let mut given: usize = shares.iter().sum();
    while given != units {
        let lacks = |r: &usize| ideal[*r] - shares[*r] as f64;
        let by_need = |a: &usize, b: &usize| lacks(a).total_cmp(&lacks(b)).then(b.cmp(a));
        if given < units {
            let Some(rank) = (0..ranks).max_by(by_need) else { break };
            shares[rank] += 1;
            given += 1;
        } else {
            let Some(rank) = (0..ranks).filter(|&r| shares[r] > 1).min_by(by_need) else { break };
            shares[rank] -= 1;
            given -= 1;
        }
    }
    Ok(shares)
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let mut x = a;
    let mut y = b;
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}

/// Every rank's part of an axis: a range of each segment.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use comity_candle::Sharding;
///
/// let parts = Sharding::balanced().partition(5, 2)?;
/// assert_eq!((parts.size(), parts.sizes(), parts.of(1)), (5, vec![3, 2], &[3..5][..]));
/// let x = Tensor::arange(0f32, 5.0, &Device::Cpu)?;
/// assert_eq!(parts.take(&x, 0, 1)?.to_vec1::<f32>()?, [3.0, 4.0]);
/// # Ok::<(), comity_candle::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    size: usize,
    parts: Vec<Vec<Range<usize>>>,
}

impl Partition {
    /// A range for each rank; two may have the same elements.
    pub(crate) fn overlapping(size: usize, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        Self { size, parts: ranges.into_iter().map(|r| vec![r]).collect() }
    }

    /// A rank's ranges, one for each segment.
    ///
    /// # Panics
    /// For a rank outside the partition.
    pub fn of(&self, rank: usize) -> &[Range<usize>] {
        &self.parts[rank]
    }

    /// The length of the whole axis.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.parts.len()
    }

    /// The length of each rank's part.
    pub fn sizes(&self) -> Vec<usize> {
        self.parts.iter().map(|p| p.iter().map(Range::len).sum()).collect()
    }

    /// A rank's part of `x` along an axis, in memory of its own and without a way back for gradients.
    ///
    /// # Errors
    /// Candle's, when `x` has no such axis or another length.
    pub fn take(&self, x: &Tensor, axis: usize, rank: usize) -> candle_core::Result<Tensor> {
        let ranges = self.of(rank);
        let x = x.detach();
        if ranges.len() == 1 && ranges[0].len() == x.dim(axis)? {
            return x.copy();
        }
        let parts: Vec<Tensor> =
            ranges.iter().map(|r| x.narrow(axis, r.start, r.len())).collect::<candle_core::Result<_>>()?;
        Tensor::cat(&parts, axis)?.force_contiguous()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_one_owner() {
        for size in [1, 7, 12, 96] {
            for ranks in 1..=size.min(7) {
                let weights: Vec<f64> = (0..ranks).map(|r| 1.0 + (r * 5 % 3) as f64).collect();
                for rule in [Sharding::balanced(), Sharding::weighted(weights)] {
                    let p = rule.partition(size, ranks).unwrap();
                    let all: Vec<usize> = (0..ranks).flat_map(|r| p.of(r)[0].clone()).collect();
                    assert_eq!(all, (0..size).collect::<Vec<_>>(), "{rule:?} {size} {ranks}");
                    assert!(p.sizes().iter().all(|&s| s > 0), "{rule:?} {size} {ranks}: {:?}", p.sizes());
                }
            }
        }
    }

    #[test]
    fn weights_are_followed_as_far_as_units_allow() {
        let sizes = |w: &[f64], size| Sharding::weighted(w).partition(size, w.len()).unwrap().sizes();
        assert_eq!(sizes(&[1.0, 1.0, 2.0], 8), [2, 2, 4]);
        assert_eq!(sizes(&[1000.0, 1.0, 1.0], 6), [4, 1, 1]);
        assert_eq!(sizes(&[1.0, 1.0, 1.0], 3), [1, 1, 1]);
        assert_eq!(sizes(&[3.0, 1.0], 10), [8, 2]);
    }

    #[test]
    fn mistakes_show_on_one_rank_too() {
        let cause = |rule: Sharding, size, ranks| rule.partition(size, ranks).unwrap_err().cause;
        let three = Segments::Count(3);
        assert!(matches!(
            cause(Sharding::even().segments(three), 8, 1),
            ShardingCause::Segments { size: 8, .. }
        ));
        for bad in [Segments::Indices(vec![6, 4]), Segments::Fractions(vec![0.5, 1.5]), Segments::Count(0)] {
            assert!(matches!(cause(Sharding::even().segments(bad), 8, 1), ShardingCause::Segments { .. }));
        }
        assert!(matches!(
            cause(Sharding::balanced().unit(32), 48, 1),
            ShardingCause::Indivisible { size: 48, unit: 32, even: false }
        ));
        assert!(matches!(
            cause(Sharding::balanced().unit(4), 8, 3),
            ShardingCause::TooManyRanks { units: 2, unit: 4 }
        ));
        assert!(matches!(cause(Sharding::weighted([1.0]), 8, 2), ShardingCause::Weights(_)));
        assert!(matches!(cause(Sharding::weighted([1.0, -1.0]), 8, 2), ShardingCause::Weights(_)));
        assert!(matches!(cause(Sharding::even().units([1, 2]), 8, 1), ShardingCause::Units { .. }));
        assert!(matches!(cause(Sharding::even().unit(0), 8, 1), ShardingCause::Units { .. }));
    }
}
