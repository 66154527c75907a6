//! The connection to a host: its `ssh`, what is to be sent, what has come.
use super::plan::FleetPlan;
use super::{ssh, stage};
use crate::host::sys;
use crate::machine::{Ending, Problem, REFUSED, USAGE};
use crate::protocol::{FleetOrder, FrameReader, HostEvent, HostHello, Ready, SILENCE};
use rustix::io::Errno;
use rustix::process::Rlimit;
use std::fs::File;
use std::io::{self, Read, Take};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Most bytes kept of the output of `ssh` itself.
const NOISE: usize = 16 << 10;
/// Bytes of this program in one piece.
const COPIED: u64 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostPhase {
    /// No host launcher has answered yet.
    Connecting,
    /// It looks whether it can run its part.
    Preparing,
    Ready,
    Running,
    /// It has ended as it should.
    Done,
    /// It will not run, or is gone.
    Lost,
}

/// A host's `ssh` and the host launcher behind it.
#[derive(Debug)]
pub(super) struct HostConnection {
    child: Child,
    to: Option<OwnedFd>,
    queue: Vec<u8>,
    pub(super) from: Option<OwnedFd>,
    pub(super) err: Option<OwnedFd>,
    /// Output of `ssh` and the login.
    noise: Vec<u8>,
    reader: FrameReader,
    greeted: bool,
    pub(super) phase: HostPhase,
    /// It still has the last piece of input in hand.
    pub(super) fed: bool,
    pub(super) heard: Instant,
    pub(super) hello: Option<HostHello>,
    pub(super) ready: Option<Ready>,
    /// It gets files.
    pub(super) staging: bool,
    /// It has none of this program, and what it is; asked for once.
    pub(super) lacks: Option<String>,
    /// It was answered whether it gets a copy.
    pub(super) asked: bool,
    /// Rest of this program that it still gets.
    copy: Option<Take<File>>,
}

impl HostConnection {
    pub(super) fn start(plan: &FleetPlan, index: usize, open_files: Rlimit) -> Result<Self, Problem> {
        let Some(host) = plan.hosts.get(index) else { return Err(Problem::machine("no such host".into())) };
        let mut command = ssh::command(&plan.ssh_options, &host.host, &ssh::HOST_LAUNCHER);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_owned();
        sys::prepare(&mut command, Vec::new(), open_files, sys::TerminalPlace::Group, None);
        let fail = |e: io::Error| {
            let is_absent = matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied);
            let code = if is_absent { USAGE } else { REFUSED };
            Problem { why: format!("host {}: cannot start '{}': {e}", host.name(), program.display()), code }
        };
        let mut child = command.spawn().map_err(fail)?;
        let gone = || fail(io::Error::other("no pipe"));
        let to: OwnedFd = child.stdin.take().ok_or_else(gone)?.into();
        let from: OwnedFd = child.stdout.take().ok_or_else(gone)?.into();
        let err: OwnedFd = child.stderr.take().ok_or_else(gone)?.into();
        for fd in [&to, &from, &err] {
            rustix::io::ioctl_fionbio(fd, true).map_err(|e| fail(e.into()))?;
        }
        Ok(Self {
            child,
            to: Some(to),
            queue: Vec::new(),
            from: Some(from),
            err: Some(err),
            noise: Vec::new(),
            reader: FrameReader::default(),
            greeted: false,
            phase: HostPhase::Connecting,
            fed: false,
            heard: Instant::now(),
            hello: None,
            ready: None,
            staging: false,
            lacks: None,
            asked: false,
            copy: None,
        })
    }

    /// Descriptor to write to, where there is something to send.
    pub(super) fn wants_out(&self) -> Option<&OwnedFd> {
        self.to.as_ref().filter(|_| !self.queue.is_empty() || self.copy.is_some())
    }

    pub(super) fn send(&mut self, order: &FleetOrder) {
        // Before a host launcher has answered none may be there, but a shell that takes what comes for a part of this program.
        if !self.greeted {
            return;
        }
        // Who takes nothing is about to be missed; beats for it need no memory.
        if *order == FleetOrder::Beat && !self.queue.is_empty() {
            return;
        }
        if self.to.is_some() && !matches!(self.phase, HostPhase::Done | HostPhase::Lost) {
            self.queue.extend_from_slice(&order.encode());
            self.flush();
        }
    }

    pub(super) fn flush(&mut self) {
        self.refill();
        while let (Some(to), false) = (&self.to, self.queue.is_empty()) {
            match rustix::io::write(to, &self.queue) {
                Ok(n) => {
                    drop(self.queue.drain(..n));
                    if self.copy.is_some() {
                        self.heard = Instant::now();
                    }
                    self.refill();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.close(),
            }
        }
    }

    /// Answers a host that lacks this program: it gets this copy, or nothing.
    pub(super) fn answer_lack(&mut self, copy: Option<(File, u64)>) {
        let size = copy.as_ref().map_or(0, |(_, size)| *size);
        self.asked = true;
        self.queue.extend_from_slice(format!("{size}\n").as_bytes());
        self.staging = copy.is_some();
        self.heard = Instant::now();
        self.copy = copy.map(|(file, size)| file.take(size));
        self.flush();
    }

    /// The next piece of what is copied, when the one before has gone.
    fn refill(&mut self) {
        let (Some(copy), true) = (&mut self.copy, self.queue.is_empty()) else { return };
        match copy.by_ref().take(COPIED).read_to_end(&mut self.queue) {
            Ok(n) if n > 0 => {}
            Ok(_) if copy.limit() == 0 => self.copy = None,
            // The file became shorter: a host that waits for more sees the end of the connection.
            _ => self.close(),
        }
    }

    /// Returns whether it takes longer than it may.
    pub(super) fn is_late(&self, since: Instant, limit: Duration) -> bool {
        // One that gets files is heard.
        let since = if self.staging { self.heard } else { since };
        since.elapsed() > limit
    }

    /// Ends what is on the other side, if it still is.
    pub(super) fn close(&mut self) {
        self.to = None;
        self.copy = None;
        self.queue.clear();
    }

    pub(super) fn read_noise(&mut self, buffer: &mut [u8]) {
        let Some(err) = &self.err else { return };
        match rustix::io::read(err, &mut *buffer) {
            Ok(n) if n > 0 => {
                self.noise.extend_from_slice(&buffer[..n]);
                let over = self.noise.len().saturating_sub(NOISE);
                self.noise.drain(..over);
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            _ => self.err = None,
        }
    }

    /// Reads once; what the host launcher said, or why it says no more.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<Vec<HostEvent>, String> {
        let Some(from) = &self.from else { return Ok(Vec::new()) };
        match rustix::io::read(from, &mut *buffer) {
            Ok(n) if n > 0 => {
                self.heard = Instant::now();
                self.reader.push(&buffer[..n]);
            }
            Err(Errno::INTR | Errno::AGAIN) => return Ok(Vec::new()),
            _ => {
                self.from = None;
                return Err(String::new());
            }
        }
        if !self.greeted {
            match self.reader.greeting() {
                Some(_) => self.greeted = true,
                None if self.lacks.is_none() && stage::lacking(self.reader.rest()).is_some() => {
                    self.lacks = stage::lacking(self.reader.rest());
                    return Ok(vec![]);
                }
                None if self.reader.rest().len() > NOISE => {
                    return Err("what it prints at login is too long: let ~/.profile and ~/.bashrc print nothing where there is no terminal".into());
                }
                None => return Ok(Vec::new()),
            }
        }
        let mut events = Vec::new();
        while let Some((kind, body)) = self.reader.next()? {
            events.push(HostEvent::decode(kind, body)?);
        }
        Ok(events)
    }

    /// Returns whether a host launcher that has answered has fallen silent.
    pub(super) fn is_silent(&self) -> bool {
        self.greeted && self.from.is_some() && self.heard.elapsed() > SILENCE
    }

    /// Output of `ssh` and its end, as a sentence for a host that did not come to run.
    pub(super) fn why_not(&mut self, host: &str) -> String {
        let mut buffer = [0; 4096];
        // It says its last words and ends right after its output does.
        for _ in 0..20 {
            self.read_noise(&mut buffer);
            if self.err.is_none() && self.ended().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let said = String::from_utf8_lossy(&self.noise).into_owned();
        let code = match self.ended() {
            Some(ending) => format!("ssh {ending}"),
            None => "ssh still runs".into(),
        };
        ssh::explained(host, &said, &code)
    }

    /// The last line that `ssh` said of a connection that broke.
    pub(super) fn last_words(&self) -> Option<String> {
        let said = String::from_utf8_lossy(&self.noise).into_owned();
        let last = said.lines().rfind(|l| !l.trim().is_empty())?.trim().to_owned();
        Some(comity_cluster::printable(&last, 300))
    }

    pub(super) fn ended(&mut self) -> Option<Ending> {
        Ending::of_raw(self.child.try_wait().ok()??.into_raw())
    }

    pub(super) fn kill(&mut self) {
        self.close();
        let _ = self.child.kill();
    }
}
