//! Members of a group that agree on the next one, in one thread and in virtual time, with faults before and during the agreement.
//!
//! A seed makes a scenario: 2 to 64 members (with `--deep` up to 1,024), who ask for a new group at random times, some late, some never; kills, also between two
//! messages of a broadcast; stops and wakes; cuts both ways, for a while or for good; pairs that take each other for dead; parts of a group
//! that cannot be made; a store that ends. Where they tell each other of their parts, and where these notes are skipped. Each member runs the true [`Reform`]. A run fails when one of these is broken:
//!
//! - There is one plan at most, whoever learns of it and when.
//! - Whoever is told of a plan that has it has made its part; all members of the plan have.
//! - The plan has enough votes.
//! - It has all who asked and whom nobody took for dead, and says why each other member left.
//! - Every member that runs and asks is answered by its limit. One that the plan leaves out is told, if a member of the plan can tell it.
//! - Where some are killed and enough are left to go on, each of these gets the plan within a second.
//! - Where two have lost each other and nothing else happens, there is a plan.
//!
//! Outside: how it is learned that a member is gone ([`crate::Membership`], which has a simulator of its own), and how parts are made.

mod mutant;
mod scenario;
mod world;

use mutant::Mutant;
use scenario::Scenario;
use scope::number;
use std::{
    ops::RangeInclusive,
    time::{Duration, Instant},
};
use world::World;

/// Seeds of an ordinary run, and of a deep one.
const SEEDS: (u64, u64) = (400, 100_000);
const SIZES: RangeInclusive<usize> = 2..=64;
/// Seeds of the largest groups, in a deep run, and their members. A seed sends about a million messages for each attempt.
const LARGEST: (u64, usize) = (20, 1_024);

fn run(scenario: &Scenario, mutant: Option<Mutant>) -> Result<Option<usize>, String> {
    World::new(scenario, mutant).run()
}

/// `COMITY_SIM_SEED=12345` repeats one seed and prints what happens, `COMITY_SIM_MEMBERS=1024` beside it a large one,
/// `COMITY_SIM_SEEDS=1000000` runs so many.
#[test]
fn there_is_one_group_at_most() {
    if let Some(seed) = number("COMITY_SIM_SEED") {
        let members = number("COMITY_SIM_MEMBERS").map(|n| n as usize);
        let scenario = Scenario::new(seed, members.map_or(SIZES, |n| n..=n));
        println!("{scenario:?}");
        let mut world = World::new(&scenario, None);
        world.trace = true;
        assert_eq!(world.run().err(), None, "seed {seed}");
        return;
    }
    let scope = scope::Scope::from_env();
    let (few, many) = SEEDS;
    let count = number("COMITY_SIM_SEEDS").unwrap_or(if scope.deep { many } else { few });
    let first = if scope.deep { 0 } else { scope.seed % (many / few) * few };
    let mut decided = 0;
    let mut simulated = Duration::ZERO;
    for seed in first..first + count {
        let scenario = Scenario::new(seed, SIZES);
        let mut world = World::new(&scenario, None);
        let verdict = world.run();
        simulated += world.elapsed();
        match verdict {
            Ok(plan) => decided += usize::from(plan.is_some()),
            Err(e) => panic!(
                "seed {seed}: {e}\n  COMITY_SIM_SEED={seed} cargo test -p comity-membership there_is_one_group -- --nocapture repeats it and prints what happens"
            ),
        }
    }
    let hours = simulated.as_secs_f64() / 3600.0;
    println!("{count} seeds, {hours:.1} hours of their time: {decided} groups formed again");
    assert!(decided as u64 > count / 2);
}

#[test]
fn large_groups_form_again() {
    let deep = scope::Scope::from_env().deep;
    let (seeds, size) = if deep { LARGEST } else { (1, 100) };
    for seed in 0..seeds {
        let begun = Instant::now();
        let verdict = run(&Scenario::new(seed, size..=size), None);
        println!("seed {seed} with {size} members: {verdict:?}, {:.1} s", begun.elapsed().as_secs_f64());
        assert!(verdict.is_ok(), "seed {seed} with {size} members (COMITY_SIM_MEMBERS): {verdict:?}");
    }
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 0..20 {
        let once = || {
            let scenario = Scenario::new(seed, SIZES);
            let mut world = World::new(&scenario, None);
            let verdict = world.run();
            (verdict, world.sent)
        };
        assert_eq!(once(), once(), "seed {seed}");
    }
}

#[test]
fn mistakes_are_found() {
    scope::finds(Mutant::ALL, 1_000, |mutant, seed| {
        let scenario = match mutant {
            Mutant::ForgetsVotes => Scenario::telling(seed),
            Mutant::TellsMembersOnly => Scenario::apart(seed),
            Mutant::HidesLosses => Scenario::lost_each_other(seed),
            _ => Scenario::new(seed, 2..=9),
        };
        run(&scenario, None).is_ok() && run(&scenario, Some(*mutant)).is_err()
    });
}
