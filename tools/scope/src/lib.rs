//! Share of a large matrix that a run of the tests takes: one that the commit chooses, or all of it; the numbers of simulators,
//! and threads and processes of tests. Imports nothing
//! but std.
//!
//! A matrix is dealt out like cards, each case to one of a few hands, and a run takes the hand that its number names. So a
//! rerun of a commit repeats the same cases. Each of four hands is missed by twenty commits in a row once in three hundred times.
//!
//! `cargo xtask test` sets the number from the commit; `cargo test` alone takes hand 0.
//!
//! ```
//! let cases: Vec<u32> = (0..1000).collect();
//! let hands = (0..4).map(|seed| scope::Scope { seed, deep: false }.share(cases.clone(), 4));
//! assert_eq!(hands.flatten().count(), 1000);
//! ```
#![forbid(unsafe_code)]

mod actor;
mod agenda;
mod rng;
mod wait;

pub use actor::{Actor, await_word, role, say};
pub use agenda::Agenda;
pub use rng::Rng;
pub use wait::{await_that, each, eventually};

use std::{
    collections::BTreeMap,
    env::var,
    fmt::Debug,
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

/// The variable with the number, and the one that asks for everything.
pub const SEED: &str = "COMITY_TEST_SEED";
/// See [`SEED`]: set to 1 for everything.
pub const DEEP: &str = "COMITY_TEST_DEEP";

/// A share of what is large, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Chooses the share.
    pub seed: u64,
    /// Everything, at full size.
    pub deep: bool,
}

impl Scope {
    /// Read the variables.
    ///
    /// # Panics
    /// If [`SEED`] is set and is no number: a test must not run on something else than what was asked for.
    #[must_use]
    pub fn from_env() -> Self {
        let seed = var(SEED).map_or(0, |text| text.parse().unwrap_or_else(|e| panic!("{SEED}={text}: {e}")));
        Self { seed, deep: var(DEEP).is_ok_and(|v| v == "1") }
    }

    /// The cases that this run takes of these, dealt to so many hands; in their order, and with a line that says how many.
    /// No hand has more than one case more than another.
    #[must_use]
    pub fn share<T>(&self, cases: Vec<T>, hands: u64) -> Vec<T> {
        let all = cases.len();
        let mut dealt: Vec<usize> = (0..all).collect();
        dealt.sort_unstable_by_key(|i| mix(*i as u64));
        let mut taken = vec![self.deep; all];
        dealt.into_iter().zip((0..hands).cycle()).for_each(|(i, hand)| taken[i] |= hand == self.seed % hands);
        let share: Vec<T> =
            cases.into_iter().zip(taken).filter_map(|(case, taken)| taken.then_some(case)).collect();
        println!("{} of {all} cases, chosen by {SEED}={}", share.len(), self.seed);
        share
    }
}

/// Declares an enum with an array of all its variants, `ALL`.
#[macro_export]
macro_rules! listed {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$of_variant:meta])* $variant:ident,)* }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$of_variant])* $variant,)*
        }

        impl $name {
            $vis const ALL: [Self; [$(stringify!($variant)),*].len()] = [$(Self::$variant),*];
        }
    };
}

/// The number in a variable, if that is set.
///
/// # Panics
/// If it is no number.
#[must_use]
pub fn number(name: &str) -> Option<u64> {
    let text = var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text} is no number: {e}")))
}

/// Seeds for which `run` breaks a promise, and how, as so many threads find them: these stop when they have found `enough`.
///
/// ```
/// let run = |seed| if seed % 10 == 7 { Err("it has a seven".into()) } else { Ok(()) };
/// assert_eq!(scope::broken(0..20, 2, 5, run).into_keys().collect::<Vec<_>>(), [7, 17]);
/// assert_eq!(scope::broken(0..1000, 1, 1, run).len(), 1);
/// ```
pub fn broken(
    seeds: Range<u64>,
    threads: usize,
    enough: usize,
    run: impl Fn(u64) -> Result<(), String> + Sync,
) -> BTreeMap<u64, String> {
    let next = AtomicU64::new(seeds.start);
    let broken = Mutex::new(BTreeMap::new());
    let found = || broken.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end || found().len() >= enough {
            return;
        }
        if let Err(why) = run(seed) {
            println!("seed {seed}: {why}");
            found().insert(seed, why);
        }
    };
    thread::scope(|s| (0..threads).for_each(|_| drop(s.spawn(work))));
    broken.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that `run` breaks no promise for these seeds; else says how to repeat those that do, as a test of a package.
///
/// # Panics
/// If it breaks one.
pub fn keeps_promises(
    [package, test]: [&str; 2],
    seeds: Range<u64>,
    threads: usize,
    run: impl Fn(u64) -> Result<(), String> + Sync,
) {
    let words = |(seed, why)| {
        format!(
            "seed {seed}: {why}\n  COMITY_SIM_SEED={seed} cargo test -p {package} {test} -- --nocapture repeats it and prints what happened"
        )
    };
    let broken: Vec<String> = broken(seeds, threads, 3, run).into_iter().map(words).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Checks that each of these planted mistakes is found by one of the first `most` seeds.
///
/// # Panics
/// If one is not.
pub fn finds<M: Debug>(mutants: impl IntoIterator<Item = M>, most: u64, is_found: impl Fn(&M, u64) -> bool) {
    let is_hidden = |mutant: &M| {
        let found = (0..most).find(|seed| is_found(mutant, *seed));
        println!("{mutant:?}: found by seed {found:?}");
        found.is_none()
    };
    let hidden: Vec<M> = mutants.into_iter().filter(is_hidden).collect();
    assert!(hidden.is_empty(), "{hidden:?} were not found in {most} seeds");
}

/// SplitMix64 goes on by this.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The last step of SplitMix64: what lies side by side in a matrix goes to different hands.
const fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(STEP);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hands_together_take_each_case_once() {
        let hand = |seed| Scope { seed, deep: false }.share((0..1001).collect::<Vec<u32>>(), 4);
        let mut all: Vec<u32> = (0..4).flat_map(hand).collect();
        all.sort_unstable();
        assert_eq!(all, (0..1001).collect::<Vec<_>>());
        assert!((0..4).all(|seed| [250, 251].contains(&hand(seed).len())));
        assert_eq!((hand(1), hand(2)), (hand(5), hand(6)));
        assert_eq!(Scope { seed: 1, deep: true }.share((0..1001).collect(), 4).len(), 1001);
    }
}
