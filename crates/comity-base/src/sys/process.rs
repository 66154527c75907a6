//! This process, told from its forked children without a system call, and from every other process of the job.
//!
//! A forked child shares the connections of its parent, and all that says which rank the parent is. It is not that rank.

use crate::{Error, ErrorKind, Result};
use aws_lc_rs::digest::{SHA256, digest};
use std::{
    ffi::c_int,
    io, process, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

static FORKS: AtomicU32 = AtomicU32::new(0);
static COUNTED: OnceLock<bool> = OnceLock::new();

// A forked child has this thread alone: nobody else counts.
extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of forks from the process that asked first to this one; `None` where the system keeps no count.
///
/// A process and one that was forked from it never have equal numbers. The C library's `fork`, which every language uses, is counted; a bare
/// `clone` is not.
#[inline]
fn forks() -> Option<u32> {
    // SAFETY: the function lives for ever, touches one atomic number only, and does not unwind.
    let counted = COUNTED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) } == 0);
    counted.then(|| FORKS.load(Ordering::Relaxed))
}

/// The process in which something was made: its forked children are told from it without a system call.
///
/// ```
/// let home = comity::tools::HomeProcess::here();
/// assert!(home.is_here() && home.check().is_ok()); // not so in a forked child
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeProcess {
    id: u32,
    forks: Option<u32>,
}

impl HomeProcess {
    /// This one.
    #[inline]
    pub fn here() -> Self {
        Self { id: process::id(), forks: forks() }
    }

    /// Returns true if this is still that process.
    #[inline]
    pub fn is_here(self) -> bool {
        match self.forks {
            Some(_) => self.forks == forks(),
            None => self.id == process::id(),
        }
    }

    /// Check that this is still that process.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in a forked child.
    #[inline]
    pub fn check(self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(self.forked()) }
    }

    #[cold]
    fn forked(self) -> Error {
        ErrorKind::Forked { home: self.id, process: process::id() }.into()
    }

    fn bits(self) -> u64 {
        u64::from(self.id) << 32 | u64::from(self.forks.unwrap_or(u32::MAX))
    }
}

/// The places in jobs that a process holds. There is no lock: another thread may fork at any time.
#[derive(Debug)]
struct Places {
    /// Their number, also in a child that was forked from the process that holds them.
    held: AtomicU32,
    /// The process that holds them.
    holder: AtomicU64,
}

impl Places {
    const fn new() -> Self {
        Self { held: AtomicU32::new(0), holder: AtomicU64::new(0) }
    }

    fn take(&'static self) -> Result<JobPlace> {
        let here = HomeProcess::here();
        // The number first: a thread beside this one that takes the first place writes the holder before it counts.
        let held = self.held.load(Ordering::Acquire);
        let holder = self.holder.load(Ordering::Acquire);
        if held > 0 && holder != here.bits() {
            return Err(HomeProcess { id: (holder >> 32) as u32, ..here }.forked());
        }
        self.holder.store(here.bits(), Ordering::Release);
        self.held.fetch_add(1, Ordering::AcqRel);
        Ok(JobPlace { places: self, home: here })
    }
}

/// A place in a job, which this process holds.
#[derive(Debug)]
pub struct JobPlace {
    places: &'static Places,
    home: HomeProcess,
}

impl JobPlace {
    /// Take one.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in a child that was forked while its parent held one.
    pub fn take() -> Result<Self> {
        static PLACES: Places = Places::new();
        PLACES.take()
    }
}

impl Drop for JobPlace {
    fn drop(&mut self) {
        if self.home.is_here() {
            self.places.held.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A number that no other process of a job has: also no forked child of this one, and none that has the same id in another container. Two
/// copies of this library in one process have the same one, on Linux.
pub fn process_number() -> Result<u64> {
    let random = match random_bytes_of_the_program() {
        Some(bytes) => bytes,
        None => random_bytes_of_the_library()?,
    };
    // Nobody is told the bytes themselves: the C library guards its stack with them.
    let digest = digest(&SHA256, &[&random[..], &process::id().to_ne_bytes()].concat());
    Ok(digest.as_ref().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Bytes that the system made for this process when its program started.
#[cfg(target_os = "linux")]
fn random_bytes_of_the_program() -> Option<[u8; 16]> {
    // SAFETY: reads what the system handed to this process at its start.
    let at = unsafe { libc::getauxval(libc::AT_RANDOM) } as *const [u8; 16];
    // SAFETY: no address, or that of 16 bytes which nobody writes to.
    unsafe { at.as_ref() }.copied()
}

#[cfg(not(target_os = "linux"))]
fn random_bytes_of_the_program() -> Option<[u8; 16]> {
    None
}

fn random_bytes_of_the_library() -> Result<[u8; 16]> {
    static RANDOM: OnceLock<[u8; 16]> = OnceLock::new();
    if let Some(bytes) = RANDOM.get() {
        return Ok(*bytes);
    }
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| Error::os("telling this process from others", e))?;
    Ok(*RANDOM.get_or_init(|| bytes))
}

/// End the process with `code`, whatever code it was to end with. For the last thing that runs when it exits: what the C library has not
/// written yet is written, nothing else is done.
pub fn end_with(code: c_int) -> ! {
    // SAFETY: null stands for all streams, and the end takes a number.
    unsafe {
        libc::fflush(ptr::null_mut());
        libc::_exit(code)
    }
}

/// Run `run` when the process returns from main or calls exit.
pub fn at_exit(run: extern "C" fn()) -> io::Result<()> {
    // SAFETY: the function lives for ever, and does not unwind.
    let registered = unsafe { libc::atexit(run) };
    if registered == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of `good` in a forked child. It may do no more than a child of several threads can.
    fn in_child(good: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls `good`, which reads and writes atomic numbers, and `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let bad = i32::from(!good());
            // SAFETY: ends the child, and nothing else.
            unsafe { libc::_exit(bad) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status == 0
    }

    #[test]
    fn a_child_is_told_from_its_parent() {
        let home = HomeProcess::here();
        let number = process_number().unwrap();
        assert!(home.is_here() && home == HomeProcess::here() && process_number() == Ok(number));
        assert!(in_child(|| !home.is_here() && process_number().is_ok_and(|n| n != number)));
        assert!(home.is_here());
    }

    #[test]
    fn threads_take_the_first_places_at_once() {
        const ROUNDS: usize = 20_000;
        static EACH: [Places; ROUNDS] = [const { Places::new() }; ROUNDS];
        let places = &EACH;
        let arrived = AtomicU32::new(0);
        let refused = AtomicU32::new(0);
        let take_each = || {
            for (round, place) in places.iter().enumerate() {
                arrived.fetch_add(1, Ordering::AcqRel);
                while arrived.load(Ordering::Acquire) < 2 * (round as u32 + 1) {
                    std::hint::spin_loop();
                }
                match place.take() {
                    Ok(taken) => std::mem::forget(taken),
                    Err(_) => _ = refused.fetch_add(1, Ordering::Relaxed),
                }
            }
        };
        std::thread::scope(|s| {
            s.spawn(take_each);
            take_each();
        });
        assert_eq!(refused.into_inner(), 0, "of {ROUNDS} pairs");
    }

    #[test]
    fn a_child_takes_no_place_while_its_parent_holds_one() {
        // Other tests hold places of their own meanwhile.
        static PLACES: Places = Places::new();
        assert!(in_child(|| PLACES.take().is_ok()), "the parent holds none");
        let places = [PLACES.take().unwrap(), PLACES.take().unwrap()];
        let forked = || {
            PLACES
                .take()
                .is_err_and(|e| matches!(e.kind(), ErrorKind::Forked { home, process } if home != process))
        };
        assert!(in_child(forked));
        // What it drops is not its own.
        assert!(in_child(move || {
            drop(places);
            forked()
        }));
        // `places` went with the closure, here too.
        assert!(in_child(|| PLACES.take().is_ok()), "the parent holds none any more");
    }
}
