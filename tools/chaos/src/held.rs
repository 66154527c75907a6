//! Resources that a process holds, to be compared with what it held before.

use std::fs;

/// Resources of one process, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory; 0 where it is not known.
    pub kib: usize,
}

impl Held {
    /// By a process, as `/proc` has it.
    pub fn by(pid: u32) -> Self {
        let count = |of: &str| fs::read_dir(format!("/proc/{pid}/{of}")).map_or(0, Iterator::count);
        let sizes = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let pages = sizes.split(' ').nth(1).and_then(|p| p.parse::<usize>().ok()).unwrap_or(0);
        Self {
            descriptors: count("fd"),
            threads: count("task"),
            kib: pages * rustix::param::page_size() / 1024,
        }
    }

    /// More than before and these.
    pub fn exceeds(self, before: Self, more: Self) -> bool {
        self.descriptors > before.descriptors + more.descriptors
            || self.threads > before.threads + more.threads
            || self.kib > before.kib + more.kib
    }
}
