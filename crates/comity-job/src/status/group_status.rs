//! The one flag that every wait loop of a group checks, and the waker that wakes a parked one.
//!
//! The first failure wins and stays. A member that left in good order is no failure until someone
//! needs bytes from it: what it sent before it left still counts.

use super::{failure::Failure, header::Header, ledger::Ledger};
use crate::{LinkKind, stats::Counters, sync::lock, sys::Waker, transport::Link};
use std::{
    cmp::Reverse,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// A group's state as its wait loops see it.
#[derive(Debug)]
pub struct GroupStatus {
    failed: AtomicBool,
    first: OnceLock<Failure>,
    /// This rank leaves, a call under way or not.
    closing: AtomicBool,
    left: Vec<AtomicBool>,
    /// Number of members that have left; lets a call skip the list.
    left_count: AtomicU32,
    /// Number of times that a call has begun or ended.
    progress: AtomicU64,
    counters: Arc<Counters>,
    waker: Waker,
    ledger: Ledger,
    opened: Instant,
    /// The member that the engine sleeps for, plus one, and since which millisecond; 0 while it does not sleep.
    lacks: AtomicU64,
    /// Bytes sent to each member, as of the last long sleep in a collective of equal parts, and the number of that call.
    sent: (Box<[AtomicU64]>, AtomicU64),
    /// Latest answers of the members about their progress.
    answers: Mutex<Vec<Option<Reached>>>,
    /// Words of the members that close the group: how many calls they have made, and what these come to.
    concluded: Mutex<Vec<Option<(u64, u64)>>>,
    /// The group that this one is split from: should it fail meanwhile, not all members come.
    above: OnceLock<Arc<Self>>,
    links: MadeLinks,
}

impl GroupStatus {
    /// For a group of `size`.
    pub fn new(size: usize, counters: Arc<Counters>) -> std::io::Result<Self> {
        Ok(Self {
            failed: AtomicBool::new(false),
            first: OnceLock::new(),
            closing: AtomicBool::new(false),
            left: (0..size).map(|_| AtomicBool::new(false)).collect(),
            left_count: AtomicU32::new(0),
            progress: AtomicU64::new(0),
            counters,
            waker: Waker::new()?,
            ledger: Ledger::new(size),
            opened: Instant::now(),
            lacks: AtomicU64::new(0),
            sent: ((0..size).map(|_| AtomicU64::new(0)).collect(), AtomicU64::new(0)),
            answers: Mutex::new(vec![None; size]),
            concluded: Mutex::new(vec![None; size]),
            above: OnceLock::new(),
            links: MadeLinks::new(size),
        })
    }

    /// This group is split from that of `above`.
    pub fn split_from(&self, above: &Arc<Self>) {
        let _ = self.above.set(Arc::clone(above));
    }

    /// The status of the group that this one was [split from](Self::split_from).
    pub fn above(&self) -> Option<&Arc<Self>> {
        self.above.get()
    }

    /// Record a failure; true if it is the first. Wakes whoever waits.
    pub fn fail(&self, failure: Failure) -> bool {
        let first = self.first.set(failure).is_ok();
        self.failed.store(true, Ordering::Release);
        self.wake();
        first
    }

    /// Record that `rank` left the group in good order. Wakes whoever waits.
    pub fn leave(&self, rank: usize) {
        if let Some(l) = self.left.get(rank)
            && !l.swap(true, Ordering::Release)
        {
            self.left_count.fetch_add(1, Ordering::Release);
            self.wake();
        }
    }

    /// This rank leaves: its call under way ends.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns true if [`close`](Self::close) was called.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// The first failure, if there is one. One load when there is none.
    #[inline]
    pub fn failure(&self) -> Option<&Failure> {
        if self.failed.load(Ordering::Acquire) { self.first.get() } else { None }
    }

    /// A call begins or ends. Only the group's engine says so, one call at a time, so this needs no locked instruction.
    #[inline]
    pub fn advance(&self) {
        self.progress.store(self.progress.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns true if the engine is in a call.
    #[inline]
    pub fn is_in_call(&self) -> bool {
        self.progress() % 2 == 1
    }

    /// Returns the number of calls of [`advance`](Self::advance).
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// The engine goes to sleep until `peer`, this rank itself where it is not known who, does something, after nothing has moved for `idle`. It waits for that rank until something
    /// [moves](Self::moves), awake or not: a note wakes it, and the next asks for whom it waits.
    #[inline]
    pub fn sleeps_for(&self, peer: usize, idle: Duration) {
        let since = self.opened.elapsed().saturating_sub(idle).as_millis() as u64;
        self.lacks.store(since << 16 | (peer as u64 + 1) & 0xffff, Ordering::Relaxed);
    }

    /// Something has moved in a call that had slept, or it has ended.
    #[inline]
    pub fn moves(&self) {
        self.lacks.store(0, Ordering::Relaxed);
    }

    /// The engine sleeps for long in collective number `seq`, of equal parts, and has sent so many bytes to each member.
    pub fn stands(&self, seq: u64, sent: impl Iterator<Item = u64>) {
        let (by_rank, call) = &self.sent;
        by_rank.iter().zip(sent).for_each(|(place, sent)| place.store(sent, Ordering::Relaxed));
        call.store(seq, Ordering::Release);
    }

    /// Returns this rank's progress for `asker`, with the digest of its calls up to number `at`.
    pub fn reached(&self, at: u64, asker: usize) -> Reached {
        let (made, digest) = self.ledger.digest(at);
        let lacks = self.lacks();
        Reached { made, digest, lacks, elsewhere: false, standing: self.standing(made, asker) }
    }

    /// Returns the call with the number `made`, if the engine has slept in it, and the bytes sent to `asker` then or later.
    fn standing(&self, made: u64, asker: usize) -> Option<Standing> {
        let (by_rank, call) = &self.sent;
        let slept = made > 0 && call.load(Ordering::Acquire) == made;
        let sent = by_rank.get(asker).filter(|_| slept)?.load(Ordering::Relaxed);
        Some(Standing { call: self.ledger.call(made)?, sent })
    }

    /// The member that the engine sleeps for, this rank itself where it is not known who, and since when, in milliseconds.
    pub fn lacks(&self) -> Option<(usize, u64)> {
        let lacks = self.lacks.load(Ordering::Relaxed);
        let now = self.opened.elapsed().as_millis() as u64;
        let whom = ((lacks & 0xffff) as usize).checked_sub(1)?;
        Some((whom, now.saturating_sub(lacks >> 16)))
    }

    /// `member` has answered how far it has come. Wakes an engine that asked.
    pub fn answered(&self, member: usize, reached: Reached) {
        if let Some(place) = lock(&self.answers).get_mut(member) {
            *place = Some(reached);
        }
        self.wake();
    }

    /// Returns the latest answer of `member`.
    pub fn answer(&self, member: usize) -> Option<Reached> {
        lock(&self.answers).get(member).copied().flatten()
    }

    /// `member` closes the group: it has made `at` calls, which come to this. Not so where it only [asks](NO_COMPARISON).
    pub fn asked(&self, member: usize, at: u64, digest: u64) {
        if let Some(place) = lock(&self.concluded).get_mut(member)
            && at != NO_COMPARISON
        {
            *place = Some((at, digest));
        }
    }

    /// Returns the latest call number and digest that [`asked`](Self::asked) got of `member`.
    pub fn concluded(&self, member: usize) -> Option<(u64, u64)> {
        lock(&self.concluded).get(member).copied().flatten()
    }

    /// Returns the answers since [`forget_answers`](Self::forget_answers), by rank.
    pub fn answers(&self) -> Vec<Option<Reached>> {
        lock(&self.answers).clone()
    }

    /// Only what is answered from now on counts.
    pub fn forget_answers(&self) {
        lock(&self.answers).fill(None);
    }

    /// A member has not been heard for some time. No failure yet.
    pub fn suspect(&self) {
        self.counters.suspected();
    }

    /// A member was silent for so long, longer than any before it.
    pub fn silent(&self, silence: Duration) {
        self.counters.silent(silence);
    }

    /// Returns true if any member has left.
    #[inline]
    pub fn anyone_left(&self) -> bool {
        self.left_count.load(Ordering::Acquire) > 0
    }

    /// Returns true if `rank` has left in good order.
    #[inline]
    pub fn has_left(&self, rank: usize) -> bool {
        self.left.get(rank).is_some_and(|l| l.load(Ordering::Acquire))
    }

    /// Readable after it was woken, until [`drain`](Self::drain).
    pub fn waker_fd(&self) -> BorrowedFd<'_> {
        self.waker.fd()
    }

    /// Take past wakes.
    #[inline]
    pub fn drain(&self) {
        self.waker.drain();
    }

    /// This rank's calls.
    #[inline]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// `from` has waited for this rank, which is `mine`, for long in a call: the failure, if this rank has made another.
    pub fn hear(&self, mine: usize, from: usize, call: &Header) -> Option<Failure> {
        let failure = self.ledger.hear(from, *call).map(|d| Failure::differs(from, mine, d));
        if failure.is_none() {
            // For an engine that sleeps in a call it came to just now.
            self.wake();
        }
        failure
    }

    /// Wake whoever waits, without a reason of its own.
    pub fn wake(&self) {
        self.waker.wake();
        self.links.wake();
    }

    /// Links that are made while calls run.
    #[inline]
    pub fn links(&self) -> &MadeLinks {
        &self.links
    }

    /// The link to `rank` stands. Wakes whoever waits for it.
    pub fn link_is_made(&self, rank: usize, link: Box<dyn Link>) {
        self.links.put(rank, link);
        self.waker.wake();
    }

    /// `rank` has left, and there will be no link to it. Wakes whoever waits for one.
    pub fn rule_out_link(&self, rank: usize) {
        self.links.rule_out(rank);
        self.waker.wake();
    }

    /// `rank` has opened the group. Wakes whoever waits for that.
    pub fn enter(&self, rank: usize) {
        self.links.enter(rank);
        self.waker.wake();
    }
}

/// Handover between the maker of links and the engine that uses them: links are made while calls run, by a thread of their own.
#[derive(Debug)]
pub struct MadeLinks {
    /// Made, and not taken over yet, by rank.
    ready: Mutex<Vec<(usize, Box<dyn Link>)>>,
    any: AtomicBool,
    /// The kinds of the links that were made, and their numbers of connections.
    kinds: Mutex<Vec<Option<(LinkKind, usize)>>>,
    /// Members that have left and made no link.
    none: Vec<AtomicBool>,
    /// Members that have opened the group.
    entered: Vec<AtomicBool>,
    entered_count: AtomicU32,
    /// Wakes the thread that makes links, while there is one.
    maker: Mutex<Option<Arc<Waker>>>,
}

impl MadeLinks {
    fn new(size: usize) -> Self {
        let flags = || (0..size).map(|_| AtomicBool::new(false)).collect();
        Self {
            ready: Mutex::default(),
            any: AtomicBool::new(false),
            kinds: Mutex::new(vec![None; size]),
            none: flags(),
            entered: flags(),
            entered_count: AtomicU32::new(0),
            maker: Mutex::default(),
        }
    }

    /// The link to `rank` stands.
    fn put(&self, rank: usize, link: Box<dyn Link>) {
        if let Some(place) = lock(&self.kinds).get_mut(rank) {
            *place = Some((link.properties().kind, link.connections()));
        }
        lock(&self.ready).push((rank, link));
        self.any.store(true, Ordering::Release);
    }

    /// Take the links that were made since the last time. It costs one load where there are none.
    #[inline]
    pub fn take(&self) -> Vec<(usize, Box<dyn Link>)> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *lock(&self.ready))
    }

    /// The kinds of those that were made, by rank.
    pub fn kinds(&self) -> Vec<Option<LinkKind>> {
        lock(&self.kinds).iter().map(|made| made.map(|(kind, _)| kind)).collect()
    }

    /// The numbers of connections of those that were made, by rank.
    pub fn connections(&self) -> Vec<Option<usize>> {
        lock(&self.kinds).iter().map(|made| made.map(|(_, n)| n)).collect()
    }

    /// `rank` has left, and there will be no link to it.
    fn rule_out(&self, rank: usize) {
        if let Some(none) = self.none.get(rank) {
            none.store(true, Ordering::Release);
        }
    }

    /// Returns true if there will be no link to `rank`, which has left.
    pub fn is_ruled_out(&self, rank: usize) -> bool {
        self.none.get(rank).is_some_and(|n| n.load(Ordering::Acquire))
    }

    fn enter(&self, rank: usize) {
        if let Some(entered) = self.entered.get(rank)
            && !entered.swap(true, Ordering::AcqRel)
        {
            self.entered_count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns the number of other members that have opened the group.
    pub fn entered(&self) -> usize {
        self.entered_count.load(Ordering::Acquire) as usize
    }

    /// Returns true if `rank` has opened the group.
    pub fn has_entered(&self, rank: usize) -> bool {
        self.entered.get(rank).is_some_and(|e| e.load(Ordering::Acquire))
    }

    /// From now on `waker` is woken with the group's own; `None`: no longer.
    pub fn wake_too(&self, waker: Option<Arc<Waker>>) {
        *lock(&self.maker) = waker;
    }

    fn wake(&self) {
        if let Some(waker) = &*lock(&self.maker) {
            waker.wake();
        }
    }
}

/// In place of a call's number, in a census of a rank that does not close the group: only how far the others have come is asked for.
pub const NO_COMPARISON: u64 = u64::MAX;

/// Progress of a member of a group, as its control thread sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The number of its last call.
    pub made: u64,
    /// Digest of its calls up to the number asked for, if it knows.
    pub digest: Option<u64>,
    /// The member that it sleeps for in a call, itself where it does not know for whom, and since when, in milliseconds.
    pub lacks: Option<(usize, u64)>,
    /// It sleeps in a call of another group.
    pub elsewhere: bool,
    /// Its last call, if it has slept in it.
    pub standing: Option<Standing>,
}

/// Call in which a member has slept for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Parts of equal length only: there the call alone says which ranks it needs.
    pub call: Header,
    /// Bytes that the member had sent to the asker, with those of the calls before.
    pub sent: u64,
}

impl Reached {
    /// Add where this rank, `mine` among the world ranks `members`, waits in one of the process's other groups, each with its members, if it
    /// waits nowhere in this one. A rank that is no member here is one that is not known.
    pub fn or_elsewhere<'a>(
        self,
        mine: usize,
        members: &[usize],
        others: impl Iterator<Item = (&'a [usize], &'a GroupStatus)>,
    ) -> Self {
        if self.lacks.is_some() {
            return self;
        }
        let place = |(all, status): (&[usize], &GroupStatus)| {
            let (whom, since) = status.lacks()?;
            let who = all.get(whom).filter(|who| members.get(mine) != Some(who));
            let here = who.and_then(|who| members.iter().position(|m| m == who));
            Some((here.unwrap_or(mine), since))
        };
        // Of several threads the one that has waited longest.
        let lacks = others.filter_map(place).max_by_key(|(whom, since)| (*since, Reverse(*whom)));
        Self { lacks, elsewhere: lacks.is_some(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_wins() {
        let w = GroupStatus::new(3, Arc::default()).unwrap();
        assert!(w.failure().is_none());
        let f = |culprit| Failure::lost(culprit, 0, "died");
        assert!(w.fail(f(2)));
        assert!(!w.fail(f(1)));
        assert_eq!(w.failure().map(|f| f.culprit), Some(2));
    }

    #[test]
    fn leaving_is_counted_once() {
        let w = GroupStatus::new(2, Arc::default()).unwrap();
        assert!(!w.anyone_left());
        w.leave(1);
        w.leave(1);
        w.leave(7);
        assert!(w.anyone_left() && w.has_left(1) && !w.has_left(0));
        assert_eq!(w.left_count.load(Ordering::Relaxed), 1);
    }
}
