//! Running jobs that are broken at random: half a minute in the gate, an hour in the deep checks.

use super::{
    scope::Scope,
    step::{Outcome, Why},
};
use ::chaos::Choice;

/// Minutes of a gate's run, and of a deep one.
const GATE: f64 = 0.5;
const DEEP: f64 = 60.0;

pub(super) fn run(scope: &Scope) -> Outcome {
    for_minutes(number("CHAOS_MINUTES")?.unwrap_or(GATE), number("CHAOS_SEED")?.unwrap_or(scope.seed))
}

pub(super) fn hour(scope: &Scope) -> Outcome {
    for_minutes(DEEP, scope.seed)
}

fn for_minutes(minutes: f64, seed: u64) -> Outcome {
    match ::chaos::unable() {
        Some(why) => Err(Why::Missing(why)),
        None => Ok(::chaos::run(&Choice::for_tests(minutes, seed))?),
    }
}

pub(super) fn soak(scope: &Scope) -> Outcome {
    Ok(::chaos::run(&Choice::soak(scope.hours))?)
}

fn number<T: std::str::FromStr>(name: &str) -> Result<Option<T>, String> {
    let parse = |text: String| text.parse().map_err(|_| format!("{name}={text} is no number"));
    std::env::var(name).ok().map(parse).transpose()
}
