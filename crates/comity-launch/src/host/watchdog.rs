//! The two processes of a launcher, which stand guard over each other.
//!
//! The [front end](front_end) is the one that the user started: it takes
//! the signals and the standard input of the terminal. The [supervisor](super::supervisor) is its child in a session of its
//! own: it starts the ranks, carries their lines, and ends them. The front end's death closes a socket that the
//! supervisor polls; the supervisor's death makes its children the front end's (both are "subreapers" on Linux). So
//! whichever of the two is killed, the other one is an ancestor of every process of the job, also of those
//! that left their process group, and ends them.
use crate::host::{front_end, signals, sys};
use crate::machine::Problem;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// Runs `supervise` in a process of its own, which the front end watches; `keys`: a rank gets each key of the terminal.
pub(crate) fn guarded(keys: bool, supervise: impl FnOnce(UnixStream, OwnedFd) -> u8) -> Result<u8, Problem> {
    let no_pipe = |e: io::Error| Problem::machine(format!("cannot make a pipe: {e}"));
    let (to_keeper, to_front) = UnixStream::pair().map_err(no_pipe)?;
    let (input, relay) = io::pipe().map_err(no_pipe)?;
    // The ranks may run before the front end has set its handlers.
    let passed = signals::PassedSignal::ALL.map(|passed| passed.signal().as_raw());
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
            Ok(front_end::watch(supervisor, to_keeper, (relay.into(), keys), held))
        }
        Err(e) => Err(Problem::machine(format!("cannot start a second process: {e}"))),
    }
}
