//! Word to the launcher of which rank is the root cause of a group's failure, as this rank knows.
//!
//! A rank that exits is missed by its peers before its process has ended, so one of them may be gone first, with the error
//! that it got for a reason. What each rank writes here lets the launcher tell such a consequence from the root cause. The file is memory that
//! all ranks of a launcher inherit, a number of four bytes for each: the rank that is the root cause, and one.

use crate::sys;
use std::{
    io,
    os::fd::{OwnedFd, RawFd},
    sync::Arc,
};

/// This rank's place in the launcher's file.
#[derive(Clone, Debug)]
pub(crate) struct RootCauseReport {
    file: Arc<OwnedFd>,
    /// In the job.
    rank: usize,
}

impl RootCauseReport {
    /// The file behind an inherited descriptor.
    pub(crate) fn from_fd(fd: RawFd, rank: usize) -> io::Result<Self> {
        Ok(Self { file: Arc::new(sys::inherited(fd)?), rank })
    }

    /// It was rank `culprit` of the job. The file is not needed for anything else, so what goes wrong is only logged.
    pub(crate) fn tell(&self, culprit: usize) {
        let word = u32::try_from(culprit).unwrap_or(u32::MAX).saturating_add(1).to_ne_bytes();
        if culprit != self.rank
            && let Err(e) = rustix::io::pwrite(&*self.file, &word, self.rank as u64 * word.len() as u64)
        {
            tracing::warn!(error = %e, "the launcher was not told who failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn each_rank_has_a_place_and_none_names_itself() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for (rank, culprit) in [(0, 2), (1, 1), (3, 0)] {
            RootCauseReport::from_fd(file.as_raw_fd(), rank).unwrap().tell(culprit);
        }
        let mut words = [0; 16];
        assert_eq!(rustix::io::pread(&file, &mut words, 0), Ok(16));
        let words: Vec<u32> = words.chunks(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words, [3, 0, 0, 1]);
    }
}
