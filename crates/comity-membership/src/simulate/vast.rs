//! Jobs of up to 4,096 ranks: the same promises, the same mistakes found.
//!
//! `COMITY_SIM_VAST=4096` takes that many ranks, which needs some 2 GB.

use super::{
    mutant::Mutant,
    number, run,
    scenario::{Scenario, vast::Vast},
};
use std::time::Instant;

/// Ranks in the gate, and where everything runs.
const RANKS: [u64; 2] = [160, 512];

fn ranks() -> usize {
    let few = RANKS[usize::from(scope::Scope::from_env().deep)];
    number("COMITY_SIM_VAST").unwrap_or(few) as usize
}

#[test]
fn the_promise_is_kept_in_vast_jobs() {
    let most = ranks();
    for (seed, what) in (1..).zip(Vast::ALL) {
        // Powers of two and other sizes have other graphs.
        let size = if seed % 2 == 0 { most } else { most - most / 7 };
        let begun = Instant::now();
        let verdict = run(&Scenario::vast(what, seed, size), None);
        println!("{what:?}, {size} ranks, {verdict:?}, in {:.1?}", begun.elapsed());
        let found = verdict.map(|(found, _)| found);
        assert!(found.as_ref().is_ok_and(|found| (*found > 0) == what.is_fatal()), "{what:?}: {found:?}");
    }
}

#[test]
fn the_same_mistakes_are_found_in_vast_jobs() {
    let shown = [
        (Mutant::NoForward, Vast::Aborts),
        (Mutant::WrongCulprit, Vast::Kill),
        (Mutant::LastReason, Vast::Aborts),
        (Mutant::DeafToLeave, Vast::LeftAndKilled),
        (Mutant::ForgetsEarly, Vast::Early),
        (Mutant::IgnoresSilence, Vast::Stop),
        (Mutant::WrongWitness, Vast::Aborts),
        (Mutant::AsksNobody, Vast::Hiccup),
        (Mutant::KeepsLosses, Vast::Apart),
        (Mutant::DeafToLosses, Vast::Apart),
        (Mutant::NoNewNeighbours, Vast::Bared),
    ];
    let size = ranks();
    for (mutant, what) in shown {
        let begun = Instant::now();
        let verdict = run(&Scenario::vast(what, 4, size), Some(mutant));
        println!("{mutant:?}: {verdict:?}, in {:.1?}", begun.elapsed());
        assert!(verdict.is_err(), "{mutant:?} was not found in {size} ranks: {what:?}");
    }
}
