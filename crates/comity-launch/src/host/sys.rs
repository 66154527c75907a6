//! Calls of the launcher that need `unsafe`: fork, the moment between fork and exec of a rank, signal dispositions.
#![allow(unsafe_code, reason = "fork, and signals to process groups")]
use crate::host::bind::ProcessorSet;
use rustix::io::FdFlags;
use rustix::process::{Pid, Resource, Rlimit};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) enum Fork {
    Parent(Pid),
    Child,
}

/// Splits the process in two. Only called while there is one thread.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: no other thread exists (see `run`), so the child finds every lock free and may run any code.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid).map_or(Fork::Child, Fork::Parent)),
    }
}

/// Place of a process among those of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminalPlace {
    /// In a process group of its own.
    Group,
    /// In a session of its own, whose terminal is its standard input.
    Terminal,
}

/// Prepares a rank, or ssh: its standing, the processors that it may use if not all, death with the supervisor, these descriptors kept open, and
/// this limit of open files.
pub(crate) fn prepare(
    command: &mut Command,
    keep: Vec<RawFd>,
    open_files: Rlimit,
    standing: TerminalPlace,
    place: Option<ProcessorSet>,
) {
    if standing == TerminalPlace::Group {
        command.process_group(0);
    }
    #[cfg(target_os = "linux")]
    let supervisor = rustix::process::getpid();
    let before_exec = move || {
        #[cfg(target_os = "linux")]
        {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The supervisor may have died before that line.
            if rustix::process::getppid() != Some(supervisor) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        if standing == TerminalPlace::Terminal {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        #[cfg(target_os = "linux")]
        if let Some(place) = &place {
            rustix::thread::sched_setaffinity(None, place)?;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = &place;
        rustix::process::setrlimit(Resource::Nofile, open_files)?;
        for &fd in &keep {
            // SAFETY: the owners of these descriptors outlive the call of `spawn` that runs this closure.
            rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls (prctl, getppid, sched_setaffinity, setsid, ioctl, setrlimit, fcntl) and allocates nothing, so it is fit
    // to run between fork and exec.
    unsafe { command.pre_exec(before_exec) };
}

pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero is a valid `sigaction`, which the call then fills; no disposition is changed.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}

/// Does what SIGTSTP does by default, and returns when SIGCONT has come: at once where no shell could send one, for then the
/// system ignores SIGTSTP.
pub(crate) fn stop_this_process() {
    // SAFETY: both actions are valid: all-zero is the default one with an empty mask, and `old` is what the system gave for this
    // signal. `raise` acts on this process only.
    unsafe {
        let plain: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGTSTP, &raw const plain, &raw mut old) == 0 {
            libc::raise(libc::SIGTSTP);
            libc::sigaction(libc::SIGTSTP, &raw const old, std::ptr::null_mut());
        }
    }
}

/// Makes a read of the terminal from the background an error instead of a stop.
pub(crate) fn block_background_stop() {
    // SAFETY: the set is initialised by `sigemptyset` before it is used; only this thread's mask changes.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTTIN);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Signals that are held back for this thread until it is dropped; what came meanwhile comes then. One that comes while its handler is
/// being set could be lost, and one that comes before does what it does by default.
pub(crate) struct HeldSignals {
    before: libc::sigset_t,
}

impl HeldSignals {
    pub(crate) fn hold(signals: impl IntoIterator<Item = i32>) -> Self {
        // SAFETY: both sets are initialised here before they are used; only this thread's mask changes.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in signals {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: `before` is the mask that the system gave in `hold`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}

pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
