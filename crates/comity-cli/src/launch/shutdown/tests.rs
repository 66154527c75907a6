//! The rules of ending a job, at times that the tests choose.
use super::*;

const INT: StopReason = StopReason::Interrupted { signal: 2 };

fn failed(rank: usize, ending: Ending) -> StopReason {
    StopReason::Failed { rank, ending }
}

#[test]
fn ranks_that_end_well_stop_nobody() {
    let now = Instant::now();
    let mut shutdown = Shutdown::new(2, None);
    shutdown.ended(0, Ending::Exit(0), now);
    assert!(!shutdown.over() && shutdown.tick(now + PATIENCE).is_none() && shutdown.next().is_none());
    shutdown.ended(1, Ending::Exit(0), now);
    assert!(shutdown.over() && shutdown.cause().is_none());
}

#[test]
fn a_failure_gives_the_others_a_second_then_term_then_kill() {
    let now = Instant::now();
    let mut shutdown = Shutdown::new(3, None);
    shutdown.ended(2, Ending::Exit(3), now);
    assert_eq!(shutdown.tick(now), None);
    assert_eq!(shutdown.next(), Some(now + GRACE));
    shutdown.ended(0, Ending::Exit(1), now + GRACE / 2);
    assert_eq!(shutdown.tick(now + GRACE), Some(StopOrder::Term));
    assert_eq!(shutdown.tick(now + GRACE), None);
    assert_eq!(shutdown.tick(now + GRACE + PATIENCE), Some(StopOrder::Kill));
    shutdown.ended(1, Ending::Signal(9), now + GRACE + PATIENCE);
    assert!(shutdown.over());
    assert_eq!(shutdown.cause(), Some(&failed(2, Ending::Exit(3))));
}

#[test]
fn a_crash_is_the_root_cause_of_its_consequence_and_only_then() {
    let now = Instant::now();
    let soon = now + CONSEQUENCE / 2;
    let mut shutdown = Shutdown::new(4, None);
    shutdown.ended(0, Ending::Exit(1), now);
    shutdown.ended(1, Ending::Signal(libc::SIGABRT), soon);
    shutdown.ended(2, Ending::Signal(9), soon);
    shutdown.ended(3, Ending::Signal(11), soon);
    assert_eq!(shutdown.cause(), Some(&failed(2, Ending::Signal(9))));

    let mut shutdown = Shutdown::new(2, None);
    shutdown.ended(0, Ending::Exit(1), now);
    shutdown.ended(1, Ending::Signal(9), now + CONSEQUENCE * 2);
    assert_eq!(shutdown.cause(), Some(&failed(0, Ending::Exit(1))));
}

#[test]
fn what_ranks_say_of_each_other_finds_the_cause() {
    let now = Instant::now();
    let shutdown = || {
        let mut shutdown = Shutdown::new(4, None);
        shutdown.ended(0, Ending::Exit(1), now);
        shutdown.ended(1, Ending::Signal(libc::SIGABRT), now);
        shutdown.ended(2, Ending::Exit(37), now + CONSEQUENCE * 2);
        shutdown
    };
    let found = |root_causes: [Option<usize>; 4]| {
        let mut shutdown = shutdown();
        shutdown.find_root_cause(|r| root_causes[r]);
        shutdown.cause().cloned()
    };
    assert_eq!(found([None; 4]), Some(failed(0, Ending::Exit(1))));
    assert_eq!(found([Some(2), Some(2), None, None]), Some(failed(2, Ending::Exit(37))));
    assert_eq!(found([Some(1), None, Some(1), None]), Some(failed(1, Ending::Signal(libc::SIGABRT))));
    // A circle leaves it with the first, and so does the name of a rank that does not exist.
    assert_eq!(found([Some(2), None, Some(0), None]), Some(failed(0, Ending::Exit(1))));
    assert_eq!(found([Some(9), None, None, None]), Some(failed(0, Ending::Exit(1))));
}

#[test]
fn one_that_did_not_fail_is_named_when_others_failed_for_it() {
    let now = Instant::now();
    let mut shutdown = Shutdown::new(4, None);
    shutdown.ended(2, Ending::Exit(0), now);
    shutdown.ended(0, Ending::Exit(1), now);
    shutdown.ended(1, Ending::Exit(5), now);
    let missed = |root_causes: [Option<usize>; 4]| {
        let mut shutdown = Shutdown {
            failures: shutdown.failures.clone(),
            well: shutdown.well.clone(),
            cause: shutdown.cause.clone(),
            ..Shutdown::new(4, None)
        };
        shutdown.find_root_cause(|r| root_causes[r]);
        shutdown.cause().cloned()
    };
    let by = |rank, ended, by, code| Some(StopReason::Missed { rank, ended, by, ending: Ending::Exit(code) });
    assert_eq!(missed([Some(2), Some(2), None, None]), by(2, true, 0, 1));
    assert_eq!(missed([Some(3), Some(3), None, None]), by(3, false, 0, 1));
    assert_eq!(missed([Some(1), Some(3), None, None]), by(3, false, 1, 5));
    // What a rank says after it was given up is not followed.
    assert_eq!(missed([Some(3), Some(3), None, Some(0)]), by(3, false, 0, 1));
}

#[test]
fn a_second_interrupt_kills_and_no_later_end_is_the_cause() {
    let now = Instant::now();
    let mut shutdown = Shutdown::new(1, None);
    assert_eq!(shutdown.stop(INT, now), Some(StopOrder::Term));
    assert_eq!(shutdown.stop(INT, now + TWICE / 2), None);
    assert_eq!(shutdown.stop(StopReason::Interrupted { signal: libc::SIGHUP }, now + TWICE), None);
    assert_eq!(shutdown.stop(INT, now + TWICE), Some(StopOrder::Kill));
    assert_eq!(shutdown.stop(INT, now + TWICE), None);
    shutdown.ended(0, Ending::Signal(9), now);
    assert_eq!(shutdown.cause(), Some(&INT));
}

#[test]
fn an_interrupt_during_the_grace_keeps_the_culprit() {
    let now = Instant::now();
    let mut shutdown = Shutdown::new(2, None);
    shutdown.ended(1, Ending::Exit(7), now);
    assert_eq!(shutdown.stop(INT, now), Some(StopOrder::Term));
    assert_eq!(shutdown.cause(), Some(&failed(1, Ending::Exit(7))));
}

#[test]
fn who_was_silent_for_long_leaves_the_others_less_time() {
    let now = Instant::now();
    let killed_after = |silent: u64| {
        let mut shutdown = Shutdown::new(2, None);
        shutdown.host_lost(1, 1, now, Duration::from_secs(silent));
        assert_eq!(shutdown.cause(), Some(&StopReason::HostLost { host: 1 }));
        let term = shutdown.next().unwrap();
        assert_eq!(shutdown.tick(term), Some(StopOrder::Term));
        let kill = shutdown.next().unwrap();
        assert_eq!(shutdown.tick(kill), Some(StopOrder::Kill));
        (term - now, kill - now)
    };
    assert_eq!(killed_after(0), (GRACE, GRACE + PATIENCE));
    assert_eq!(killed_after(3), (Duration::ZERO, PATIENCE_ORPHANED));
}

#[test]
fn a_grace_of_the_users_holds_and_says_who_was_cut_off() {
    let now = Instant::now();
    let grace = Duration::from_secs(60);
    let job = || Shutdown::new(2, None).with_grace(grace);
    let mut shutdown = job();
    assert_eq!(shutdown.stop(INT, now), Some(StopOrder::Term));
    assert_eq!((shutdown.tick(now + grace - TWICE), shutdown.cut_after()), (None, None));
    assert_eq!(shutdown.tick(now + grace), Some(StopOrder::Kill));
    assert_eq!(shutdown.cut_after(), Some(grace));
    let mut shutdown = job();
    shutdown.ended(0, Ending::Exit(3), now);
    assert_eq!(shutdown.tick(now + GRACE), Some(StopOrder::Term));
    assert_eq!(shutdown.next(), Some(now + GRACE + grace));
    // Who asks again does not wait.
    let mut shutdown = job();
    assert_eq!(shutdown.stop(INT, now), Some(StopOrder::Term));
    assert_eq!(shutdown.stop(INT, now + TWICE), Some(StopOrder::Kill));
    assert_eq!(shutdown.cut_after(), None);
    let mut shutdown = job();
    shutdown.stop(StopReason::Orphaned, now);
    assert_eq!(shutdown.next(), Some(now + PATIENCE_ORPHANED));
}

#[test]
fn ranks_are_left_only_when_all_that_run_were_given_up() {
    let now = Instant::now();
    let mut shutdown = Shutdown::new(4, None);
    let told = |rank: usize| [None, None, Some(0), Some(1)][rank];
    assert_eq!(shutdown.deserted(2..4, told), Some((2, 0)));
    assert_eq!(shutdown.deserted(1..4, told), None);
    assert_eq!(shutdown.deserted(0..0, told), None);
    shutdown.ended(0, Ending::Exit(0), now);
    assert_eq!(shutdown.well(), [0]);
    shutdown.leave(2, 0, now);
    assert_eq!(shutdown.tick(now + GRACE), Some(StopOrder::Term));
    assert_eq!((shutdown.deserted(2..4, told), shutdown.well()), (None, &[][..]));
    let missed = StopReason::Missed { rank: 2, ended: false, by: 0, ending: Ending::Exit(0) };
    assert_eq!(shutdown.cause(), Some(&missed));
}

#[test]
fn an_orphaned_job_hurries() {
    let now = Instant::now();
    let mut shutdown = Shutdown::new(1, None);
    assert_eq!(shutdown.stop(INT, now), Some(StopOrder::Term));
    assert_eq!(shutdown.stop(StopReason::Orphaned, now), None);
    assert_eq!(shutdown.tick(now + PATIENCE_ORPHANED), Some(StopOrder::Kill));
}

#[test]
fn time_runs_out_once_and_what_does_not_die_is_left() {
    let now = Instant::now();
    let limit = now + Duration::from_secs(60);
    let mut shutdown = Shutdown::new(1, Some(limit));
    assert_eq!(shutdown.next(), Some(limit));
    assert_eq!(shutdown.tick(limit), Some(StopOrder::Term));
    assert_eq!(shutdown.cause(), Some(&StopReason::TimedOut));
    assert_eq!(shutdown.tick(limit + PATIENCE), Some(StopOrder::Kill));
    assert_eq!(shutdown.tick(limit + PATIENCE + VANISH), Some(StopOrder::Abandon));
    assert!(shutdown.over());
}
