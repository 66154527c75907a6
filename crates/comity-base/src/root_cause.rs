//! Word to the launcher of which rank is the root cause of a group's failure, as this rank knows.
//!
//! A rank that exits is missed by its peers before its process has ended, so one of them may be gone first, with the error
//! that it got for a reason. Each rank's entry here lets the launcher tell such a consequence from the root cause. The file is memory that
//! all ranks of a launcher inherit, a number of four bytes for each: the rank that is the root cause, and one.

use crate::sys;
use rustix::fs::{Stat, fstat};
use std::{io, os::fd::RawFd};

/// This rank's place in the launcher's file. It holds no descriptor of its own: the inherited one is there, unless the program has closed it.
#[derive(Clone, Debug)]
pub struct RootCauseReport {
    fd: RawFd,
    /// Identity of the file: the program may have opened another one under that number.
    file: (u64, u64),
    /// In the job.
    rank: usize,
}

impl RootCauseReport {
    /// The file behind an inherited descriptor.
    pub fn from_fd(fd: RawFd, rank: usize) -> io::Result<Self> {
        Ok(Self { fd, file: number(&fstat(sys::inherited(fd)?)?), rank })
    }

    /// It was rank `culprit` of the job. The file is not needed for anything else, so what goes wrong is only logged.
    pub fn tell(&self, culprit: usize) {
        if culprit != self.rank
            && let Err(e) = self.write(culprit)
        {
            tracing::warn!(error = %e, "the launcher was not told who failed");
        }
    }

    fn write(&self, culprit: usize) -> io::Result<()> {
        let word = u32::try_from(culprit).unwrap_or(u32::MAX).saturating_add(1).to_ne_bytes();
        let file = sys::inherited(self.fd)?;
        if number(&fstat(&file)?) != self.file {
            return Err(io::Error::other("the program has put another file in the place of the launcher's"));
        }
        rustix::io::pwrite(&file, &word, self.rank as u64 * word.len() as u64)?;
        Ok(())
    }
}

fn number(file: &Stat) -> (u64, u64) {
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)] // Other systems have other types.
    (file.st_dev as u64, file.st_ino as u64)
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

    #[test]
    fn another_file_under_its_number_is_left_alone() {
        let memory = || rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = memory();
        let other = memory();
        let report = RootCauseReport::from_fd(file.as_raw_fd(), 0).unwrap();
        rustix::io::dup2(&other, &mut file).unwrap();
        report.tell(1);
        assert_eq!(rustix::io::pread(&other, &mut [0; 4], 0), Ok(0));
    }
}
