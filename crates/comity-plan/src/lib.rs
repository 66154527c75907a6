//! Collective algorithms as pure data: what one rank sends, receives and combines, step by step.
//!
//! A plan does no I/O and reads no clock. `build` makes one rank's plan for a call; `Schedule`
//! (schedule.rs) turns it into what may move now; the engine runs it over links, `simulate`
//! runs all ranks of it against each other in one thread.
//!
//! ```text
//!   choose ──> direct | ring | doubling | tree | ... ──> Plan ──> Schedule ──> engine (links)
//!                    (pipelined over segments)                        └──────> simulate (no links)
//! ```
//!
//! Ranges are in elements. A step names its `round`: a message is sent and received in the same
//! round on both sides, which fixes the order of messages between two ranks. Between ranks data flow only from
//! earlier rounds to later ones, so the earliest open round can always move: no plan deadlocks. Within a rank a step
//! sees what those before it wrote, in the same round too.
//!
//! ```
//! use comity_plan::{Kind, Shape, Topology, build, choose};
//!
//! // An all_reduce of 1,000 f32 on four ranks of one host with 8 cores, as rank 2 sees it.
//! let call = Shape::new(Kind::AllReduce, 2, 4, 1000, 4);
//! let choice = choose(&call.common(), &Topology::new(vec![0; 4], 8), None);
//! let plan = build(&call, choice.algorithm, choice.segment);
//! println!("{}: {} steps, about {} s", choice.algorithm.name(), plan.steps.len(), choice.predicted);
//! assert!(!plan.steps.is_empty());
//! ```
//!
//! This crate is Comity's own: its interface may change with any release. Nothing in it waits, allocates by what a peer says, or
//! needs more than std.

#![forbid(unsafe_code)]

mod algorithms;
mod choose;
mod draft;
mod lanes;
mod model;
mod pipeline;
mod report;
mod schedule;
mod shape;
#[cfg(test)]
mod simulate;
mod svg;
mod topology;

pub use algorithms::Algorithm;
pub use choose::{Choice, choose, price};
pub use lanes::{Lanes, lanes_of};
pub use pipeline::{LanePhase, LanePlan, Phase, build, build_with_lanes};
pub use report::{PlanReport, PlanRequest, plan_report};
pub use schedule::{Id, Schedule, Want};
pub use shape::{Common, Kind, Lengths, Shape};
pub use topology::{Cost, HostLink, LinkClass, PairCosts, Topology};

/// A buffer of a call. For operations in place `In` and `Out` are the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buf {
    /// This rank's contribution. Never written (except through `Out`, when in place).
    In,
    /// The result.
    Out,
    /// The plan's own memory, `Plan::tmp` elements.
    Tmp,
}

/// `len` elements of `buf`, from `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// Buffer that it lies in.
    pub buf: Buf,
    /// First element.
    pub at: usize,
    /// Elements.
    pub len: usize,
}

/// Treatment of received elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveMode {
    /// They are the result.
    Copy,
    /// `dst = with ∘ received`. `with` has the length of `dst` and is often `dst` itself.
    Reduce {
        /// This rank's operand.
        with: Slice,
        /// Nothing is added to `dst` afterwards (an average divides here).
        last: bool,
    },
}

/// Action of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StepOp {
    /// Send `src` to rank `to`.
    Send {
        /// The receiver.
        to: usize,
        /// Elements to send.
        src: Slice,
    },
    /// Take `dst.len` elements from rank `from`.
    Recv {
        /// The sender.
        from: usize,
        /// Destination of the elements.
        dst: Slice,
        /// Treatment of the elements.
        mode: ReceiveMode,
    },
    /// Take `dst.len` elements from each rank in `from` (ascending, without this rank) and combine them with
    /// `own`, all in rank order, into `dst`.
    NWayReduce {
        /// The senders, two or more.
        from: Vec<usize>,
        /// This rank's operand.
        own: Slice,
        /// Destination of the result.
        dst: Slice,
        /// Nothing is added to `dst` afterwards (an average divides here).
        last: bool,
    },
    /// Copy within this rank.
    Copy {
        /// From.
        src: Slice,
        /// To.
        dst: Slice,
    },
}

/// A step of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// When: the same number on both sides of a message.
    pub round: u32,
    /// Action.
    pub op: StepOp,
}

/// Steps of a rank in a call, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The steps, by ascending round.
    pub steps: Vec<Step>,
    /// Elements of `Buf::Tmp` that the steps use.
    pub tmp: usize,
}

impl Slice {
    /// All of `buf` from `at` for `len`.
    pub const fn new(buf: Buf, at: usize, len: usize) -> Self {
        Self { buf, at, len }
    }

    /// `part` of this slice: offset from its start, and length.
    pub const fn part(self, part: (usize, usize)) -> Self {
        Self { buf: self.buf, at: self.at + part.0, len: part.1 }
    }
}
