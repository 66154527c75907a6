//! The promises of `faults.rs` in jobs whose ranks watch their neighbours in a graph only, as in those of more than 64 ranks.
#![cfg(target_os = "linux")]
#![allow(dead_code)]

#[path = "faults/actor.rs"]
mod actor;
mod common;
#[path = "faults/crew.rs"]
mod crew;

use crew::{Crew, PATIENT, all_name, ms, others, text};
use rustix::process::Signal;
use std::thread;

/// All jobs of this size and more are sparse here.
const SPARSE: (&str, &str) = ("COMITY_TEST_SPARSE_ABOVE", "3");

#[test]
fn a_killed_rank_is_named_by_those_that_do_not_watch_it_too() {
    for (n, role, links, victim) in [
        (12, "ops", "shm,tcp", 7),
        (10, "pairs", "tcp", 2),
        (11, "barrier 5", "unix", 5),
        (12, "ops", "tcp", 0),
    ] {
        let mut crew = Crew::start(role, n, &[SPARSE, PATIENT, ("COMITY_LINKS", links)]);
        crew.hear("ready", 0..n);
        thread::sleep(ms(150));
        let killed = crew.signal(victim, Signal::KILL);
        all_name(&crew.hear("error", others(n, victim)), victim, killed, 20_000, "died");
    }
}

/// A child that it forked keeps its sockets open, so no connection ends. The nearest ranks watch its process, and say that it has ended; the other
/// neighbours look then.
#[test]
fn killed_while_a_child_holds_its_sockets() {
    let n = 14;
    let mut crew = Crew::start("fork", n, &[SPARSE, PATIENT]);
    crew.hear("ready", 0..n);
    crew.hear("forked", [1]);
    let killed = crew.signal(1, Signal::KILL);
    // The child lives for 10 s.
    all_name(&crew.hear("error", others(n, 1)), 1, killed, 8000, "died");
}

#[test]
fn a_stopped_rank_is_named_within_the_limit() {
    for (n, role, links, victim) in [(12, "ops", "shm,tcp", 4), (10, "barrier 9", "tcp", 9)] {
        let env = [SPARSE, ("COMITY_DETECTION", "2"), ("COMITY_LINKS", links)];
        let mut crew = Crew::start(role, n, &env);
        crew.hear("ready", 0..n);
        thread::sleep(ms(300));
        let stopped = crew.signal(victim, Signal::STOP);
        let words = "fell silent: nothing heard for ";
        all_name(&crew.hear("error", others(n, victim)), victim, stopped, 20_000, words);
        crew.signal(victim, Signal::CONT);
        if role == "ops" {
            let said = &crew.hear("error", [victim])[0];
            assert!(
                text(said).contains(&format!("rank {victim} ")),
                "it is told that it was given up: {said}"
            );
        }
    }
}

#[test]
fn a_limit_that_passes_names_who_has_not_made_the_call() {
    let n = 12;
    let sleeper = 6;
    let role = format!("barrier {sleeper}");
    let env = [SPARSE, ("COMITY_TIMEOUT", "1")];
    let mut crew = Crew::start(&role, n, &env);
    crew.hear("ready", 0..n);
    for said in crew.hear("error", others(n, sleeper)) {
        let words = text(&said);
        assert!(words.contains("timed out") && words.contains(&format!("rank {sleeper} ")), "{said}");
        let named = |r: usize| words.contains(&format!("rank {r} (host")) && words.contains("has not");
        assert!(others(n, sleeper).filter(|r| named(*r)).count() <= 1, "{said}");
    }
    crew.signal(sleeper, Signal::KILL);
}

#[test]
fn ranks_that_end_in_good_order_fail_nobody() {
    for round in 0..10 {
        let links = ["shm,tcp", "tcp"][round % 2];
        let mut crew = Crew::start("exit", 10, &[SPARSE, ("COMITY_LINKS", links)]);
        crew.hear("done", 0..10);
    }
}

/// The size from which on jobs are sparse for everybody.
#[test]
fn a_job_of_more_than_64_ranks_names_a_killed_one() {
    let n = 66;
    let mut crew = Crew::launch("ops", n, &[PATIENT]);
    crew.hear("ready", 0..n);
    let killed = crew.signal(40, Signal::KILL);
    all_name(&crew.said_in_time("error", others(n, 40)), 40, killed, 20_000, "died");
    assert_eq!(crew.code(), Some(137));
}
