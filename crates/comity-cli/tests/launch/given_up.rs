//! The rank that all others name: the launcher's last line names the same one.
use super::harness::*;
use super::hosts::Hosts;
use rustix::process::{Pid, Signal, kill_process};
use std::{path::Path, time::Duration};

/// The process of `comity bench` that is rank `rank` itself.
pub(crate) fn process_of(job: &Job, rank: usize) -> Pid {
    job.wait_process("comity", &format!("COMITY_RANK={rank}"), "bench")
}

/// Limit of silence, as short as ranks on a busy machine bear.
pub(crate) fn detection() -> String {
    format!("COMITY_DETECTION={}", 2 * slowness())
}

/// Calls for a long time, and an end with 0 whatever becomes of them.
pub(crate) const CALLS: &str = "\"$COMITY\" bench all --sizes 8:64K --budget 100 > $D/rows$RANK; exit 0";

/// Waits until the calls have begun, and each rank has sent its first beats: before those nobody is silent.
pub(crate) fn await_rows(dir: &Path) {
    let is_begun = || std::fs::metadata(dir.join("rows0")).is_ok_and(|m| m.len() > 0);
    wait_for("a first row", || is_begun().then_some(()));
    std::thread::sleep(Duration::from_millis(700) * slowness());
}

/// Rank 1 is stopped in its calls; rank 0 gives it up, and ends with 0 all the same.
fn stop_one(flags: &[&str], host: &str) {
    let dir = tempfile::tempdir().unwrap();
    let d = format!("D={}", dir.path().display());
    let job = start(&[flags, &["--env", &detection(), "--env", &d, "--", "sh", "-c", CALLS]].concat());
    await_rows(dir.path());
    kill_process(process_of(&job, 1), Signal::STOP).unwrap();
    let done = job.finish_whole().ends(1);
    holds(done.last(), &["comity launch: rank 1 (pid ", host]);
    let end = "fell silent: it was stopped; rank 0 gave it up and exited with code 0";
    assert!(done.last().ends_with(end), "{}", done.err);
}

#[test]
fn nobody_waits_for_a_stopped_rank_that_was_given_up() {
    stop_one(&["-n", "2"], ", host ");
    stop_one(&["--ssh", &Hosts::new().ssh, "--hosts", "a,b"], ", host b)");
}

#[test]
fn a_stopped_rank_that_nobody_needs_is_waited_for() {
    let job = start_script(2, &[], "[ $RANK = 0 ] || kill -STOP $$; exit 0");
    wait_for("rank 1 to be stopped", || stopped(&job));
    std::thread::sleep(Duration::from_millis(1200));
    let rank = job.running("sh").pop().unwrap().pid;
    kill_process(rank, Signal::CONT).unwrap();
    job.finish().ends(0);
}

fn stopped(job: &Job) -> Option<()> {
    let is_stopped = |pid: Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
        stat.contains(") T ")
    };
    job.running("sh").iter().any(|p| is_stopped(p.pid)).then_some(())
}

/// All ranks but rank 1 run into what keeps rank 1 from coming.
fn missing(prepare: &str, limit: &str) {
    let all = format!("[ $RANK = 1 ] && {{ {prepare}; }}; exec \"$COMITY\" bench barrier --iters 5");
    let done = script(3, &["--env", limit], &all);
    assert_ne!(done.code, 0, "{}", done.err);
    assert!(done.last().starts_with("comity launch: rank 1 (pid "), "{}", done.err);
}

#[test]
fn a_rank_that_is_stopped_before_it_joins_or_may_open_no_file_is_named() {
    missing("kill -STOP $$", &format!("COMITY_JOIN_TIMEOUT={}", 2 * slowness()));
    for _ in 0..2 {
        missing("ulimit -n 12", "COMITY_JOIN_TIMEOUT=10");
    }
}

/// Rank 1 gets next to no processor for a while: its session and its threads come last, and three processes that come first keep its core busy.
/// Those need root, and so does rank 1 to come back; without it a busy machine does the same.
#[cfg(target_os = "linux")]
const STARVED: &str = "if [ $RANK = 1 ]; then
      core=$(sed -n 's/^Cpus_allowed_list:.*[-,\\t ]//p' /proc/self/status)
      (sleep 0.7
       echo 19 > /proc/$$/autogroup
       for t in /proc/$$/task/*; do chrt -i -p 0 ${t##*/}; taskset -pc $core ${t##*/}; done
       for i in 1 2 3; do
         setsid sh -c \"echo -20 > /proc/self/autogroup; exec taskset -c $core timeout 1.5 sh -c 'while :; do :; done'\" &
       done
       sleep 1.5
       echo 0 > /proc/$$/autogroup
       for t in /proc/$$/task/*; do chrt -o -p 0 ${t##*/}; done) > /dev/null 2>&1 &
    fi
    exec \"$COMITY\" bench all_reduce --sizes 1K --budget 1.5 > $D/rows$RANK";

#[cfg(target_os = "linux")]
#[test]
fn a_rank_that_waits_for_a_processor_is_not_silent() {
    let dir = tempfile::tempdir().unwrap();
    let d = format!("D={}", dir.path().display());
    let run = || script(2, &["--env", "COMITY_DETECTION=0.3", "--env", &d], STARVED);
    // It gets none for five times the limit. On a machine that has as little for anything else, one of three tries shows that.
    let errors: Vec<String> =
        (0..3).map(|_| run()).map_while(|done| (done.code != 0).then_some(done.err)).collect();
    assert!(errors.len() < 3, "{errors:#?}");
}
