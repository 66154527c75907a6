//! Choice of the quicker way between these two processes: two copies through the ring, or one that the system makes.
//!
//! ```text
//!   borrower                                               lender
//!   measures some of its copies into the ring and out      most messages go the way that is quicker, as far as is known;
//!   of it, and some that the system made; says on    --->  one in some hundred goes the other way, to be measured
//!   the board whether those are dear
//! ```
//! Which it is depends on how far the two cores are from each other and on what the system does for each page: one copy by it takes two thirds as
//! long as the two through the ring, or four times as long (`bench/record/2026-11-27-ring-or-system.md`). A message is the same whichever way it
//! goes, so the ends need not agree, and no result changes.
//!
//! Cost: two looks at the clock for one in [`EVERY`] of the long copies.

use std::time::{Duration, Instant};

/// Shorter copies are not measured: the clock takes its part of them.
const LEAST: usize = 8 << 10;
/// After the first ones of these, one in so many.
const EVERY: u32 = 16;
/// Number of measurements of a window. The quickest of this window and the last one counts: others in between do not.
const WINDOW: u32 = 8;
/// A copy by the system becomes dear if it takes so many times as long as one into the ring and one out of it, and stays so until it is
/// as quick.
const DEAR: f32 = 1.2;
/// Number of messages that go the quicker way before one goes the other, at first and after a change; and at most, where the other is a copy
/// through the ring and where it is one by the system.
const FIRST: u32 = 4;
const MOST_PULLED: u32 = 1024;
const MOST_COPIED: u32 = 256;

#[derive(Debug)]
struct Speed {
    copies: u32,
    measured: u32,
    /// Nanoseconds of a byte: the quickest copy of this window, and of the one before.
    least: [f32; 2],
}

impl Default for Speed {
    fn default() -> Self {
        Self { copies: 0, measured: 0, least: [f32::INFINITY; 2] }
    }
}

impl Speed {
    /// A copy of `n` bytes begins: when, if it is one of so `many` that is measured.
    #[inline]
    fn begin(&mut self, n: usize, many: u32) -> Option<Instant> {
        if n < LEAST {
            return None;
        }
        self.copies = self.copies.wrapping_add(1);
        (self.copies <= WINDOW || self.copies.is_multiple_of(many)).then(Instant::now)
    }

    fn end(&mut self, n: usize, took: Duration) {
        let [now, _] = &mut self.least;
        *now = now.min(took.as_nanos() as f32 / n as f32);
        self.measured += 1;
        if self.measured.is_multiple_of(WINDOW) {
            self.least = [f32::INFINITY, self.least[0]];
        }
    }

    fn of_a_byte(&self) -> f32 {
        self.least[0].min(self.least[1])
    }
}

/// Maker of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shm) enum By {
    /// The writer's, into the ring.
    Writer,
    /// The reader's, out of the ring.
    Reader,
    /// The system's, out of the peer's memory.
    System,
}

/// Measurements of the borrower, of both ways.
#[derive(Debug, Default)]
pub(in crate::shm) struct Speeds {
    by: [Speed; 3],
    is_dear: bool,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::shm) struct MeasuredCopy {
    since: Instant,
    n: usize,
    by: By,
}

impl Speeds {
    #[inline]
    pub(super) fn begin(&mut self, n: usize, by: By) -> Option<MeasuredCopy> {
        // There are few of them where they are dear.
        let many = if by == By::System && self.is_dear { 1 } else { EVERY };
        self.by[by as usize].begin(n, many).map(|since| MeasuredCopy { since, n, by })
    }

    /// The copy has ended, of `n` bytes after all. After one by the system: whether those are dear, if both kinds are known.
    ///
    /// Not after one through the ring: its first copies to memory that has no pages yet all take long, and those of the system to be held
    /// against were made at another time.
    pub(super) fn end(&mut self, copy: MeasuredCopy, n: usize) -> Option<bool> {
        if n < copy.n {
            return None;
        }
        self.took(copy.by, n, copy.since.elapsed())
    }

    fn took(&mut self, by: By, n: usize, took: Duration) -> Option<bool> {
        self.by[by as usize].end(n, took);
        let [writer, reader, system] = self.by.each_ref().map(Speed::of_a_byte);
        if by != By::System || reader.is_infinite() {
            return None;
        }
        // Who sends nothing knows one half: the other is about as long.
        let ring = reader + if writer.is_finite() { writer } else { reader };
        self.is_dear = system > if self.is_dear { ring } else { DEAR * ring };
        Some(self.is_dear)
    }
}

/// Turns of the messages that go the way that seems to be slower.
#[derive(Debug)]
pub(super) struct Turns {
    is_dear: bool,
    left: u32,
    gap: u32,
}

impl Default for Turns {
    fn default() -> Self {
        Self { is_dear: false, left: FIRST, gap: FIRST }
    }
}

impl Turns {
    /// The last message was one for the system, which did not copy it: if it was to be measured, the next one is.
    pub(super) fn in_vain(&mut self) {
        if self.is_dear {
            self.left = 0;
        }
    }

    /// Returns true if the system is to copy the next message, where its copies are dear or are not.
    pub(super) fn pulls(&mut self, is_dear: bool) -> bool {
        if is_dear != self.is_dear {
            *self = Self { is_dear, ..Self::default() };
        }
        if self.left > 0 {
            self.left -= 1;
            return !is_dear;
        }
        self.gap = (2 * self.gap).min(if is_dear { MOST_COPIED } else { MOST_PULLED });
        self.left = self.gap;
        is_dear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 32 << 10;

    /// Returns the last verdict after copies that took so many microseconds, of a reader and of the system.
    fn after(speeds: &mut Speeds, took: &[(u64, u64)]) -> Option<bool> {
        let took = took.iter().map(|&(reader, system)| [(By::Reader, reader), (By::System, system)]);
        took.flatten().fold(None, |_, (by, us)| speeds.took(by, N, Duration::from_micros(us)))
    }

    #[test]
    fn what_takes_much_longer_than_two_copies_is_dear() {
        let mut speeds = Speeds::default();
        assert_eq!(
            speeds.took(By::System, N, Duration::from_micros(9)),
            None,
            "nothing is known of the ring"
        );
        assert_eq!(after(&mut Speeds::default(), &[(3, 7)]), Some(false));
        assert_eq!(after(&mut Speeds::default(), &[(3, 8)]), Some(true));
        let near = &[(3, 8), (3, 7), (3, 6)];
        let mut speeds_near = Speeds::default();
        let said = near.map(|both| after(&mut speeds_near, &[both]));
        assert_eq!(said, [Some(true), Some(true), Some(false)], "not at once the other way around");
        speeds.took(By::Writer, N, Duration::from_micros(5));
        assert_eq!(after(&mut speeds, &[(3, 9)]), Some(false), "into the ring takes longer");
        // A thread that lost its core in the middle, or memory that had no pages yet, says nothing.
        assert_eq!(after(&mut Speeds::default(), &[(3, 6), (4, 4000), (3, 7)]), Some(false));
        assert_eq!(after(&mut Speeds::default(), &[(900, 10), (3, 10)]), Some(true));
        let slow = (0..1000).filter_map(|_| speeds.took(By::Reader, N, Duration::from_micros(900)));
        assert_eq!(slow.count(), 0, "none of the system's is as new");
    }

    #[test]
    fn a_change_is_seen_after_two_windows() {
        let mut speeds = Speeds::default();
        assert_eq!(after(&mut speeds, &[(3, 12); 100]), Some(true));
        assert_eq!(after(&mut speeds, &[(10, 12); WINDOW as usize]), Some(true));
        assert_eq!(after(&mut speeds, &[(10, 12); WINDOW as usize]), Some(false));
    }

    #[test]
    fn short_copies_and_most_others_are_not_measured() {
        let mut speeds = Speeds::default();
        assert!((0..1000).all(|_| speeds.begin(LEAST - 1, By::Reader).is_none()));
        let measured = (0..1600).filter(|_| speeds.begin(N, By::System).is_some()).count();
        assert_eq!(measured, 8 + 100);
        after(&mut speeds, &[(3, 12)]);
        assert!((0..100).all(|_| speeds.begin(N, By::System).is_some()), "of those that are dear all are");
        let copy = speeds.begin(N, By::System).unwrap();
        assert_eq!(speeds.end(copy, N - 1), None, "it was cut");
        assert!(speeds.end(copy, N).is_some() && speeds.by[2].measured == 2);
    }

    #[test]
    fn the_other_way_is_tried_now_and_then_and_soon_after_a_change() {
        let mut turns = Turns::default();
        let others = |turns: &mut Turns, n: usize, is_dear: bool| {
            (0..n).filter(|_| turns.pulls(is_dear) == is_dear).collect::<Vec<_>>()
        };
        assert_eq!(others(&mut turns, 30, false), [4, 13]);
        let late = others(&mut turns, 100_000, false);
        assert!(late.ends_with(&[late[late.len() - 1]]) && (95..110).contains(&late.len()), "{}", late.len());
        assert_eq!(others(&mut turns, 30, true), [4, 13]);
        let late = others(&mut turns, 100_000, true).len();
        assert!((385..400).contains(&late), "{late}");
        assert!(!turns.pulls(true));
        turns.in_vain();
        assert!(turns.pulls(true) && !turns.pulls(true));
    }
}
