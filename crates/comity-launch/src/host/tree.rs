//! The processes that descend from this one, also those that left their process group or session; and the ends of ranks in the order in which
//! they happened.
//!
//! SIGCHLD says only that some child ended. An epoll set of process descriptors lists them in the order of their ends, also when several end
//! before anyone looks: that is how the first failure is told from those that followed from it. Where there is none, the ranks' order stands in
//! for it.
use rustix::process::{Pid, Signal};
use std::io;

/// Every living process below this one. Only Linux can tell; elsewhere the list is empty.
pub(crate) fn descendants() -> Vec<Pid> {
    below(rustix::process::getpid(), &processes())
}

/// The children of this process that are stopped, or that have a stopped process below them: a rank may be a shell that waits for
/// what it started. Only Linux can tell; elsewhere the list is empty.
pub(crate) fn stopped() -> Vec<Pid> {
    let all = processes();
    let halted: Vec<Pid> = all.iter().filter(|p| p.stopped).map(|p| p.pid).collect();
    if halted.is_empty() {
        return halted;
    }
    let own = rustix::process::getpid();
    let children = all.iter().filter(|p| p.parent == own).map(|p| p.pid);
    children.filter(|c| halted.contains(c) || below(*c, &all).iter().any(|p| halted.contains(p))).collect()
}

/// A process whose first thread has ended while others of its threads have not looks like one that has ended, and still has
/// children: they are below it all the same.
fn below(top: Pid, all: &[Process]) -> Vec<Pid> {
    let mut found = vec![(top, false)];
    let mut at = 0;
    while let Some(&(parent, _)) = found.get(at) {
        found.extend(all.iter().filter(|p| p.parent == parent).map(|p| (p.pid, p.lives)));
        at += 1;
    }
    found.into_iter().filter(|(_, lives)| *lives).map(|(pid, _)| pid).collect()
}

#[derive(Debug)]
struct Process {
    pid: Pid,
    parent: Pid,
    /// It has not ended, as far as its first thread tells.
    lives: bool,
    /// By a signal, or by a debugger.
    stopped: bool,
}

pub(crate) fn signal(pids: &[Pid], signal: Signal) {
    for &pid in pids {
        // One that has just ended is as good as signalled.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

#[cfg(target_os = "linux")]
fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter_map(|number| {
            let stat = std::fs::read(format!("/proc/{number}/stat")).ok()?;
            let (state, parent) = state(&stat)?;
            let lives = !matches!(state, "Z" | "X" | "x");
            let stopped = matches!(state, "T" | "t");
            Some(Process { pid: Pid::from_raw(number)?, parent, lives, stopped })
        })
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn processes() -> Vec<Process> {
    Vec::new()
}

/// A process's state and parent out of `/proc/N/stat`.
#[cfg(any(target_os = "linux", test))]
fn state(stat: &[u8]) -> Option<(&str, Pid)> {
    // The name before it may hold anything, also spaces and parentheses.
    let after = stat.get(stat.iter().rposition(|&b| b == b')')? + 1..)?;
    let mut fields = std::str::from_utf8(after).ok()?.split_ascii_whitespace();
    Some((fields.next()?, Pid::from_raw(fields.next()?.parse().ok()?)?))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_read_past_any_name() {
        assert_eq!(state(b"12 (a) S) ) R 7 12 12 0"), Some("R").zip(Pid::from_raw(7)));
        assert_eq!(state(b"12 (sh) Z 7 12"), Some("Z").zip(Pid::from_raw(7)));
        for bad in [&b""[..], b"12", b"12 (sh", b"12 (sh)", b"12 (sh) S", b"12 (sh) S x", b"1 (init) S 0 1"] {
            assert_eq!(state(bad), None);
        }
    }

    #[test]
    fn children_of_a_process_that_is_ending_are_found() {
        let pid = |n| Pid::from_raw(n).unwrap();
        let process = |n, parent, lives| Process { pid: pid(n), parent: pid(parent), lives, stopped: false };
        let all = [process(5, 4, true), process(4, 3, false), process(7, 6, true), process(3, 2, true)];
        assert_eq!(below(pid(2), &all), [pid(3), pid(5)]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_is_found_while_it_lives() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(descendants().contains(&pid) && !stopped().contains(&pid));
        signal(&[pid], Signal::STOP);
        let begun = std::time::Instant::now();
        while !stopped().contains(&pid) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it is not stopped");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        signal(&[pid], Signal::KILL);
        child.wait().unwrap();
        assert!(!descendants().contains(&pid));
    }
}
