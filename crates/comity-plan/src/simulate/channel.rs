//! Values under way from one rank to another.

use super::Value;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Underway {
    /// Values that the receiver can take, each with whether it is only lent.
    values: VecDeque<(Value, bool)>,
    /// Round and length of messages begun and not yet received from.
    pub(super) begun: VecDeque<(u32, usize)>,
    /// Place of each kept value in the sender's memory, if it is lent; others are kept only behind one that is.
    kept: VecDeque<Option<usize>>,
    taken: usize,
    settled: usize,
    copies: usize,
}

impl Underway {
    /// A value leaves; `at` in the sender's memory if it is only lent.
    pub(super) fn put(&mut self, v: Value, at: Option<usize>, lent: &mut [u32]) {
        self.values.push_back((v, at.is_some()));
        self.kept.push_back(at);
        match at {
            Some(at) => lent[at] += 1,
            None => self.copies += 1,
        }
    }

    /// Returns the number of values that the receiver can take.
    pub(super) fn ready(&self) -> usize {
        self.values.len()
    }

    /// Returns the number of values that take up room.
    pub(super) fn held(&self) -> usize {
        self.copies
    }

    /// The receiver takes the next value.
    pub(super) fn take(&mut self) -> Option<Value> {
        let (v, is_lent) = self.values.pop_front()?;
        self.copies -= usize::from(!is_lent);
        self.taken += 1;
        Some(v)
    }

    /// Returns the number of further values that the sender need not keep.
    pub(super) fn settle(&mut self, lent: &mut [u32]) -> usize {
        let before = self.settled;
        while let Some(next) = self.kept.front() {
            match next {
                Some(at) if self.taken > self.settled => lent[*at] -= 1,
                Some(_) => break,
                None => {}
            }
            self.kept.pop_front();
            self.settled += 1;
        }
        self.settled - before
    }
}
