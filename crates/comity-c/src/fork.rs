//! Forked children share their parent's connections, which are not theirs to use.
//!
//! The system's number of this process costs a system call, so it is not asked for at each call. A child counts how often there was a
//! fork before it.

use crate::errors::CFault;
use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_the_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HomeProcess(u32);

impl HomeProcess {
    /// This one. Forks that come later are noticed.
    pub(crate) fn here() -> Self {
        static WATCHED: Once = Once::new();
        WATCHED.call_once(|| {
            // SAFETY: the function only counts, which it may do in a child of several threads.
            unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// An error in any other process.
    #[inline]
    pub(crate) fn check(self) -> Result<(), CFault> {
        if self.is_here() { Ok(()) } else { Err(CFault::forked()) }
    }
}
