//! Running jobs that are broken at random: half a minute in the gate, an hour in the deep checks.

use super::{Done, Outcome, missing, scope::Scope, sshd::sshd};
use ::chaos::Choice;
use tasks::{child::Task, place::built};

/// Minutes of a job that goes on.
const ELASTIC: u64 = 60;
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

/// Job whose ranks go on without those that die and take in others, for an hour.
pub(super) fn elastic(scope: &Scope) -> Outcome {
    Task::cargo().args(["build", "-p", "chaos", "--example", "elastic"]).limit(1800).run()?;
    let minutes = ELASTIC.to_string();
    let seed = scope.seed.to_string();
    let task = Task::new(built("debug", "examples/elastic"));
    let task = task.args(["chaos", "--minutes", &minutes, "--detection", "2", "--seed", &seed]);
    let out = task.limit(ELASTIC * 60 + 300).echo().run()?;
    let words = out.lines().rfind(|line| line.starts_with("=> ")).map(|line| line.trim_start_matches("=> "));
    words.map(|words| Done::Passed(words.into())).ok_or_else(|| "nothing was counted".into())
}

fn number<T: std::str::FromStr>(name: &str) -> Result<Option<T>, String> {
    let parse = |text: String| text.parse().map_err(|_| format!("{name}={text} is no number"));
    std::env::var(name).ok().map(parse).transpose()
}
