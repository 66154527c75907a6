//! What is still to be done when the process ends by itself.

use std::{ffi::c_int, io};

// SAFETY: the C library has `atexit` with this signature.
unsafe extern "C" {
    // Nothing about this C function can be used wrongly from safe code: the argument's type says that
    // the function lives for ever, and an `extern "C"` function does not unwind.
    safe fn atexit(run: extern "C" fn()) -> c_int;
}

/// Run `run` when the process returns from main or calls exit.
pub(crate) fn at_exit(run: extern "C" fn()) -> io::Result<()> {
    if atexit(run) == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}
