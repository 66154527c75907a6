//! Running jobs that are broken at random: half a minute in the gate, an hour in the deep checks.

use super::{Done, Outcome, missing, scope::Scope, sshd::sshd};
use ::chaos::Choice;

/// Minutes of a gate's run.
const MINUTES: f64 = 0.5;

pub(super) fn run(scope: &Scope) -> Outcome {
    for_minutes(number("CHAOS_MINUTES")?.unwrap_or(MINUTES), number("CHAOS_SEED")?.unwrap_or(scope.seed))
}

/// So long, with these faults.
pub(super) fn for_minutes(minutes: f64, seed: u64) -> Outcome {
    // The lane over ssh needs one; it says so where there is none.
    let _ = sshd();
    if let Some(why) = ::chaos::unable() {
        return missing(why);
    }
    ::chaos::run(&Choice::for_tests(minutes, seed)).map(Done::Passed)
}

fn number<T: std::str::FromStr>(name: &str) -> Result<Option<T>, String> {
    let parse = |text: String| text.parse().map_err(|_| format!("{name}={text} is no number"));
    std::env::var(name).ok().map(parse).transpose()
}
