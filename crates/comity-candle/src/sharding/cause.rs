//! Errors of shardings, with the sizes that would work.

use super::Segments;
use std::fmt;

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
    pub(crate) fn new(dimension: &str, ranks: usize, cause: ShardingCause) -> Self {
        Self { layer: String::new(), dimension: dimension.into(), ranks, cause }
    }

    /// The same error, of this layer and dimension.
    #[must_use]
    pub(crate) fn at(mut self, layer: &str, dimension: &str) -> Self {
        self.layer = layer.into();
        self.dimension = dimension.into();
        self
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

impl ShardingError {
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

/// "rank 2 has", "ranks 1, 3 have".
fn have(ranks: &[usize]) -> String {
    let list = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list} has") } else { format!("ranks {list} have") }
}
