//! Counts what a program executes between two markers, by single steps.
//!
//! ```text
//! rank 0 of a job     rank-0 ──── waits for go ──── marker ── call ── marker ──── ...
//! this                      seize ── go ──────────── others asleep? ── step, step, ...
//! ```
//!
//! A marker is SIGURG, which a program without a tracer ignores. No parent of the program may be this process: `tasks` looks after the
//! children of this, and a step would look like an end to it. So the program is a child of `comity launch`, or of a shell.

use crate::test::{
    jobs::until,
    step::{Outcome, Why},
};
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
    time::Duration,
};
use tasks::{child::Task, place::Scratch};

const MARKER: Signal = Signal::SIGURG;
/// The other ranks are asleep when they are so in this many looks, a millisecond apart.
const LOOKS: usize = 3;

/// Starts a job of so many ranks. What its rank 0 executes between the markers of each of so many pairs, without the second marker's
/// own system call.
pub(super) fn count(task: Task, ranks: usize, pairs: usize) -> Outcome<Vec<u64>> {
    let folder = Scratch::new("counts")?;
    let what = task.to_string();
    let job = task.env("COUNTED_IN", folder.join("")).start()?;
    // Its limit ends it, also where it is stopped in the midst of a step. All steps are of this thread: the system knows tracers by thread.
    let (counted, ended) = thread::scope(|s| {
        let job = s.spawn(|| job.wait());
        let counted = trace(&folder, ranks, pairs, &job);
        // Without a tracer it runs to its end.
        let _ = fs::write(folder.join("go"), "");
        (counted, job.join())
    });
    let ended = ended.map_err(|_| "the thread that waits for the job panicked")?;
    match (counted, ended) {
        (Err(Why::Failed(why)), ended) => Err(format!("`{what}`: {why}; it ended with {ended:?}").into()),
        (Ok(_), Err(e)) => Err(e.into()),
        (counted, _) => counted,
    }
}

/// Follows rank 0 from before its first marker to its last.
fn trace<T>(
    folder: &Scratch,
    ranks: usize,
    pairs: usize,
    job: &ScopedJoinHandle<'_, T>,
) -> Outcome<Vec<u64>> {
    let all = (0..ranks).map(|rank| process(folder, rank, job)).collect::<Result<Vec<Pid>, _>>()?;
    let (&first, others) = all.split_first().ok_or("a job of no rank")?;
    // Should this process be killed, nobody would let it go on.
    ptrace::seize(first, ptrace::Options::PTRACE_O_EXITKILL).map_err(|e| match e {
        Errno::EPERM | Errno::EACCES | Errno::ENOSYS => Why::Missing(format!(
            "no process may be traced here ({}); allow ptrace (in a container: --cap-add SYS_PTRACE; see also kernel.yama.ptrace_scope)",
            e.desc()
        )),
        e => Why::Failed(format!("cannot trace process {first}: {}", e.desc())),
    })?;
    fs::write(folder.join("go"), "").map_err(|e| format!("cannot write `go`: {e}"))?;
    let mut counts = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let ended = |word| format!("it ended before the {word} marker of pair {} of {pairs}", pair + 1);
        if pair > 0 {
            resumed(ptrace::cont(first, None))?;
        }
        to_marker(first, false)?.ok_or_else(|| ended("first"))?;
        others.iter().try_for_each(|&rank| wait_asleep(rank))?;
        resumed(ptrace::step(first, None))?;
        counts.push(to_marker(first, true)?.ok_or_else(|| ended("second"))?);
    }
    resumed(ptrace::detach(first, None))?;
    Ok(counts)
}

/// The process of a rank, as it said when it had started.
fn process<T>(folder: &Scratch, rank: usize, job: &ScopedJoinHandle<'_, T>) -> Result<Pid, String> {
    let file = folder.join(&format!("rank-{rank}"));
    loop {
        // Looked at first: what was written before the end is then seen.
        let over = job.is_finished();
        let said = fs::read_to_string(&file).unwrap_or_default();
        if let Some(pid) = said.strip_suffix('\n').and_then(|n| n.parse().ok()) {
            return Ok(Pid::from_raw(pid));
        }
        if over {
            return Err(format!("it ended before rank {rank} said which process it is"));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// A process that was killed meanwhile shows it when it is waited for.
fn resumed(done: nix::Result<()>) -> Result<(), String> {
    match done {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(e) => Err(format!("cannot let the process go on: {}", e.desc())),
    }
}

/// Let it go on to its next marker, by single steps or at once: how many steps. None if it ends before.
fn to_marker(tracee: Pid, stepping: bool) -> Result<Option<u64>, String> {
    let mut count = 0;
    loop {
        let status = match waitpid(tracee, Some(WaitPidFlag::__WALL)) {
            Err(Errno::EINTR) => continue,
            status => status.map_err(|e| format!("cannot wait for {tracee}: {}", e.desc()))?,
        };
        let passed_on = match status {
            WaitStatus::Stopped(_, MARKER) => return Ok(Some(count)),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return Ok(None),
            WaitStatus::Stopped(_, Signal::SIGTRAP) if stepping => {
                count += 1;
                None
            }
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        };
        resumed(if stepping { ptrace::step(tracee, passed_on) } else { ptrace::cont(tracee, passed_on) })?;
    }
}

/// Waits until another rank has made its call as far as it can without rank 0. The call before woke it, if it slept at all, so a sleep
/// now is in this call, after it has sent its message. All its threads must sleep: some backends send from another.
fn wait_asleep(rank: Pid) -> Result<(), String> {
    until("a sleep of the other ranks", 20, || {
        let is_asleep = (0..LOOKS).all(|_| {
            thread::sleep(Duration::from_millis(1));
            sleeps(rank)
        });
        Ok(is_asleep.then_some(()))
    })
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

    #[test]
    fn a_program_that_ends_too_early_is_an_error() {
        for (body, word) in [
            ("true", "first marker of pair 1 of 2"),
            ("kill -URG $$; true", "second marker of pair 1 of 2"),
            ("kill -URG $$; kill -URG $$; exit 3", "first marker of pair 2 of 2"),
            ("kill -URG $$; kill -KILL $$", "second marker of pair 1 of 2"),
        ] {
            // A shell is traced, the child of another: `$$` is its own number.
            let before = "echo $$ > $COUNTED_IN/rank-0; while [ ! -e $COUNTED_IN/go ]; do sleep 0.01; done";
            let shell = Task::sh("sh -c \"$0\"; exit $?").arg(format!("{before}; {body}")).limit(60);
            match count(shell, 1, 2) {
                Err(Why::Failed(e)) => assert!(e.contains("it ended before the") && e.contains(word), "{e}"),
                // The step reports what the system forbids, and that fails in CI.
                Err(Why::Missing(why)) => assert!(!tasks::in_ci(), "{why}"),
                counts => panic!("{body}: {counts:?}"),
            }
        }
        let early = count(Task::sh("exit 0"), 1, 1);
        assert!(matches!(early, Err(Why::Failed(e)) if e.contains("said which process it is")));
    }

    /// A thread may not trace its own process, and is told so in the same way as where no process may.
    #[test]
    fn what_may_not_be_traced_is_told_from_a_failure() {
        match count(Task::sh("echo $PPID > $COUNTED_IN/rank-0"), 1, 1) {
            Err(Why::Missing(why)) => assert!(why.contains("allow ptrace"), "{why}"),
            counts => panic!("{counts:?}"),
        }
    }
}
