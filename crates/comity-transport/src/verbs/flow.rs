//! Limits on sends in a queue pair, and the frames that must come: counts alone, no device.

use std::collections::{BTreeMap, VecDeque};

/// Room in a queue pair towards the peer: a frame needs a slot here that has completed and a receive there that was posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    slots: u64,
    /// Receives that the peer posts at first.
    posted: u64,
    sent: u64,
    completed: u64,
    /// Number of receives that the peer has posted again.
    given: u64,
}

/// The peer says that it has given more than it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess;

impl Out {
    pub(super) fn new(slots: usize, posted: usize) -> Self {
        Self { slots: slots as u64, posted: posted as u64, sent: 0, completed: 0, given: 0 }
    }

    /// Returns the number of frames that can go now.
    pub(super) fn room(&self) -> u64 {
        let here = self.slots - (self.sent - self.completed);
        let there = self.posted + self.given - self.sent;
        here.min(there)
    }

    /// The slot for the next frame, and the frame's number.
    pub(super) fn next(&self) -> (usize, u64) {
        ((self.sent % self.slots) as usize, self.sent)
    }

    pub(super) fn sent(&mut self) {
        self.sent += 1;
    }

    /// Counts a completion; they come in order.
    pub(super) fn completed(&mut self) {
        self.completed = (self.completed + 1).min(self.sent);
    }

    /// Returns the number of frames sent, in all.
    pub(super) fn count(&self) -> u64 {
        self.sent
    }

    /// Returns true if all sends have completed.
    pub(super) fn is_done(&self) -> bool {
        self.completed == self.sent
    }

    /// The peer has posted so many again, modulo 2^32; whether that is news. Word may come by two ways: the older is no news.
    pub(super) fn credit(&mut self, given: u32) -> Result<bool, Excess> {
        let more = given.wrapping_sub(self.given as u32);
        if more == 0 || more > u32::MAX / 2 {
            return Ok(false);
        }
        let given = self.given + u64::from(more);
        if given > self.sent {
            return Err(Excess);
        }
        self.given = given;
        Ok(true)
    }
}

/// Frames received in a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct In {
    /// The number that is due.
    due: u64,
    /// Number of receives that were posted again.
    given: u64,
    /// Number of those that the peer was told.
    told: u64,
}

/// Another frame came than was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) due: u64,
}

impl In {
    pub(super) fn arrived(&mut self, number: u64) -> Result<(), Gap> {
        if number != self.due {
            return Err(Gap { due: self.due });
        }
        self.due += 1;
        Ok(())
    }

    /// Returns the number of frames received, in all.
    pub(super) fn count(&self) -> u64 {
        self.due
    }

    /// A receive was posted again.
    pub(super) fn give(&mut self) {
        self.given += 1;
    }

    /// Returns the number of reposted receives that the peer does not know of.
    pub(super) fn untold(&self) -> u64 {
        self.given - self.told
    }

    /// Returns the count to tell the peer.
    pub(super) fn given(&self) -> u32 {
        self.given as u32
    }

    /// The peer was told.
    pub(super) fn told(&mut self) {
        self.told = self.given;
    }
}

/// Frames that the peer says have left it. Where nothing is acknowledged, a loss at the end of a burst shows in nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<const N: usize> {
    counts: [u64; N],
    /// Counts at the last look.
    came: [u64; N],
    /// Looks since any of it came. Not the time: a process that was paused for seconds finds on its first look what came meanwhile.
    quiet: u32,
}

impl<const N: usize> Claim<N> {
    pub(super) fn new(counts: [u64; N], came: [u64; N]) -> Self {
        Self { counts, came, quiet: 0 }
    }

    pub(super) fn is_met(&self, came: [u64; N]) -> bool {
        came.iter().zip(self.counts).all(|(came, count)| *came >= count)
    }

    /// Look, with what has come until now; whether the rest is lost.
    pub(super) fn look(&mut self, came: [u64; N], most: u32) -> bool {
        if came != self.came {
            self.came = came;
            self.quiet = 0;
        } else {
            self.quiet += 1;
        }
        self.quiet >= most && !self.is_met(came)
    }

    /// Returns the number of frames claimed, in all.
    pub(super) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The frames of one group from one peer, put in order. `P` is where a payload lies.
#[derive(Debug)]
pub(super) struct FrameOrder<P> {
    /// The offset after the last of `ready`.
    next: u64,
    ready: VecDeque<(P, usize)>,
    /// By offset: those that came before their turn, over another queue pair.
    early: BTreeMap<u64, (P, usize)>,
    taken: u64,
    told: u64,
    /// End of the stream, once the peer has announced it.
    end: Option<u64>,
}

/// Bytes came twice, or past the end, or more than were allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overlap;

impl<P> FrameOrder<P> {
    pub(super) fn new() -> Self {
        Self { next: 0, ready: VecDeque::new(), early: BTreeMap::new(), taken: 0, told: 0, end: None }
    }

    /// `len` bytes came whose first has the offset `at`; whether more is ready now. No more than `window` bytes may lie here.
    pub(super) fn arrive(&mut self, at: u64, piece: P, len: usize, window: u64) -> Result<bool, Overlap> {
        let end = at.checked_add(len as u64).ok_or(Overlap)?;
        let beyond = self.early.range(at..).next().is_some_and(|(other, _)| *other < end);
        let before = self.early.range(..=at).next_back().is_some_and(|(o, (_, n))| o + *n as u64 > at);
        let past = self.end.is_some_and(|e| end > e) || end - self.taken.min(end) > window;
        if len == 0 || at < self.next || beyond || before || past {
            return Err(Overlap);
        }
        self.early.insert(at, (piece, len));
        let was = self.next;
        while let Some(entry) = self.early.first_entry().filter(|e| *e.key() == self.next) {
            let (piece, len) = entry.remove();
            self.next += len as u64;
            self.ready.push_back((piece, len));
        }
        Ok(self.next > was)
    }

    /// The peer puts no more than `total` bytes.
    pub(super) fn end(&mut self, total: u64) -> Result<(), Overlap> {
        let last = self.early.last_key_value().map_or(self.next, |(at, (_, n))| at + *n as u64);
        if total < last || self.end.is_some_and(|e| e != total) {
            return Err(Overlap);
        }
        self.end = Some(total);
        Ok(())
    }

    /// Returns true if the peer has ended the stream.
    pub(super) fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// Returns true if everything up to the end has come and was fetched.
    pub(super) fn is_over(&self) -> bool {
        self.ready.is_empty() && self.end == Some(self.next)
    }

    /// The next piece in order.
    pub(super) fn fetch(&mut self) -> Option<(P, usize)> {
        self.ready.pop_front()
    }

    /// So many bytes were used up.
    pub(super) fn take(&mut self, n: usize) {
        self.taken += n as u64;
    }

    /// Returns the number of used bytes that the peer does not know of.
    pub(super) fn untold(&self) -> u64 {
        self.taken - self.told
    }

    /// Returns the count to tell the peer.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The peer was told.
    pub(super) fn told(&mut self) {
        self.told = self.taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_queue_pair_sends_what_the_peer_has_posted() {
        let mut out = Out::new(4, 3);
        for i in 0..3 {
            assert_eq!((out.room(), out.next()), (3 - i, (i as usize, i)));
            out.sent();
        }
        assert_eq!(out.room(), 0);
        out.completed();
        assert_eq!(out.room(), 0, "completed here, not posted there");
        assert_eq!(out.credit(1), Ok(true));
        assert_eq!(out.room(), 1);
        assert_eq!(out.credit(1), Ok(false));
        assert_eq!(out.credit(0), Ok(false), "older word");
        assert_eq!(out.credit(4), Err(Excess));
        out.sent();
        assert_eq!(out.next(), (0, 4));
        assert!(!out.is_done());
        (0..3).for_each(|_| out.completed());
        assert!(out.is_done());
    }

    #[test]
    fn counts_of_credits_wrap() {
        let mut out = Out {
            sent: u64::from(u32::MAX) + 5,
            completed: 0,
            given: u64::from(u32::MAX),
            slots: 1 << 40,
            posted: 9,
        };
        assert_eq!(out.credit(3), Ok(true));
        assert_eq!(out.given, u64::from(u32::MAX) + 4);
    }

    #[test]
    fn a_gap_and_a_repetition_are_found() {
        let mut qp = In::default();
        assert_eq!((qp.arrived(0), qp.arrived(1)), (Ok(()), Ok(())));
        assert_eq!((qp.arrived(1), qp.arrived(3)), (Err(Gap { due: 2 }), Err(Gap { due: 2 })));
        qp.give();
        assert_eq!((qp.untold(), qp.given()), (1, 1));
        qp.told();
        assert_eq!(qp.untold(), 0);
    }

    #[test]
    fn a_claim_is_lost_after_so_many_looks_at_which_nothing_came() {
        let mut claim = Claim::new([5, 2], [1, 2]);
        assert_eq!(claim.total(), 7);
        assert!((0..2).all(|_| !claim.look([1, 2], 3)));
        // Each frame begins the wait anew, whichever the queue pair.
        assert!(!claim.look([4, 2], 3) && !claim.look([4, 2], 3) && !claim.look([4, 3], 3));
        assert!((0..2).all(|_| !claim.look([4, 3], 3)) && claim.look([4, 3], 3));
        // What is there is not lost, however long ago it came.
        assert!(!claim.is_met([4, 3]) && claim.is_met([5, 3]));
        assert!((0..9).all(|_| !claim.look([5, 3], 3)));
    }

    proptest! {
        #[test]
        fn pieces_come_out_in_order(lens in prop::collection::vec(1usize..50, 1..40), seed: u64) {
            let mut pieces = Vec::new();
            let mut at = 0u64;
            for len in &lens {
                pieces.push((at, *len));
                at += *len as u64;
            }
            // Two queue pairs, each in order, mixed at random.
            let mut input = seed;
            let mut qps = [VecDeque::new(), VecDeque::new()];
            for p in &pieces {
                input = input.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                qps[(input >> 40) as usize % 2].push_back(*p);
            }
            let mut order = FrameOrder::new();
            let mut out = Vec::new();
            while qps.iter().any(|l| !l.is_empty()) {
                input = input.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let Some((at, len)) = qps[(input >> 33) as usize % 2].pop_front() else { continue };
                order.arrive(at, at, len, 1 << 20).unwrap();
                prop_assert_eq!(order.arrive(at, at, len, 1 << 20), Err(Overlap), "twice");
                while let Some((piece, len)) = order.fetch() {
                    out.push((piece, len));
                    order.take(len);
                }
            }
            prop_assert_eq!(&out, &pieces);
            prop_assert_eq!(order.taken(), at);
            prop_assert!(!order.is_over() && order.end(at.wrapping_sub(1)).is_err());
            prop_assert_eq!(order.end(at), Ok(()));
            prop_assert!(order.is_over());
            prop_assert_eq!(order.arrive(at, at, 1, 1 << 20), Err(Overlap), "past the end");
        }

        #[test]
        fn no_more_than_the_window_is_kept(window in 1u64..100, len in 1usize..200) {
            let mut order = FrameOrder::new();
            prop_assert_eq!(order.arrive(0, (), len, window).is_ok(), len as u64 <= window);
        }
    }
}
