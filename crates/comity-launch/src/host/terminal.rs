//! `--tty`: a rank with a terminal of its own, and the user's terminal while that rank has it.
use rustix::fs::OFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::{ControlModes, InputModes, LocalModes, OptionalActions, Termios, Winsize};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

/// Ends the job where Ctrl-C goes to the rank: Ctrl-].
pub(crate) const ESCAPE: u8 = 0x1d;

/// The rank that has a terminal, and how large that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankTerminal {
    pub(crate) rank: usize,
    rows: u16,
    columns: u16,
}

impl RankTerminal {
    /// Makes a terminal for `rank`, as large as the user's.
    pub(crate) fn of(rank: usize) -> Self {
        let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
        let size = size.or_else(|_| rustix::termios::tcgetwinsize(rustix::stdio::stdin()));
        let (rows, columns) = size.map_or((24, 80), |s| (s.ws_row.max(2), s.ws_col.max(20)));
        Self { rank, rows, columns }
    }

    /// The launcher's end and the rank's.
    pub(crate) fn open(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
        rustix::pty::grantpt(&ours)?;
        rustix::pty::unlockpt(&ours)?;
        let name = rustix::pty::ptsname(&ours, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = rustix::fs::open(&name, flags, rustix::fs::Mode::empty())?;
        let size = Winsize { ws_row: self.rows, ws_col: self.columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&theirs, size)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok((ours, theirs))
    }
}

/// The user's terminal while each key goes to a rank; dropping it gives it back as it was.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    before: Termios,
    is_raw: Cell<bool>,
}

impl RawTerminal {
    /// None where standard input is no terminal. Only in its foreground, where changing it does not stop this process.
    pub(crate) fn take() -> Option<Self> {
        let before = rustix::termios::tcgetattr(rustix::stdio::stdin()).ok()?;
        let raw = Self { before, is_raw: Cell::new(false) };
        raw.enter();
        Some(raw)
    }

    /// Keys come one by one and mean nothing here. What is written keeps its meaning, for other ranks write lines.
    pub(crate) fn enter(&self) {
        let mut now = self.before.clone();
        now.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
        now.input_modes -= InputModes::IXON | InputModes::ICRNL | InputModes::INLCR | InputModes::IGNCR;
        now.control_modes |= ControlModes::CS8;
        let _ = rustix::termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &now);
        self.is_raw.set(true);
    }

    /// Not of a terminal that another job has: that would stop this process, and the other's settings would be lost.
    pub(crate) fn leave(&self) {
        if self.is_raw.replace(false) && !in_background() {
            let _ = rustix::termios::tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &self.before);
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns whether standard input is this process's terminal, and another job is in its foreground: what is typed then is
/// not for this one.
pub(crate) fn in_background() -> bool {
    rustix::termios::tcgetpgrp(rustix::stdio::stdin()).is_ok_and(|group| group != rustix::process::getpgrp())
}
