//! Counters of a group, always on; where the launcher wants them, in memory that it reads.

mod sheet;

pub use sheet::{CALL, Formed, LiveLink, LiveSlot, RawGroup, Sheet, Tally};

use crate::Op;
use sheet::{Slot, WORDS};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Counters of a group on this rank. [`Group::stats`](../comity/struct.Group.html#method.stats) reads them.
///
/// ```
/// use comity::{Group, ReduceOp};
///
/// let group = Group::single();
/// group.all_reduce(&mut [1f32; 8], ReduceOp::Sum)?;
/// let stats = group.stats();
/// assert_eq!((stats.calls, stats.errors, stats.bytes_sent), (1, 0, 0)); // alone, nothing is sent
/// println!("asleep for {:?}, longest silence {:?}", stats.parked, stats.longest_silence);
/// # Ok::<(), comity::Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls that succeeded.
    pub calls: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Bytes of buffers that were sent to other ranks, without headers and checksums.
    pub bytes_sent: u64,
    /// Time that calls slept while they waited for other ranks. Spinning and yielding do not count.
    pub parked: Duration,
    /// Number of times that a member was silent for a fifth of the limit of [`Detection`](../comity/enum.Detection.html).
    pub suspicions: u64,
    /// The longest time for which nothing was heard from one member, not even a beat.
    ///
    /// Beats come each tenth of the limit of [`Detection`](../comity/enum.Detection.html), and at least twice a second. If this number stays far below
    /// the limit, you may lower the limit. A silence in which this process itself did not run for half the limit is left out.
    pub longest_silence: Duration,
}

/// The numbers of one group, in the order in which they lie in memory: for each operation the calls that succeeded and the
/// payload bytes that were sent in its calls, then these.
mod at {
    use crate::Op;
    pub(super) const OPS: usize = Op::ALL.len();
    pub(super) const CALLS: usize = 0;
    pub(super) const BYTES: usize = OPS;
    pub(super) const ERRORS: usize = 2 * OPS;
    pub(super) const PARKED_NS: usize = 2 * OPS + 1;
    pub(super) const SUSPICIONS: usize = 2 * OPS + 2;
    /// Payload bytes of all operations, those of the call under way included.
    pub(super) const SENT: usize = 2 * OPS + 3;
    /// Longest silence of a member, in nanoseconds. A maximum where the others are sums.
    pub(super) const SILENCE_NS: usize = 2 * OPS + 4;
    pub(super) const LAST: usize = SILENCE_NS;
}

/// The counters of one group, in its own memory or in a slot of the launcher's sheet.
#[derive(Debug)]
pub struct Counters {
    place: Place,
    /// Member that the call under way waited for when it first slept; the recorder clears it.
    pub parked_on: AtomicU32,
    /// Bytes sent that are already counted to an operation.
    given: AtomicU64,
    /// The longest silence, in nanoseconds: a place on a sheet may hold that of an earlier group.
    silence_ns: AtomicU64,
    /// Number of times that the job's group was formed again; in the upper half, that number when this process joined.
    epoch: AtomicU64,
    /// Epoch in which the world of the group began, 0 for the job's start.
    world: AtomicU32,
}

#[derive(Debug)]
enum Place {
    Own(Box<[AtomicU64; WORDS]>),
    Sheet(Slot),
}

impl Default for Counters {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Counters {
    /// For a new group: on the sheet while it has room.
    pub fn new(sheet: Option<&Arc<Sheet>>) -> Self {
        let slot = sheet.and_then(Sheet::take);
        let place =
            slot.map_or_else(|| Place::Own(Box::new([const { AtomicU64::new(0) }; WORDS])), Place::Sheet);
        let counters = Self {
            place,
            parked_on: AtomicU32::new(0),
            given: AtomicU64::new(0),
            silence_ns: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            world: AtomicU32::new(0),
        };
        // A slot may hold what an earlier group counted.
        counters.given.store(counters.words()[at::SENT].load(Ordering::Relaxed), Ordering::Relaxed);
        counters
    }

    /// For a group that is split off this one.
    pub fn sibling(&self) -> Self {
        let sibling = Self::new(match &self.place {
            Place::Sheet(slot) => Some(slot.sheet()),
            Place::Own(_) => None,
        });
        sibling.forms(0, 0, self.world.load(Ordering::Relaxed), 0);
        sibling
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        match &self.place {
            Place::Own(words) => &words[..],
            Place::Sheet(slot) => slot.words(),
        }
    }

    #[inline]
    pub fn add_sent(&self, n: u64) {
        add(&self.words()[at::SENT], n);
    }

    /// A call has ended.
    #[inline]
    pub fn ended(&self, op: Op, succeeded: bool) {
        // The wire numbers of operations begin at 1.
        let op = op as usize - 1;
        let words = self.words();
        add(&words[if succeeded { at::CALLS + op } else { at::ERRORS }], 1);
        let sent = words[at::SENT].load(Ordering::Relaxed);
        let new = sent.wrapping_sub(self.given.load(Ordering::Relaxed));
        if new > 0 {
            self.given.store(sent, Ordering::Relaxed);
            add(&words[at::BYTES + op], new);
        }
    }

    /// Returns the slot that shows this group's current call, if the launcher gave a sheet.
    #[inline]
    pub fn live(&self) -> Option<&LiveSlot> {
        match &self.place {
            Place::Own(_) => None,
            Place::Sheet(slot) => Some(&slot.live),
        }
    }

    /// The group has this name, rank and size.
    pub fn is(&self, id: u64, rank: usize, size: usize) {
        if let Some(live) = self.live() {
            live.is(id, rank, size);
        }
    }

    /// The group follows the one of these counters, without so many of its ranks, and with so many new ones: then it has a world of its own.
    /// `number`: this process's in the group's world.
    pub fn follows(&self, before: &Self, left: usize, joined: usize, number: usize) {
        let epoch = before.epoch.load(Ordering::Relaxed) + 1;
        let world = if joined > 0 { epoch as u32 } else { before.world.load(Ordering::Relaxed) };
        self.forms(epoch, left as u64 | (joined as u64) << 32, world, number);
    }

    /// The group takes this process in, and is the job's group for so many times.
    pub fn joins(&self, epoch: u32, number: usize) {
        self.forms(u64::from(epoch) | u64::from(epoch) << 32, 0, epoch, number);
    }

    fn forms(&self, epoch: u64, change: u64, world: u32, number: usize) {
        self.epoch.store(epoch, Ordering::Relaxed);
        self.world.store(world, Ordering::Relaxed);
        if let Some(live) = self.live() {
            live.forms(epoch, change, world, number);
        }
    }

    /// Returns the number of times that the job's group was formed again, up to this one.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed) as u32
    }

    /// Takes a slot for the counters of its link to number `peer` of its world, if the launcher gave a sheet.
    pub fn link(&self, peer: usize, kind: u8) -> Option<Arc<LiveLink>> {
        match &self.place {
            Place::Own(_) => None,
            Place::Sheet(slot) => {
                LiveLink::take(slot.sheet(), self.world.load(Ordering::Relaxed), peer, kind).map(Arc::new)
            }
        }
    }

    /// The call under way goes to sleep.
    #[inline]
    pub fn sleeps(&self) {
        if let Some(live) = self.live() {
            live.sleeps();
        }
    }

    /// It does so for this rank of the job.
    #[inline]
    pub fn sleeps_for(&self, rank: usize) {
        if let Some(live) = self.live() {
            live.sleeps_for(rank);
        }
    }

    /// Nanoseconds asleep so far; on a sheet, those of earlier groups in the same place included.
    #[inline]
    pub fn parked_ns(&self) -> u64 {
        self.words()[at::PARKED_NS].load(Ordering::Relaxed)
    }

    /// The call under way has slept for so long.
    #[inline]
    pub fn slept(&self, time: Duration) {
        add(&self.words()[at::PARKED_NS], time.as_nanos() as u64);
        if let Some(live) = self.live() {
            live.woke();
        }
    }

    /// The control thread noted a member's silence.
    pub fn suspected(&self) {
        self.words()[at::SUSPICIONS].fetch_add(1, Ordering::Relaxed);
    }

    /// The control thread measured a silence.
    pub fn silent(&self, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.silence_ns.fetch_max(ns, Ordering::Relaxed);
        self.words()[at::SILENCE_NS].fetch_max(ns, Ordering::Relaxed);
    }

    pub fn read(&self) -> Stats {
        let before = |i: usize| match &self.place {
            Place::Own(_) => 0,
            Place::Sheet(slot) => slot.before(i),
        };
        let of = |i: usize| self.words()[i].load(Ordering::Relaxed).wrapping_sub(before(i));
        Stats {
            calls: (0..at::OPS).map(|op| of(at::CALLS + op)).sum(),
            errors: of(at::ERRORS),
            bytes_sent: of(at::SENT),
            parked: Duration::from_nanos(of(at::PARKED_NS)),
            suspicions: of(at::SUSPICIONS),
            longest_silence: Duration::from_nanos(self.silence_ns.load(Ordering::Relaxed)),
        }
    }
}

/// Adds to a counter. Only the call under way writes most of them: no locked addition is needed.
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_millis(700);

    fn use_it(c: &Counters) {
        c.add_sent(10);
        c.ended(Op::AllReduce, true);
        c.ended(Op::Barrier, true);
        c.add_sent(5);
        c.add_sent(1);
        c.ended(Op::Send, false);
        c.slept(Duration::from_nanos(77));
        c.suspected();
        c.silent(SILENCE);
        c.silent(SILENCE / 2);
    }

    fn stats() -> Stats {
        Stats {
            calls: 2,
            errors: 1,
            bytes_sent: 16,
            parked: Duration::from_nanos(77),
            suspicions: 1,
            longest_silence: SILENCE,
        }
    }

    #[test]
    fn a_group_counts_for_itself() {
        let c = Counters::default();
        assert_eq!(c.read(), Stats::default());
        use_it(&c);
        assert_eq!(c.read(), stats());
        assert_eq!(c.sibling().read(), Stats::default());
    }

    #[test]
    fn a_sheet_adds_up_what_groups_have_done_one_after_another() {
        let (sheet, fd) = Sheet::create().unwrap();
        let theirs = Arc::new(Sheet::attach(&fd).unwrap());
        for round in 1..=3 {
            let c = Counters::new(Some(&theirs));
            assert_eq!(c.read(), Stats::default());
            use_it(&c);
            assert_eq!(c.read(), stats());
            let split = c.sibling();
            use_it(&split);
            assert_eq!((sheet.read().groups, split.read()), (2, stats()));
            drop((c, split));
            let t = sheet.read();
            assert_eq!((t.groups, t.errors, t.suspicions), (0, 2 * round, 2 * round));
            assert_eq!(t.longest_silence, SILENCE);
            assert_eq!(t.parked, Duration::from_nanos(77) * 2 * round as u32);
            let of = |op| *t.ops.iter().find(|(o, ..)| *o == op).unwrap();
            assert_eq!(of(Op::AllReduce), (Op::AllReduce, 2 * round, 20 * round));
            assert_eq!(of(Op::Barrier), (Op::Barrier, 2 * round, 0));
            assert_eq!(of(Op::Send), (Op::Send, 0, 12 * round));
        }
    }

    #[test]
    fn groups_beyond_the_room_count_for_themselves_only() {
        let (sheet, fd) = Sheet::create().unwrap();
        let theirs = Arc::new(Sheet::attach(&fd).unwrap());
        let all: Vec<_> = (0..sheet::GROUPS + 3).map(|_| Counters::new(Some(&theirs))).collect();
        all.iter().for_each(use_it);
        assert!(all.iter().all(|c| c.read() == stats()));
        let t = sheet.read();
        assert_eq!((t.groups, t.errors), (sheet::GROUPS, sheet::GROUPS as u64));
    }
}
