//! The page of `comity top --http` in headless Chromium: a healthy job, a slow rank, one that hangs.

use super::{Done, Outcome, cargo, missing, scope::Scope};
use tasks::{child::Task, place::program};

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

pub(super) fn check(_: &Scope) -> Outcome {
    let Some(chromium) = NAMES.into_iter().find_map(program) else {
        return missing("there is no Chromium (package chromium)".into());
    };
    let task =
        Task::cargo().args(["test", "-p", "comity-cli", "--test", "live", "chromium", "--", "--ignored"]);
    let out = task.env("COMITY_TEST_CHROMIUM", chromium).limit(1800).echo().run()?;
    match cargo::count(&out)? {
        3 => Ok(Done::Passed("a healthy job, a slow rank, one that hangs".into())),
        n => Err(format!("{n} tests ran, not 3")),
    }
}
