//! Memory of this process that the other ranks of its host may read where it lies.
//!
//! ```text
//!   REGIONS   begin -> region (mapping, descriptor)      whoever sends from there finds it by the address
//!   a link    passes the descriptor to its peer once, and says of each message which bytes of which region it is
//! ```
//! A region lives as long as its owner, [`SharedMemory`]. Its pages go back to the system with it, also where a peer still maps them.

use super::Mapping;
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// All regions of this process, by their begin.
static REGIONS: RwLock<BTreeMap<usize, Arc<Region>>> = RwLock::new(BTreeMap::new());
/// Number of regions: where there are none, nobody takes the lock.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Their bytes.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Number of regions that are gone.
static GONE: AtomicU64 = AtomicU64::new(0);
/// At most so many bytes.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Memory that peers may map.
#[derive(Debug)]
pub struct Region {
    map: Mapping,
    fd: OwnedFd,
    id: u64,
    /// The process that made it.
    home: u32,
}

impl Region {
    /// The region in which all of `len` bytes from `at` lie, and how far from its begin.
    #[inline]
    pub fn find(at: *const u8, len: usize) -> Option<(Arc<Self>, usize)> {
        if LIVE.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let at = at as usize;
        let all = REGIONS.read().unwrap_or_else(PoisonError::into_inner);
        let (begin, region) = all.range(..=at).next_back()?;
        let before = at - begin;
        (region.map.len().checked_sub(before)? >= len).then(|| (region.clone(), before))
    }

    /// Another number for each region of this process.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns true if the region has an owner.
    pub fn lives(id: u64) -> bool {
        REGIONS.read().unwrap_or_else(PoisonError::into_inner).values().any(|r| r.id == id)
    }

    /// Returns the number of this process's regions that are gone: when it changes, those that peers map may be among them.
    #[inline]
    pub fn gone() -> u64 {
        GONE.load(Ordering::Relaxed)
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A region and its owner. It is plain memory of zeros at first.
#[derive(Debug)]
pub struct SharedMemory(Arc<Region>);

impl SharedMemory {
    /// All regions of this process together may come to `most` bytes.
    pub fn limit(most: usize) {
        MOST.store(most, Ordering::Relaxed);
    }

    /// `len` bytes or a few more.
    pub fn new(len: usize) -> io::Result<Self> {
        Self::within(len, MOST.load(Ordering::Relaxed))
    }

    fn within(len: usize, most: usize) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let len = len.max(1).checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?;
        let take = |b: usize| b.checked_add(len).filter(|all| *all <= most);
        if BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "the limit COMITY_SHARED_BUFFERS is reached",
            ));
        }
        let (map, fd) = Mapping::create(len).inspect_err(|_| {
            BYTES.fetch_sub(len, Ordering::Relaxed);
        })?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let region = Arc::new(Region { map, fd, id, home: std::process::id() });
        let begin = region.map.as_ptr() as usize;
        REGIONS.write().unwrap_or_else(PoisonError::into_inner).insert(begin, region.clone());
        LIVE.fetch_add(1, Ordering::Relaxed);
        Ok(Self(region))
    }

    /// First byte; page aligned.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.map.as_ptr()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let begin = self.as_ptr() as usize;
        REGIONS.write().unwrap_or_else(PoisonError::into_inner).remove(&begin);
        LIVE.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(self.0.map.len(), Ordering::Relaxed);
        GONE.fetch_add(1, Ordering::Relaxed);
        // A forked child drops its copy of this while its parent still uses the memory.
        if self.0.home == std::process::id() {
            self.0.map.give_back_pages();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_found_by_every_part_of_it_until_it_is_dropped() {
        let memory = SharedMemory::new(10_000).unwrap();
        let at = |n: usize| memory.as_ptr().wrapping_add(n).cast_const();
        let (region, before) = Region::find(at(100), 9_900).unwrap();
        assert_eq!(before, 100);
        assert!(Region::lives(region.id()));
        assert!(Region::find(at(0), region.map.len()).is_some());
        assert!(Region::find(at(1), region.map.len()).is_none(), "it ends before");
        let own = [0u8; 8];
        assert!(Region::find(own.as_ptr(), 8).is_none());
        let id = region.id();
        let begin = at(0);
        let gone = Region::gone();
        drop(memory);
        assert!(Region::find(begin, 1).is_none_or(|(r, _)| r.id() != id));
        assert!(!Region::lives(id) && Region::gone() > gone);
    }

    #[test]
    fn no_more_than_the_limit() {
        let error = SharedMemory::within(1 << 20, 4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
    }
}
