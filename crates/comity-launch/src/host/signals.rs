//! Signals as descriptors to poll.
use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::os::unix::net::UnixStream;

/// A signal that means something to the ranks' program, and nothing to the launcher: each rank gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PassedSignal {
    User1,
    User2,
    Quit,
}

impl PassedSignal {
    pub(crate) const ALL: [Self; 3] = [Self::User1, Self::User2, Self::Quit];

    pub(crate) fn signal(self) -> Signal {
        match self {
            Self::User1 => Signal::USR1,
            Self::User2 => Signal::USR2,
            Self::Quit => Signal::QUIT,
        }
    }

    /// None for another signal.
    pub(crate) fn of(signal: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|passed| passed.signal().as_raw() == signal)
    }
}

/// From here on, these signals no longer do what they do by default.
#[derive(Debug)]
pub(crate) struct Signals {
    pipes: Vec<(i32, UnixStream)>,
}

impl Signals {
    /// SIGCHLD, those by which a user ends a job, those for the ranks, and `more`, less those that this process was started to
    /// ignore (nohup).
    pub(crate) fn open(more: &[i32]) -> io::Result<Self> {
        let passed = PassedSignal::ALL.map(|passed| passed.signal().as_raw());
        let all: Vec<i32> =
            [SIGCHLD, SIGINT, SIGTERM, SIGHUP].iter().chain(&passed).chain(more).copied().collect();
        let _held = crate::host::sys::HeldSignals::hold(all.iter().copied());
        Self::register(&all)
    }

    fn register(all: &[i32]) -> io::Result<Self> {
        let mut pipes = Vec::new();
        for &signal in all {
            if signal != SIGCHLD && crate::host::sys::is_ignored(signal) {
                continue;
            }
            let (pipe, end) = UnixStream::pair()?;
            pipe.set_nonblocking(true)?;
            signal_hook::low_level::pipe::register(signal, end)?;
            pipes.push((signal, pipe));
        }
        Ok(Self { pipes })
    }

    pub(crate) fn wants(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.pipes.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN))
    }

    /// The signals that came since the last call, each once.
    pub(crate) fn take(&self) -> Vec<i32> {
        let mut sink = [0; 64];
        let came = |pipe: &UnixStream, sink: &mut [u8]| {
            let mut any = false;
            while matches!(rustix::io::read(pipe, &mut *sink), Ok(n) if n > 0) {
                any = true;
            }
            any
        };
        self.pipes.iter().filter(|(_, pipe)| came(pipe, &mut sink)).map(|(signal, _)| *signal).collect()
    }
}
