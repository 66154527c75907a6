//! Memory of a rank of the simulator.

use super::Value;
use crate::{Buf, Slice};

/// `In`, `Out` and `Tmp`, each from its place; in place they overlap.
pub(super) struct RankMemory {
    pub(super) values: Vec<Value>,
    /// Number of times that each is lent.
    pub(super) lent: Vec<u32>,
    pub(super) places: [(usize, usize); 3],
}

impl RankMemory {
    pub(super) fn at(&self, s: Slice, i: usize) -> usize {
        let (at, len) = self.places[s.buf as usize];
        assert!(s.at + s.len <= len, "{s:?} leaves its buffer of {len}");
        assert!(i < s.len, "element {i} of {s:?}");
        at + s.at + i
    }

    pub(super) fn read(&self, s: Slice, i: usize) -> Value {
        self.values[self.at(s, i)]
    }

    pub(super) fn write(&mut self, s: Slice, i: usize, v: Value) {
        assert!(s.buf != Buf::In, "In is written");
        let at = self.at(s, i);
        // The same again is what a rank gets back of its own part in place.
        assert!(self.lent[at] == 0 || self.values[at] == v, "a lent element is overwritten");
        self.values[at] = v;
    }
}
