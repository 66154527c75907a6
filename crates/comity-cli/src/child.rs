//! A command with a deadline, whose output is kept from its end.
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{self, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Bytes of an output that are kept, about.
const KEPT: usize = 64 << 10;
/// Between two looks at a command.
const LOOK: Duration = Duration::from_millis(10);
/// Until the output of a command that has ended is closed: something that it left behind may hold it.
const CLOSED: Duration = Duration::from_secs(1);

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct CommandEnd {
    /// The exit code; 128 and the number of the signal that ended it.
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
    /// The deadline, if it passed.
    pub(crate) late: Option<Duration>,
}

impl CommandEnd {
    /// Both outputs, the errors last.
    pub(crate) fn text(&self) -> String {
        [self.out.trim_end(), self.err.trim_end()].join("\n").trim().to_owned()
    }
}

/// Runs a command to its end, or to its deadline: then it is asked to end, and after `grace` it is made to.
pub(crate) fn run(mut command: Command, limit: Duration, grace: Duration) -> io::Result<CommandEnd> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (closed, readers) = mpsc::channel();
    let out = follow(child.stdout.take(), closed.clone());
    let err = follow(child.stderr.take(), closed);
    let late = match ended(&mut child, limit)? {
        Some(_) => None,
        None => {
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                // It may have ended meanwhile.
                let _ = kill_process(pid, Signal::TERM);
            }
            if ended(&mut child, grace)?.is_none() {
                let _ = child.kill();
            }
            Some(limit)
        }
    };
    let status = child.wait()?;
    // WAIT(CLOSED): both readers drop their end, or something else holds the output open
    let _ = readers.recv_timeout(CLOSED);
    Ok(CommandEnd { code: code(status), out: text(&out), err: text(&err), late })
}

/// Waits for its end, for so long; none where it still runs.
pub(crate) fn ended(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + limit;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= until {
            return Ok(status);
        }
        // WAIT(until): the end of the command
        thread::sleep(LOOK);
    }
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Keeps the end of an output as it comes. `closed` is dropped when there is no more.
fn follow(from: Option<impl Read + Send + 'static>, closed: mpsc::Sender<()>) -> Arc<Mutex<Vec<u8>>> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let Some(mut from) = from else { return kept };
    let all = Arc::clone(&kept);
    thread::spawn(move || {
        let _until_the_end = closed;
        let mut part = [0; 8192];
        while let Ok(n @ 1..) = from.read(&mut part) {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend_from_slice(&part[..n]);
            if all.len() > 2 * KEPT {
                let from = all.len() - KEPT;
                all.drain(..from);
            }
        }
    });
    kept
}

/// The text, as far as it may go to a terminal.
fn text(kept: &Mutex<Vec<u8>>) -> String {
    let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let plain = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    String::from_utf8_lossy(&kept).chars().filter(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: u64) -> CommandEnd {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, Duration::from_millis(limit), Duration::from_millis(200)).unwrap()
    }

    #[test]
    fn a_command_is_heard_and_ends_by_its_deadline() {
        let ended = sh("echo a; echo b >&2; exit 3", 20_000);
        assert_eq!((ended.code, ended.text().as_str(), ended.late), (3, "a\nb", None));
        // On a busy machine a shell takes its time to start.
        let is_killed = |limit| {
            let ended = sh("trap '' TERM; echo begun; while :; do sleep 0.05; done", limit);
            assert!(ended.late.is_some());
            (ended.code, ended.out.as_str()) == (137, "begun\n")
        };
        assert!([100, 1000, 10_000].into_iter().any(is_killed));
        assert!(run(Command::new("no-such-program"), CLOSED, CLOSED).is_err());
    }

    #[test]
    fn of_a_long_output_the_end_is_kept() {
        let ended = sh(
            "i=0; while [ $i -lt 4000 ]; do echo $i 0123456789012345678901234567890123456789; i=$((i+1)); done; echo end",
            20_000,
        );
        assert!(ended.out.ends_with("\nend\n") && ended.out.len() <= 2 * KEPT, "{}", ended.out.len());
    }
}
