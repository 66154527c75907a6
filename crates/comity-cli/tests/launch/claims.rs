//! A process that claims a rank which another one of the same job holds: a program that a rank starts inherits all that made it one.
use super::harness::*;

/// Rank 1 starts a second program once the job runs.
const CLAIMED: &str = "[ $RANK = 1 ] && (until [ -s $D/rows ]; do sleep 0.05; done; exec \"$COMITY\" check) &
    exec \"$COMITY\" bench all --sizes 8:64K --budget 1 --json > $D/rows";

#[test]
fn a_second_claimant_ends_a_young_job_on_every_rank_and_both_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let d = format!("D={}", dir.path().display());
    let program = format!("COMITY={}", env!("CARGO_BIN_EXE_comity"));
    let done = script(2, &["--env", &d, "--env", &program], CLAIMED);
    assert_ne!(done.code, 0, "{}", done.err);
    for rank in 0..2 {
        let told = |l: &&str| l.starts_with(&format!("[{rank}]")) && l.contains("cannot go on");
        let line = done.err.lines().find(told).unwrap_or_else(|| panic!("rank {rank}: {}", done.err));
        assert_eq!(line.matches("pid ").count(), 3, "both claimants, and the rank: {line}");
    }
}

#[test]
fn a_rank_may_run_one_program_after_another() {
    let program = format!("COMITY={}", env!("CARGO_BIN_EXE_comity"));
    let twice =
        "\"$COMITY\" bench barrier --iters 5 --json && exec \"$COMITY\" bench barrier --iters 5 --json";
    let done = script(2, &["--env", &program], twice);
    assert_eq!((done.code, done.out.lines().count()), (0, 2), "{}{}", done.out, done.err);
}
