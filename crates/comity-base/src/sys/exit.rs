//! Work that remains when the process ends by itself.

use std::{
    ffi::{c_int, c_void},
    io,
};

// SAFETY: the C library has `atexit` with this signature.
unsafe extern "C" {
    // Nothing about this C function can be used wrongly from safe code: the argument's type says that
    // the function lives for ever, and an `extern "C"` function does not unwind.
    safe fn atexit(run: extern "C" fn()) -> c_int;
    fn fflush(stream: *mut c_void) -> c_int;
    safe fn _exit(code: c_int) -> !;
}

/// End the process with `code`, whatever code it was to end with. For the last thing that runs when it exits: what the C library has not
/// written yet is written, nothing else is done.
pub fn end_with(code: c_int) -> ! {
    // SAFETY: null stands for all streams.
    unsafe { fflush(std::ptr::null_mut()) };
    _exit(code)
}

/// Run `run` when the process returns from main or calls exit.
pub fn at_exit(run: extern "C" fn()) -> io::Result<()> {
    if atexit(run) == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}
