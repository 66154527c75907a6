//! The book: `docs`, built without a warning, and what its builder does not look at.
//!
//! Its examples in Rust are doctests of the crates, and run with the tests. Here run those in Python, each page as one rank.

use super::{Done, Outcome, missing, python, scope::Scope};
use tasks::child::Task;

/// The builder, with all that it imports.
const REQUIREMENTS: &str = "docs/requirements.txt";
/// Looks at links, at paths in backticks and at pages that are written from other files; runs examples.
const CHECK: &str = "docs/make/check.py";

pub(super) fn check(_: &Scope) -> Outcome {
    let builder = match python::apart("book", REQUIREMENTS, &[])? {
        Ok(python) => python.with_file_name("properdocs"),
        Err(why) => return missing(why),
    };
    // Not `--quiet`: then it counts no warnings.
    Task::new(builder).args(["build", "--strict"]).run()?;
    let names = python::own().args([CHECK, "names"]).run()?;
    // The step `python` has installed the package of this state; by itself this step takes what is there.
    python::with_package()?;
    let examples = python::own().args([CHECK, "examples"]).limit(180).run()?;
    Ok(Done::Passed(format!("{}, {}", names.trim(), examples.trim())))
}
