//! Forked children share their parent's connections, which are not theirs to use.

use crate::errors;
use pyo3::prelude::*;
use std::process;

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home(u32);

impl Home {
    pub(crate) fn here() -> Self {
        Self(process::id())
    }

    pub(crate) fn is_here(self) -> bool {
        self.0 == process::id()
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
                self.0,
                process::id()
            ),
            None,
            None,
            None,
        ))
    }
}
