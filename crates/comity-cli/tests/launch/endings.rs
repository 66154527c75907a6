//! Exit codes, the rank at fault, and how the others are ended.
use super::harness::*;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Time that ranks have to end by themselves after SIGTERM: an end before it was not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn all_well_is_zero_and_says_nothing() {
    let done = script(4, &[], "exit 0");
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (0, "", ""));
    assert_eq!(run(&["true"]).code, 0);
    assert_eq!(run(&["-n1", "sh", "-c", "exit 0"]).code, 0);
}

#[test]
fn the_rank_that_failed_is_named_and_its_code_is_the_jobs() {
    for (fails, code, end) in [
        ("exit 37", 37, "exited with code 37"),
        ("kill -KILL $$", 137, "was killed by signal 9 (SIGKILL)"),
        ("kill -SEGV $$", 139, "was killed by signal 11 (SIGSEGV)"),
        ("kill -USR1 $$", 138, "was killed by signal 10 (SIGUSR1)"),
    ] {
        let done = script(3, &[], &format!("[ $RANK = 1 ] && {fails}; sleep 30")).ends(code);
        let last = done.last();
        assert!(last.starts_with("comity launch: rank 1 (pid ") && last.ends_with(end), "{}", done.err);
        lacks(&done.err, &["out of memory"]);
    }
    assert_eq!(run(&["sh", "-c", "exit 255"]).code, 255);
}

/// A consequence follows its cause, however late that was: wait for the end of the process whose number is in `$D/victim`.
const AWAIT_DEATH: &str = "while [ ! -s $D/victim ]; do sleep 0.01; done; read -r pid < $D/victim
    while read -r stat < /proc/$pid/stat; do case \"$stat\" in *') Z '*) break;; esac; sleep 0.01; done 2> /dev/null";

#[test]
fn the_first_failure_is_the_root_cause_every_time_not_its_consequences() {
    let mut most = 0;
    for round in 0..50 {
        let victim = round % 4;
        let dir = tempfile::tempdir().unwrap();
        let flags = ["--env", &format!("D={}", dir.path().display())];
        let (dies, code) = if round % 10 == 0 { ("exit 5", 5) } else { ("kill -9 $$", 137) };
        // The others report the loss and fail, too, within the second that they are given.
        let all = format!(
            "[ $RANK = {victim} ] && {{ echo $$ > $D/victim; {dies}; }}; {AWAIT_DEATH}; echo it is gone >&2; exit 1"
        );
        let done = script(4, &flags, &all).ends(code);
        assert!(done.last().contains(&format!(" rank {victim} (pid")), "round {round}: {}", done.err);
        most = most.max(done.err.matches("it is gone").count());
    }
    // On a crowded machine that second may be too short for one of them, now and then.
    assert_eq!(most, 3, "all were heard");
}

#[test]
fn a_rank_that_ends_early_and_well_stops_nobody() {
    let done = script(2, &[], "[ $RANK = 0 ] && exit 0; sleep 1.5; echo done");
    assert_eq!((done.code, done.out.as_str()), (0, "[1] done\n"));
}

#[test]
fn the_others_of_a_failed_rank_are_ended_and_may_clean_up() {
    let done =
        script(3, &[], "[ $RANK = 0 ] && exit 9; trap 'echo bye; exit 0' TERM; sleep 30 & wait").ends(9);
    assert_eq!(done.sorted(), ["[1] bye", "[2] bye"]);
    // Not the 30 s for which they would run.
    assert!(done.took < patient(Duration::from_secs(20)), "{:?}", done.took);
}

#[test]
fn ranks_that_ignore_sigterm_are_killed() {
    let job = start_script(2, &[], "[ $RANK = 0 ] && exit 4; trap '' TERM; while :; do sleep 1; done");
    let done = job.finish().ends(4);
    assert!(done.err.contains("still running after SIGTERM, now killed: rank 1 (pid"), "{}", done.err);
    assert!(done.last().contains("rank 0 ") && done.last().contains("code 4"), "{}", done.err);
    let bounds = Duration::from_secs(3)..patient(Duration::from_secs(30));
    assert!(bounds.contains(&done.took), "{:?}", done.took);
}

#[test]
fn a_stopped_rank_is_ended_without_waiting() {
    let job = start(&["-n", "2", "sleep", "100"]);
    let sleeps = job.wait_running("sleep", 2);
    rustix::process::kill_process(sleeps[0].pid, Signal::STOP).unwrap();
    job.signal(Signal::TERM);
    let done = job.finish_whole().ends(143);
    assert!(done.took < patient(PATIENCE), "{:?}", done.took);
}

#[test]
fn each_signal_of_a_user_has_its_code() {
    for (signal, code, name) in
        [(Signal::INT, 130, "SIGINT"), (Signal::TERM, 143, "SIGTERM"), (Signal::HUP, 129, "SIGHUP")]
    {
        let job = start(&["-n", "3", "sleep", "100"]);
        job.wait_running("sleep", 3);
        job.signal(signal);
        let done = job.finish_whole();
        assert_eq!((done.code, done.last()), (code, format!("comity launch: ended by {name}").as_str()));
        assert!(done.took < patient(PATIENCE), "{:?}", done.took);
    }
}

#[test]
fn ctrl_c_is_sigterm_first_and_sigkill_when_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let stay = format!("trap '' TERM; echo > {}/up$RANK; while :; do sleep 0.2; done", dir.path().display());
    let job = start_script(2, &[], &stay);
    wait_files(dir.path(), "up", 2);
    job.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(600));
    assert!(job.running("sh").len() >= 2, "SIGTERM was enough?");
    let again = Instant::now();
    job.signal(Signal::INT);
    job.finish().ends(130);
    assert!(again.elapsed() < patient(PATIENCE), "{:?}", again.elapsed());
}

#[test]
fn a_signal_to_the_whole_process_group_counts_once() {
    // What a terminal does on Ctrl-C.
    let dir = tempfile::tempdir().unwrap();
    let slow = format!(
        "trap 'sleep 0.7; echo cleaned up; exit 0' TERM; echo > {}/up$RANK; while :; do sleep 0.05; done",
        dir.path().display()
    );
    let job = start_with(&["-n", "2", "sh", "-c", &slow], own_group);
    wait_files(dir.path(), "up", 2);
    rustix::process::kill_process_group(rustix::process::Pid::from_child(&job.child), Signal::INT).unwrap();
    let done = job.finish();
    assert_eq!((done.code, done.sorted()), (130, vec!["[0] cleaned up", "[1] cleaned up"]));
}

#[test]
fn a_job_that_ignores_hangups_goes_on() {
    let job = start_line("trap '' HUP; exec $COMITY launch -n 2 -- sh -c 'sleep 3; echo done'", "");
    job.wait_running("sleep", 2);
    job.signal(Signal::HUP);
    let done = job.finish();
    assert_eq!((done.code, done.sorted()), (0, vec!["[0] done", "[1] done"]));
}

#[test]
fn the_timeout_is_for_the_whole_job() {
    let done = run(&["-n", "2", "--timeout", "0.5", "sleep", "100"]).ends(124);
    assert_eq!(done.last(), "comity launch: ended because the job took longer than --timeout 0.5 s");
    assert!(done.took < patient(PATIENCE), "{:?}", done.took);
    assert_eq!(run(&["--timeout", "50", "true"]).code, 0);
}

#[test]
fn a_program_that_no_rank_can_run_blames_none() {
    let done = run(&["-n", "3", "--", "sh", "/nowhere/train.sh"]);
    let last = done.last();
    // On a slow machine a rank may be ended before it fails by itself.
    let is_told =
        last.starts_with("comity launch: all 3 ranks exited with code ") && last.ends_with(" first");
    assert!(is_told || done.err.contains("was ended by the launcher"), "{}", done.err);
}

#[test]
fn a_file_that_is_no_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tool");
    std::fs::write(&file, b"\x7fELF nonsense").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let done = run(&["-n", "2", file.to_str().unwrap()]);
    assert_ne!(done.code, 0);
    // Both fail; which one is first is chance.
    assert!(done.last().contains(" exited with code "), "{}", done.err);
}
