//! Large jobs, whose ranks are connected to their neighbours in the graph only: the same promises, the same mistakes found.
//!
//! `COMITY_SIM_SPARSE=500000` runs the seeds below that, `COMITY_SIM_SPARSE_FROM=6000` those from there on, `COMITY_SIM_SPARSE_SEED=12345` repeats one and prints what happened.

use super::{ENOUGH, mutant::Mutant, replay, run, scenario::Scenario};
use scope::{broken, number};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

/// Seeds of an ordinary run, and of a deep one.
const SPARSE_SEEDS: [u64; 2] = [150, 6000];

fn scenario(seed: u64) -> Scenario {
    // Small graphs too: they are what tests with real processes have.
    let sizes = [4..=12, 5..=24, 16..=64, 65..=80][seed as usize % 4].clone();
    Scenario { sparse: true, ..Scenario::new(seed, Some(sizes)) }
}

#[test]
fn the_promise_is_kept_where_few_watch_each() {
    if let Some(seed) = number("COMITY_SIM_SPARSE_SEED") {
        return replay(seed, &scenario(seed));
    }
    let seeds = number("COMITY_SIM_SPARSE")
        .unwrap_or_else(|| SPARSE_SEEDS[usize::from(scope::Scope::from_env().deep)]);
    let first = number("COMITY_SIM_SPARSE_FROM").unwrap_or(0);
    let failures = AtomicU64::new(0);
    let begun = Instant::now();
    let one = |seed| {
        failures.fetch_add(run(&scenario(seed), None)?.0 as u64, Ordering::Relaxed);
        Ok(())
    };
    assert_eq!(broken(first..seeds, 2, ENOUGH, one), [].into());
    println!("{seeds} seeds, {} failures learned of, in {:.1?}", failures.into_inner(), begun.elapsed());
}

#[test]
fn the_same_mistakes_are_found_where_few_watch_each() {
    // Why a group has failed is spread when it does, not when somebody leaves it.
    let all = Mutant::ALL.into_iter().filter(|m| *m != Mutant::LeavesFailed);
    // Each is found by one of the first 131 seeds.
    scope::finds(scope::Scope::from_env().share(all.collect(), 3), 400, |mutant, seed| {
        let scenario = match mutant {
            Mutant::NoNewNeighbours => Scenario::thinned(seed),
            _ => scenario(seed),
        };
        run(&scenario, Some(*mutant)).is_err()
    });
}

/// Most ranks end in good order, and then one of the others is killed.
#[test]
fn the_graph_closes_over_those_that_have_ended() {
    for seed in 0..30 {
        let found = run(&Scenario::thinned(seed), None).map(|(found, _)| found > 0);
        assert_eq!(found, Ok(true), "seed {seed}");
    }
}
