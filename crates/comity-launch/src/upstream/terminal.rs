//! The process that the user started: it passes on the terminal's signals.
use super::{Order, Upstream};
use crate::host::front_end::ALL_STOPPED;
use rustix::event::{PollFd, PollFlags};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// The line to the front end, until that is gone.
#[derive(Debug)]
pub(crate) struct FrontLine(Option<UnixStream>);

impl FrontLine {
    pub(crate) fn new(line: UnixStream) -> io::Result<Self> {
        line.set_nonblocking(true)?;
        Ok(Self(Some(line)))
    }

    /// Tells it a process to end if this one cannot.
    pub(crate) fn tell(&self, number: i32) {
        if let Some(mut line) = self.0.as_ref() {
            let _ = line.write(&number.to_ne_bytes());
        }
    }

    pub(crate) fn all_stopped(&self) {
        self.tell(ALL_STOPPED);
    }
}

impl Upstream for FrontLine {
    fn want(&self) -> Option<PollFd<'_>> {
        self.0.as_ref().map(|line| PollFd::new(line, PollFlags::IN))
    }

    /// Takes the signals that the front end passes on, or notices its end.
    fn take(&mut self) -> Vec<Order> {
        let Some(mut line) = self.0.as_ref() else { return Vec::new() };
        let mut bytes = [0; 64];
        match line.read(&mut bytes) {
            Ok(n) if n > 0 => bytes[..n].iter().map(|&signal| Order::of_signal(signal.into())).collect(),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Vec::new()
            }
            _ => {
                self.0 = None;
                vec![Order::FrontEndLost]
            }
        }
    }
}
