//! Ctrl-Z and what follows it.
use super::harness::*;
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

/// Counts in a file of this name until it is ended.
const COUNT: &str =
    "count() { i=0; while :; do i=$((i+1)); echo $i > $D/$1.new; mv $D/$1.new $D/$1; sleep 0.02; done; }";

fn counts(dir: &Path) -> Vec<u64> {
    let number = |name: &str| std::fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok();
    ["n0", "n1", "away0", "away1"].iter().map(|name| number(name).unwrap_or(0)).collect()
}

fn all_count(dir: &Path) {
    let before = counts(dir);
    wait_for("all to count on", || {
        counts(dir).iter().zip(&before).all(|(now, before)| now > before).then_some(())
    });
}

#[test]
fn ctrl_z_stops_every_process_of_the_job_and_fg_continues_them() {
    let dir = tempfile::tempdir().unwrap();
    // One that has left its rank's session, and ranks that would ignore what a terminal sends.
    let script =
        format!("{COUNT}; export D; trap '' TSTP; setsid sh -c '{COUNT}; count away$RANK' & count n$RANK");
    let flags = ["-n", "2", "--env", &format!("D={}", dir.path().display()), "--", "sh", "-c", &script];
    let job = start_with(&flags, own_group);
    for _ in 0..2 {
        all_count(dir.path());
        job.stop();
        // A signal acts when its process runs next.
        let begun = Instant::now();
        let mut before = counts(dir.path());
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = counts(dir.path());
            if now == before {
                break;
            }
            assert!(begun.elapsed() < deadline() / 4, "they go on: {before:?}, {now:?}");
            before = now;
        }
        job.signal(Signal::CONT);
    }
    all_count(dir.path());
    job.signal(Signal::TERM);
    assert_eq!(job.finish_whole().code, 143);
}

#[test]
fn a_stopped_job_can_be_ended() {
    // What `kill %1` does to a job that a shell has stopped.
    let job = start_with(&["-n", "2", "sleep", "100"], own_group);
    job.wait_running("sleep", 2);
    job.stop();
    job.signal(Signal::TERM);
    job.signal(Signal::CONT);
    let done = job.finish_whole();
    assert_eq!((done.code, done.last()), (143, "comity launch: ended by SIGTERM"));
}
