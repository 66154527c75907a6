//! The algorithms: one file each, and the table that lists them.
//!
//! A file holds all that is known of its algorithm: the picture, the steps, what they cost, how they are cut into segments, and the
//! operations that it serves. To add one, write `algorithms/NAME.rs` with a `DEFINITION` and add its line to the table at the end of this
//! file. The chooser, the simulator, `comity plan`, `comity check` and `--algorithm` then have it.
//!
//! May import: `draft`, `model`, `shape` and the crate's types; a file here may use what another has (`pub(super)`): steps,
//! seconds, the distances of `doubling`.

use crate::{
    Slice,
    draft::{Draft, Hosts, Parts, Team},
    model::Model,
    shape::{Common, Kind, Lengths},
};

/// All that is known of an algorithm.
#[derive(Debug)]
pub(crate) struct Definition {
    /// In reports and flags.
    pub(crate) name: &'static str,
    /// Order of the ranks in [`Segment::team`].
    pub(crate) order: Order,
    /// The lengths of parts that it carries. It is never chosen for others.
    pub(crate) parts: PartLengths,
    /// True if all contributions to an element are added in one step, so that no partial sum is stored.
    pub(crate) adds_at_once: bool,
    /// Operations that it can carry out.
    pub(crate) serves: &'static [Service],
}

/// Lengths of parts that an algorithm carries: those of a line, and of the lines above it. [`Lengths`] has the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PartLengths {
    /// Equal parts only.
    Equal,
    /// Unequal parts that all ranks know: those of every operation but all_to_all.
    Listed,
    /// The unequal parts of an all_to_all too: a rank knows what it sends and what it gets, and nobody knows the rest.
    Private,
}

/// An operation that an algorithm can carry out.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) kind: Kind,
    /// Writes one rank's steps for one segment. Every rank moves `Draft::round` on by the same number.
    pub(crate) steps: fn(&mut Draft, &Segment<'_>),
    /// Expected seconds of the whole call, on two ranks or more.
    pub(crate) seconds: fn(&Model<'_>) -> f64,
    pub(crate) cuts: Cuts,
    /// The most elements that a rank sends. The simulator holds every plan to it.
    #[cfg_attr(not(test), expect(dead_code, reason = "the simulator is built for tests only"))]
    pub(crate) sends: fn(Extent) -> usize,
}

/// Rule for cutting a buffer into segments, which follow each other through the rounds.
#[derive(Debug)]
pub(crate) enum Cuts {
    /// Never: neighbouring parts travel in one message.
    Never,
    /// If a caller asks for it. Nothing is gained.
    Asked {
        /// About how many steps a segment has on `n` ranks.
        steps: fn(usize) -> usize,
    },
    /// From 1 MiB on: what one round made is passed on while the next segment goes through that round.
    Gains {
        /// About how many steps a segment has on `n` ranks.
        steps: fn(usize) -> usize,
        /// Number of messages that a segment's elements are divided among.
        messages: fn(&Model<'_>) -> f64,
    },
}

/// Order of the ranks in a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    ByRank,
    /// Ranks of a host side by side, so that neighbours are as near as can be.
    ByHost,
}

/// The size of a call, for [`Service::sends`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Ranks.
    pub(crate) n: usize,
    /// Elements: of the buffer, or of one part, as [`Shape`](crate::Shape) counts them.
    pub(crate) count: usize,
    /// Ranks of the fullest host.
    pub(crate) local: usize,
    pub(crate) hosts: usize,
}

/// A segment of a call, as one rank sees it.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    /// All ranks, in the order that the algorithm asked for.
    pub(crate) team: &'a Team,
    /// The same ranks by host.
    pub(crate) hosts: &'a Hosts,
    /// The root's number; 0 where there is no root.
    pub(crate) root: usize,
    /// True if a message between hosts is so small that rounds cost more than bytes.
    pub(crate) small: bool,
    /// This segment of `In`; for operations with parts all of `In`.
    pub(crate) src: Slice,
    /// This segment of `Out`; for operations with parts all of `Out`.
    pub(crate) dst: Slice,
    /// Operations with parts: this segment of each position's part.
    pub(crate) parts: Parts,
    /// all_to_all: this segment of what comes from each position.
    pub(crate) incoming: Parts,
    /// Operations with parts: this segment of the own part where the buffer holds nothing else, in `In`.
    pub(crate) own_src: Slice,
    /// The same in `Out`.
    pub(crate) own_dst: Slice,
}

impl Segment<'_> {
    pub(crate) fn root_at(&self) -> usize {
        (0..self.team.len()).find(|&p| self.team.rank(p) == self.root).unwrap_or(0)
    }

    pub(crate) fn is_root(&self) -> bool {
        self.team.rank(self.team.me) == self.root
    }
}

/// Steps of a segment where every rank exchanges something with every other.
const fn of_all(n: usize) -> usize {
    4 * n
}

/// Steps of a segment that takes a logarithm of rounds.
fn of_rounds(n: usize) -> usize {
    2 * n.max(2).ilog2() as usize + 4
}

macro_rules! algorithms {
    ($($file:ident => $name:ident: $about:literal,)*) => {
        $(mod $file;)*

        /// Algorithm that carries out a call.
        ///
        /// ```
        /// use comity_plan::{Algorithm, Kind};
        ///
        /// assert_eq!(Algorithm::TwoPhase.name(), "two-phase");
        /// assert_eq!(Algorithm::from_name("ring"), Some(Algorithm::Ring));
        /// assert!(Algorithm::Ring.serves(Kind::AllReduce) && !Algorithm::Ring.serves(Kind::Barrier));
        /// for algorithm in Algorithm::ALL {
        ///     println!("{}: {}", algorithm.name(), algorithm.about());
        /// }
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Algorithm {
            $(#[doc = $about] $name,)*
        }

        impl Algorithm {
            /// Every algorithm. Where two cost the same the first is preferred.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns its description, in a line.
            pub const fn about(self) -> &'static str {
                match self {
                    $(Self::$name => $about,)*
                }
            }

            pub(crate) const fn definition(self) -> &'static Definition {
                match self {
                    $(Self::$name => &$file::DEFINITION,)*
                }
            }
        }

        #[cfg(test)]
        const FILES: &[&str] = &[$(stringify!($file),)*];
    };
}

impl Algorithm {
    /// The name in reports, flags and settings.
    pub const fn name(self) -> &'static str {
        self.definition().name
    }

    /// The algorithm of this [`name`](Self::name); `None` for any other text.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|a| a.name() == name)
    }

    /// Returns true if all contributions to an element are added in one step, so that no partial sum is stored.
    pub const fn adds_at_once(self) -> bool {
        self.definition().adds_at_once
    }

    /// Returns true if it can carry out the operation.
    pub fn serves(self, kind: Kind) -> bool {
        self.service(kind).is_some()
    }

    /// Returns true if it carries parts of unequal lengths in this operation; another takes its place where it does not.
    pub fn carries_unequal_parts(self, kind: Kind) -> bool {
        let needed = if kind == Kind::AllToAll { PartLengths::Private } else { PartLengths::Listed };
        self.serves(kind) && kind.has_parts() && needed <= self.definition().parts
    }

    pub(crate) fn carries(self, call: &Common<'_>) -> bool {
        self.definition().carries(call)
    }

    pub(crate) fn service(self, kind: Kind) -> Option<&'static Service> {
        self.definition().service(kind)
    }
}

impl Definition {
    fn service(&self, kind: Kind) -> Option<&Service> {
        self.serves.iter().find(|s| s.kind == kind)
    }

    fn carries(&self, call: &Common<'_>) -> bool {
        let needed = match call.lengths {
            Lengths::Equal(_) => PartLengths::Equal,
            Lengths::Listed(_) => PartLengths::Listed,
            Lengths::Private => PartLengths::Private,
        };
        needed <= self.parts && self.service(call.kind).is_some()
    }
}

impl Kind {
    /// Returns the algorithms that can carry it out, at least one.
    pub fn algorithms(self) -> impl Iterator<Item = Algorithm> {
        Algorithm::ALL.iter().copied().filter(move |a| a.serves(self))
    }
}

algorithms! {
    direct => Direct: "everyone who has something sends it straight to everyone who needs it",
    pairwise => Pairwise: "ranks swap their parts in pairs, round by round",
    two_phase => TwoPhase: "each rank answers for one part: collect the parts directly, then share them directly",
    ring => Ring: "parts travel from neighbour to neighbour",
    doubling => Doubling: "partners at distance 1, 2, 4, ...: a logarithm of rounds (Bruck: all_gather, all_to_all)",
    halving_doubling => HalvingDoubling: "halves are swapped with partners and added, then shared the same way back",
    tree => Tree: "a binomial tree",
    double_tree => DoubleTree: "two binary trees at once, each with half of the buffer",
    chain => Chain: "from neighbour to neighbour, streaming",
    leader => Leader: "one rank speaks for each host; for small messages",
    hierarchy => Hierarchy: "each rank of a host answers for one part of the traffic between hosts; for large messages",
}

pub(crate) use direct::barrier;
pub(crate) use leader::across;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReceiveMode, Shape, Step, StepOp, Topology, build, choose, price};

    #[test]
    fn the_table_names_every_file() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/algorithms");
        let mut there: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|f| f.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .filter(|f| f != "mod")
            .collect();
        let mut listed: Vec<_> = FILES.iter().map(|f| (*f).to_owned()).collect();
        there.sort();
        listed.sort();
        assert_eq!(there, listed, "a file in {folder} without its line in the table does nothing");
    }

    #[test]
    fn every_operation_is_served_and_every_name_is_one() {
        for kind in Kind::ALL {
            assert!(kind.algorithms().next().is_some(), "{kind:?}");
            let unequal = Shape { counts: &[1, 2], ..Shape::new(kind, 0, 2, 0, 1) }.common();
            assert!(kind.algorithms().any(|a| a.carries(&unequal)), "{kind:?}");
        }
        for &a in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(a.name()), Some(a));
            assert!(!a.definition().serves.is_empty() && !a.about().is_empty());
            for s in a.definition().serves {
                assert_eq!(a.definition().serves.iter().filter(|t| t.kind == s.kind).count(), 1);
            }
        }
    }

    #[test]
    fn an_algorithm_gets_no_parts_of_other_lengths_than_it_says() {
        let by = Algorithm::Doubling;
        let &Definition { name, order, adds_at_once, serves, .. } = by.definition();
        let listed = Lengths::Listed(&[1, 2]);
        for (parts, all_gather, all_to_all) in [
            (PartLengths::Equal, [true, false], [true, false]),
            (PartLengths::Listed, [true, true], [true, false]),
            (PartLengths::Private, [true, true], [true, true]),
        ] {
            let made = Definition { name, order, parts, adds_at_once, serves };
            let carries = |kind, lengths| made.carries(&Common { kind, size: 2, elem: 1, root: 0, lengths });
            let gathers = [Lengths::Equal(1), listed].map(|l| carries(Kind::AllGather, l));
            let exchanges = [Lengths::Equal(1), Lengths::Private].map(|l| carries(Kind::AllToAll, l));
            assert_eq!((gathers, exchanges), (all_gather, all_to_all), "{parts:?}");
        }
        assert!(Algorithm::Ring.carries_unequal_parts(Kind::AllGather));
        assert!(!by.carries_unequal_parts(Kind::AllToAll) && !by.carries_unequal_parts(Kind::AllReduce));
        // A choice, a price and a plan ask it.
        let unequal =
            Shape { counts: &[1, 2], recv_counts: &[1, 2], ..Shape::new(Kind::AllToAll, 0, 2, 0, 4) };
        let world = Topology::new(vec![0; 2], 2);
        assert_ne!(choose(&unequal.common(), &world, Some(by)).algorithm, by);
        assert_eq!(price(&unequal.common(), &world, by).predicted, f64::INFINITY);
        assert_eq!(build(&unequal, by, 0), build(&unequal, Algorithm::Pairwise, 0));
    }

    #[test]
    fn an_algorithm_adds_at_once_if_its_file_says_so() {
        const N: usize = 5;
        let stores_a_part = |step: &Step| match &step.op {
            StepOp::Recv { mode, .. } => matches!(mode, ReceiveMode::Reduce { .. }),
            StepOp::NWayReduce { from, .. } => from.len() < N - 1,
            StepOp::Send { .. } | StepOp::Copy { .. } => false,
        };
        for kind in [Kind::AllReduce, Kind::Reduce, Kind::ReduceScatter] {
            for a in kind.algorithms() {
                let shape = Shape { hosts: &[0, 0, 0, 1, 1], ..Shape::new(kind, 0, N, 60, 4) };
                let plans = (0..N).map(|rank| build(&Shape { rank, ..shape }, a, 0));
                let adds_at_once = !plans.flat_map(|p| p.steps).any(|step| stores_a_part(&step));
                assert_eq!(a.adds_at_once(), adds_at_once, "{} of {kind:?}", a.name());
            }
        }
    }
}
