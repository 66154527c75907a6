//! The ends of the ranks in the order in which they happened.
//!
//! SIGCHLD says only that some child ended. An epoll set of process descriptors lists them in the order of
//! their ends, also when several end before anyone looks: that is how the first failure is told from those
//! that followed from it. Where there is none, the ranks' order stands in for it.
use rustix::process::Pid;
use std::io;

#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(crate) struct Deaths {
    epoll: std::os::fd::OwnedFd,
    ranks: Vec<Option<std::os::fd::OwnedFd>>,
}

#[cfg(target_os = "linux")]
impl Deaths {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, ranks: Vec::new() })
    }

    /// Adds a rank: the next one, or one that was started again.
    pub(crate) fn add(&mut self, rank: usize, pid: Pid) {
        use rustix::event::epoll::{self, EventData, EventFlags};
        // An old kernel has none; then SIGCHLD alone must do.
        let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok();
        if let Some(fd) = &fd {
            let _ = epoll::add(&self.epoll, fd, EventData::new_u64(rank as u64), EventFlags::IN);
        }
        match self.ranks.get_mut(rank) {
            Some(known) => *known = fd,
            None => self.ranks.push(fd),
        }
    }

    /// The ranks that have ended, the first one first.
    pub(crate) fn take(&mut self) -> Vec<usize> {
        let mut ended = Vec::new();
        loop {
            let mut events = Vec::with_capacity(256);
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let buffer = rustix::buffer::spare_capacity(&mut events);
            if !matches!(rustix::event::epoll::wait(&self.epoll, buffer, Some(&now)), Ok(n) if n > 0) {
                return ended;
            }
            for event in events {
                let rank = event.data.u64() as usize;
                if let Some(fd) = self.ranks.get_mut(rank).and_then(Option::take) {
                    let _ = rustix::event::epoll::delete(&self.epoll, &fd);
                }
                ended.push(rank);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) struct Deaths;

#[cfg(not(target_os = "linux"))]
impl Deaths {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    pub(crate) fn add(&mut self, _rank: usize, _pid: Pid) {}

    pub(crate) fn take(&mut self) -> Vec<usize> {
        Vec::new()
    }
}
