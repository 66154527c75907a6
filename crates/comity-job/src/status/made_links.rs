//! Links of a group that are made while its calls run: by a thread of their own, taken over by the engine.

use crate::{LinkKind, sync::lock, sys::Waker, transport::Link};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

/// Handover between the maker of links and the engine that uses them.
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
    pub(super) fn new(size: usize) -> Self {
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
    pub(super) fn put(&self, rank: usize, link: Box<dyn Link>) {
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
    pub(super) fn rule_out(&self, rank: usize) {
        if let Some(none) = self.none.get(rank) {
            none.store(true, Ordering::Release);
        }
    }

    /// Returns true if there will be no link to `rank`, which has left.
    pub fn is_ruled_out(&self, rank: usize) -> bool {
        self.none.get(rank).is_some_and(|n| n.load(Ordering::Acquire))
    }

    /// `rank` has opened the group.
    pub(super) fn enter(&self, rank: usize) {
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

    pub(super) fn wake(&self) {
        if let Some(waker) = &*lock(&self.maker) {
            waker.wake();
        }
    }
}
