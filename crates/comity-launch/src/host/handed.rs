//! A few bytes that ranks inherit as an open file, so that they are in no argument, variable or directory.
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// Below it are the numbers that shell scripts use for themselves.
const LOWEST: RawFd = 100;

/// An open file that holds what it was made with.
#[derive(Debug)]
pub(crate) struct HandedFile {
    fd: OwnedFd,
    /// Path of the file, which stays until the job ends: an inherited descriptor cannot be opened anew without it.
    #[cfg(not(target_os = "linux"))]
    name: Option<tempfile::TempPath>,
}

impl HandedFile {
    #[cfg(test)]
    pub(crate) fn file(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads bytes that ranks have written at offset `at`.
    pub(crate) fn read(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(&self.fd, buffer, at)?)
    }

    /// Writes zeros over what ranks have written.
    pub(crate) fn clear(&self) -> io::Result<()> {
        let length = rustix::fs::fstat(&self.fd)?.st_size;
        rustix::io::pwrite(&self.fd, &vec![0; usize::try_from(length).unwrap_or(0)], 0)?;
        Ok(())
    }

    /// The number under which a rank has it.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(target_os = "linux")]
impl HandedFile {
    /// Without any name in a file system.
    pub(crate) fn secret(bytes: &[u8]) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
        let mut file = File::from(nameless(MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.write_all(bytes)?;
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { fd: raise(file)? })
    }

    /// To be opened by [`path`](Self::path).
    pub(crate) fn readable(bytes: &[u8]) -> io::Result<Self> {
        Self::secret(bytes)
    }

    /// To be written by the ranks: so many zeros.
    pub(crate) fn writable(length: u64) -> io::Result<Self> {
        use rustix::fs::MemfdFlags;
        let file = File::from(nameless(MemfdFlags::CLOEXEC)?);
        file.set_len(length)?;
        Ok(Self { fd: raise(file)? })
    }

    /// Opens anew, from the first byte, in every process that has inherited the descriptor.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd())
    }
}

/// A file in memory.
#[cfg(target_os = "linux")]
fn nameless(flags: rustix::fs::MemfdFlags) -> io::Result<OwnedFd> {
    rustix::fs::memfd_create("comity", flags)
        .map_err(|e| comity::tools::refused_call("memfd_create", "to hand ranks the job's key", e))
}

#[cfg(not(target_os = "linux"))]
impl HandedFile {
    /// Without any name in a file system.
    pub(crate) fn secret(bytes: &[u8]) -> io::Result<Self> {
        Ok(Self { name: None, ..Self::readable(bytes)? })
    }

    /// To be written by the ranks: so many zeros.
    pub(crate) fn writable(length: u64) -> io::Result<Self> {
        Self::secret(&vec![0; usize::try_from(length).unwrap_or(0)])
    }

    /// To be opened by [`path`](Self::path).
    pub(crate) fn readable(bytes: &[u8]) -> io::Result<Self> {
        let mut named = tempfile::Builder::new().prefix("comity-").tempfile()?;
        named.write_all(bytes)?;
        let (file, name) = named.into_parts();
        Ok(Self { fd: raise(file)?, name: Some(name) })
    }

    /// The file's path, while this value lives.
    pub(crate) fn path(&self) -> String {
        self.name.as_ref().map(|n| n.display().to_string()).unwrap_or_default()
    }
}

/// The same file under a number that is out of the way, unless the limit of open files is too low for that.
pub(crate) fn raise(file: File) -> io::Result<OwnedFd> {
    let dup = |lowest| rustix::io::fcntl_dupfd_cloexec(file.as_fd(), lowest);
    Ok(dup(LOWEST).or_else(|_| dup(3))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_can_be_read_again_and_not_written() {
        let handed = HandedFile::readable(b"some bytes").unwrap();
        assert!(handed.fd() >= LOWEST);
        for _ in 0..2 {
            assert_eq!(std::fs::read(handed.path()).unwrap(), b"some bytes");
        }
        if cfg!(target_os = "linux") {
            assert!(rustix::io::pwrite(&handed.fd, b"x", 0).is_err());
        }
    }
}
