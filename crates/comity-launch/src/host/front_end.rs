//! The two processes of a launcher, which stand guard over each other.
//!
//! The front end is the one that the user started: it hands the terminal's signals and standard input on to the
//! [supervisor](super::supervisor), and finishes what that could not if it is killed. The supervisor is its child in a session of its
//! own: it starts the ranks, carries their lines, and ends them. The front end's death closes a socket that the
//! supervisor polls; the supervisor's death makes its children the front end's (both are "subreapers" on Linux). So
//! whichever of the two is killed, the other one is an ancestor of every process of the job, also of those
//! that left their process group, and ends them.
use crate::host::signals::{PassedSignal, Signals};
use crate::host::terminal::{ESCAPE, RawTerminal, in_background};
use crate::host::{sys, tree};
use crate::machine::{Ending, Problem, REFUSED};
use comity_base::sys::poll_until;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Answer of the supervisor to SIGTSTP, in the place of a process's number.
pub(crate) const ALL_STOPPED: i32 = 0;

/// Interval of looks whether a terminal in whose background this process runs is in its foreground now.
const FOREGROUND: Duration = Duration::from_secs(1);
/// Time that the supervisor has to stop the ranks.
const HALT: Duration = Duration::from_secs(1);
/// Time that processes have to vanish once the supervisor was killed.
const VANISH: Duration = Duration::from_secs(2);

/// Waits for the supervisor's end and returns the exit code.
fn watch(supervisor: Pid, line: UnixStream, (relay, keys): (OwnedFd, bool), held: sys::HeldSignals) -> u8 {
    let ready = || -> io::Result<Signals> {
        #[cfg(target_os = "linux")]
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        line.set_nonblocking(true)?;
        rustix::io::ioctl_fionbio(&relay, true)?;
        Signals::open(&[libc::SIGTSTP])
    };
    let signals = ready();
    drop(held);
    sys::block_background_stop();
    match signals {
        Ok(signals) => {
            let keys = if keys && !in_background() { RawTerminal::take() } else { None };
            let piece = Vec::new();
            let ranks = Vec::new();
            FrontEnd { supervisor, line, relay: Some(relay), piece, signals, ranks, keys }.run()
        }
        Err(e) => {
            // The supervisor sees the line close and ends.
            eprintln!("comity launch: cannot watch the job: {e}");
            REFUSED
        }
    }
}

struct FrontEnd {
    supervisor: Pid,
    line: UnixStream,
    /// Leads to the supervisor's standard input; None after the end of ours.
    relay: Option<OwnedFd>,
    /// Bytes that were read and not yet taken.
    piece: Vec<u8>,
    signals: Signals,
    /// The process groups of the ranks, as the supervisor tells them.
    ranks: Vec<Pid>,
    /// Each key of the terminal is a rank's.
    keys: Option<RawTerminal>,
}

impl FrontEnd {
    fn run(mut self) -> u8 {
        loop {
            self.turn();
            for signal in self.signals.take() {
                if signal == libc::SIGTSTP {
                    self.suspend();
                } else if signal != libc::SIGCHLD {
                    // Few bytes, and a supervisor that does not take them is about to be missed anyway.
                    let _ = (&self.line).write(&[signal as u8]);
                }
            }
            match rustix::process::waitpid(Some(self.supervisor), WaitOptions::NOHANG) {
                Ok(Some((_, status))) => {
                    if let Some(ending) = Ending::of_raw(status.as_raw()) {
                        return self.finish(ending);
                    }
                }
                Ok(None) | Err(Errno::INTR) => {}
                Err(_) => return REFUSED,
            }
        }
    }

    /// Waits for something and moves input.
    fn turn(&mut self) {
        let stdin = rustix::stdio::stdin();
        let mut pause = None;
        let mut fds = vec![PollFd::new(&self.line, PollFlags::IN)];
        fds.extend(self.signals.wants());
        let signals = fds.len();
        if let Some(relay) = &self.relay {
            if !self.piece.is_empty() {
                fds.push(PollFd::new(relay, PollFlags::OUT));
            } else if in_background() {
                pause = Some(FOREGROUND);
            } else {
                fds.push(PollFd::from_borrowed_fd(stdin, PollFlags::IN));
            }
        }
        if poll_until(&mut fds, pause.map(|pause| Instant::now() + pause)).is_err() {
            return;
        }
        let told = !fds[0].revents().is_empty();
        let input = fds.get(signals).is_some_and(|fd| !fd.revents().is_empty());
        if told {
            self.listen();
        }
        if input {
            self.pass_on();
        }
    }

    /// Notes the ranks of which the supervisor tells.
    fn listen(&mut self) {
        while let Some(number) = self.hear() {
            self.ranks.extend(Pid::from_raw(number));
        }
    }

    fn hear(&self) -> Option<i32> {
        let mut number = [0; 4];
        matches!((&self.line).read(&mut number), Ok(4)).then(|| i32::from_ne_bytes(number))
    }

    /// Ctrl-Z: the ranks, which are in no group of the terminal's session, stop first, and go on after this process.
    fn suspend(&mut self) {
        let _ = (&self.line).write(&[libc::SIGTSTP as u8]);
        let until = Instant::now() + HALT;
        // The shell shows its prompt when this process stops; what the ranks have written comes before it.
        loop {
            match self.hear() {
                Some(ALL_STOPPED) => break,
                Some(number) => self.ranks.extend(Pid::from_raw(number)),
                None => {
                    let mut fds = [PollFd::new(&self.line, PollFlags::IN)];
                    let heard = poll_until(&mut fds, Some(until));
                    let is_gone = fds[0].revents().contains(PollFlags::HUP);
                    if is_gone || heard.is_err() || Instant::now() >= until {
                        break;
                    }
                }
            }
        }
        self.keys.iter().for_each(RawTerminal::leave);
        sys::stop_this_process();
        self.keys.iter().filter(|_| !in_background()).for_each(RawTerminal::enter);
        let _ = (&self.line).write(&[libc::SIGCONT as u8]);
    }

    fn pass_on(&mut self) {
        let Some(relay) = &self.relay else { return };
        if self.piece.is_empty() {
            let mut buffer = [0; 16 << 10];
            match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
                Ok(n) if n > 0 => {
                    let ends = self.keys.is_some() && buffer[..n].contains(&ESCAPE);
                    self.piece.extend_from_slice(&buffer[..n]);
                    if ends {
                        let _ = (&self.line).write(&[libc::SIGINT as u8]);
                    }
                }
                Err(Errno::INTR | Errno::AGAIN) => return,
                // Moved to the background between the look and the read.
                Err(Errno::IO) if in_background() => return,
                // The end. A terminal that is gone reads as an error for ever.
                _ => {
                    self.relay = None;
                    return;
                }
            }
        }
        match rustix::io::write(relay, &self.piece) {
            Ok(n) => drop(self.piece.drain(..n)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.relay = None,
        }
    }

    /// The supervisor has ended: by itself, or so that its ranks are left to this process.
    fn finish(mut self, ending: Ending) -> u8 {
        self.keys = None;
        self.listen();
        crate::live::clear(rustix::process::getpid());
        let Ending::Signal(_) = ending else { return ending.code() };
        let since = Instant::now();
        for &rank in &self.ranks {
            if cfg!(not(target_os = "linux")) {
                let _ = rustix::process::kill_process_group(rank, Signal::KILL);
            }
        }
        loop {
            let left = tree::descendants();
            if left.is_empty() || since.elapsed() > VANISH {
                break;
            }
            tree::signal(&left, Signal::KILL);
            while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_))) {}
            std::thread::sleep(Duration::from_millis(5));
        }
        // The terminal may be gone, too.
        let _ = writeln!(
            io::stderr(),
            "comity launch: the launcher's own process {} {ending}; its ranks were killed",
            self.supervisor.as_raw_pid()
        );
        ending.code()
    }
}

/// Runs `supervise` in a process of its own, which the front end watches; `keys`: a rank gets each key of the terminal.
pub(crate) fn guarded(keys: bool, supervise: impl FnOnce(UnixStream, OwnedFd) -> u8) -> Result<u8, Problem> {
    let no_pipe = |e: io::Error| Problem::machine(format!("cannot make a pipe: {e}"));
    let (to_keeper, to_front) = UnixStream::pair().map_err(no_pipe)?;
    let (input, relay) = io::pipe().map_err(no_pipe)?;
    // The ranks may run before the front end has set its handlers.
    let passed = PassedSignal::ALL.map(|passed| passed.signal().as_raw());
    let held = sys::HeldSignals::hold(
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGTSTP].into_iter().chain(passed),
    );
    match sys::fork() {
        Ok(sys::Fork::Child) => {
            drop((to_keeper, relay, held));
            let code = supervise(to_front, input.into());
            // The front end's part of the program must not run a second time here.
            std::process::exit(code.into())
        }
        Ok(sys::Fork::Parent(supervisor)) => {
            drop((to_front, input));
            Ok(watch(supervisor, to_keeper, (relay.into(), keys), held))
        }
        Err(e) => Err(Problem::machine(format!("cannot start a second process: {e}"))),
    }
}
