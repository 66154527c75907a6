//! A call as headers, errors, logs and traces see it.

use crate::{DType, ReduceOp, Wire};
use comity_kernel::named;
use comity_plan::Kind;
use std::fmt;

/// The most ranks a job can have.
///
/// ```
/// assert_eq!(comity::MAX_SIZE, 65_536);
/// ```
pub const MAX_SIZE: usize = 65_536;
/// The largest tag of `send`, `recv` and `sendrecv`. A larger one is [`Misuse::Tag`](crate::Misuse::Tag).
///
/// ```
/// assert_eq!(comity::MAX_TAG, (1 << 31) - 1);
/// ```
pub const MAX_TAG: u32 = 0x7fff_ffff;

named! {
    /// The operations of a group, as errors and counters name them.
    ///
    /// ```
    /// use comity::Op;
    ///
    /// assert_eq!(Op::AllReduce.name(), "all_reduce");
    /// assert_eq!(Op::from_name("barrier"), Some(Op::Barrier));
    /// assert_eq!(Op::from_name("reduce_all"), None);
    /// assert!(Op::ALL.contains(&Op::Split));
    /// ```
    #[non_exhaustive]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    #[allow(missing_docs)]
    pub enum Op: "operation" {
        AllReduce = 1 => "all_reduce",
        Reduce = 2 => "reduce",
        Broadcast = 3 => "broadcast",
        AllGather = 4 => "all_gather",
        ReduceScatter = 5 => "reduce_scatter",
        Gather = 6 => "gather",
        Scatter = 7 => "scatter",
        AllToAll = 8 => "all_to_all",
        Send = 9 => "send",
        Recv = 10 => "recv",
        SendRecv = 11 => "sendrecv",
        Barrier = 12 => "barrier",
        Split = 13 => "split",
        Reform = 14 => "reform",
    }
}

impl Op {
    /// The collective operation that plans carry out for this one; `None` between two ranks.
    #[doc(hidden)]
    #[inline]
    pub fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::AllReduce => Kind::AllReduce,
            Self::Reduce => Kind::Reduce,
            Self::Broadcast => Kind::Broadcast,
            Self::AllGather | Self::Split | Self::Reform => Kind::AllGather,
            Self::ReduceScatter => Kind::ReduceScatter,
            Self::Gather => Kind::Gather,
            Self::Scatter => Kind::Scatter,
            Self::AllToAll => Kind::AllToAll,
            Self::Barrier => Kind::Barrier,
            Self::Send | Self::Recv | Self::SendRecv => return None,
        })
    }

    /// The operation of this wire number.
    #[doc(hidden)]
    #[inline]
    pub fn from_number(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n).checked_sub(1)?).copied()
    }
}

/// A call without its buffers.
///
/// Displays as `all_reduce #812 f32[1048576] sum`. Errors carry it:
///
/// ```
/// use comity::{CallInfo, Error, ErrorKind};
///
/// /// The call in which this rank was when the job failed.
/// fn call_of(e: &Error) -> Option<&CallInfo> {
///     match e.root().kind() {
///         ErrorKind::Timeout { call, .. } => Some(call),
///         ErrorKind::PeerLost { call, .. } | ErrorKind::Aborted { call, .. } => call.as_ref(),
///         _ => None,
///     }
/// }
/// assert!(call_of(&ErrorKind::Closed.into()).is_none());
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallInfo {
    /// The operation.
    pub op: Op,
    /// Its number in the group's sequence of collective calls, from 1; 0 for send and recv.
    pub seq: u64,
    /// Elements: of the whole buffer for all_reduce, reduce, broadcast; of one rank's part for
    /// all_gather, reduce_scatter, gather, scatter, all_to_all (of all parts together where parts differ).
    pub count: usize,
    /// Element type; `None` for barrier.
    pub dtype: Option<DType>,
    /// Reduction, for operations that reduce.
    pub reduce: Option<ReduceOp>,
    /// Root rank, for operations that have one; the other rank for send and recv.
    pub root: Option<usize>,
    /// Tag, for send and recv.
    pub tag: Option<u32>,
    /// True for a part of a call that moves objects, such as Python's `all_gather_object`: their lengths go first.
    pub objects: bool,
    /// Form in which the elements cross the links, where the call asked for a smaller one.
    pub wire: Option<Wire>,
}

impl CallInfo {
    #[doc(hidden)]
    #[inline]
    pub fn new(op: Op) -> Self {
        let wire = None;
        Self { op, seq: 0, count: 0, dtype: None, reduce: None, root: None, tag: None, objects: false, wire }
    }

    /// The same call but for some fields: no struct expression of another crate makes one.
    #[doc(hidden)]
    #[inline]
    pub fn with(mut self, set: impl FnOnce(&mut Self)) -> Self {
        set(&mut self);
        self
    }

    /// A send of `count` elements, with the rank at its other end.
    #[doc(hidden)]
    #[inline]
    pub fn sent(count: usize, dtype: DType, other: usize, tag: Option<u32>) -> Self {
        Self { count, dtype: Some(dtype), root: Some(other), tag, ..Self::new(Op::Send) }
    }
}

impl fmt::Display for CallInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op)?;
        if self.objects {
            f.write_str(" of objects")?;
        }
        if self.seq > 0 {
            write!(f, " #{}", self.seq)?;
        }
        if let Some(d) = self.dtype {
            write!(f, " {d}[{}]", self.count)?;
        }
        if let Some(o) = self.reduce {
            write!(f, " {o}")?;
        }
        if let Some(r) = self.root {
            match self.op {
                Op::Send => write!(f, " to {r}")?,
                Op::Recv => write!(f, " from {r}")?,
                Op::SendRecv => write!(f, " with {r}")?,
                _ => write!(f, " root {r}")?,
            }
        }
        if let Some(t) = self.tag {
            write!(f, " tag {t}")?;
        }
        if let Some(w) = self.wire {
            write!(f, " wire {w}")?;
        }
        Ok(())
    }
}
