//! Memory that several processes, or several threads, see at once.

use rustix::{
    fs::{fstat, ftruncate},
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
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
        check_seals(fd)?;
        // SAFETY: a fresh mapping at an address of the system's choice aliases nothing of ours.
        let p = unsafe {
            mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?
        };
        Self::checked(p.cast(), len)
    }

    /// The memory behind a descriptor that a peer made and sealed, however long it is, to be read only.
    pub fn attach_to_read(fd: &impl AsFd) -> io::Result<Self> {
        check_seals(fd)?;
        let len = usize::try_from(fstat(fd)?.st_size).ok().filter(|n| *n > 0);
        let len =
            len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "shared memory of no length"))?;
        // SAFETY: a fresh mapping at an address of the system's choice aliases nothing of ours.
        let p = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, 0)? };
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
