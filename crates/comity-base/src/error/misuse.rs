//! The rules that a caller can break.

use crate::{DType, ReduceOp, Wire};

/// A rule that the caller broke. [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) carries it; no byte has moved, and the group goes on.
///
/// ```
/// use comity::{Error, ErrorKind, Group, Misuse};
///
/// let group = Group::single();
/// let e = group.broadcast(&mut [0f32; 4], 7).unwrap_err();
/// assert!(matches!(e.kind(), ErrorKind::Misuse { misuse: Misuse::Rank { rank: 7, size: 1, .. }, .. }));
/// group.barrier()?;
/// # Ok::<(), Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// A buffer has the wrong number of elements.
    #[error("the {buffer} holds {got} elements, expected {expected}{why}")]
    Length {
        /// Name of the buffer: "source" or "destination".
        buffer: &'static str,
        /// Length that the rule asks.
        expected: usize,
        /// Length that was given.
        got: usize,
        /// The rule, as the rest of the sentence; may be empty.
        why: &'static str,
    },
    /// Two buffers of one call have different types.
    #[error("the source is {src} and the destination {dst}; they must be the same")]
    DTypes {
        /// Element type of the source.
        src: DType,
        /// Element type of the destination.
        dst: DType,
    },
    /// The reduction is not defined on this type.
    #[error("{reduce} is not defined on {dtype}")]
    Reduction {
        /// The reduction.
        reduce: ReduceOp,
        /// The type.
        dtype: DType,
    },
    /// No such rank.
    #[error("{what} {rank} is not in a group of {size} (ranks 0 to {})", .size - 1)]
    Rank {
        /// "root", "destination" or "source".
        what: &'static str,
        /// The rank asked for.
        rank: usize,
        /// The group's size.
        size: usize,
    },
    /// A list of members that no group can have.
    #[error(
        "the members must be ranks of a group of {size}, each once, and rank {rank}, which calls, among them"
    )]
    Members {
        /// This rank.
        rank: usize,
        /// The group's size.
        size: usize,
    },
    /// A list of counts has the wrong length.
    #[error("{got} counts were given for {size} ranks")]
    Counts {
        /// Entries given.
        got: usize,
        /// Ranks in the group.
        size: usize,
    },
    /// Sends and receives to oneself.
    #[error("rank {0} cannot {1} itself")]
    Oneself(usize, &'static str),
    /// A negative color.
    #[error("color {0} is negative; use a color >= 0, or none to stay out")]
    Color(i32),
    /// A tag outside the range for users.
    #[error("tag {0} is above {max}", max = crate::MAX_TAG)]
    Tag(u32),
    /// Two buffers of one call are in different places.
    #[error(
        "the source is in {0} and the destination in {1}; they must be in the same memory, on the same stream"
    )]
    Places(String, String),
    /// A call that has no smaller form of its elements.
    #[error("the wire {wire} is for {fits}, not for {got}; make this call without a wire")]
    Wire {
        /// The wire that the call asked for.
        wire: Wire,
        /// Calls that it is for.
        fits: &'static str,
        /// The call's operation, reduction, type or place.
        got: String,
    },
    /// Memory this backend cannot reach.
    #[error(
        "the buffer lives in {0}, which this group does not reach; copy it to host memory, or use the nccl backend and its device"
    )]
    Place(String),
}
