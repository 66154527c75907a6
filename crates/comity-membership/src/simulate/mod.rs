//! Every rank of a job in one thread and in virtual time, with faults: the proof of the promise about failures.
//!
//! A seed makes a scenario: 2 to 64 ranks (of larger jobs see `sparse` and `vast`), groups that are opened, left and told about at random times, delays, and
//! faults: kills (also between two notes), hosts without power, stops and wakes, cuts both ways and one way,
//! broken connections, slow control threads, aborts by one rank or several. Each rank runs the true
//! [`Membership`](crate::Membership). A run fails when one of these is broken:
//!
//! - Every member of a group that a fault concerns, if it runs and has not left, learns of a failure within the limit + 1 s, and as much later as
//!   ranks had no turns meanwhile, up to three times the limit; where
//!   one death or abort is all that happens to a whole group, within the time its notes need. What only silence shows is found within that
//!   time from when first beats have come of all, or from five minutes after the last that came.
//! - The culprit and the witness named are true: it ended, aborted, or cannot be heard by that witness. Where
//!   there is one cause, all therefore name the same. Without a cause no group fails.
//! - A member that left in good order is no culprit, and one that left a failed group is not taken for one in good order.
//! - The first reason stays. Nobody is told twice.
//!
//! `COMITY_SIM_SEEDS=1000000` runs so many seeds, `COMITY_SIM_SEEDS=1000000..2000000` those, `COMITY_SIM_SEED=12345` repeats one and prints what happened.
//!
//! Outside the simulation: how ranks meet, sockets, and what the engine makes of a link that breaks.

mod beginnings;
mod failure;
mod judge;
mod member;
mod mutant;
mod scenario;
mod sparse;
mod vast;
mod world;

use beginnings::UNBORN;
pub(crate) use failure::{SimulatedFailure, SimulatedReason};
use mutant::Mutant;
use scenario::{PlantedFault, SECOND, Scenario};
use scope::{broken, number};
use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};
use world::SimulatedWorld;

/// Seeds of an ordinary test run.
const SEEDS: u64 = 10_000;
/// A run of the gate takes one of so many shares of them.
const HANDS: u64 = 10;
/// Stop after so many seeds that break a promise.
const ENOUGH: usize = 3;

/// A run's broken promise, or how many failures were learned of and how many notes sent.
fn run(scenario: &Scenario, mutant: Option<Mutant>) -> Result<(usize, u64), String> {
    let mut world = SimulatedWorld::new(scenario, mutant, false);
    world.run()?;
    Ok((world.judge.found(), world.notes))
}

/// The seeds to run: as many as the variable says, or those from one to another.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("COMITY_SIM_SEEDS") else {
        let scope = scope::Scope::from_env();
        let first = scope.seed % HANDS * (SEEDS / HANDS);
        return if scope.deep { 0..SEEDS } else { first..first + SEEDS / HANDS };
    };
    let (first, end) = text.split_once("..").unwrap_or(("0", &text));
    let number =
        |n: &str| n.parse().unwrap_or_else(|e| panic!("COMITY_SIM_SEEDS={text} is no number of seeds: {e}"));
    number(first)..number(end)
}

/// Run one seed and print what happens.
fn replay(seed: u64, scenario: &Scenario) {
    println!("{scenario:?}");
    let mut world = SimulatedWorld::new(scenario, None, true);
    let verdict = world.run();
    world.trace.iter().flatten().for_each(|line| println!("{line}"));
    assert_eq!(verdict, Ok(()), "seed {seed}");
}

#[test]
fn the_promise_is_kept() {
    if let Some(seed) = number("COMITY_SIM_SEED") {
        return replay(seed, &Scenario::new(seed, None));
    }
    let seeds = seeds();
    let failures = AtomicU64::new(0);
    let notes = AtomicU64::new(0);
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let begun = Instant::now();
    let one = |seed| {
        let (found, sent) = run(&Scenario::new(seed, None), None)?;
        failures.fetch_add(found as u64, Ordering::Relaxed);
        notes.fetch_add(sent, Ordering::Relaxed);
        Ok(())
    };
    scope::keeps_promises(["comity-membership", "the_promise_is_kept"], seeds.clone(), threads, one);
    let failures = failures.into_inner();
    let notes = notes.into_inner();
    let seeds = seeds.end.saturating_sub(seeds.start);
    println!(
        "{seeds} seeds: ranks learned of {failures} failures by {notes} notes, in {:.1?}",
        begun.elapsed()
    );
    // Most seeds do break something.
    assert!(seeds < 100 || failures > seeds, "only {failures} failures in {seeds} seeds");
}

/// `COMITY_SIM_HOURS=10000` runs so many, each a job of its own.
#[test]
fn hours_pass_without_a_false_alarm() {
    let few = if scope::Scope::from_env().deep { 100 } else { 4 };
    let hours = number("COMITY_SIM_HOURS").unwrap_or(few);
    let begun = Instant::now();
    // Nobody has failed, and so nobody may be told of a failure.
    let one = |seed| match run(&Scenario::hour(seed), None)? {
        (0, _) => Ok(()),
        (found, _) => Err(format!("{found} were told of a failure")),
    };
    assert_eq!(broken(0..hours, 2, ENOUGH, one), [].into());
    println!("{hours} hours in {:.1?}", begun.elapsed());
}

#[test]
fn a_seed_repeats_itself() {
    for seed in (0..400).step_by(7) {
        let scenario = Scenario::new(seed, Some(2..=20));
        let trace = |_| {
            let mut world = SimulatedWorld::new(&scenario, None, true);
            let verdict = world.run();
            (verdict, world.trace.take())
        };
        assert_eq!(trace(0), trace(1), "seed {seed}");
    }
}

#[test]
fn who_is_stopped_while_joining_ends_the_job_after_five_minutes() {
    for seed in 0..20 {
        let scenario = Scenario::joining(seed);
        let PlantedFault::Stop { rank, .. } = scenario.faults[0] else { panic!("{scenario:?}") };
        let mut world = SimulatedWorld::new(&scenario, None, false);
        assert_eq!(world.run(), Ok(()), "seed {seed}");
        let mut known = world.known(0);
        assert_eq!(known.remove(rank), None);
        for known in known {
            let (at, failure) = known.unwrap_or_else(|| panic!("seed {seed}: not known to all"));
            assert_eq!(failure.culprit, rank, "seed {seed}");
            let late = at.checked_sub(UNBORN + scenario.limit);
            assert!(late.is_some_and(|late| late <= SECOND), "seed {seed}: {at} us");
        }
    }
}

#[test]
fn mistakes_are_found() {
    let is_found = |m: &Mutant, seed| run(&Scenario::new(seed, Some(2..=20)), Some(*m)).is_err();
    let all = Mutant::ALL.into_iter().filter(|m| !Mutant::SPARSE.contains(m));
    scope::finds(all, 500, is_found);
}
