//! Starts `comity launch` and waits for what it does, never for long.
pub(crate) use crate::common::*;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// A running `comity launch`; dropping it ends it and every process that carries its mark.
pub(crate) struct Job {
    pub(crate) child: Child,
    pub(crate) mark: String,
    /// Directory to which its ranks' output goes as well.
    pub(crate) logs: Option<std::path::PathBuf>,
    out: Option<JoinHandle<Vec<u8>>>,
    err: Option<JoinHandle<Vec<u8>>>,
}

/// `comity launch` with these words, no input, and in its environment its own program and a mark by which its processes are found.
pub(crate) fn command(args: &[&str]) -> (Command, String) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let mark = format!("mark-{}-{}-", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let mut command = comity();
    command.arg("launch").args(args).env("LAUNCH_TEST_MARK", &mark).env("COMITY", COMITY);
    (command, mark)
}

pub(crate) fn start(args: &[&str]) -> Job {
    start_with(args, |command| command)
}

pub(crate) fn start_with(args: &[&str], change: impl FnOnce(&mut Command) -> &mut Command) -> Job {
    let (mut command, mark) = command(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    change(&mut command);
    let mut child = command.spawn().unwrap();
    fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            let _ = from.read_to_end(&mut all);
            all
        })
    }
    let out = child.stdout.take().map(collect);
    let err = child.stderr.take().map(collect);
    Job { child, mark, logs: None, out, err }
}

/// Runs to the end.
pub(crate) fn run(args: &[&str]) -> Ended {
    start(args).finish()
}

/// Runs a shell script on `n` ranks, with flags before it.
pub(crate) fn script(n: usize, flags: &[&str], script: &str) -> Ended {
    start_script(n, flags, script).finish()
}

pub(crate) fn start_script(n: usize, flags: &[&str], script: &str) -> Job {
    let n = n.to_string();
    start(&[&["-n", &n], flags, &["--", "sh", "-c", script]].concat())
}

/// Starts a line of shell, in which `$1` is this word.
pub(crate) fn start_line(line: &str, word: &str) -> Job {
    start_with(&[], |command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", line, "sh", word]);
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        *command = shell;
        command
    })
}

impl Job {
    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends what Ctrl-Z does, and waits for what a shell waits for.
    pub(crate) fn stop(&self) {
        self.signal(Signal::TSTP);
        let flags = WaitOptions::UNTRACED | WaitOptions::NOHANG;
        let stopped = || waitpid(Some(Pid::from_child(&self.child)), flags).unwrap();
        let (_, status) = wait_for("the launcher to be stopped", stopped);
        assert!(status.stopped(), "{status:?}");
    }

    pub(crate) fn finish(mut self) -> Ended {
        self.end()
    }

    /// The same, and no process of it is left then: not even for the moment before this value ends them.
    pub(crate) fn finish_whole(mut self) -> Ended {
        let ended = self.end();
        let left = self.processes();
        assert!(left.is_empty(), "{left:?}: {}", ended.text());
        ended
    }

    fn end(&mut self) -> Ended {
        let start = Instant::now();
        let status = wait_for("comity launch to end", || self.child.try_wait().unwrap());
        let took = start.elapsed();
        let text = |thread: Option<JoinHandle<Vec<u8>>>| {
            let Some(thread) = thread else { return String::new() };
            wait_for("the end of the output", || thread.is_finished().then_some(()));
            String::from_utf8_lossy(&thread.join().unwrap()).into_owned()
        };
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Ended { code, out: text(self.out.take()), err: text(self.err.take()), took }
    }

    /// The living processes of this job, the launcher's own included.
    pub(crate) fn processes(&self) -> Vec<Process> {
        marked(&self.mark)
    }

    /// Output of a rank so far.
    pub(crate) fn log_of(&self, rank: usize) -> String {
        let file = self.logs.as_ref().map(|dir| dir.join(format!("rank-{rank}.out")));
        file.and_then(|f| std::fs::read_to_string(f).ok()).unwrap_or_default()
    }

    /// Processes of them that run this program.
    pub(crate) fn running(&self, name: &str) -> Vec<Process> {
        self.processes().into_iter().filter(|p| p.name == name).collect()
    }

    /// Waits for a process whose name begins so, with this in its environment, and this word in its command line.
    pub(crate) fn wait_process(&self, name: &str, variable: &str, word: &str) -> Pid {
        let is_it = |process: &Process| {
            let has = |file: &str, word: &str| {
                let bytes =
                    std::fs::read(format!("/proc/{}/{file}", process.pid.as_raw_pid())).unwrap_or_default();
                bytes.split(|b| *b == 0).any(|w| w == word.as_bytes())
            };
            process.name.starts_with(name) && has("environ", variable) && has("cmdline", word)
        };
        let what = format!("the process {word} of {variable}");
        wait_for(&what, || self.processes().iter().find(|p| is_it(p)).map(|p| p.pid))
    }

    /// Waits until `count` processes of this name run.
    pub(crate) fn wait_running(&self, name: &str, count: usize) -> Vec<Process> {
        wait_for(&format!("{count} processes {name}"), || {
            let all = self.running(name);
            (all.len() >= count).then_some(all)
        })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for process in marked(&self.mark) {
            let _ = rustix::process::kill_process(process.pid, Signal::KILL);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) name: String,
}

/// Processes that have the mark in their environment, or in their arguments (for those that cleared the former).
pub(crate) fn marked(mark: &str) -> Vec<Process> {
    let own = std::process::id() as i32;
    let numbers = std::fs::read_dir("/proc").unwrap().flatten();
    numbers
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .filter(|&pid| pid != own)
        .filter_map(|pid| {
            let has = |file| {
                let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                bytes.windows(mark.len()).any(|w| w == mark.as_bytes())
            };
            if !has("environ") && !has("cmdline") {
                return None;
            }
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (name, state) = stat.split_once('(')?.1.rsplit_once(") ")?;
            (!state.starts_with(['Z', 'X']))
                .then(|| Process { pid: Pid::from_raw(pid).unwrap(), name: name.into() })
        })
        .collect()
}

/// Waits until every rank has left a file of this name and its number here.
pub(crate) fn wait_files(dir: &Path, name: &str, count: usize) {
    for rank in 0..count {
        let file = dir.join(format!("{name}{rank}"));
        wait_for(&format!("{}", file.display()), || file.exists().then_some(()));
    }
}

/// Runs a prepared command in a process group of its own, so that signals for the group do not reach the test.
pub(crate) fn own_group(command: &mut Command) -> &mut Command {
    command.process_group(0)
}
