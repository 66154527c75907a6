//! Nothing outlives the job, whoever is killed.
use super::harness::*;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Promised bound for a launcher that is killed.
const LIMIT: Duration = Duration::from_secs(2);

/// Ranks with children: one in the rank's group, one in a session of its own, one that also forgot its parent and
/// its environment. All ignore what can be ignored.
fn family(mark_arg: &str) -> String {
    format!(
        "trap '' TERM HUP INT
         sh -c 'trap \"\" TERM HUP INT; sleep 1000; sleep 1000' child-{mark_arg} &
         setsid sh -c 'trap \"\" TERM HUP INT; sleep 1000; sleep 1000' session-{mark_arg} &
         (env -i setsid sh -c 'trap \"\" TERM HUP INT; exec tail -f /dev/null {mark_arg}' &) &
         while :; do sleep 1000; done"
    )
}

/// Starts two such ranks, in a group of processes of their own; the mark, in which no other family's is found, is also in their arguments.
fn start_family() -> (Job, String) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mark = format!("/dev/null/family-{}-{number}-", std::process::id());
    let job = start_with(&["-n", "2", "sh", "-c", &family(&mark)], own_group);
    job.wait_running("sleep", 6);
    wait_for("the processes without a parent", || {
        (marked(&mark).iter().filter(|p| p.name == "tail").count() == 2).then_some(())
    });
    (job, mark)
}

fn all_gone(job: &Job, mark: &str) {
    let is_gone = || job.processes().is_empty() && marked(mark).is_empty();
    wait_at_most(patient(LIMIT), "the end of every process", || is_gone().then_some(()));
}

#[test]
fn killing_the_launcher_or_its_process_group_ends_every_descendant() {
    for kill in [kill_process, kill_process_group] {
        let (mut job, mark) = start_family();
        kill(Pid::from_child(&job.child), Signal::KILL).unwrap();
        job.child.wait().unwrap();
        all_gone(&job, &mark);
    }
}

#[test]
fn killing_the_supervisor_ends_every_descendant_and_is_told() {
    let (job, mark) = start_family();
    let supervisor = job.wait_running("rank-supervisor", 1);
    kill_process(supervisor[0].pid, Signal::KILL).unwrap();
    wait_at_most(patient(LIMIT), "the end of every process", || {
        job.processes().iter().all(|p| p.name == "comity").then_some(())
    });
    all_gone(&job, &mark);
    let done = job.finish().ends(137);
    assert!(done.last().contains("was killed by signal 9 (SIGKILL)"), "{}", done.err);
}

#[test]
fn ending_the_launcher_ends_every_descendant() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let (job, mark) = start_family();
        job.signal(signal);
        // A second one, for these ranks ignore SIGTERM.
        std::thread::sleep(Duration::from_millis(400));
        job.signal(Signal::INT);
        assert_eq!(job.finish_whole().code, code);
        // No wait here: when the launcher has returned, all are gone.
        assert!(marked(&mark).is_empty());
    }
}

#[test]
fn a_killed_rank_leaves_nothing_either() {
    script(2, &[], "sleep 1000 & setsid sleep 1000 & [ $RANK = 1 ] && kill -9 $$; sleep 1000").ends(137);
    let job = start_script(2, &[], "sleep 1000 & setsid sleep 1000 & exec sleep 1000");
    let sleeps = job.wait_running("sleep", 6);
    kill_process(sleeps[0].pid, Signal::KILL).unwrap();
    job.finish_whole();
}

#[test]
fn what_ranks_leave_running_ends_with_the_job() {
    let job = start_script(2, &[], "setsid sleep 1000 & echo started");
    let done = job.finish_whole();
    assert_eq!((done.code, done.sorted()), (0, vec!["[0] started", "[1] started"]));
    assert!(done.took < patient(Duration::from_secs(4)), "{:?}", done.took);
}

#[test]
fn nothing_is_left_in_temporary_directories() {
    let dir = tempfile::tempdir().unwrap();
    let mut job = start_with(&["-n", "4", "sleep", "1000"], |c| {
        // There is no runtime folder: the launcher's socket has to be here.
        c.env("TMPDIR", dir.path()).env_remove("XDG_RUNTIME_DIR")
    });
    job.wait_running("sleep", 4);
    let names = |d: &std::path::Path| -> Vec<String> {
        let entries = std::fs::read_dir(d).unwrap().flatten();
        entries.filter_map(|e| e.file_name().into_string().ok()).collect()
    };
    let own = format!("comity-{}", rustix::process::geteuid().as_raw());
    assert_eq!(names(dir.path()), [own.as_str()]);
    assert_eq!(names(&dir.path().join(&own)), [format!("{}.sock", job.child.id())]);
    // What other tests leave there meanwhile is not of these processes.
    let pids: Vec<String> = job.processes().iter().map(|p| p.pid.as_raw_pid().to_string()).collect();
    job.signal(Signal::KILL);
    job.child.wait().unwrap();
    wait_at_most(patient(LIMIT), "the end of the ranks", || job.processes().is_empty().then_some(()));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    for place in ["/tmp", "/dev/shm"] {
        let left = std::fs::read_dir(place).into_iter().flatten().flatten();
        let names = left.filter_map(|e| e.file_name().into_string().ok());
        let is_ours = |name: &String| {
            name.contains("comity")
                && name.split(|c: char| !c.is_ascii_digit()).any(|n| pids.iter().any(|p| p == n))
        };
        assert_eq!(names.filter(is_ours).collect::<Vec<_>>(), [""; 0], "{place}");
    }
}

#[test]
fn an_idle_job_costs_no_time() {
    // With standard input at its end, and with one that stays open.
    for open in [false, true] {
        let job = start_with(&["-n", "4", "sleep", "1000"], |c| {
            c.stdin(if open { Stdio::piped() } else { Stdio::null() })
        });
        job.wait_running("sleep", 4);
        std::thread::sleep(Duration::from_millis(300));
        let own = || -> Vec<Process> { job.processes().into_iter().filter(|p| p.name != "sleep").collect() };
        assert_eq!(own().len(), 2);
        let ticks = || -> u64 { own().iter().map(|p| cpu_ticks(p.pid)).sum() };
        // 1% of 3 s is three ticks of 10 ms. A tick counts whoever runs when the clock strikes, so the best of some tries tells.
        let mut all: Vec<u64> = Vec::new();
        while all.len() < 4 && all.iter().all(|t| *t > 3) {
            let before = ticks();
            std::thread::sleep(Duration::from_secs(3));
            all.push(ticks() - before);
        }
        assert!(all.iter().any(|t| *t <= 3), "{all:?} ticks");
    }
}

fn cpu_ticks(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn many_launchers_that_are_ended_at_any_moment_leave_nothing() {
    let rounds = if scope::Scope::from_env().deep { 1000 } else { 32 };
    for round in 0..rounds {
        let signal = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP][round % 4];
        let mut job = start_script(2, &[], "setsid sleep 1000 & sleep 1000");
        std::thread::sleep(Duration::from_millis(round as u64 * 2 % 64));
        job.signal(signal);
        let status = wait_for("comity launch to end", || job.child.try_wait().unwrap());
        // One that was hit before it could take the signal dies of it.
        let code = status.code().or_else(|| status.signal().map(|n| 128 + n));
        assert_eq!(code, Some(128 + signal.as_raw()), "{signal:?} in round {round}");
        wait_at_most(patient(LIMIT), "the end of every process", || job.processes().is_empty().then_some(()));
    }
}

#[test]
fn a_shell_that_dies_with_the_launcher_in_it_is_no_different() {
    let job = start_line("$COMITY launch -n 2 -- sh -c 'setsid sleep 1000 & sleep 1000' & wait", "");
    let sleeps = job.wait_running("sleep", 4);
    assert_eq!(sleeps.len(), 4);
    let launcher = job.wait_running("comity", 1);
    kill_process(launcher[0].pid, Signal::KILL).unwrap();
    wait_at_most(patient(LIMIT), "the end of the ranks", || job.running("sleep").is_empty().then_some(()));
}
