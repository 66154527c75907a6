//! Events of a simulated world, in the order in which they happen.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// Events in the order of their times, and those of one time in the order in which they were planned.
///
/// ```
/// let mut agenda = scope::Agenda::default();
/// [(5, "late"), (2, "first"), (2, "second")].map(|(at, what)| agenda.plan(at, what));
/// assert_eq!([3; 3].map(|until| agenda.take(until)), [Some((2, "first")), Some((2, "second")), None]);
/// assert_eq!(agenda.next(), Some(5));
/// ```
#[derive(Clone, Debug)]
pub struct Agenda<T> {
    number: u64,
    due: BinaryHeap<Reverse<Due<T>>>,
}

#[derive(Clone, Debug)]
struct Due<T> {
    at: u64,
    number: u64,
    what: T,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { number: 0, due: BinaryHeap::new() }
    }
}

impl<T> Agenda<T> {
    /// Plan an event.
    pub fn plan(&mut self, at: u64, what: T) {
        self.number += 1;
        self.due.push(Reverse(Due { at, number: self.number, what }));
    }

    /// When the first is due.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        self.due.peek().map(|Reverse(due)| due.at)
    }

    /// The first, if it is due by then.
    pub fn take(&mut self, until: u64) -> Option<(u64, T)> {
        self.next().filter(|at| *at <= until)?;
        self.due.pop().map(|Reverse(due)| (due.at, due.what))
    }
}

impl<T> PartialEq for Due<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Due<T> {}

impl<T> PartialOrd for Due<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Due<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
