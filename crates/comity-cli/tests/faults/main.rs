//! Ranks that are killed, stopped, or exit without a word: every other rank gets an error that names them, in time, or its result.
#![cfg(target_os = "linux")]

mod actor;
#[path = "../common/mod.rs"]
mod common;
mod crew;
mod pauses;

use actor::{ROLE, monotonic};
use comity::{Config, Key, tools::Store};
use common::{Ended, patient, this_test};
use crew::{Crew, LAUNCHER, PATIENT, all_name, at_most, ms, others, text, took};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Longest time until a rank is told, in milliseconds, on a machine that may do something else for seconds.
const TOLD: u32 = 20_000;

/// Time for which the distribution of a kind of death is measured.
const MEASURE: Duration = Duration::from_secs(6);

/// Most are told within so many milliseconds, whatever else the machine does now and then.
fn show(what: &str, mut times: Vec<f64>, within: u32) {
    times.sort_by(f64::total_cmp);
    let at = |q: f64| times[((times.len() - 1) as f64 * q).round() as usize];
    let n = times.len();
    let p50 = at(0.5);
    let p99 = at(0.99);
    let max = at(1.0);
    println!("{what}: {n} errors, p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms");
    assert!(p50 < at_most(within), "{what}: {times:?} ms");
}

/// After its error a rank gets the same cause at once, and closes soon.
fn check_after(crew: &mut Crew, errors: &[Value]) {
    for error in errors {
        let rank = error["rank"].as_u64().unwrap() as usize;
        let again = &crew.hear("again", [rank])[0];
        assert_eq!((text(again), &again["same"]), (text(error), &Value::Bool(true)));
        assert!(again["micros"].as_f64().unwrap() < at_most(5000) * 1e3, "{again}");
        closes_soon(crew, rank);
    }
}

fn closes_soon(crew: &mut Crew, rank: usize) {
    let closed = &crew.hear("closed", [rank])[0];
    assert!(closed["millis"].as_f64().unwrap() < at_most(TOLD), "{closed}");
}

/// Kill ranks of 8 while they play `role`, over and over; every survivor names the right one.
fn kills(what: &str, role: impl Fn(usize) -> String, ready: &str, absent: usize) {
    let begun = Instant::now();
    let mut times = Vec::new();
    let n = 8;
    for round in 0.. {
        let victim = (round * 3 + 1) % (n - absent);
        let links = ["shm,tcp", "tcp", "unix"][round % 3];
        let mut crew =
            Crew::start_some(&role(victim), n, 0..n - absent, |_| vec![PATIENT, ("COMITY_LINKS", links)]);
        crew.hear(ready, 0..n - absent);
        // Who has only started needs time to reach the store: one that was never there is missed, not mourned.
        let reached = if absent > 0 { patient(ms(1000)) } else { Duration::ZERO };
        thread::sleep(reached + ms(100 + round as u64 * 7 % 50));
        let killed = crew.signal(victim, Signal::KILL);
        let errors = crew.hear("error", others(n - absent, victim));
        times.extend(all_name(&errors, victim, killed, TOLD, ""));
        if absent == 0 {
            check_after(&mut crew, &errors);
        }
        if round >= 1 && begun.elapsed() > MEASURE {
            break;
        }
    }
    show(what, times, 2000);
}

#[test]
fn killed_in_an_all_reduce() {
    kills("killed_in_an_all_reduce", |_| "ops".into(), "ready", 0);
}

#[test]
fn killed_in_the_middle_of_a_lane() {
    let begun = Instant::now();
    let mut times = Vec::new();
    for round in 0.. {
        let n = [2, 4][round % 2];
        let victim = round / 2 % n;
        let env = [PATIENT, ("COMITY_LINKS", "shm"), ("COMITY_LANES", "4")];
        let mut crew = Crew::start("lanes", n, &env);
        crew.hear("carried", 0..n);
        // Anywhere in a turn of the calls.
        thread::sleep(Duration::from_micros(round as u64 * 7919 % 30_000));
        let killed = crew.signal(victim, Signal::KILL);
        let errors = crew.hear("error", others(n, victim));
        times.extend(all_name(&errors, victim, killed, TOLD, "died"));
        check_after(&mut crew, &errors);
        if round >= 7 && begun.elapsed() > MEASURE {
            println!("{} trials", round + 1);
            break;
        }
    }
    show("killed_in_the_middle_of_a_lane", times, 2000);
}

#[test]
fn killed_in_an_exchange_of_others() {
    kills("killed_in_an_exchange_of_others", |_| "pairs".into(), "ready", 0);
}

#[test]
fn killed_outside_a_barrier() {
    kills("killed_outside_a_barrier", |victim| format!("barrier {victim}"), "ready", 0);
}

#[test]
fn killed_while_ranks_join() {
    kills("killed_while_ranks_join", |_| "ops".into(), "started", 1);
}

#[test]
fn killed_while_all_are_idle() {
    let mut times = Vec::new();
    for (links, victim) in [("shm,tcp", 5), ("tcp", 0), ("unix", 2), ("shm,tcp", 7)] {
        let mut crew = Crew::start("idle", 8, &[PATIENT, ("COMITY_LINKS", links)]);
        crew.hear("ready", 0..8);
        crew.signal(victim, Signal::KILL);
        thread::sleep(ms(250));
        others(8, victim).for_each(|r| crew.tell(r, "call"));
        for rank in others(8, victim) {
            let called = crew.hear("called", [rank])[0]["at"].as_u64().unwrap();
            let errors = crew.hear("error", [rank]);
            times.extend(all_name(&errors, victim, called, TOLD, "died"));
            check_after(&mut crew, &errors);
        }
    }
    show("killed_while_all_are_idle", times, 1000);
}

#[test]
fn killed_while_ranks_close() {
    for round in 0..20 {
        let victim = round % 4;
        let mut crew = Crew::start("closing", 4, &[PATIENT]);
        crew.hear("ready", [victim]);
        thread::sleep(Duration::from_micros(round as u64 * 150));
        crew.signal(victim, Signal::KILL);
        for rank in others(4, victim) {
            // The last call may have ended before, and the group been closed; but nothing hangs, and nobody else is blamed.
            closes_soon(&mut crew, rank);
            let said = crew.said(rank, "error").or_else(|| crew.said(rank, "again"));
            if let Some(said) = said {
                assert!(text(&said).contains(&format!("rank {victim} ")), "rank {victim} was killed: {said}");
            }
        }
    }
}

#[test]
fn killed_while_a_child_holds_its_sockets() {
    let mut crew = Crew::start("fork", 3, &[PATIENT]);
    crew.hear("ready", 0..3);
    crew.hear("forked", [1]);
    let killed = crew.signal(1, Signal::KILL);
    // The child lives for 10 s.
    all_name(&crew.hear("error", [0, 2]), 1, killed, 8000, "died");
}

#[test]
fn killed_under_the_launcher() {
    let mut crew = Crew::launch("ops", 4, &[PATIENT]);
    crew.hear("ready", 0..4);
    thread::sleep(ms(100));
    let killed = crew.signal(2, Signal::KILL);
    all_name(&crew.said_in_time("error", [0, 1, 3]), 2, killed, TOLD, "");
    assert_eq!(crew.code(), Some(137));
}

#[test]
fn the_launcher_names_whom_the_survivors_name() {
    for (role, says) in [
        ("needed 2", ") ended with code 0 while others still needed it; rank "),
        ("absent 2", ") ended with code 0 while others still needed it; rank "),
        ("needed none", ") fell silent: it was stopped; rank "),
    ] {
        let mut crew = Crew::launch(role, 4, &[("COMITY_DETECTION", "2")]);
        let begun = Instant::now();
        if role == "needed none" {
            crew.hear("ready", 0..4);
            thread::sleep(ms(200));
            crew.signal(2, Signal::STOP);
        }
        let said = &crew.hear("verdict", [LAUNCHER])[0];
        assert!(text(said).starts_with("rank 2 (pid ") && text(said).contains(says), "{said}");
        assert!(text(said).ends_with(" exited with code 1"), "{said}");
        assert_eq!(crew.code(), Some(1));
        for said in crew.said_in_time("error", [0, 1, 3]) {
            assert!(text(&said).contains("rank 2 "), "{said}");
        }
        // Not the 60 s for which ranks wait for one that may still come.
        assert!(begun.elapsed() < patient(Duration::from_secs(30)), "{role}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_stopped_rank_is_given_up_and_told_so() {
    let mut times = Vec::new();
    for (links, role, victim) in [
        ("shm,tcp", "ops", 2),
        ("tcp", "ops", 0),
        ("shm,tcp", "pairs", 3),
        ("tcp", "pairs", 1),
        ("unix", "ops", 1),
        ("tcp", "barrier 1", 1),
    ] {
        let env = [("COMITY_DETECTION", "2"), ("COMITY_LINKS", links)];
        let mut crew = Crew::start(role, 4, &env);
        crew.hear("ready", 0..4);
        thread::sleep(ms(200));
        let stopped = crew.signal(victim, Signal::STOP);
        let errors = crew.hear("error", others(4, victim));
        let after = all_name(&errors, victim, stopped, TOLD, "fell silent: nothing heard for ");
        assert!(after.iter().all(|took| *took > 800.0), "{after:?} ms: {errors:#?}");
        times.extend(after);
        check_after(&mut crew, &errors);
        crew.signal(victim, Signal::CONT);
        if !role.starts_with("barrier") {
            let errors = crew.hear("error", [victim]);
            let said = &errors[0];
            let words = text(said);
            // From who gave it up; or, where it was stopped in the midst of reading, first from another who had been told.
            let told = ["was given up: nothing was heard from it for ", "fell silent: nothing heard for "];
            assert!(
                words.contains(&format!("rank {victim} ")) && told.iter().any(|t| words.contains(t)),
                "{said}"
            );
            assert!(words.contains("(seen by rank "), "{said}");
            check_after(&mut crew, &errors);
        }
    }
    show("a_stopped_rank_is_given_up_and_told_so", times, 3000);
}

#[test]
fn closing_does_not_wait_for_a_stopped_rank() {
    // It stops as soon as it has its group.
    let mut crew = Crew::start("stops 1", 4, &[]);
    crew.hear("ready", 0..4);
    let begun = monotonic();
    others(4, 1).for_each(|r| crew.tell(r, "call"));
    for said in crew.hear("closed", others(4, 1)) {
        // 5 s until rank 1 is given up, 1 s to say so, and not the minute of a call.
        assert!(
            took(&said, begun) < at_most(TOLD) && said["millis"].as_f64().unwrap() < at_most(TOLD),
            "{said}"
        );
    }
}

#[test]
fn an_exit_without_a_word_fails_nobody() {
    const ROUNDS: usize = 200;
    thread::scope(|s| {
        for part in 0..2 {
            s.spawn(move || {
                for round in (0..ROUNDS).filter(|r| r % 2 == part) {
                    let links = ["shm,tcp", "tcp"][round / 2 % 2];
                    let mut crew = Crew::start("exit", 3, &[("COMITY_LINKS", links)]);
                    crew.hear("done", 0..3);
                }
            });
        }
    });
}

#[test]
fn a_process_exits_with_work_pending() {
    let mut crew = Crew::start("pending", 2, &[]);
    crew.hear("done", [0]);
    let begun = Instant::now();
    assert_eq!(crew.code(), Some(0), "rank 0 ends in good order");
    assert!(begun.elapsed() < patient(Duration::from_secs(20)));
    crew.tell(1, "call");
    let error = &crew.hear("error", [1])[0];
    assert!(text(error).contains("rank 0"), "{error}");
}

/// Groups of two threads that fail, over and over, and what they leave in a process that does nothing else.
#[test]
fn failed_groups_leave_nothing_behind() {
    if std::env::var_os(ROLE).is_none() {
        let alone = &mut this_test("failed_groups_leave_nothing_behind");
        Ended::of(alone.env(ROLE, "leftovers")).ends(0);
        return;
    }
    let cycle = |round: usize| {
        let key = Key::from([5; 32]);
        let store =
            Store::start(([127, 0, 0, 1], 0).into(), 2, &key, "left", Duration::from_secs(20)).unwrap();
        let at = store.addr().to_string();
        thread::scope(|s| {
            for rank in 0..2 {
                let config = Config::new(rank, 2).store(&at).unwrap().job("left").key(key.clone());
                let config =
                    if round.is_multiple_of(2) { config } else { config.links([comity::LinkKind::Tcp]) };
                s.spawn(move || {
                    let group = config.connect().unwrap();
                    // One may be told that the other gave up before its own split has ended.
                    let half = group.split(Some(0), 0).map(Option::unwrap);
                    if rank == round / 2 % 2 {
                        half.as_ref().unwrap().abort("the test wants it so");
                        group.abort("the test wants it so");
                    }
                    half.and_then(|h| h.barrier()).unwrap_err();
                    group.barrier().unwrap_err();
                });
            }
        });
    };
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let maps = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|l| l.contains("memfd:comity")).count()
    };
    (0..4).for_each(cycle);
    // A thread that was joined is listed a little longer: what is left is what stays.
    let held = || (count("fd"), count("task"), maps());
    let now = || {
        let mut last = held();
        let mut since = Instant::now();
        let begun = Instant::now();
        while since.elapsed() < ms(500) && begun.elapsed() < Duration::from_secs(20) {
            thread::sleep(ms(10));
            let now = held();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        last
    };
    let before = now();
    (0..60).for_each(cycle);
    assert_eq!(now(), before, "descriptors, threads and mappings of memory");
}
