//! Descriptors that the parent process left open for this one.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
};

/// A duplicate of descriptor `fd`, which a variable named; the original stays open.
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: `fd` is not -1, which is all that the type's layout asks. It is used for one dup
    // only, and the system answers EBADF when nobody opened it. Nothing in this process owns it:
    // the parent left it open and named it in the environment.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(rustix::io::fcntl_dupfd_cloexec(borrowed, 3)?)
}
