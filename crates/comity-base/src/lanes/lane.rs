//! The order of events in a lane: what it may do next, given how far the same lane of the other ranks has come.
//!
//! ```text
//!   window 7:   stage into half 1 ── staged = 8 ──> all staged 8? ── reduce ── reduced = 8 ──> all reduced 8? ── take
//!   window 8:   stage into half 0 ── ...
//! ```
//! Windows are counted through all calls of a group, each lane for itself. Why two halves do: who stages window 9 into half 1 has
//! seen `staged = 9` of every rank when it worked on window 8. A rank says that when it is done with window 7, the last one in half 1.

use crate::sync::{AtomicU64, Ordering};

/// Place of a flag, in memory that all ranks see: the windows that a rank's lane has come through. Zero at first.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(super) struct FlagWord(AtomicU64);

impl FlagWord {
    /// The number, for the lane that changes it.
    pub(super) fn own(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Others may read what was written so far, and write to what was read.
    pub(super) fn raise(&self, number: u64) {
        self.0.store(number, Ordering::Release);
    }

    /// Returns true if that rank's lane has not come so far.
    pub(super) fn is_below(&self, number: u64) -> bool {
        self.0.load(Ordering::Acquire) < number
    }
}

/// Work of all ranks in a window, besides staging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phases {
    /// Each rank reduces its part.
    pub(super) reduces: bool,
    /// Each rank copies out of the others' stages.
    pub(super) takes: bool,
}

/// Progress of a rank in a lane, in windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    Staged,
    Reduced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Act {
    Stage,
    Reduce,
    Take,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Now(Act),
    /// When this flag of all ranks stands at the window's [number](LaneProgress::number).
    After(Flag, Act),
    End,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LaneProgress {
    /// Its place among the call's lanes.
    pub(super) index: usize,
    /// The window it is in, from 0 in each call.
    pub(super) window: u64,
    /// Windows before this call.
    base: u64,
    end: u64,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Stage,
    Staged,
    Reduced,
}

impl LaneProgress {
    /// A lane with so many windows in this call, after `base` in others.
    pub(super) fn new(index: usize, base: u64, end: u64) -> Self {
        Self { index, window: 0, base, end, at: At::Stage }
    }

    /// Values of its flags in this call.
    pub(super) fn end(&self) -> u64 {
        self.base + self.end
    }

    /// The half of the stage in which the window lies.
    pub(super) fn half(&self) -> usize {
        ((self.base + self.window) % 2) as usize
    }

    /// The number of windows up to and with this one.
    pub(super) fn number(&self) -> u64 {
        self.base + self.window + 1
    }

    pub(super) fn next(&self, phases: Phases) -> Next {
        match self.at {
            At::Stage if self.window == self.end => Next::End,
            At::Stage => Next::Now(Act::Stage),
            At::Staged if phases.reduces => Next::After(Flag::Staged, Act::Reduce),
            At::Staged => Next::After(Flag::Staged, Act::Take),
            At::Reduced => Next::After(Flag::Reduced, Act::Take),
        }
    }

    /// `act` is done; the flag that others may see then, at [`number`](Self::number) of before.
    pub(super) fn did(&mut self, act: Act, phases: Phases) -> Option<Flag> {
        match act {
            Act::Stage => {
                self.at = At::Staged;
                Some(Flag::Staged)
            }
            Act::Reduce if phases.takes => {
                self.at = At::Reduced;
                Some(Flag::Reduced)
            }
            Act::Reduce | Act::Take => {
                self.at = At::Stage;
                self.window += 1;
                None
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
