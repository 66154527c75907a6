//! The counters of all groups of one rank, in memory that the launcher reads at any time, also when the rank was killed.
//!
//! ```text
//!   word 0 ... 63   64 ...                        2544 ...                  5024 ...
//!   owners          slot 0 (40 words), slot 1...  what each group does      bytes of each link
//! ```
//! A group takes a free slot, adds to what it finds there, and leaves the numbers when it closes: the sum over all slots (of the
//! longest silence, the maximum) is what the rank has done, whoever holds them. Writing costs what it costs in own memory.
//!
//! Current call of a group, for readers outside of the process: on the launcher's sheet only, so elsewhere it costs nothing.
//!
//! ```text
//!   of each group:  head (8 words)   4 calls (8 words each), the newest at place (made - 1) % 4
//!   of each link:   who, bytes out, bytes in, owner
//! ```
//! The rank writes words that nobody but it writes; the launcher reads them whenever it wants, also of a rank that hangs, is stopped
//! or was killed. The words of a call are the recorder's.
//!
//! A call's words, which its rank writes over those of an earlier call while the launcher may read them.
//!
//! The number of the call comes first, and whoever reads asks for it again at the end, as with a sequence lock. It is written nowhere else:
//! a call that is not the wanted one has another number from its first word on.

use super::at;
use crate::{
    Op,
    sync::fence,
    sys::{Words, clock},
};
use rustix::process::{Pid, test_kill_process};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
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
const LINKS: usize = LIVE + GROUPS * GROUP;
/// Whole pages, also of 16 KiB.
const LEN: usize = 4 * (16 << 10) / 8;

const _: () = assert!(at::LAST < WORDS && GROUPS <= OWNERS && LINKS + 400 * LINK <= LEN);

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
        let all = |i: usize| self.words[OWNERS..SLOTS].chunks_exact(WORDS).map(move |s| s[i].load(Relaxed));
        let sum = |i: usize| all(i).fold(0, u64::wrapping_add);
        let max = |i: usize| all(i).max().unwrap_or(0);
        let ops = Op::ALL.into_iter().enumerate();
        Tally {
            groups: self.words[..GROUPS].iter().filter(|w| w.load(Relaxed) != 0).count(),
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
        let before = Box::new(std::array::from_fn(|i| self.words[first + i].load(Relaxed)));
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
        (LINKS..=LEN - LINK).step_by(LINK)
    }

    /// The open groups.
    #[doc(hidden)]
    pub fn groups(&self) -> Vec<RawGroup> {
        (0..GROUPS).filter(|&i| self.word(i).load(Relaxed) != 0).filter_map(|i| self.group(i)).collect()
    }

    /// Reads a group; `None` before it is initialized.
    fn group(&self, index: usize) -> Option<RawGroup> {
        let words = self.words_from(LIVE + index * GROUP, GROUP);
        let word = |i: usize| words[i].load(Relaxed);
        let mut group = RawGroup::default();
        // A rank that makes call after call writes faster than this reads: then the calls read last must do.
        for _ in 0..8 {
            let made = words[MADE].load(Acquire);
            let kept = made.min(CALLS as u64);
            let place = word(PLACE);
            group = RawGroup {
                id: word(ID),
                rank: (place & 0xffff_ffff) as usize,
                size: (place >> 32) as usize,
                made,
                waits_for: word(ON).checked_sub(1).map(|r| r as usize),
                asleep_since: Some(word(ASLEEP)).filter(|t| *t > 0),
                formed: Formed {
                    epoch: word(EPOCH) as u32,
                    since: (word(EPOCH) >> 32) as u32,
                    left: word(CHANGE) as u32,
                    joined: (word(CHANGE) >> 32) as u32,
                    number: word(NUMBER) as u32,
                    world: (word(NUMBER) >> 32) as u32,
                },
                // The oldest one may be overwritten by the next.
                calls: (made - kept..made).filter_map(|n| read_call(call_words(words, n), n)).collect(),
            };
            if words[MADE].load(Acquire) == made {
                break;
            }
        }
        (group.size > 0).then_some(group)
    }

    /// Bytes over links so far, by world, peer and kind.
    #[doc(hidden)]
    pub fn link_bytes(&self) -> Vec<RawLink> {
        let mut all: Vec<RawLink> = Vec::new();
        for first in self.links() {
            let word = |i: usize| self.word(first + i).load(Relaxed);
            let Some(peer) = (word(WHO) & 0xffff_ffff).checked_sub(1) else { continue };
            let peer = peer as usize;
            let kind = (word(WHO) >> KIND_AT) as u8;
            let world = (word(WHO) >> WORLD_AT) as u32;
            match all.iter_mut().find(|l| (l.0, l.1, l.2) == (world, peer, kind)) {
                Some(l) => (l.3, l.4) = (l.3.wrapping_add(word(OUT)), l.4.wrapping_add(word(IN))),
                None => all.push((world, peer, kind, word(OUT), word(IN))),
            }
        }
        all.sort_unstable();
        all
    }
}

/// Returns the number that marks this process as an owner.
pub(super) fn owner() -> u64 {
    u64::from(std::process::id())
}

/// Make this process the owner where nobody is, or one that has ended.
pub(super) fn take_free(word: &AtomicU64) -> bool {
    let me = owner();
    let held = word.load(Relaxed);
    let free = held == 0 || held != me && has_ended(held);
    free && word.compare_exchange(held, me, AcqRel, Relaxed).is_ok()
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
    pub(super) fn words(&self) -> &[AtomicU64] {
        self.sheet.words_from(self.first, WORDS)
    }

    pub(super) fn before(&self, i: usize) -> u64 {
        self.before[i]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A forked child drops what its parent still holds.
        let me = owner();
        let _ = self.sheet.words[self.index].compare_exchange(me, 0, AcqRel, Relaxed);
    }
}

/// Calls of a group that are kept.
pub(crate) const CALLS: usize = 4;
/// Words of a call: a record of the recorder.
pub const CALL: usize = 8;
const HEAD: usize = 8;
/// Words of a group.
pub(super) const GROUP: usize = HEAD + CALLS * CALL;
/// Words of a link.
pub(super) const LINK: usize = 4;

/// Places in a group's head.
const ID: usize = 0;
/// Its rank, and its size in the upper half.
const PLACE: usize = 1;
const MADE: usize = 2;
/// The rank of the job that it last slept for in this call, and one.
const ON: usize = 3;
/// Since when it sleeps; 0 while it does not.
const ASLEEP: usize = 4;
/// Number of times that the job's group was formed again, and that number when this process joined in the upper half.
const EPOCH: usize = 5;
/// Ranks that left when the group was formed, and those that joined in the upper half.
const CHANGE: usize = 6;
/// This process's number in the world of such a group, and the world in the upper half: the epoch in which it began.
const NUMBER: usize = 7;

/// Places in a link's words. Who: the peer's number in its world and one, then from bit 32 the kind, from bit 40 the world.
const WHO: usize = 0;
const OUT: usize = 1;
const IN: usize = 2;
const OWNER: usize = 3;
const KIND_AT: u32 = 32;
const WORLD_AT: u32 = 40;

/// Slot that shows a group's current call.
#[derive(Debug)]
pub struct LiveSlot {
    sheet: Arc<Sheet>,
    first: usize,
}

impl LiveSlot {
    pub(super) fn new(sheet: &Arc<Sheet>, index: usize) -> Self {
        let slot = Self { sheet: sheet.clone(), first: LIVE + index * GROUP };
        slot.words().iter().for_each(|word| word.store(0, Relaxed));
        slot
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        self.sheet.words_from(self.first, GROUP)
    }

    pub(super) fn is(&self, id: u64, rank: usize, size: usize) {
        self.words()[ID].store(id, Relaxed);
        self.words()[PLACE].store(rank as u64 | ((size as u64) << 32), Relaxed);
    }

    pub(super) fn forms(&self, epoch: u64, change: u64, world: u32, number: usize) {
        self.words()[NUMBER].store(number as u64 | u64::from(world) << 32, Relaxed);
        self.words()[EPOCH].store(epoch, Relaxed);
        self.words()[CHANGE].store(change, Relaxed);
    }

    /// Call number `made` begins.
    #[inline]
    pub fn begin(&self, made: u64, call: [u64; CALL]) {
        let words = self.words();
        write_call(call_words(words, made), made, call);
        words[ON].store(0, Relaxed);
        words[MADE].store(made + 1, Release);
    }

    /// Call number `made` has ended: some of its words changed.
    #[inline]
    pub fn end(&self, made: u64, words: [(usize, u64); 3]) {
        let call = call_words(self.words(), made);
        for (i, word) in &words {
            call[*i].store(*word, Relaxed);
        }
    }

    pub(super) fn sleeps(&self) {
        self.words()[ASLEEP].store(clock::exact(), Relaxed);
    }

    pub(super) fn sleeps_for(&self, rank: usize) {
        self.words()[ON].store(rank as u64 + 1, Relaxed);
    }

    pub(super) fn woke(&self) {
        self.words()[ASLEEP].store(0, Relaxed);
    }
}

/// Byte counters of a group's link.
#[derive(Debug)]
pub struct LiveLink {
    sheet: Arc<Sheet>,
    first: usize,
    before: [u64; 2],
}

impl LiveLink {
    /// To number `peer` of a world, of the kind with this number. `None` where there is no room.
    pub(super) fn take(sheet: &Arc<Sheet>, world: u32, peer: usize, kind: u8) -> Option<Self> {
        let who = (peer as u64 + 1) | u64::from(kind) << KIND_AT | u64::from(world) << WORLD_AT;
        let claims = |first: usize, fits: &dyn Fn(u64) -> bool| {
            let held = sheet.word(first + WHO).load(Relaxed);
            if !fits(held) || !take_free(sheet.word(first + OWNER)) {
                return false;
            }
            // Another group may have given it a name meanwhile.
            let named = sheet.word(first + WHO).compare_exchange(held, who, Relaxed, Relaxed);
            let ours = named.is_ok() || named == Err(who);
            if !ours {
                sheet.word(first + OWNER).store(0, Relaxed);
            } else if held != who && held != 0 {
                [OUT, IN].iter().for_each(|i| sheet.word(first + i).store(0, Relaxed));
            }
            ours
        };
        let same_or_free = |held: u64| held == who || held == 0;
        // A job that takes in processes for days has many worlds.
        let is_over = |held: u64| held >> WORLD_AT < u64::from(world);
        let first = sheet
            .links()
            .find(|first| claims(*first, &same_or_free))
            .or_else(|| sheet.links().find(|first| claims(*first, &is_over)))?;
        let before = [OUT, IN].map(|i| sheet.word(first + i).load(Relaxed));
        Some(Self { sheet: sheet.clone(), first, before })
    }

    /// The stream to the peer has come so far.
    #[inline]
    pub fn sent(&self, pos: u64) {
        self.sheet.word(self.first + OUT).store(self.before[0].wrapping_add(pos), Relaxed);
    }

    /// The stream from the peer has come so far.
    #[inline]
    pub fn received(&self, pos: u64) {
        self.sheet.word(self.first + IN).store(self.before[1].wrapping_add(pos), Relaxed);
    }
}

impl Drop for LiveLink {
    fn drop(&mut self) {
        let _ = self.sheet.word(self.first + OWNER).compare_exchange(owner(), 0, Relaxed, Relaxed);
    }
}

/// Place of a group in the line of those that followed one another in a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formed {
    /// Number of times that the job's group was formed again, up to this one. 0: the first group, or one that was split off.
    pub epoch: u32,
    /// Epoch in which this process joined; 0: it was there from the start.
    pub since: u32,
    /// Ranks that were in the group before and are not in this one.
    pub left: u32,
    /// Ranks that came with this one.
    pub joined: u32,
    /// This process's number in the world of the group.
    pub number: u32,
    /// Epoch in which that world began; 0: the job's start. Numbers of one world are not those of another.
    pub world: u32,
}

/// A group as its sheet shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawGroup {
    pub id: u64,
    pub rank: usize,
    pub size: usize,
    pub made: u64,
    pub waits_for: Option<usize>,
    pub asleep_since: Option<u64>,
    pub formed: Formed,
    /// Oldest first.
    pub calls: Vec<[u64; CALL]>,
}

/// A link's bytes so far: world, peer, kind, out, in.
pub(crate) type RawLink = (u32, usize, u8, u64, u64);

/// Place of the call number plus one, among words that the recorder does not use.
const SEQUENCE: usize = 6;

/// A number that both processes see.
pub(super) trait SharedWord {
    fn get(&self) -> u64;
    fn set(&self, value: u64);
}

impl SharedWord for AtomicU64 {
    #[inline]
    fn get(&self) -> u64 {
        self.load(Relaxed)
    }

    #[inline]
    fn set(&self, value: u64) {
        self.store(value, Relaxed);
    }
}

/// Words of call number `made`, of a group's.
#[inline]
fn call_words(group: &[AtomicU64], made: u64) -> &[AtomicU64] {
    let at = HEAD + made as usize % CALLS * CALL;
    &group[at..at + CALL]
}

/// Writes call number `number`. Readers find it once they have seen that it was made.
#[inline]
pub(super) fn write_call<W: SharedWord>(words: &[W], number: u64, mut call: [u64; CALL]) {
    call[SEQUENCE] = number + 1;
    words[SEQUENCE].set(number + 1);
    // Who reads a word of this call finds its number, too.
    fence(Release);
    for (word, value) in words.iter().zip(&call) {
        word.set(*value);
    }
}

/// Reads call number `number`, which was made; `None` where a later one is being written in its place.
pub(super) fn read_call<W: SharedWord>(words: &[W], number: u64) -> Option<[u64; CALL]> {
    let call = std::array::from_fn(|i| if i == SEQUENCE { 0 } else { words[i].get() });
    fence(Acquire);
    (words[SEQUENCE].get() == number + 1).then_some(call)
}

#[cfg(test)]
mod tests {
    use super::{super::Counters, *};

    #[test]
    fn a_group_shows_its_last_calls_and_whom_it_waits_for() {
        let (sheet, fd) = Sheet::create().unwrap();
        let theirs = Arc::new(Sheet::attach(&fd).unwrap());
        let c = Counters::new(Some(&theirs));
        assert_eq!(sheet.groups(), []);
        c.is(7, 1, 3);
        let first = Counters::default();
        first.joins(4, 9);
        c.follows(&first, 2, 1, 5);
        let formed = Formed { epoch: 5, since: 4, left: 2, joined: 1, number: 5, world: 5 };
        assert_eq!(sheet.groups()[0].formed, formed);
        assert_eq!(c.epoch(), 5);
        let live = c.live().unwrap();
        for n in 0..6 {
            live.begin(n, [n; CALL]);
            live.end(n, [(3, 100), (4, 0), (7, 9)]);
        }
        live.begin(6, [6; CALL]);
        c.sleeps_for(2);
        c.sleeps();
        let [g] = &sheet.groups()[..] else { panic!("{:?}", sheet.groups()) };
        assert_eq!((g.id, g.rank, g.size, g.made, g.waits_for), (7, 1, 3, 7, Some(2)));
        assert!(g.asleep_since.is_some_and(|t| t <= clock::exact()));
        assert_eq!(g.calls.iter().map(|c| c[0]).collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!((g.calls[2][3], g.calls[3][3]), (100, 6));
        // A rank that was stopped while it wrote the next call over the oldest one.
        write_call(call_words(live.words(), 7), 7, [7; CALL]);
        let seqs = |g: &RawGroup| g.calls.iter().map(|c| c[0]).collect::<Vec<_>>();
        assert_eq!(seqs(&sheet.groups()[0]), [4, 5, 6]);
        live.begin(7, [7; CALL]);
        assert_eq!(seqs(&sheet.groups()[0]), [4, 5, 6, 7]);
        c.slept(Duration::from_nanos(5));
        assert_eq!(sheet.groups()[0].asleep_since, None);
        drop(c);
        // The next group in the place begins anew.
        let c = Counters::new(Some(&theirs));
        c.is(8, 0, 2);
        assert_eq!(sheet.groups()[0].calls.len(), 0);
        assert_eq!(sheet.groups()[0].formed, Formed::default());
    }

    #[test]
    fn links_add_up_over_groups() {
        let (sheet, fd) = Sheet::create().unwrap();
        let theirs = Arc::new(Sheet::attach(&fd).unwrap());
        let a = LiveLink::take(&theirs, 0, 3, 2).unwrap();
        let b = LiveLink::take(&theirs, 0, 3, 2).unwrap();
        let other = LiveLink::take(&theirs, 0, 0, 2).unwrap();
        a.sent(10);
        b.sent(5);
        b.received(7);
        other.received(1);
        assert_eq!(sheet.link_bytes(), [(0, 0, 2, 0, 1), (0, 3, 2, 15, 7)]);
        drop(a);
        let again = LiveLink::take(&theirs, 0, 3, 2).unwrap();
        again.sent(1);
        assert_eq!(sheet.link_bytes(), [(0, 0, 2, 0, 1), (0, 3, 2, 16, 7)]);
        // The number 3 of the next world is somebody else.
        let stranger = LiveLink::take(&theirs, 4, 3, 2).unwrap();
        stranger.sent(2);
        assert_eq!(sheet.link_bytes(), [(0, 0, 2, 0, 1), (0, 3, 2, 16, 7), (4, 3, 2, 2, 0)]);
        let most: Vec<_> = (0..1000).map_while(|p| LiveLink::take(&theirs, 0, p, 1)).collect();
        assert!((100..1000).contains(&most.len()), "{}", most.len());
        // A world that is over makes room, and what is under way stays.
        assert!(LiveLink::take(&theirs, 5, 0, 1).is_none());
        let sent = most.len();
        most[0].sent(9);
        drop(most);
        let next: Vec<_> = (0..1000).map_while(|p| LiveLink::take(&theirs, 5, p, 1)).collect();
        assert_eq!(next.len(), sent);
        let kept = sheet.link_bytes();
        assert!(kept.contains(&(0, 3, 2, 16, 7)) && kept.contains(&(5, 0, 1, 0, 0)), "{kept:?}");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::{
        sync::{Arc, atomic::AtomicU64},
        thread,
    };

    impl SharedWord for AtomicU64 {
        fn get(&self) -> u64 {
            self.load(Relaxed)
        }

        fn set(&self, value: u64) {
            self.store(value, Relaxed);
        }
    }

    /// Two calls follow each other in a place: whoever reads the first reads all of it, or nothing.
    #[test]
    fn a_call_is_read_whole_or_not_at_all() {
        loom::model(|| {
            let words: Arc<[AtomicU64; CALL]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
            let made = Arc::new(AtomicU64::new(0));
            let theirs = words.clone();
            let seen = made.clone();
            let rank = thread::spawn(move || {
                for number in 0..2 {
                    write_call(&theirs[..], number, [number + 10; CALL]);
                    seen.store(number + 1, Release);
                }
            });
            if let Some(number) = made.load(Acquire).checked_sub(1)
                && let Some(mut call) = read_call(&words[..], number)
            {
                call[SEQUENCE] = number + 10;
                assert_eq!(call, [number + 10; CALL]);
            }
            rank.join().unwrap();
        });
    }
}
