//! Division of an axis among the ranks: even, uneven, by weights, in whole blocks, for each segment of a fused weight.
//!
//! ```text
//! fused q, k, v on 2 ranks      | q q q q | k k | v v |
//! Segments::Indices([4, 6])     rank 0: q q k v          rank 1: q q k v
//! ```

use candle_core::Tensor;
use std::{fmt, ops::Range};

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
        let fail = |cause| ShardingError::new("", "axis", ranks, cause);
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

    /// Every rank's part of an axis of the tensor `name`.
    pub(crate) fn partition_axis(
        &self,
        name: &str,
        shape: &[usize],
        axis: usize,
        ranks: usize,
    ) -> Result<Partition, ShardingError> {
        let dimension = format!("axis {axis}");
        let Some(&size) = shape.get(axis) else {
            let cause = match shape.len() {
                0 => ShardingCause::Scalar,
                _ => ShardingCause::Axis { got: shape.to_vec() },
            };
            return Err(ShardingError::new(name, &dimension, ranks, cause));
        };
        self.partition(size, ranks).map_err(|e| e.at(name, &dimension))
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

/// Layer, dimension and number of ranks that do not fit together, and why.
///
/// ```
/// use comity_candle::{Sharding, ShardingCause};
///
/// let e = Sharding::even().partition(10, 4).unwrap_err();
/// assert_eq!(e.ranks, 4);
/// assert!(matches!(e.cause, ShardingCause::Indivisible { size: 10, .. }));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ShardingError {
    /// The layer or tensor, by its name in the model where it has one.
    pub layer: String,
    /// The dimension: "output", "input", "heads", "axis 0".
    pub dimension: String,
    /// The number of ranks that should share it.
    pub ranks: usize,
    /// The mismatch.
    pub cause: ShardingCause,
}

/// Reason of a [`ShardingError`].
///
/// ```
/// use comity_candle::{Segments, Sharding, ShardingCause};
///
/// let e = Sharding::even().segments(Segments::Count(3)).partition(8, 1).unwrap_err();
/// assert_eq!(e.cause, ShardingCause::Segments { segments: Segments::Count(3), size: 8 });
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum ShardingCause {
    /// The size is not a multiple of the unit, or, for equal shares, of the unit for each rank.
    Indivisible {
        /// The size of the dimension, or of one segment of it.
        size: usize,
        /// The elements that stay together.
        unit: usize,
        /// True if equal shares were asked for.
        even: bool,
    },
    /// There are fewer units than ranks.
    TooManyRanks {
        /// The number of units: heads, blocks, rows.
        units: usize,
        /// The elements in each.
        unit: usize,
    },
    /// The ranks' shares are not whole units, such as the blocks of a quantized type.
    Misaligned {
        /// Each rank's elements.
        sizes: Vec<usize>,
        /// The elements that stay together.
        unit: usize,
    },
    /// The segments do not divide the dimension.
    Segments {
        /// The segments asked for.
        segments: Segments,
        /// The size of the dimension.
        size: usize,
    },
    /// A unit is 0, or there is neither one unit nor one for each segment.
    Units {
        /// The units given.
        units: Vec<usize>,
        /// The number of segments.
        segments: usize,
    },
    /// There is not one positive weight for each rank.
    Weights(Vec<f64>),
    /// The tensor has another shape.
    Shape {
        /// The shape needed.
        expected: Vec<usize>,
        /// The shape found.
        got: Vec<usize>,
    },
    /// The tensor has no such axis.
    Axis {
        /// The shape found.
        got: Vec<usize>,
    },
    /// It is made for another number of ranks.
    Ranks {
        /// That number.
        made_for: usize,
    },
    /// The tensor has another type.
    DType {
        /// The type needed.
        expected: String,
        /// The type found.
        got: String,
    },
    /// A scalar has no axis to divide.
    Scalar,
    /// Two parameters have this name.
    Twice,
    /// No rank has a gradient of this parameter or of those given with it.
    NoGradient,
    /// The tensor, or the axis of a mesh, is not there.
    Missing {
        /// Some that are.
        similar: Vec<String>,
    },
    /// Some ranks opened another file than most.
    Files {
        /// These ranks.
        differing: Vec<usize>,
    },
    /// Some ranks give other parameters than rank 0.
    Parameters {
        /// These ranks.
        differing: Vec<usize>,
    },
    /// Some ranks could not write; they have the reason.
    Unwritable {
        /// These ranks.
        ranks: Vec<usize>,
    },
    /// Some ranks cannot read the file; they have the reason.
    Unreadable {
        /// These ranks.
        ranks: Vec<usize>,
    },
}

impl ShardingError {
    pub(crate) fn new(layer: &str, dimension: &str, ranks: usize, cause: ShardingCause) -> Self {
        Self { layer: layer.into(), dimension: dimension.into(), ranks, cause }
    }

    /// The same error, of this layer and dimension.
    #[must_use]
    pub(crate) fn at(mut self, layer: &str, dimension: &str) -> Self {
        self.layer = layer.into();
        self.dimension = dimension.into();
        self
    }

    /// The text about sizes and units, where the cause is one of those.
    fn size(&self, f: &mut fmt::Formatter<'_>) -> Option<fmt::Result> {
        let Self { dimension, ranks, cause, .. } = self;
        let blocks =
            |unit: usize| if unit > 1 { format!(" in whole units of {unit}") } else { String::new() };
        Some(match cause {
            ShardingCause::Indivisible { size, unit, even } => {
                let step = if *even { unit * ranks } else { *unit };
                let below = size / step * step;
                let works = match below {
                    0 => format!("{} can", below + step),
                    _ => format!("{below} and {} can", below + step),
                };
                let how = if *even { "equally " } else { "" };
                let balanced = *even && size.is_multiple_of(*unit) && size / unit >= *ranks;
                let hint = if balanced { ", and Sharding::balanced() shares any size" } else { "" };
                let units = blocks(*unit);
                write!(
                    f,
                    "the {dimension} of {size} cannot be shared {how}by {ranks} ranks{units}; {works}{hint}"
                )
            }
            ShardingCause::TooManyRanks { units, unit } => write!(
                f,
                "the {dimension} of {} cannot be shared by {ranks} ranks{}: there are {units}; run on up to {units} ranks",
                units * unit,
                blocks(*unit)
            ),
            ShardingCause::Misaligned { sizes, unit } => write!(
                f,
                "the {dimension} has {sizes:?} elements on the {ranks} ranks, and each needs a multiple of {unit}; share it in units of {unit}"
            ),
            ShardingCause::Segments { segments, size } => {
                write!(f, "{segments:?} do not cut the {dimension} of {size} into parts, in order")
            }
            ShardingCause::Units { units, segments } => write!(
                f,
                "units {units:?} do not fit the {dimension} of {segments} segments: give one, or one for each, none of them 0"
            ),
            ShardingCause::Weights(weights) => write!(
                f,
                "weights {weights:?} of the {dimension} are not one positive number for each of {ranks} ranks"
            ),
            _ => return None,
        })
    }

    /// The text about a tensor or a file.
    fn tensor(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dimension, ranks, cause, .. } = self;
        match cause {
            ShardingCause::Shape { expected, got } => {
                write!(
                    f,
                    "the {dimension} has shape {got:?}, and {expected:?} is needed on this rank of {ranks}"
                )
            }
            ShardingCause::Axis { got } => {
                write!(f, "there is no {dimension} in a tensor of shape {got:?}; count from 0")
            }
            ShardingCause::Ranks { made_for } => {
                write!(f, "the {dimension} is for {made_for} ranks, and there are {ranks}")
            }
            ShardingCause::DType { expected, got } => {
                write!(f, "the {dimension} is {got}, and {expected} is needed")
            }
            ShardingCause::Scalar => {
                write!(f, "the {dimension} is a scalar, which {ranks} ranks cannot share; keep it whole")
            }
            ShardingCause::Twice => {
                write!(f, "two {dimension} have this name; on all {ranks} ranks each needs one of its own")
            }
            ShardingCause::NoGradient => write!(
                f,
                "none of the {ranks} ranks has a gradient of this parameter or of the others; give those that the loss was computed from"
            ),
            ShardingCause::Missing { similar } if similar.is_empty() => {
                write!(f, "there is no such {dimension}")
            }
            ShardingCause::Missing { similar } => {
                write!(f, "there is no such {dimension}; there are {}", similar.join(", "))
            }
            ShardingCause::Files { differing } => write!(
                f,
                "{} another {dimension} than most; copy the same to all {ranks} ranks",
                have(differing)
            ),
            ShardingCause::Parameters { differing } => write!(
                f,
                "{} other {dimension} than rank 0; give the same names, shapes and types on all {ranks} ranks",
                have(differing)
            ),
            ShardingCause::Unwritable { ranks } => {
                write!(f, "{} not written the {dimension}; their own errors say why", have(ranks))
            }
            ShardingCause::Unreadable { ranks } => {
                write!(f, "{} no readable {dimension}; their own errors say why", have(ranks))
            }
            other => write!(f, "{other:?}"),
        }
    }
}

impl std::error::Error for ShardingError {}

impl fmt::Display for ShardingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.layer.is_empty() {
            write!(f, "{}: ", self.layer)?;
        }
        self.size(f).unwrap_or_else(|| self.tensor(f))
    }
}

/// "rank 2 has", "ranks 1, 3 have".
fn have(ranks: &[usize]) -> String {
    let list = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list} has") } else { format!("ranks {list} have") }
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
