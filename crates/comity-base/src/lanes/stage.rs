//! Memory that one rank writes and the others map to read: the flags of its lanes, then two windows for each.
//!
//! Places of a call's bytes: by lane, by window, and by the part that each rank answers for.

use super::{
    MOST_LANES, MOST_MATES,
    lane::{Flag, FlagWord, LaneProgress, Phases},
};
use crate::{DType, ReduceOp, sys::Mapping};
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

/// Parts begin on a cache line, which holds whole elements.
const LINE: usize = 64;

/// The operations that lanes carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
    /// From this rank, in place.
    Broadcast(usize),
}

/// A call that lanes carry, the same on all ranks but for `rank`.
#[derive(Clone, Copy, Debug)]
pub struct LaneCall {
    pub collective: Collective,
    pub dtype: DType,
    pub reduce: ReduceOp,
    pub rank: usize,
    pub size: usize,
    /// Bytes of the buffer, or of a part where ranks have parts.
    pub bytes: usize,
    /// `In` and `Out` both hold all parts, in so many bytes: the last parts may be shorter, or empty. A reduce_scatter leaves the result in the
    /// own part of `Out`, and an all_gather takes it from there.
    pub whole: Option<usize>,
    pub lanes: usize,
}

/// Window of a lane: where it begins in the buffer or in each part, and its bytes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    at: usize,
    len: usize,
}

/// Bytes of a rank in a window: where they lie in `In` or `Out`, where in the stage, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) at: usize,
    pub(super) slot: usize,
    pub(super) len: usize,
}

impl LaneCall {
    /// Returns true if so many ranks and lanes can be.
    pub(crate) fn fits(&self) -> bool {
        (2..=MOST_MATES).contains(&self.size) && (1..=MOST_LANES).contains(&self.lanes)
    }

    pub(super) fn phases(&self) -> Phases {
        let reduces = matches!(self.collective, Collective::AllReduce | Collective::ReduceScatter);
        Phases { reduces, takes: self.collective != Collective::ReduceScatter }
    }

    /// Bytes of `In` and of `Out`.
    pub(super) fn lengths(&self) -> (usize, usize) {
        if let Some(whole) = self.whole {
            return (whole, whole);
        }
        let all = self.bytes * self.size;
        match self.collective {
            Collective::AllReduce | Collective::Broadcast(_) => (self.bytes, self.bytes),
            Collective::ReduceScatter => (all, self.bytes),
            Collective::AllGather => (self.bytes, all),
            Collective::AllToAll => (all, all),
        }
    }

    /// Bytes that this rank writes to its stage.
    pub fn sent(&self) -> usize {
        let own = self.part(self.rank).1;
        match self.collective {
            Collective::AllReduce | Collective::AllGather => own,
            Collective::Broadcast(root) => self.bytes * usize::from(self.rank == root),
            Collective::ReduceScatter | Collective::AllToAll => {
                self.whole.unwrap_or(self.bytes * self.size) - own
            }
        }
    }

    /// Begin of the part of rank `i` in a buffer that holds all, and its bytes.
    fn part(&self, i: usize) -> (usize, usize) {
        let whole = self.whole.unwrap_or(usize::MAX);
        let at = (i * self.bytes).min(whole);
        (at, self.bytes.min(whole - at))
    }

    /// The bytes of such a part that lie in a window.
    fn of_part(&self, w: Window, i: usize, slot: usize) -> Block {
        let (at, all) = self.part(i);
        let before = w.at.min(all);
        Block { at: at + before, slot, len: w.len.min(all - before) }
    }

    /// Bytes of a window: in the buffer, or in each part.
    fn window(&self) -> usize {
        match self.collective {
            Collective::AllReduce | Collective::AllGather | Collective::Broadcast(_) => WINDOW,
            Collective::ReduceScatter | Collective::AllToAll => WINDOW / self.size / LINE * LINE,
        }
    }

    /// Beginning and end of lane `i` in the buffer or in each part.
    fn slice(&self, i: usize) -> (usize, usize) {
        let each = self.bytes.div_ceil(self.lanes).next_multiple_of(LINE);
        ((i * each).min(self.bytes), ((i + 1) * each).min(self.bytes))
    }

    /// Lane `i`, which begins where the stage has come to.
    pub(super) fn lane(&self, i: usize, stage: &LaneMemory) -> LaneProgress {
        let (begin, end) = self.slice(i);
        LaneProgress::new(i, stage.staged(i), (end - begin).div_ceil(self.window()) as u64)
    }

    pub(super) fn window_of(&self, lane: &LaneProgress) -> Window {
        let (begin, end) = self.slice(lane.index);
        let at = begin + lane.window as usize * self.window();
        Window { at, len: self.window().min(end - at) }
    }

    /// The bytes of rank `i` in a window of `In`, and in the stage of who holds that.
    pub(super) fn block(&self, w: Window, i: usize) -> Block {
        match self.collective {
            Collective::AllReduce => {
                let each = w.len.div_ceil(self.size).next_multiple_of(LINE);
                let slot = (i * each).min(w.len);
                Block { at: w.at + slot, slot, len: each.min(w.len - slot) }
            }
            Collective::ReduceScatter | Collective::AllToAll => self.of_part(w, i, i * self.window()),
            Collective::AllGather if self.whole.is_some() => self.of_part(w, i, 0),
            Collective::AllGather | Collective::Broadcast(_) => Block { at: w.at, slot: 0, len: w.len },
        }
    }

    /// Place in `Out` of the result of this rank's part, which lies there in `In`.
    pub(super) fn result(&self, w: Window, at: usize) -> usize {
        if self.collective == Collective::ReduceScatter && self.whole.is_none() { w.at } else { at }
    }

    /// The bytes that come from rank `i` in a window: where in `Out`, and where in the stage of `i`.
    pub(super) fn coming(&self, w: Window, i: usize) -> Block {
        let slot = match self.collective {
            Collective::AllReduce | Collective::Broadcast(_) => return self.block(w, i),
            Collective::AllToAll => self.rank * self.window(),
            Collective::AllGather | Collective::ReduceScatter => 0,
        };
        self.of_part(w, i, slot)
    }

    /// The ranks that this one takes bytes from, the next one first: not all take from the same one at once.
    pub(super) fn sources(&self) -> impl Iterator<Item = usize> + use<> {
        let only = if let Collective::Broadcast(root) = self.collective { Some(root) } else { None };
        self.others().filter(move |&r| only.is_none_or(|root| root == r))
    }

    /// The other ranks, in that order.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        let size = self.size;
        (1..size).map(move |i| (rank + i) % size)
    }
}
