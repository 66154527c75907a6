//! Signals that mean something to the ranks' program, and the time that ranks have to end.
use super::harness::*;
use super::hosts::Hosts;
use rustix::process::Signal;

/// Leaves a file for each signal that comes, and ends at the last one.
const NOTE: &str =
    "trap ': > $D/first$RANK' USR1; trap ': > $D/second$RANK' USR2; trap ': > $D/third$RANK; exit 0' QUIT
    : > $D/up$RANK; while :; do sleep 0.05; done";

fn pass(flags: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let d = format!("D={}", dir.path().display());
    let job = start(&[flags, &["--env", &d, "--", "sh", "-c", NOTE]].concat());
    wait_files(dir.path(), "up", 2);
    for (signal, file) in [(Signal::USR1, "first"), (Signal::USR2, "second"), (Signal::QUIT, "third")] {
        job.signal(signal);
        wait_files(dir.path(), file, 2);
    }
    job.finish().ends(0);
}

#[test]
fn signals_for_the_program_reach_every_rank_here_and_on_other_hosts() {
    pass(&["-n", "2"]);
    pass(&["--ssh", &Hosts::new().ssh, "--hosts", "a,b"]);
}

#[test]
fn a_rank_without_a_handler_dies_of_it_and_is_named() {
    let job = start(&["-n", "2", "sleep", "100"]);
    job.wait_running("sleep", 2);
    job.signal(Signal::USR1);
    let done = job.finish().ends(138);
    assert!(done.last().ends_with("was killed by signal 10 (SIGUSR1)"), "{}", done.err);
}

/// Rank 0 takes longer than it has.
const SAVE: &str = "trap '[ $RANK = 0 ] && sleep 30; : > $D/saved$RANK; exit 0' TERM
    : > $D/up$RANK; while :; do sleep 0.05; done";

/// A job of that form that gets SIGTERM when all its ranks run; true if it ended as it should.
fn cuts_off(form: &[&str]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let d = format!("D={}", dir.path().display());
    let words = [form, &["--grace", "3", "--env", &d, "--", "sh", "-c", SAVE]].concat();
    let job = start(&words);
    wait_files(dir.path(), "up", 2);
    job.signal(Signal::TERM);
    let done = job.finish().ends(143);
    assert!(!dir.path().join("saved0").exists(), "{}", done.err);
    let last = "comity launch: ended by SIGTERM; rank 0 had not ended 3 s after SIGTERM and was killed \
        (--grace SECONDS gives more time)";
    let is_right = done.last() == last && dir.path().join("saved1").exists();
    if !is_right {
        eprintln!("{}", done.err);
    }
    is_right
}

#[test]
fn the_last_line_says_who_was_cut_off() {
    assert!(cuts_off(&["-n", "2"]));
    let hosts = Hosts::new();
    // Where the launcher gets no core for 3 s, a host takes it for lost and ends its rank itself.
    assert!((0..3).any(|_| cuts_off(&["--ssh", &hosts.ssh, "--hosts", "a,b"])));
}
