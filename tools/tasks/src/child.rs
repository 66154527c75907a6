//! Child processes: each has a deadline, and none outlives this program, also when it is interrupted.

use crate::family::{descendants, signal, started};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    ffi::OsStr,
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Time that children have to end when asked; `comity launch` gives its ranks 3 s.
const GRACE: Duration = Duration::from_secs(8);
/// The same for a task of this program, which ends children of its own.
const LONG_GRACE: Duration = Duration::from_secs(20);
/// Number of last lines that are shown again of a command that failed, and whose output was shown.
const LAST_LINES: usize = 20;

/// Variables that would put the children into some job.
const JOB: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MLX_RANK",
    "MLX_HOSTFILE",
];

/// From now on the first of these signals ends the children, then fails the task, so that what it made is cleared away.
pub fn catch_signals() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(interrupted()))?;
    }
    Ok(())
}

/// Return whether one of those signals has come.
#[must_use]
pub fn is_interrupted() -> bool {
    interrupted().load(Ordering::Relaxed)
}

fn interrupted() -> &'static Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(Arc::default)
}

/// A command to run to its end.
#[derive(Debug)]
pub struct Task {
    command: Command,
    limit: Duration,
    echo: bool,
    heeds_signals: bool,
    grace: Duration,
}

impl Task {
    /// Its output is kept, not shown; five minutes are its limit.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.current_dir(crate::place::root());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            // Where the deep checks find what others wrote stays.
            let is_ours = ["COMITY_", "OMPI_", "PMI", "SLURM_"].iter().any(|p| text.starts_with(p));
            if JOB.contains(&&*text) || is_ours && !text.ends_with("_SOURCE") {
                command.env_remove(name);
            }
        }
        let limit = Duration::from_secs(300);
        Self { command, limit, echo: false, heeds_signals: true, grace: GRACE }
    }

    /// The cargo that runs this program.
    pub fn cargo() -> Self {
        Self::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
    }

    /// A program that gets, with all that it starts, what time others leave: on Linux none while anything else wants the core.
    pub fn idle(program: impl AsRef<OsStr>) -> Self {
        let (chief, first) =
            if cfg!(target_os = "linux") { ("chrt", ["--idle", "0"]) } else { ("nice", ["-n", "19"]) };
        Self::new(chief).args(first).arg(program)
    }

    /// Lines of `sh`.
    pub fn sh(script: &str) -> Self {
        Self::new("sh").args(["-c", script])
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// More arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Run it in this folder rather than in the workspace's root.
    pub fn folder(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// A variable for it.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// It is ended after so many seconds, with all that it started.
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Show the output while it comes.
    pub fn echo(mut self) -> Self {
        self.echo = true;
        self
    }

    /// For clearing away: also when this program was asked to end.
    pub fn regardless_of_signals(mut self) -> Self {
        self.heeds_signals = false;
        self
    }

    /// It may take longer to end when it is asked to, for it ends children of its own.
    pub fn gentle(mut self) -> Self {
        self.grace = LONG_GRACE;
        self
    }

    /// Run to the end; an exit code other than 0 is an error with the output, or its last lines where it was shown already.
    pub fn run(self) -> Result<String, String> {
        self.start()?.wait()
    }

    /// Start it, and go on.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut self) -> Result<Running, String> {
        let command = self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("cannot start `{self}`: {e}"))?;
        let text = Arc::new(Mutex::new(String::new()));
        let (done, readers) = mpsc::channel();
        if let Some(out) = child.stdout.take() {
            follow(out, self.echo.then(io::stdout), Arc::clone(&text), done.clone());
        }
        if let Some(err) = child.stderr.take() {
            follow(err, self.echo.then(io::stderr), Arc::clone(&text), done);
        }
        let until = Instant::now() + self.limit;
        Ok(Running { task: self, child, text, readers, until })
    }
}

/// Writes the command as one would type it.
impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.command.get_envs() {
            if let Some(value) = value {
                write!(f, "{}={} ", name.display(), quoted(value))?;
            }
        }
        f.write_str(&quoted(self.command.get_program()))?;
        self.command.get_args().try_for_each(|a| write!(f, " {}", quoted(a)))
    }
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{word}'") }
}

/// End of a child.
#[derive(Debug)]
pub struct End {
    /// Its whole output.
    pub output: String,
    /// Sentence with its last words, if it failed or did not end in time.
    pub failure: Option<String>,
}

/// A child under way. Dropping it ends it.
#[derive(Debug)]
pub struct Running {
    task: Task,
    child: Child,
    text: Arc<Mutex<String>>,
    /// Closed when both readers are through.
    readers: mpsc::Receiver<()>,
    until: Instant,
}

impl Running {
    /// Wait for its end; what it wrote to its output.
    ///
    /// # Errors
    /// It failed, or did not end in time: its last words.
    pub fn wait(self) -> Result<String, String> {
        let end = self.finish();
        end.failure.map_or(Ok(end.output), Err)
    }

    /// Wait for its end, for those who want its output of a failure too.
    pub fn finish(mut self) -> End {
        let failure = self.failure();
        End { output: lock(&self.text).clone(), failure }
    }

    fn failure(&mut self) -> Option<String> {
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(e) => return Some(format!("cannot wait for `{}`: {e}", self.task)),
            }
            if self.task.heeds_signals && is_interrupted() {
                // Shown before it is ended: whoever interrupts may not wait that long.
                let words = if self.task.echo { String::new() } else { self.words() };
                eprintln!("interrupted during `{}`{words}", self.task);
                self.end();
                return Some(format!("interrupted during `{}`", self.task));
            }
            if Instant::now() >= self.until {
                self.end();
                return Some(format!(
                    "`{}` did not end within {:?}{}",
                    self.task,
                    self.task.limit,
                    self.words()
                ));
            }
            thread::sleep(Duration::from_millis(10));
        };
        // Something that the child left running may hold its output open: no reason to wait for ever.
        let _ = self.readers.recv_timeout(GRACE);
        (!status.success()).then(|| format!("`{}` failed ({status}){}", self.task, self.words()))
    }

    /// Output as the end of a sentence: the last lines of what was shown already.
    fn words(&self) -> String {
        let text = lock(&self.text);
        let text = text.trim_end();
        let lines: Vec<&str> = text.lines().collect();
        match lines.len().saturating_sub(LAST_LINES) {
            _ if lines.is_empty() => ", without a word".into(),
            more if self.task.echo && more > 0 => format!("; last it said:\n{}", lines[more..].join("\n")),
            _ => format!(":\n{text}"),
        }
    }

    /// Ask the child and all it started to end, then make them.
    fn end(&mut self) {
        let family = descendants(self.child.id());
        signal(self.child.id(), Signal::TERM);
        let until = Instant::now() + self.task.grace;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
        for (pid, since) in family {
            // The number may belong to another process by now.
            if started(pid).is_some_and(|(_, now)| now == since) {
                signal(pid, Signal::KILL);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copy a child's lines to `text`, and to `show` as they come.
fn follow(
    from: impl Read + Send + 'static,
    mut show: Option<impl Write + Send + 'static>,
    text: Arc<Mutex<String>>,
    done: mpsc::Sender<()>,
) {
    thread::spawn(move || {
        let _until_the_end = done;
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while matches!(from.read_until(b'\n', &mut line), Ok(n) if n > 0) {
            if let Some(show) = &mut show {
                // A reader that went away is no reason to lose the result.
                let _ = show.write_all(&line).and_then(|()| show.flush());
            }
            lock(&text).push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn output_and_exit_codes_come_back() {
        assert_eq!(Task::sh("echo a; echo b >&2").run().unwrap().lines().count(), 2);
        let e = Task::sh("echo why; exit 3").run().unwrap_err();
        assert!(e.contains("exit status: 3") && e.ends_with(":\nwhy"), "{e}");
        // The first of these lines was shown, and is not worth to be shown again.
        let end = Task::sh("seq 21; exit 3").echo().start().unwrap().finish();
        let failure = end.failure.unwrap();
        let last = format!("; last it said:\n{}", end.output[2..].trim_end());
        assert!(failure.ends_with(&last), "{failure}");
        assert_eq!(end.output.lines().count(), 21);
        assert!(Task::new("no-such-program").run().unwrap_err().contains("no-such-program"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_idle_child_yields_to_all() {
        // Field 41 of a process's line is its policy; 5 is SCHED_IDLE.
        let script = "sed 's/.*) //' /proc/self/stat | cut -d' ' -f39";
        assert_eq!(Task::idle("sh").args(["-c", script]).run().unwrap(), "5\n");
    }

    #[test]
    fn a_late_child_ends_with_all_it_started() {
        let start = Instant::now();
        let e = Task::sh("sleep 60 & echo $!; wait").limit(3).run().unwrap_err();
        assert!(e.contains("within 3s"), "{e}");
        let pid: u32 = e.lines().last().unwrap().parse().unwrap();
        let gone = || {
            started(pid).is_none()
                || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ")
        };
        while !gone() {
            assert!(start.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn commands_are_shown_as_typed() {
        let shown = Task::new("a").args(["b c", "d=e"]).env("X", "1").to_string();
        assert_eq!(shown, "X=1 a 'b c' d=e");
    }
}
