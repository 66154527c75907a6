//! The counters of all groups of one rank, in memory that the launcher reads at any time, also when the rank was killed.
//!
//! ```text
//!   word 0 ... 63   64 ...                        2544 ...                  5024 ...
//!   owners          slot 0 (40 words), slot 1...  what each group does      bytes of each link
//! ```
//! A group takes a free slot, adds to what it finds there, and leaves the numbers when it closes: the sum over all slots (of the
//! longest silence, the maximum) is what the rank has done, whoever holds them. Writing costs what it costs in own memory.

use super::{at, live, live::LiveSlot};
use crate::{Op, sys::Words};
use rustix::process::{Pid, test_kill_process};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Groups of one rank that are counted at the same time.
pub(super) const GROUPS: usize = 62;
/// Numbers of one group, in whole cache lines.
pub(super) const WORDS: usize = 40;
/// Length of the list of slot owners, before the slots.
const OWNERS: usize = 64;
/// End of the slots.
const SLOTS: usize = OWNERS + GROUPS * WORDS;
/// Start of the groups' live slots.
pub(super) const LIVE: usize = SLOTS;
/// Start of the links' counters.
const LINKS: usize = LIVE + GROUPS * live::GROUP;
/// Whole pages, also of 16 KiB.
const LEN: usize = 4 * (16 << 10) / 8;

const _: () = assert!(at::LAST < WORDS && GROUPS <= OWNERS && LINKS + 400 * live::LINK <= LEN);

/// The counters of one rank's groups, in memory that its launcher reads.
///
/// The launcher makes one for each rank with [`create`](Self::create), and the rank inherits the descriptor (`COMITY_STATS_FD`).
///
/// ```
/// let (sheet, _fd) = comity::tools::Sheet::create()?;
/// assert_eq!(sheet.read().groups, 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Sheet {
    words: Words,
}

/// Counters of a rank, summed over all of its groups.
///
/// ```
/// let (sheet, _fd) = comity::tools::Sheet::create()?;
/// let tally = sheet.read();
/// for (op, calls, bytes) in &tally.ops {
///     println!("{op}: {calls} calls, {bytes} bytes");
/// }
/// assert_eq!(tally.errors, 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Groups that are open.
    pub groups: usize,
    /// For each operation: calls that succeeded, payload bytes sent.
    pub ops: Vec<(Op, u64, u64)>,
    /// Calls that failed.
    pub errors: u64,
    /// Time asleep.
    pub parked: Duration,
    /// Silences noted.
    pub suspicions: u64,
    /// The longest time for which nothing was heard from one rank.
    pub longest_silence: Duration,
}

impl Sheet {
    /// An empty one, for the launcher, and the descriptor that the rank is to inherit.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let (words, fd) = Words::create(LEN)?;
        Ok((Self { words }, fd))
    }

    /// The sheet behind a descriptor of the launcher's.
    #[doc(hidden)]
    pub fn attach(fd: &impl AsFd) -> io::Result<Self> {
        Ok(Self { words: Words::attach(fd, LEN)? })
    }

    /// Reads the rank's counters.
    pub fn read(&self) -> Tally {
        let all = |i: usize| {
            self.words[OWNERS..SLOTS].chunks_exact(WORDS).map(move |s| s[i].load(Ordering::Relaxed))
        };
        let sum = |i: usize| all(i).fold(0, u64::wrapping_add);
        let max = |i: usize| all(i).max().unwrap_or(0);
        let ops = Op::ALL.into_iter().enumerate();
        Tally {
            groups: self.words[..GROUPS].iter().filter(|w| w.load(Ordering::Relaxed) != 0).count(),
            ops: ops.map(|(i, op)| (op, sum(at::CALLS + i), sum(at::BYTES + i))).collect(),
            errors: sum(at::ERRORS),
            parked: Duration::from_nanos(sum(at::PARKED_NS)),
            suspicions: sum(at::SUSPICIONS),
            longest_silence: Duration::from_nanos(max(at::SILENCE_NS)),
        }
    }

    /// A slot that nobody holds, or whose process has ended.
    pub(super) fn take(self: &Arc<Self>) -> Option<Slot> {
        let index = self.words[..GROUPS].iter().position(take_free)?;
        let first = OWNERS + index * WORDS;
        let before = Box::new(std::array::from_fn(|i| self.words[first + i].load(Ordering::Relaxed)));
        Some(Slot { live: LiveSlot::new(self, index), sheet: self.clone(), index, first, before })
    }

    #[inline]
    pub(super) fn word(&self, i: usize) -> &AtomicU64 {
        &self.words[i]
    }

    /// So many words from there on.
    #[inline]
    pub(super) fn words_from(&self, at: usize, count: usize) -> &[AtomicU64] {
        &self.words[at..at + count]
    }

    /// Returns the index of the first word of each link.
    pub(super) fn links(&self) -> impl Iterator<Item = usize> + use<> {
        (LINKS..=LEN - live::LINK).step_by(live::LINK)
    }
}

/// Returns the number that marks this process as an owner.
pub(super) fn owner() -> u64 {
    u64::from(std::process::id())
}

/// Make this process the owner where nobody is, or one that has ended.
pub(super) fn take_free(word: &AtomicU64) -> bool {
    let me = owner();
    let held = word.load(Ordering::Relaxed);
    let free = held == 0 || held != me && has_ended(held);
    free && word.compare_exchange(held, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

fn has_ended(pid: u64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// The part of a sheet that one group writes.
#[derive(Debug)]
pub(super) struct Slot {
    sheet: Arc<Sheet>,
    index: usize,
    first: usize,
    /// Counters when the group took the slot.
    before: Box<[u64; WORDS]>,
    pub(super) live: LiveSlot,
}

impl Slot {
    pub(super) fn sheet(&self) -> &Arc<Sheet> {
        &self.sheet
    }

    #[inline]
    pub(super) fn word(&self, i: usize) -> &AtomicU64 {
        &self.sheet.words[self.first + i]
    }

    pub(super) fn before(&self, i: usize) -> u64 {
        self.before[i]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A forked child drops what its parent still holds.
        let me = owner();
        let _ = self.sheet.words[self.index].compare_exchange(me, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
