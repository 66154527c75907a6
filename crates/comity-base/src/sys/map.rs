//! Memory that several processes, or several threads, see at once.
//!
//! Memory of this process that the other ranks of its host may read where it lies.
//!
//! ```text
//!   REGIONS   begin -> region (mapping, descriptor)      whoever sends from there finds it by the address
//!   a link    passes the descriptor to its peer once, and says of each message which bytes of which region it is
//! ```
//! A region lives as long as its owner, [`SharedMemory`]. Its pages go back to the system with it, also where a peer still maps them.

use rustix::{
    fs::{fstat, ftruncate},
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
};
use std::{
    collections::BTreeMap,
    io,
    ops::Deref,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// A shared mapping, readable and writable, of whole pages of zeros at first.
#[derive(Debug)]
pub struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory; who may touch which bytes is settled by its users.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Length of whole pages that hold `len` bytes. Pages have 4, 16 or 64 KiB, and macOS makes and tells whole ones whatever it is asked for.
pub(crate) fn whole_pages(len: usize) -> io::Result<usize> {
    let whole = len.checked_next_multiple_of(rustix::param::page_size());
    whole.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl Mapping {
    /// Memory of this process alone, of `len` bytes or a few more.
    pub fn private(len: usize) -> io::Result<Self> {
        let len = whole_pages(len)?;
        // SAFETY: a fresh mapping at an address of the system's choice aliases nothing.
        let p = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?
        };
        Self::checked(p.cast(), len)
    }

    /// Memory of `len` bytes or a few more, behind a descriptor to pass to another process. It leaves no name in any file system, and it
    /// can neither shrink nor grow, so that no peer can take pages away under us.
    pub fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = nameless(whole_pages(len)?)?;
        let map = Self::attach(&fd, len)?;
        Ok((map, fd))
    }

    /// The memory behind a descriptor that a peer made for `len` bytes, which must be sealed.
    pub fn attach(fd: &impl AsFd, len: usize) -> io::Result<Self> {
        let len = whole_pages(len)?;
        if fstat(fd)?.st_size as u64 != len as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory of another size"));
        }
        Self::over(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The memory behind a descriptor that a peer made and sealed, however long it is, to be read only.
    pub fn attach_to_read(fd: &impl AsFd) -> io::Result<Self> {
        let len = usize::try_from(fstat(fd)?.st_size).ok().filter(|n| *n > 0);
        let len =
            len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "shared memory of no length"))?;
        Self::over(fd, len, ProtFlags::READ)
    }

    fn over(fd: &impl AsFd, len: usize, access: ProtFlags) -> io::Result<Self> {
        check_seals(fd)?;
        // SAFETY: a fresh mapping at an address of the system's choice aliases nothing of ours.
        let p = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0)? };
        Self::checked(p.cast(), len)
    }

    /// Bytes of it.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Give its pages back to the system now, whoever else maps them: they read as zeros from then on. Nothing happens where the system
    /// cannot do that.
    pub fn give_back_pages(&self) {
        #[cfg(target_os = "linux")]
        // SAFETY: ours since `checked`; who calls this has no use for the bytes any more.
        let _ = unsafe {
            rustix::mm::madvise(self.ptr.as_ptr().cast(), self.len, rustix::mm::Advice::LinuxRemove)
        };
    }

    /// First byte; page aligned.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    fn checked(p: *mut u8, len: usize) -> io::Result<Self> {
        NonNull::new(p).map(|ptr| Self { ptr, len }).ok_or_else(|| io::Error::other("mmap returned null"))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours since `checked`, and no reference into it outlives its owner.
        let _ = unsafe { munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

#[cfg(target_os = "linux")]
fn nameless(len: usize) -> io::Result<OwnedFd> {
    use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
    let fd = memfd_create("comity", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|e| crate::sys::refused("memfd_create", "for shared memory", e))?;
    ftruncate(&fd, len as u64)?;
    // Full memory is an error here and now, not a SIGBUS at some later write.
    fallocate(&fd, FallocateFlags::empty(), 0, len as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

#[cfg(target_os = "linux")]
fn check_seals(fd: &impl AsFd) -> io::Result<()> {
    use rustix::fs::{SealFlags, fcntl_get_seals};
    if fcntl_get_seals(fd)?.contains(SealFlags::SHRINK) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "shared memory that could shrink"))
}

#[cfg(not(target_os = "linux"))]
fn nameless(len: usize) -> io::Result<OwnedFd> {
    use rustix::{fs::Mode, shm};
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // macOS allows 31 characters.
        let name = format!("/comity-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
        match shm::open(name.as_str(), flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => {
                // Unlinked at once: the descriptor is passed, the name is not needed.
                shm::unlink(name.as_str())?;
                ftruncate(&fd, len as u64)?;
                return Ok(fd);
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn check_seals(_: &impl AsFd) -> io::Result<()> {
    Ok(())
}

/// A shared mapping of atomic numbers, all 0 at first.
#[derive(Debug)]
pub(crate) struct Words {
    map: Mapping,
    count: usize,
}

impl Words {
    /// `count` numbers, and a descriptor to hand to another process.
    pub(crate) fn create(count: usize) -> io::Result<(Self, OwnedFd)> {
        let (map, fd) = Mapping::create(count * size_of::<AtomicU64>())?;
        Ok((Self { map, count }, fd))
    }

    /// Attaches to the numbers behind a descriptor that another process made.
    pub(crate) fn attach(fd: &impl AsFd, count: usize) -> io::Result<Self> {
        Ok(Self { map: Mapping::attach(fd, count * size_of::<AtomicU64>())?, count })
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page aligned, has this length, lives as long as the borrow, and any bits are a number.
        // This process touches it only through here, so only atomically; what other processes do there is out of reach
        // of the language, and can do no more than change the numbers.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.count) }
    }
}

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
        let len = whole_pages(len.max(1))?;
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
    fn two_mappings_of_one_descriptor_share_bytes() {
        let page = rustix::param::page_size();
        let (a, fd) = Mapping::create(2 * page).unwrap();
        let b = Mapping::attach(&fd, 2 * page).unwrap();
        // SAFETY: inside both mappings, one thread.
        unsafe {
            a.as_ptr().add(4096).write(7);
            assert_eq!(b.as_ptr().add(4096).read(), 7);
        }
        assert!(Mapping::attach(&fd, page).is_err());
        let c = Mapping::attach_to_read(&fd).unwrap();
        assert_eq!(c.len(), 2 * page);
        // SAFETY: inside the mapping, one thread.
        assert_eq!(unsafe { c.as_ptr().add(4096).read() }, 7);
        #[cfg(target_os = "linux")]
        {
            a.give_back_pages();
            // SAFETY: as above.
            assert_eq!(unsafe { c.as_ptr().add(4096).read() }, 0);
        }
    }

    /// Shared memory as macOS makes it: of 100 bytes it is a whole page there, and says so.
    #[test]
    fn memory_is_of_whole_pages() {
        let page = rustix::param::page_size();
        let whole = nameless(2 * page).unwrap();
        assert_eq!(Mapping::attach(&whole, page + 100).unwrap().len(), 2 * page);
        let (map, fd) = Mapping::create(page + 100).unwrap();
        assert_eq!((map.len(), fstat(&fd).unwrap().st_size as usize), (2 * page, 2 * page));
        assert_eq!(Mapping::private(1).unwrap().len(), page);
        assert!(Mapping::private(usize::MAX).is_err());
    }

    /// The thread sanitizer must see that it is new memory, too: the threads below do not wait for each other in a way it knows.
    #[test]
    fn memory_is_new_whoever_had_its_address_before() {
        use std::{
            sync::atomic::{AtomicUsize, Ordering},
            thread,
        };
        const LEN: usize = 1 << 20;
        let turn = AtomicUsize::new(0);
        thread::scope(|s| {
            for me in 0..8 {
                let turn = &turn;
                s.spawn(move || {
                    while turn.load(Ordering::Relaxed) != me {
                        thread::yield_now();
                    }
                    let map = Mapping::private(LEN).unwrap();
                    // SAFETY: inside the mapping, which no other thread has.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(map.as_ptr(), LEN) };
                    assert!(bytes.iter().all(|&b| b == 0));
                    bytes.fill(0xA5);
                    drop(map);
                    turn.store(me + 1, Ordering::Relaxed);
                });
            }
        });
    }
}

#[cfg(test)]
mod words_tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn both_ends_see_the_same_numbers() {
        let (a, fd) = Words::create(1024).unwrap();
        let b = Words::attach(&fd, 1024).unwrap();
        a[1023].store(7, Ordering::Relaxed);
        assert_eq!(b[1023].load(Ordering::Relaxed), 7);
        assert!(a.iter().take(1023).all(|w| w.load(Ordering::Relaxed) == 0));
        assert!(Words::attach(&fd, 1 << 20).is_err());
    }
}

#[cfg(test)]
mod region_tests {
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
