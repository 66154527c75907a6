//! Guard around the work of each function of the interface: panics end here, and results become a status.

use crate::{errors::CFault, types::comity_status};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Do `f`; its error, or that of its panic, is what this thread's caller can ask for next.
#[inline]
pub(crate) fn answer(f: impl FnOnce() -> Result<(), CFault>) -> comity_status {
    status(|| f().map(|()| comity_status::COMITY_OK))
}

/// The same, where there is more than one way to go well.
#[inline]
pub(crate) fn status(f: impl FnOnce() -> Result<comity_status, CFault>) -> comity_status {
    // What is behind handles stays usable after a panic: groups fail by themselves, and locks are taken over.
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(status)) => status,
        Ok(Err(fault)) => fault.keep(),
        Err(panic) => CFault::panicked(&*panic).keep(),
    }
}

/// The same for a function that answers a value; `wrong` where there is none.
#[inline]
pub(crate) fn value<T>(wrong: T, f: impl FnOnce() -> Result<T, CFault>) -> T {
    let mut value = wrong;
    answer(|| {
        value = f()?;
        Ok(())
    });
    value
}
