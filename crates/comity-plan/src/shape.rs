//! Shape of a call, from which its plan follows: as one rank sees it, and as all ranks know it alike. Imports nothing.

/// The collective operations, as plans see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// All ranks get the reduction of what all give.
    AllReduce,
    /// The root gets it.
    Reduce,
    /// All ranks get what the root has.
    Broadcast,
    /// All ranks get all parts.
    AllGather,
    /// Each rank gets its part of the reduction.
    ReduceScatter,
    /// The root gets all parts.
    Gather,
    /// Each rank gets its part of what the root has.
    Scatter,
    /// Each rank gets a part of each rank.
    AllToAll,
    /// Nobody goes on before all are here.
    Barrier,
}

/// A rank's view of a call. Ranges of the buffers `In` and `Out`, in elements:
///
/// | kind | `count` | `In` | `Out` |
/// |---|---|---|---|
/// | all_reduce | all | all | all, or `In` itself |
/// | reduce | all | all | at the root: all, or `In` itself |
/// | broadcast | all | unused | all |
/// | all_gather | a part | own part | all parts by rank; `In` may be `Out`'s own part |
/// | reduce_scatter | a part | all parts by rank | own part; may be `In`'s own part |
/// | gather | a part | own part | at the root: all parts; `In` may be its own part |
/// | scatter | a part | at the root: all parts | own part; may be `In`'s own part |
/// | all_to_all | a part | a part for each rank | a part of each rank, or `In` itself when parts are equal |
/// | barrier | 0 | unused | unused |
///
/// If `In` and `Out` are one memory from the same start, `Schedule::new` wants `in_place`; if
/// one is a part of the other it wants `false`, as no plan reads an own part after writing it.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// The operation.
    pub kind: Kind,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// Elements; see the table.
    pub count: usize,
    /// Bytes of one element.
    pub elem: usize,
    /// The root, where the operation has one.
    pub root: usize,
    /// Elements of each rank's part where they differ, else empty. For all_to_all what this rank sends to each.
    pub counts: &'a [usize],
    /// For all_to_all with unequal parts: what this rank receives from each.
    pub recv_counts: &'a [usize],
    /// Host of each rank, any numbers; empty when all share one.
    pub hosts: &'a [usize],
}

impl Kind {
    /// Every operation.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Barrier,
    ];

    /// The name of the operation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
        }
    }

    /// Returns true if the buffer holds a part for each rank.
    pub const fn has_parts(self) -> bool {
        matches!(self, Self::AllGather | Self::ReduceScatter | Self::Gather | Self::Scatter | Self::AllToAll)
    }

    /// The operation of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }
}

impl<'a> Shape<'a> {
    /// A call with equal parts and root 0 on one host.
    pub const fn new(kind: Kind, rank: usize, size: usize, count: usize, elem: usize) -> Self {
        Self { kind, rank, size, count, elem, root: 0, counts: &[], recv_counts: &[], hosts: &[] }
    }

    /// Elements of the part of rank `i`.
    pub fn part(&self, i: usize) -> usize {
        self.counts.get(i).copied().unwrap_or(self.count)
    }

    /// Returns the facts of this call that all ranks know alike.
    pub fn common(&self) -> Common<'a> {
        let lengths = match (self.kind, self.counts) {
            (Kind::Barrier, _) => Lengths::Equal(0),
            (_, []) => Lengths::Equal(self.count),
            (Kind::AllToAll, _) => Lengths::Private,
            (_, counts) => Lengths::Listed(counts),
        };
        let Self { kind, size, elem, root, .. } = *self;
        Common { kind, size, elem, root, lengths }
    }
}

/// Facts of a call that all ranks know alike: no choice of an algorithm may look at others. A choice by anything else would differ
/// from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common<'a> {
    /// The operation.
    pub kind: Kind,
    /// Number of ranks.
    pub size: usize,
    /// Bytes of one element.
    pub elem: usize,
    /// The root, where the operation has one.
    pub root: usize,
    /// Elements.
    pub lengths: Lengths<'a>,
}

/// Number of elements that a call moves, as far as all ranks know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths<'a> {
    /// Elements of the whole buffer, or of each part.
    Equal(usize),
    /// Elements of each rank's part.
    Listed(&'a [usize]),
    /// all_to_all of unequal parts: a rank knows what it sends and what it gets, and nobody knows the rest.
    Private,
}

impl Lengths<'_> {
    /// Elements of the buffer, or of a part on average; none where nobody knows.
    pub fn mean(self) -> Option<f64> {
        match self {
            Self::Equal(count) => Some(count as f64),
            Self::Listed(counts) => Some(counts.iter().map(|&c| c as f64).sum::<f64>() / counts.len() as f64),
            Self::Private => None,
        }
    }
}
