//! A communicator under way.
//!
//! Making one is the one call that waits for other ranks in MPI, for as long as they take. So it runs on a thread, which is left
//! behind when the caller gives up.

use crate::{
    Error, Result,
    sys::mpi::{Mpi, MpiHandle},
};
use std::{
    io,
    thread::{self, JoinHandle},
};

/// A communicator that a thread of its own makes. If it is dropped before it is finished, it stays in MPI, which then does not end cleanly.
#[derive(Debug)]
pub(super) struct CommunicatorMaker<H: MpiHandle> {
    mpi: &'static Mpi<H>,
    thread: Option<JoinHandle<Result<H>>>,
}

impl<H: MpiHandle> CommunicatorMaker<H> {
    pub(super) fn start(
        mpi: &'static Mpi<H>,
        make: impl FnOnce() -> Result<H> + Send + 'static,
    ) -> Result<Self> {
        let thread = thread::Builder::new().name("comity-mpi-comm".into()).spawn(make);
        let thread = thread.map_err(|e| Error::os("starting a thread", e))?;
        Ok(Self { mpi, thread: Some(thread) })
    }

    /// Returns true if [`finish`](Self::finish) returns at once.
    pub(super) fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The communicator, once it is made.
    pub(super) fn finish(mut self) -> Result<H> {
        let lost = || Error::os("making an MPI communicator", io::Error::other("its thread panicked"));
        // WAIT: a thread that has ended: callers ask `is_done` first
        self.thread.take().and_then(|t| t.join().ok()).unwrap_or_else(|| Err(lost()))
    }
}

impl<H: MpiHandle> Drop for CommunicatorMaker<H> {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.mpi.spoil();
        }
    }
}
