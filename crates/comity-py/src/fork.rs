//! Forked children share their parent's connections, which are not theirs to use.

use crate::errors;
use comity::tools::forks;
use pyo3::prelude::*;
use std::process;

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    id: u32,
    /// Its count of forks: every call asks, and a system call costs half of a small one.
    forks: Option<u32>,
}

impl Home {
    pub(crate) fn here() -> Self {
        Self { id: process::id(), forks: forks() }
    }

    #[inline]
    pub(crate) fn is_here(self) -> bool {
        match self.forks {
            Some(_) => self.forks == forks(),
            None => self.id == process::id(),
        }
    }

    /// An error in any other process.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(errors::new(
            py,
            "Forked",
            format!(
                "this group belongs to process {}, and process {} was forked from it: a forked child cannot use its parent's connections; start workers with the multiprocessing method \"spawn\", or make the group after the fork",
                self.id,
                process::id()
            ),
            None,
            None,
            None,
        ))
    }
}
