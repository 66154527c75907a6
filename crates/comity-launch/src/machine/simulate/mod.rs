//! Jobs with their launchers in one thread and in virtual time: the proof of the promises about a job's end.
//!
//! A seed makes a scenario: 1 to 16 ranks under one launcher, on hosts over `ssh`, or on nodes; how each works, what it does
//! after SIGTERM and when another rank fails, what it leaves running; and faults: failures, crashes, early ends, stopped ranks, hosts
//! without power, cut cables, hosts that refuse, signals, lost terminals, a reader of the output that is slow or gone, ranks that
//! cannot be started. Each launcher runs the true [`Machine`](super::Machine). A run fails when one of these is broken:
//!
//! - Every launcher ends, in bounded time from the first failure, unless a reader takes nothing and nobody asks for the end.
//! - Each says one verdict, and all nodes the same.
//! - Nothing is left running, but what does not die of SIGKILL; on a host whose cable was cut nothing after 5 s.
//! - The rank that is blamed failed, stopped or ended early of its own: never one that only followed. Where one rank alone is at
//!   fault, it is named. The exit code is that of the cause.
//! - SIGTERM comes before SIGKILL, each once, with a second for reports before and the grace between, unless somebody hurries.
//! - A job that goes on without ranks ends nobody while enough are left. A rank that failed is started again after its pause, so often
//!   at most, and not when the work is done. Where too few are left, or none of the group, the job ends.
//! - Every rank is started once, and none where a host refuses.
//! - A wish of the user, the loss of a host and a rank that cannot be started end the job at once.
//!
//! `COMITY_SIM_SEEDS=1000000` runs so many seeds, `COMITY_SIM_SEED=12345` repeats one and prints what happened.
//!
//! Outside the simulation: processes, pipes and `ssh` themselves.

mod judge;
mod mutant;
mod scenario;
mod world;

use mutant::Mutant;
use scenario::Scenario;
use scope::number;
use world::World;

/// Seeds of the gate's run, and of a deep one.
const SEEDS: u64 = 2_000;
const DEEP: u64 = 200_000;

/// A run's broken promise.
fn run(seed: u64, mutant: Option<Mutant>) -> Result<(), String> {
    let scenario = Scenario::new(seed);
    let mut world = World::new(&scenario, mutant, false);
    world.run();
    judge::judge(&world)
}

/// Run one seed and print what happens.
fn replay(seed: u64) {
    let scenario = Scenario::new(seed);
    println!("{scenario:#?}");
    let mut world = World::new(&scenario, None, true);
    world.run();
    world.trace.iter().flatten().for_each(|line| println!("{line}"));
    assert_eq!(judge::judge(&world), Ok(()), "seed {seed}");
}

#[test]
fn every_job_ends_with_one_true_verdict() {
    if let Some(seed) = number("COMITY_SIM_SEED") {
        return replay(seed);
    }
    let scope = scope::Scope::from_env();
    let (first, many) = if scope.deep { (0, DEEP) } else { (scope.seed % 100 * SEEDS, SEEDS) };
    let many = number("COMITY_SIM_SEEDS").unwrap_or(many);
    let test = ["comity-launch", "every_job_ends"];
    scope::keeps_promises(test, first..first + many, 1, |seed| run(seed, None));
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 0..40 {
        let scenario = Scenario::new(seed);
        let trace = |_| {
            let mut world = World::new(&scenario, None, true);
            world.run();
            world.trace.take()
        };
        assert_eq!(trace(0), trace(1), "seed {seed}");
    }
}

#[test]
fn mistakes_are_found() {
    scope::finds(Mutant::ALL, 3000, |mutant, seed| run(seed, Some(*mutant)).is_err());
}
