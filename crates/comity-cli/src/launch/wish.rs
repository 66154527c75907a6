//! Wishes that the front end passes on from the terminal, as the process behind it hears them.
use super::ALL_STOPPED;
use super::shutdown::StopReason;
use super::signals::PassedSignal;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// Wish of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UserWish {
    /// Ctrl-Z; to be answered by [`FrontLine::all_stopped`].
    Stop,
    Continue,
    /// To the ranks.
    Pass(PassedSignal),
    End(StopReason),
}

/// The line to the front end.
#[derive(Debug)]
pub(super) struct FrontLine(Option<UnixStream>);

impl FrontLine {
    pub(super) fn new(line: UnixStream) -> io::Result<Self> {
        line.set_nonblocking(true)?;
        Ok(Self(Some(line)))
    }

    /// None when the front end is gone.
    pub(super) fn socket(&self) -> Option<&UnixStream> {
        self.0.as_ref()
    }

    /// Takes the signals that the front end passes on, or notices its end.
    pub(super) fn listen(&mut self) -> Vec<UserWish> {
        let Some(mut line) = self.0.as_ref() else { return Vec::new() };
        let mut bytes = [0; 64];
        match line.read(&mut bytes) {
            Ok(n) if n > 0 => bytes[..n].iter().map(|&signal| wish(signal.into())).collect(),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Vec::new()
            }
            _ => {
                self.0 = None;
                vec![UserWish::End(StopReason::Orphaned)]
            }
        }
    }

    /// Tells it a process to end if this one cannot.
    pub(super) fn tell(&self, number: i32) {
        if let Some(mut line) = self.0.as_ref() {
            let _ = line.write(&number.to_ne_bytes());
        }
    }

    pub(super) fn all_stopped(&self) {
        self.tell(ALL_STOPPED);
    }
}

/// The wish that a signal to the launcher stands for.
pub(super) fn wish(signal: i32) -> UserWish {
    match (signal, PassedSignal::of(signal)) {
        (libc::SIGTSTP, _) => UserWish::Stop,
        (libc::SIGCONT, _) => UserWish::Continue,
        (_, Some(passed)) => UserWish::Pass(passed),
        (signal, None) => UserWish::End(StopReason::Interrupted { signal }),
    }
}
