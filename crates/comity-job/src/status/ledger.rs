//! The calls that this rank has made lately, and those in which other members say that they wait.
//!
//! A message shows a difference only to a rank that takes it. Ranks that wait for each other get no message. So a rank that has waited for
//! long tells the ranks it waits for in which call it is. Each of them compares that with its own call of that number: at once if it has
//! come so far, else when it does. Calls between two ranks alone have no number and are not told.
//!
//! The engine writes, one call at a time. Whoever hears of another rank reads, from any thread.

use super::header::{Header, LEN, WORDS};
use crate::{CallInfo, sync::lock};
use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering, fence},
};

/// Calls kept. A rank can be further ahead of one that waits only by calls in which it takes nothing.
const KEPT: usize = 256;
/// Odd numbers without a pattern, one for each word of a header and one for the whole.
const MIX: [u64; WORDS + 1] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xff51_afd7_ed55_8ccd,
];

/// Two calls of which all ranks should have made the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differs {
    /// The call of the rank that saw it.
    pub ours: CallInfo,
    /// The call of the other rank.
    pub theirs: CallInfo,
    /// Element of [`Header::DIFFERENCES`].
    pub what: &'static str,
}

/// This rank's last calls, and those that waiting members told of.
#[derive(Debug)]
pub struct Ledger {
    /// Headers, each followed by what all calls up to it come to.
    recent: Box<[[AtomicU64; WORDS + 1]]>,
    /// The number of the last call.
    made: AtomicU64,
    /// The least number in `ahead`.
    due: AtomicU64,
    /// By rank, the last call it waited in that this rank had not come to.
    ahead: Mutex<Vec<Option<Header>>>,
    /// By rank, the number of the latest call it said it waits in.
    heard: Mutex<Vec<u64>>,
}

impl Ledger {
    /// For a group of `size`.
    pub fn new(size: usize) -> Self {
        Self {
            recent: (0..KEPT).map(|_| Default::default()).collect(),
            made: AtomicU64::new(0),
            due: AtomicU64::new(u64::MAX),
            ahead: Mutex::new(vec![None; size]),
            heard: Mutex::new(vec![0; size]),
        }
    }

    /// This rank makes a call. Only the engine says so, and in the order of the calls' numbers.
    #[inline]
    pub fn record(&self, call: &Header) {
        let seq = call.info.seq;
        // Whoever reads a part of this call sees then that the one before it was made, and that it read too late.
        fence(Ordering::Release);
        let before = self.recent.get((seq.wrapping_sub(1)) as usize % KEPT);
        let before = before.map_or(0, |slot| slot[WORDS].load(Ordering::Relaxed));
        if let Some(slot) = self.recent.get(seq as usize % KEPT) {
            let mut sum = 0u64;
            for ((word, &bits), &mix) in slot.iter().zip(&call.words()).zip(&MIX) {
                word.store(bits, Ordering::Relaxed);
                // Without a chain from word to word. A multiplication by an odd number loses nothing, so calls that differ in one word always
                // come to something else.
                sum = sum.wrapping_add(bits.wrapping_mul(mix));
            }
            let all = (before.rotate_left(23) ^ sum).wrapping_mul(MIX[WORDS]);
            slot[WORDS].store(all, Ordering::Relaxed);
        }
        self.made.store(seq, Ordering::Release);
    }

    /// Returns true if this rank has come to a call that another rank announced. Two loads.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed) <= self.made.load(Ordering::Relaxed)
    }

    /// Returns true if a member has told that it waits in a call that this rank has not come to.
    pub fn is_awaited(&self) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        due != u64::MAX && due > self.made.load(Ordering::Relaxed)
    }

    /// Compare what is due; the first rank that differs.
    pub fn settle(&self) -> Option<(usize, Differs)> {
        let mut found = None;
        let mut ahead = lock(&self.ahead);
        let made = self.made.load(Ordering::Acquire);
        let mut due = u64::MAX;
        for (rank, place) in ahead.iter_mut().enumerate() {
            match place {
                Some(theirs) if theirs.info.seq <= made => {
                    found = found.or_else(|| self.compare(theirs).map(|d| (rank, d)));
                    *place = None;
                }
                Some(theirs) => due = due.min(theirs.info.seq),
                None => {}
            }
        }
        self.due.store(due, Ordering::Relaxed);
        found
    }

    /// `from` waits in `theirs`, of which the number came in 32 bits. What differs, if this rank can tell now; else it is kept until
    /// this rank comes to that call.
    pub fn hear(&self, from: usize, mut theirs: Header) -> Option<Differs> {
        let made = self.made.load(Ordering::Acquire);
        let apart = (theirs.info.seq as u32).wrapping_sub(made as u32) as i32;
        theirs.info.seq = made.checked_add_signed(apart.into())?;
        if let Some(heard) = lock(&self.heard).get_mut(from) {
            *heard = theirs.info.seq.max(*heard);
        }
        if apart <= 0 {
            return self.compare(&theirs);
        }
        {
            let mut ahead = lock(&self.ahead);
            *ahead.get_mut(from)? = Some(theirs);
            self.due.fetch_min(theirs.info.seq, Ordering::Relaxed);
        }
        // The engine may have come there meanwhile without a look at `due`. It looks again whenever it waits, and in
        // its next call; this is for one that makes none.
        fence(Ordering::SeqCst);
        if theirs.info.seq <= self.made.load(Ordering::Acquire) { self.compare(&theirs) } else { None }
    }

    /// Returns the number of this rank's last call.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    /// The number of the latest call that `rank` said it waits in.
    pub fn heard(&self, rank: usize) -> u64 {
        lock(&self.heard).get(rank).copied().unwrap_or(0)
    }

    /// The number of the last call, and what all calls up to number `at` come to: the same on ranks that made the same calls. Nothing if this
    /// rank has not come so far, or no longer knows.
    pub fn digest(&self, at: u64) -> (u64, Option<u64>) {
        let made = self.made.load(Ordering::Acquire);
        if at == 0 {
            return (made, Some(0));
        }
        if !is_kept(at, made) {
            return (made, None);
        }
        let digest = self.recent.get(at as usize % KEPT).map(|slot| slot[WORDS].load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (made, digest.filter(|_| is_kept(at, self.made.load(Ordering::Relaxed))))
    }

    /// The calls that are still known, oldest first.
    pub fn kept(&self) -> impl Iterator<Item = Header> {
        let made = self.made.load(Ordering::Acquire);
        (made.saturating_sub(KEPT as u64 - 2).max(1)..=made).filter_map(|seq| self.call(seq))
    }

    /// The call that `rank` waits in, if this rank has not come to it.
    pub fn told(&self, rank: usize) -> Option<Header> {
        let made = self.made.load(Ordering::Acquire);
        let call = *lock(&self.ahead).get(rank)?;
        call.filter(|c| c.info.seq > made)
    }

    /// This rank's call of the same number, if it is still known, and what differs.
    fn compare(&self, theirs: &Header) -> Option<Differs> {
        let ours = self.call(theirs.info.seq)?;
        let what = ours.difference(theirs)?;
        Some(Differs { ours: ours.info, theirs: theirs.info, what })
    }

    /// This rank's call of that number, if it is still known.
    pub fn call(&self, seq: u64) -> Option<Header> {
        if !is_kept(seq, self.made.load(Ordering::Acquire)) {
            return None;
        }
        let mut bytes = [0; LEN];
        let slot = self.recent.get(seq as usize % KEPT)?;
        for (word, out) in slot.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *out = word.load(Ordering::Relaxed).to_le_bytes();
        }
        fence(Ordering::Acquire);
        if !is_kept(seq, self.made.load(Ordering::Relaxed)) {
            return None;
        }
        let mut call = Header::decode(&bytes, 0)?;
        call.info.seq = seq;
        Some(call)
    }
}

/// Returns true if a rank whose last call was number `made` still knows number `seq`. The slot of the call after the last may be changing.
fn is_kept(seq: u64, made: u64) -> bool {
    seq > 0 && made >= seq && made + 1 - seq < KEPT as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Op};

    fn call(seq: u64, count: usize) -> Header {
        let info = CallInfo::new(Op::AllGather).with(|c| {
            c.seq = seq;
            c.count = count;
            c.dtype = Some(DType::F32);
        });
        Header { info, shape: 5, group_id: 1, lends: false }
    }

    /// The header as it comes over the wire.
    fn told(h: Header) -> Header {
        Header::decode(&h.encode(), 0).unwrap()
    }

    #[test]
    fn calls_are_compared_when_made_when_past_and_when_to_come() {
        let l = Ledger::new(3);
        (1..=4).for_each(|seq| l.record(&call(seq, seq as usize)));
        assert_eq!(l.hear(1, told(call(4, 4))), None);
        let d = l.hear(1, told(call(2, 9))).unwrap();
        assert_eq!((d.ours, d.theirs, d.what), (call(2, 2).info, call(2, 9).info, "count"));
        // Not yet; the last word of a rank counts.
        assert_eq!(l.hear(1, told(call(5, 9))), None);
        assert_eq!(l.hear(1, told(call(6, 9))), None);
        assert_eq!(l.hear(2, told(call(7, 7))), None);
        assert_eq!(l.hear(9, told(call(7, 1))), None);
        assert_eq!(l.told(1), Some(call(6, 9)));
        l.record(&call(5, 5));
        assert!(l.settle().is_none() && !l.is_due());
        l.record(&call(6, 6));
        assert!(l.is_due() && l.told(1).is_none());
        assert_eq!(l.settle().map(|(r, d)| (r, d.theirs.count)), Some((1, 9)));
        assert!(!l.is_due());
        l.record(&call(7, 7));
        assert!(l.is_due() && l.settle().is_none() && !l.is_due());
    }

    #[test]
    fn what_is_long_past_is_not_judged() {
        let l = Ledger::new(2);
        let last = 3 * KEPT as u64;
        (1..=last).for_each(|seq| l.record(&call(seq, 1)));
        assert_eq!(l.hear(1, told(call(0, 2))), None);
        assert_eq!(l.hear(1, told(call(last + 1 - KEPT as u64, 2))), None);
        assert!(l.hear(1, told(call(last + 2 - KEPT as u64, 2))).is_some());
    }

    #[test]
    fn numbers_beyond_32_bits_are_the_nearest() {
        let l = Ledger::new(2);
        let base = (7 << 32) - 2;
        (base..base + 4).for_each(|seq| l.record(&call(seq, 1)));
        assert_eq!(l.hear(1, told(call(base, 1))), None);
        assert_eq!(l.hear(1, told(call(base, 2))).map(|d| d.theirs.seq), Some(base));
        assert_eq!(l.hear(1, told(call(base + 9, 2))), None);
        (base + 4..base + 10).for_each(|seq| l.record(&call(seq, 1)));
        assert_eq!(l.settle().map(|(_, d)| d.ours.seq), Some(base + 9));
    }

    #[test]
    fn a_reader_never_sees_half_a_call() {
        let l = Ledger::new(2);
        std::thread::scope(|s| {
            s.spawn(|| (1..=200_000).for_each(|seq| l.record(&call(seq, seq as usize))));
            s.spawn(|| {
                loop {
                    let made = l.made.load(Ordering::Acquire);
                    // At the edge of what is kept, where the writer is about to overwrite.
                    let seq = (made + 3).saturating_sub(KEPT as u64).max(1);
                    assert_eq!(l.hear(1, told(call(seq, seq as usize))), None);
                    if made == 200_000 {
                        break;
                    }
                }
            });
        });
    }
}
