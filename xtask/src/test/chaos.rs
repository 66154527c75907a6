//! Running jobs that are broken at random, for some minutes.

use super::{Done, Outcome, missing};
use crate::chaos::{self, Choice};

const MINUTES: f64 = 5.0;

pub(super) fn run() -> Outcome {
    if let Some(why) = chaos::unable() {
        return missing(why);
    }
    let choice = Choice::for_tests(number("CHAOS_MINUTES")?.unwrap_or(MINUTES), number("CHAOS_SEED")?);
    chaos::run(&choice).map(Done::Passed)
}

fn number<T: std::str::FromStr>(name: &str) -> Result<Option<T>, String> {
    let parse = |text: String| text.parse().map_err(|_| format!("{name}={text} is no number"));
    std::env::var(name).ok().map(parse).transpose()
}
