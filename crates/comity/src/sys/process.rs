//! Whether this process was forked since something was made, without a system call.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

static FORKS: AtomicU32 = AtomicU32::new(0);
static COUNTED: OnceLock<bool> = OnceLock::new();

// A forked child has this thread alone: nobody else counts.
extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How many forks lead to this process from the one that asked first; `None` where the system keeps no count.
///
/// A process and one that was forked from it never have equal numbers. The C library's `fork`, which every language uses, is counted; a bare
/// `clone` is not.
///
/// ```
/// let before = comity::tools::forks();
/// assert_eq!(comity::tools::forks(), before); // still the same process
/// ```
#[inline]
pub fn forks() -> Option<u32> {
    // SAFETY: the function lives for ever, touches one atomic number only, and does not unwind.
    let counted = COUNTED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) } == 0);
    counted.then(|| FORKS.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_counts_one_more() {
        let here = forks();
        assert!(here.is_some() && forks() == here);
        // SAFETY: the child calls nothing but `_exit`, and reads one atomic number.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let more = forks().is_some_and(|n| Some(n) != here);
            // SAFETY: ends the child, and nothing else.
            unsafe { libc::_exit(i32::from(!more)) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw the parent's number");
        assert_eq!(forks(), here);
    }
}
