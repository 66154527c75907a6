//! The flight recorder: the last calls of a group, kept at all times, and written to a file when the group fails.
//!
//! A record is one cache line, and a call writes one: it costs a copy and a look at a coarse clock. A full clock costs a tenth
//! of a small call within a host, so the exact one is read only where it cannot be felt: at both ends of a call of 64 KiB
//! and more, and at the end of a call that slept. The times of other calls are as exact as the kernel's tick (1 to 4 ms), and
//! they seem to end when they begin. Spinning and yielding before a sleep (some 300 us) do not count as waiting.

mod file;
#[cfg(fuzzing)]
pub(crate) mod fuzz;
mod live;

pub use file::{Flight, FlightCall, FlightState};
pub use live::{LiveGroup, LivePath, LiveRank};

use crate::{
    CallInfo, DType, Error, ErrorKind, Op, Peer, ReduceOp, Wire,
    root_cause::RootCauseReport,
    stats::{CALL, Counters},
    sys::clock,
};
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
};

/// Calls kept.
pub(crate) const KEPT: usize = 4096;
/// A call of so many bytes takes long enough for an exact clock.
const LONG: usize = 64 << 10;
const NONE: u8 = 0xff;
/// The bit of calls of objects beside the operation.
const OBJECTS: u8 = 0x80;
/// The bits of the wire beside the operation, and the place of the lower one.
const WIRE: u8 = 0x60;
const WIRE_AT: u32 = 5;
pub(crate) const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Record {
    seq: u64,
    count: u64,
    /// Nanoseconds of the monotonic clock.
    begin: u64,
    end: u64,
    /// Time asleep, in nanoseconds.
    waited: u64,
    root: u32,
    tag: u32,
    /// From the low end: whom the call waited for when it first slept, else who was at fault; operation, element type, reduction, state.
    /// One word, because a core that reads a word soon after it wrote a part of it waits for some nanoseconds.
    last: u64,
}

const _: () = assert!(size_of::<Record>() == 64);

/// Indices of a call's end, its time asleep and its last bytes among its [`words`](Record::words).
const END: usize = 3;
const WAITED: usize = 4;
const LAST: usize = 7;
/// First bit of the state in the last word.
const STATE: u32 = 56;

impl Record {
    /// Returns the record in the layout of the launcher's sheet.
    #[inline]
    fn words(&self) -> [u64; CALL] {
        let place = u64::from(self.root) | (u64::from(self.tag) << 32);
        [self.seq, self.count, self.begin, self.end, self.waited, place, 0, self.last]
    }

    /// Decodes [`words`](Self::words); `None` for a state that no rank writes.
    fn of(words: [u64; CALL]) -> Option<Self> {
        let [seq, count, begin, end, waited, place, _, last] = words;
        FlightState::of((last >> STATE) as u8)?;
        let root = place as u32;
        let tag = (place >> 32) as u32;
        Some(Self { seq, count, begin, end, waited, root, tag, last })
    }

    fn peer(&self) -> u32 {
        self.last as u32
    }

    #[inline]
    fn set_peer(&mut self, peer: u32) {
        self.last = self.last >> 32 << 32 | u64::from(peer);
    }

    fn state(&self) -> FlightState {
        FlightState::of((self.last >> STATE) as u8).unwrap_or(FlightState::Begun)
    }

    #[inline]
    fn set_state(&mut self, state: FlightState) {
        self.last = self.last << 8 >> 8 | (state as u64) << STATE;
    }

    fn info(&self) -> Option<CallInfo> {
        let some = |x: u32| (x != NOBODY).then_some(x);
        let [op, dtype, reduce, _] = ((self.last >> 32) as u32).to_le_bytes();
        let mut info = CallInfo::new(Op::from_number(op & !(OBJECTS | WIRE))?);
        info.objects = op & OBJECTS != 0;
        info.wire = Wire::from_number((op & WIRE) >> WIRE_AT);
        info.seq = self.seq;
        info.count = self.count as usize;
        info.dtype = DType::ALL.get(usize::from(dtype)).copied();
        info.reduce = ReduceOp::ALL.get(usize::from(reduce)).copied();
        info.root = some(self.root).map(|r| r as usize);
        info.tag = some(self.tag);
        Some(info)
    }
}

/// The last calls of one group on one rank.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Grows to its length once; its pages cost nothing before they are used.
    ring: Vec<Record>,
    /// Number of calls so far.
    made: u64,
    /// Sleep of the group in all when the last call began, in nanoseconds.
    slept: u64,
    place: Option<Place>,
    /// Report to the launcher, and the ranks of the job by rank of the group.
    root_cause: Option<(RootCauseReport, Arc<[usize]>)>,
}

/// Directory of the file, and the members, rank and host for its name and text.
#[derive(Clone, Debug)]
struct Place {
    dir: Arc<Path>,
    /// Ranks of the job by rank of the group.
    members: Arc<[usize]>,
    /// This rank, in the group.
    rank: usize,
    host: Option<Arc<str>>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { ring: Vec::with_capacity(KEPT), made: 0, slept: 0, place: None, root_cause: None }
    }

    /// For the group of everyone in a job of `size`: write to `dir` when it fails.
    pub(crate) fn log_to(&mut self, dir: &Path, me: &Peer, size: usize) {
        let rank = me.rank;
        let host = me.host.clone();
        self.place = Some(Place { dir: dir.into(), members: (0..size).collect(), rank, host });
    }

    /// For the group of everyone in a job of `size`: tell the launcher when it fails.
    pub(crate) fn report_root_cause_to(&mut self, root_cause: RootCauseReport, size: usize) {
        self.root_cause = Some((root_cause, (0..size).collect()));
    }

    /// The recorder of a new group of `members` (ranks of this group, in the new order).
    pub(crate) fn split(&self, members: &[usize], rank: usize) -> Self {
        let of = |all: &[usize]| members.iter().filter_map(|&m| all.get(m).copied()).collect();
        let place = self.place.as_ref().map(|p| Place {
            dir: p.dir.clone(),
            members: of(&p.members),
            rank,
            host: p.host.clone(),
        });
        let root_cause = self.root_cause.as_ref().map(|(root_cause, all)| (root_cause.clone(), of(all)));
        Self { place, root_cause, ..Self::new() }
    }

    #[inline]
    pub(crate) fn begin(&mut self, info: &CallInfo, counters: &Counters) {
        counters.parked_on.store(NOBODY, Ordering::Relaxed);
        self.slept = counters.parked_ns();
        let now = if is_long(info) { clock::exact() } else { clock::coarse() };
        let dtype = info.dtype.map_or(NONE, |d| d as u8);
        let reduce = info.reduce.map_or(NONE, |r| r as u8);
        let wire = info.wire.map_or(0, |w| w as u8) << WIRE_AT;
        let op = info.op as u8 | wire | if info.objects { OBJECTS } else { 0 };
        let kinds = u32::from_le_bytes([op, dtype, reduce, FlightState::Begun as u8]);
        let record = Record {
            seq: info.seq,
            count: info.count as u64,
            begin: now,
            end: now,
            waited: 0,
            root: info.root.map_or(NOBODY, |r| r as u32),
            tag: info.tag.unwrap_or(NOBODY),
            last: u64::from(NOBODY) | u64::from(kinds) << 32,
        };
        let at = self.made as usize % KEPT;
        match self.ring.get_mut(at) {
            Some(r) => *r = record,
            None => self.ring.push(record),
        }
        if let Some(live) = counters.live() {
            live.begin(self.made, record.words());
        }
        self.made += 1;
    }

    /// The call that began last has ended, by this error if there was one.
    #[inline]
    pub(crate) fn end(&mut self, info: &CallInfo, error: Option<&Error>, counters: &Counters) {
        let Some(last) = self.made.checked_sub(1) else { return };
        let Some(record) = self.ring.get_mut(last as usize % KEPT) else { return };
        let slept = counters.parked_ns().wrapping_sub(self.slept);
        match error {
            None => record.set_state(FlightState::Done),
            Some(e) => {
                record.set_state(FlightState::Failed);
                record.set_peer(culprit(e).map_or(NOBODY, |r| r as u32));
            }
        }
        if slept > 0 {
            record.waited = slept;
            record.set_peer(counters.parked_on.load(Ordering::Relaxed));
        }
        if slept > 0 || error.is_some() || is_long(info) {
            record.end = clock::exact();
        }
        if let Some(live) = counters.live() {
            live.end(last, [(END, record.end), (WAITED, record.waited), (LAST, record.last)]);
        }
    }

    /// Write the file, where one is wanted, and tell the launcher the root cause. An error of the file must not hide why the group failed: it is logged.
    pub(crate) fn write(&self, group_id: u64, error: &Error) {
        if let Some((root_cause, members)) = &self.root_cause {
            // Of two ranks that made different calls each names the other.
            let all = sides(error).into_iter().filter_map(|r| members.get(r));
            all.for_each(|culprit| root_cause.tell(*culprit));
        }
        let Some(place) = &self.place else { return };
        if let Err(e) = file::write(self, place, group_id, error) {
            tracing::warn!(error = %e, dir = %place.dir.display(), "the flight record was not written");
        }
    }

    /// Oldest first.
    fn records(&self) -> impl Iterator<Item = &Record> {
        let (new, old) = self.ring.split_at(self.made as usize % KEPT % self.ring.len().max(1));
        old.iter().chain(new)
    }
}

fn is_long(info: &CallInfo) -> bool {
    info.count >= LONG / info.dtype.map_or(1, DType::size)
}

/// Returns the rank in the group that an error blames.
pub(crate) fn culprit(e: &Error) -> Option<usize> {
    match e.root().kind() {
        ErrorKind::PeerLost { peer, .. } | ErrorKind::Mismatch { peer, .. } => Some(peer.rank),
        ErrorKind::Aborted { by, .. } => Some(by.rank),
        ErrorKind::Timeout { waiting_for, .. } => waiting_for.first().map(|p| p.rank),
        _ => None,
    }
}

/// The rank that an error blames, after the rank that blames it in a mismatch: the two have the same error.
fn sides(e: &Error) -> Vec<usize> {
    let other = match e.root().kind() {
        ErrorKind::Mismatch { rank, .. } => Some(*rank),
        _ => None,
    };
    other.into_iter().chain(culprit(e)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn call(seq: u64) -> CallInfo {
        CallInfo::new(Op::AllReduce).with(|c| {
            c.seq = seq;
            c.count = 1 << 20;
            c.dtype = Some(DType::F32);
            c.reduce = Some(ReduceOp::Sum);
        })
    }

    pub(super) fn lost(rank: usize) -> Error {
        ErrorKind::PeerLost {
            peer: Peer { rank, host: None, pid: None },
            cause: "died".into(),
            because_of: Vec::new(),
            seen_by: None,
            left: false,
            call: None,
        }
        .into()
    }

    #[test]
    fn the_ring_keeps_the_last_4096_in_order() {
        let mut r = Recorder::new();
        let c = Counters::default();
        assert_eq!(r.records().count(), 0);
        for seq in 1..=3 {
            r.begin(&call(seq), &c);
            r.end(&call(seq), None, &c);
        }
        assert_eq!(r.records().map(|r| r.seq).collect::<Vec<_>>(), [1, 2, 3]);
        for seq in 4..=10_000 {
            r.begin(&call(seq), &c);
            r.end(&call(seq), None, &c);
        }
        let kept: Vec<u64> = r.records().map(|r| r.seq).collect();
        assert_eq!(kept, (10_001 - KEPT as u64..=10_000).collect::<Vec<_>>());
        assert!(r.records().all(|r| r.state() == FlightState::Done && r.end >= r.begin));
        assert!(r.records().zip(r.records().skip(1)).all(|(a, b)| a.end <= b.begin));
    }

    #[test]
    fn of_two_calls_that_differ_each_side_names_the_other() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let peer = Peer { rank: 2, host: None, pid: None };
        let (ours, theirs) = (call(1), CallInfo::new(Op::Barrier));
        let error = ErrorKind::Mismatch { rank: 0, ours, peer, theirs, differs: "operation", threads: None };
        let error = Error::from(error);
        for rank in 0..3 {
            let report = RootCauseReport::from_fd(std::os::fd::AsRawFd::as_raw_fd(&file), rank).unwrap();
            let mut recorder = Recorder::new();
            recorder.report_root_cause_to(report, 3);
            recorder.write(0, &error);
        }
        let mut words = [0; 12];
        assert_eq!(rustix::io::pread(&file, &mut words, 0), Ok(12));
        let words: Vec<u32> = words.chunks(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [3, 3, 1]);
    }

    #[test]
    fn a_failure_names_who_was_waited_for() {
        let mut r = Recorder::new();
        let c = Counters::default();
        r.begin(&call(1), &c);
        assert_eq!(r.records().next().unwrap().state(), FlightState::Begun);
        r.end(&call(1), Some(&lost(2)), &c);
        let first = *r.records().next().unwrap();
        assert_eq!((first.state(), first.peer(), first.waited), (FlightState::Failed, 2, 0));
        // Who was waited for is seen, who is at fault only told.
        r.begin(&call(2), &c);
        c.parked_on.store(1, Ordering::Relaxed);
        c.slept(std::time::Duration::from_nanos(77));
        r.end(&call(2), Some(&lost(2)), &c);
        let last = *r.records().last().unwrap();
        assert_eq!((last.state(), last.peer(), last.waited), (FlightState::Failed, 1, 77));
        assert_eq!(last.info(), Some(call(2)));
        // The next call has waited for nobody.
        r.begin(&call(3), &c);
        r.end(&call(3), None, &c);
        let last = *r.records().last().unwrap();
        assert_eq!((last.state(), last.peer(), last.waited), (FlightState::Done, NOBODY, 0));
    }
}
