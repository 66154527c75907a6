//! Counts what a program executes between two markers, by single steps.
//!
//! ```text
//! rank 0 of a job     rank-0 ──── waits for go ──── marker ── call ── marker ──── ...
//! this                      seize ── go ──────────── others asleep? ── step, step, ...
//! ```
//!
//! A marker is SIGURG, which a program without a tracer ignores. No parent of the program may be this process: `tasks` looks after the
//! children of this, and a step would look like an end to it. So the program is a child of `comity launch`, or of a shell.

use nix::{
    errno::Errno,
    sys::{
        ptrace,
        signal::Signal,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    fs,
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};
use tasks::{child::Task, place::Scratch};

const MARKER: Signal = Signal::SIGURG;
/// The other ranks are asleep when they are so in this many looks, a millisecond apart.
const LOOKS: usize = 3;
/// Until then they should be, on a busy machine.
const ASLEEP: Duration = Duration::from_secs(20);

/// Why nothing was counted.
#[derive(Debug)]
pub(super) enum Uncounted {
    /// The system does not let this process trace another.
    NotPermitted(String),
    Failed(String),
}

type Counted = Result<Vec<u64>, Uncounted>;

fn failed(what: impl Into<String>) -> Uncounted {
    Uncounted::Failed(what.into())
}

/// Starts a job of so many ranks. What its rank 0 executes between the markers of each of so many pairs, without the second marker's
/// own system call.
pub(super) fn count(task: Task, ranks: usize, pairs: usize) -> Counted {
    let folder = Scratch::new("counts").map_err(|e| failed(format!("cannot make a folder: {e}")))?;
    let what = task.to_string();
    let job = task.env("COUNTED_IN", folder.join("")).start().map_err(Uncounted::Failed)?;
    // Its limit ends it, also where it is stopped in the midst of a step. All steps are of this thread: the system knows tracers by thread.
    let (counted, ended) = thread::scope(|s| {
        let job = s.spawn(|| job.wait());
        let counted = trace(&folder, ranks, pairs, &job);
        // Without a tracer it runs to its end.
        let _ = fs::write(folder.join("go"), "");
        (counted, job.join())
    });
    let ended = ended.map_err(|_| failed("the thread that waits for the job panicked"))?;
    match (counted, ended) {
        (Ok(counts), Ok(_)) => Ok(counts),
        (Ok(_), Err(e)) => Err(failed(e)),
        (Err(Uncounted::Failed(why)), Ok(said)) => Err(failed(format!("`{what}`: {why}; it said:\n{said}"))),
        (Err(Uncounted::Failed(why)), Err(e)) => Err(failed(format!("{why}: {e}"))),
        (Err(not_permitted), _) => Err(not_permitted),
    }
}

/// Follows rank 0 from before its first marker to its last.
fn trace<T>(folder: &Scratch, ranks: usize, pairs: usize, job: &ScopedJoinHandle<'_, T>) -> Counted {
    let all = (0..ranks).map(|rank| process(folder, rank, job)).collect::<Result<Vec<Pid>, _>>()?;
    let (&first, others) = all.split_first().ok_or_else(|| failed("a job of no rank"))?;
    // Should this process be killed, nobody would let it go on.
    ptrace::seize(first, ptrace::Options::PTRACE_O_EXITKILL).map_err(|e| match e {
        Errno::EPERM | Errno::EACCES | Errno::ENOSYS => Uncounted::NotPermitted(format!(
            "no process may be traced here ({}); allow ptrace (in a container: --cap-add SYS_PTRACE; see also kernel.yama.ptrace_scope)",
            e.desc()
        )),
        e => failed(format!("cannot trace process {first}: {}", e.desc())),
    })?;
    fs::write(folder.join("go"), "").map_err(|e| failed(format!("cannot write `go`: {e}")))?;
    let mut counts = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let missing = |word| format!("it ended before the {word} marker of pair {} of {pairs}", pair + 1);
        if pair > 0 {
            resume(first, ptrace::cont(first, None))?;
        }
        run_to_marker(first)?.ok_or_else(|| failed(missing("first")))?;
        others.iter().try_for_each(|&rank| wait_asleep(rank))?;
        counts.push(step_to_marker(first)?.ok_or_else(|| failed(missing("second")))?);
    }
    ptrace::detach(first, None)
        .map_err(|e| failed(format!("cannot let process {first} go: {}", e.desc())))?;
    Ok(counts)
}

/// The process of a rank, as it said when it had started.
fn process<T>(folder: &Scratch, rank: usize, job: &ScopedJoinHandle<'_, T>) -> Result<Pid, Uncounted> {
    let file = folder.join(&format!("rank-{rank}"));
    loop {
        // Looked at first: what was written before the end is then seen.
        let over = job.is_finished();
        let said = fs::read_to_string(&file).unwrap_or_default();
        if let Some(pid) = said.strip_suffix('\n').and_then(|n| n.parse().ok()) {
            return Ok(Pid::from_raw(pid));
        }
        if over {
            return Err(failed(format!("it ended before rank {rank} said which process it is")));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// The next thing that happens to it.
fn wait(tracee: Pid) -> Result<WaitStatus, Uncounted> {
    loop {
        match waitpid(tracee, Some(WaitPidFlag::__WALL)) {
            Err(Errno::EINTR) => {}
            status => return status.map_err(|e| failed(format!("cannot wait for {tracee}: {}", e.desc()))),
        }
    }
}

/// A process that was killed meanwhile shows it when it is waited for.
fn resume(tracee: Pid, done: nix::Result<()>) -> Result<(), Uncounted> {
    match done {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(e) => Err(failed(format!("cannot let process {tracee} go on: {}", e.desc()))),
    }
}

/// Lets it run until its next marker; nothing if it ends before.
fn run_to_marker(tracee: Pid) -> Result<Option<()>, Uncounted> {
    loop {
        let passed_on = match wait(tracee)? {
            WaitStatus::Stopped(_, MARKER) => return Ok(Some(())),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Ok(None),
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        };
        resume(tracee, ptrace::cont(tracee, passed_on))?;
    }
}

/// Single steps until its next marker; nothing if it ends before.
fn step_to_marker(tracee: Pid) -> Result<Option<u64>, Uncounted> {
    let mut count = 0;
    let mut passed_on = None;
    loop {
        resume(tracee, ptrace::step(tracee, passed_on))?;
        passed_on = match wait(tracee)? {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {
                count += 1;
                None
            }
            WaitStatus::Stopped(_, MARKER) => return Ok(Some(count)),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Ok(None),
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        };
    }
}

/// Waits until another rank has made its call as far as it can without rank 0. The call before woke it, if it slept at all, so a sleep
/// now is in this call, after it has sent its message. All its threads must sleep: some backends send from another.
fn wait_asleep(rank: Pid) -> Result<(), Uncounted> {
    let begun = Instant::now();
    let mut looks = 0;
    while looks < LOOKS {
        if begun.elapsed() > ASLEEP {
            return Err(failed(format!("another rank, process {rank}, does not wait for rank 0's message")));
        }
        thread::sleep(Duration::from_millis(1));
        looks = if sleeps(rank) { looks + 1 } else { 0 };
    }
    Ok(())
}

/// Return whether all threads of a process sleep.
fn sleeps(process: Pid) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().all(|thread| {
        let line = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name before the state may hold anything.
        line.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell is traced, the child of another: `$$` is its own number.
    fn script(body: &str) -> Task {
        let before = "echo $$ > $COUNTED_IN/rank-0; while [ ! -e $COUNTED_IN/go ]; do sleep 0.01; done";
        Task::new("sh").args(["-c", "sh -c \"$0\"; exit $?"]).args([format!("{before}; {body}")]).limit(60)
    }

    /// Count; none where the system forbids it, which the step reports, and which fails in CI.
    fn counted(body: &str, pairs: usize) -> Option<Result<Vec<u64>, String>> {
        match count(script(body), 1, pairs) {
            Ok(counts) => Some(Ok(counts)),
            Err(Uncounted::Failed(why)) => Some(Err(why)),
            Err(Uncounted::NotPermitted(why)) => {
                assert!(!tasks::in_ci(), "{why}");
                None
            }
        }
    }

    #[test]
    fn a_program_that_ends_too_early_is_an_error() {
        for (body, word) in [
            ("true", "first marker of pair 1 of 2"),
            ("kill -URG $$; true", "second marker of pair 1 of 2"),
            ("kill -URG $$; kill -URG $$; exit 3", "first marker of pair 2 of 2"),
            ("kill -URG $$; kill -KILL $$", "second marker of pair 1 of 2"),
        ] {
            let Some(counts) = counted(body, 2) else { return };
            let e = counts.unwrap_err();
            assert!(e.contains("it ended before the") && e.contains(word), "{body}: {e}");
        }
        let early = count(Task::new("sh").args(["-c", "exit 0"]), 1, 1);
        assert!(matches!(early, Err(Uncounted::Failed(e)) if e.contains("said which process it is")));
    }

    /// A thread may not trace its own process, and is told so in the same way as where no process may.
    #[test]
    fn what_may_not_be_traced_is_told_from_a_failure() {
        match count(Task::new("sh").args(["-c", "echo $PPID > $COUNTED_IN/rank-0"]), 1, 1) {
            Err(Uncounted::NotPermitted(why)) => assert!(why.contains("allow ptrace"), "{why}"),
            counts => panic!("{counts:?}"),
        }
    }
}
