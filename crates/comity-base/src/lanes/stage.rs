//! Memory that one rank writes and the others map to read: the flags of its lanes, then two windows for each.

use super::{
    MOST_LANES,
    lane::{Flag, FlagWord},
};
use crate::sys::Mapping;
use std::{io, os::fd::OwnedFd};

/// Bytes of a window: two of them, and what is read beside them, stay in a core's second-level cache.
pub(super) const WINDOW: usize = 256 << 10;
/// Apart by two cache lines, which processors fetch together.
const APART: usize = 128;
/// Before the windows: two flags for each lane.
const HEAD: usize = 2 * MOST_LANES * APART;

const _: () = assert!(HEAD.is_multiple_of(4096));

/// The stages of all ranks, as one of them sees them.
#[derive(Debug)]
pub struct LaneMemory {
    own: Mapping,
    /// By rank; `None` for oneself.
    peers: Vec<Option<Mapping>>,
    rank: usize,
    lanes: usize,
}

impl LaneMemory {
    /// Memory for so many lanes, and a descriptor to pass to the other ranks.
    pub fn create(lanes: usize) -> io::Result<(Mapping, OwnedFd)> {
        Mapping::create(Self::len(lanes))
    }

    fn len(lanes: usize) -> usize {
        HEAD + 2 * WINDOW * lanes.min(MOST_LANES)
    }

    /// This rank's memory and, by rank, those of the others; none if one is missing or too short.
    pub fn new(own: Mapping, peers: Vec<Option<Mapping>>, rank: usize, lanes: usize) -> Option<Self> {
        let len = Self::len(lanes);
        let is_whole =
            |(r, m): (usize, &Option<Mapping>)| r == rank || m.as_ref().is_some_and(|m| m.len() >= len);
        let whole = own.len() >= len && peers.iter().enumerate().all(is_whole);
        whole.then(|| Self { own, peers, rank, lanes: lanes.min(MOST_LANES) })
    }

    /// For so many lanes.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    fn memory(&self, rank: usize) -> &Mapping {
        self.peers.get(rank).and_then(Option::as_ref).unwrap_or(&self.own)
    }

    fn flag(&self, rank: usize, lane: usize, flag: Flag) -> &FlagWord {
        assert!(lane < self.lanes);
        let at = (2 * lane + flag as usize) * APART;
        // SAFETY: inside the head of a mapping that lives as long as this, aligned (the mapping is page aligned), zeros are a valid
        // number, and every access by any rank is atomic.
        unsafe { &*self.memory(rank).as_ptr().add(at).cast() }
    }

    /// Number of windows that this rank has staged in a lane. Only its own lane changes that.
    pub(super) fn staged(&self, lane: usize) -> u64 {
        self.flag(self.rank, lane, Flag::Staged).own()
    }

    /// Others may read what was written so far.
    pub(super) fn raise(&self, lane: usize, flag: Flag, number: u64) {
        self.flag(self.rank, lane, flag).raise(number);
    }

    /// The first of the other ranks whose flag is below a number.
    pub(super) fn behind(&self, lane: usize, flag: Flag, number: u64) -> Option<usize> {
        let others = (0..self.peers.len()).filter(|&r| r != self.rank);
        let is_behind = |&r: &usize| self.flag(r, lane, flag).is_below(number);
        others.into_iter().find(is_behind)
    }

    /// The begin of a window of a rank: [`WINDOW`] bytes.
    pub(super) fn window(&self, rank: usize, lane: usize, half: usize) -> *mut u8 {
        assert!(lane < self.lanes && half < 2);
        // SAFETY: inside the mapping.
        unsafe { self.memory(rank).as_ptr().add(HEAD + (2 * lane + half) * WINDOW) }
    }
}
