//! A process that claims a rank which another one of the same job holds: a program that a rank starts inherits all that made it one.
use super::harness::*;

/// Rank 1 starts a second program once the job runs.
const CLAIMED: &str = "[ $RANK = 1 ] && (until [ -s $D/rows ]; do sleep 0.05; done; exec \"$COMITY\" check) &
    exec \"$COMITY\" bench all --sizes 8:64K --budget 1 --json > $D/rows";

#[test]
fn a_second_claimant_ends_a_young_job_on_every_rank_and_both_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let d = format!("D={}", dir.path().display());
    let done = script(2, &["--env", &d], CLAIMED);
    assert_ne!(done.code, 0, "{}", done.err);
    for rank in 0..2 {
        let told = |l: &&str| l.starts_with(&format!("[{rank}]")) && l.contains("cannot go on");
        let line = done.err.lines().find(told).unwrap_or_else(|| panic!("rank {rank}: {}", done.err));
        assert_eq!(line.matches("pid ").count(), 3, "both claimants, and the rank: {line}");
    }
}

/// The same from two containers of one pod: rank 1 and the second program are both process 1. Needs root, or user namespaces.
#[cfg(target_os = "linux")]
#[test]
fn a_second_claimant_with_the_same_process_number_is_another_one() {
    const APART: &str = "unshare -rpf --mount-proc";
    if !works(std::process::Command::new("sh").args(["-c", &format!("{APART} true")])) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let d = format!("D={}", dir.path().display());
    let apart = CLAIMED.replace("exec \"$COMITY\"", "exec $APART \"$COMITY\"");
    let line = format!("[ $RANK = 1 ] && APART='{APART}'; {apart}");
    let done = script(2, &["--env", &d], &line);
    assert_ne!(done.code, 0, "{}", done.err);
    let told = |l: &&str| l.contains("two processes claim rank 1");
    let line = done.err.lines().find(told).unwrap_or_else(|| panic!("{}", done.err));
    assert!(line.contains("pid 1, from 127.0.0.1, the other host "), "{line}");
    assert!(line.contains("pid 1, from 127.0.0.1 in another container;"), "{line}");
}

#[test]
fn a_rank_may_run_one_program_after_another() {
    let twice =
        "\"$COMITY\" bench barrier --iters 5 --json && exec \"$COMITY\" bench barrier --iters 5 --json";
    let done = script(2, &[], twice).ends(0);
    assert_eq!(done.out.lines().count(), 2, "{}", done.text());
}
