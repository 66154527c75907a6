//! The book: `docs`, built without a warning, and what its builder does not look at.
//!
//! Its examples in Rust are doctests of the crates, and run with the tests. Here run those in Python, each page as one rank.

use super::{Done, Outcome, missing, python, scope::Scope};
use std::fs;
use tasks::{
    child::Task,
    place::{built, root},
};

/// The builder, with all that it imports.
const REQUIREMENTS: &str = "docs/requirements.txt";
/// Looks at links, at paths in backticks and at pages that are written from other files; runs examples.
const CHECK: &str = "docs/make/check.py";

pub(super) fn check(_: &Scope) -> Outcome {
    if let not_run @ Done::NotRun(_) = python::prepare()? {
        return Ok(not_run);
    }
    if let Err(why) = install() {
        return missing(format!("the builder of the book cannot be installed: {why}"));
    }
    // Not `--quiet`: then it counts no warnings.
    Task::new(built("book", "python/bin/properdocs")).args(["build", "--strict"]).run()?;
    let names = python::own().args([CHECK, "names"]).run()?;
    // The step `python` has installed the package of this state; by itself this step takes what is there.
    if python::own().args(["-c", "import comity"]).run().is_err() {
        python::install_package(false)?;
    }
    let examples = python::own().args([CHECK, "examples"]).limit(180).run()?;
    Ok(Done::Passed(format!("{}, {}", names.trim(), examples.trim())))
}

/// A place of its own, which is kept between runs.
fn install() -> Result<(), String> {
    let wanted = root().join(REQUIREMENTS);
    let wanted = fs::read_to_string(&wanted).map_err(|e| format!("cannot read {}: {e}", wanted.display()))?;
    let stamp = built("book", "installed.txt");
    if fs::read_to_string(&stamp).ok().as_ref() == Some(&wanted) {
        return Ok(());
    }
    println!("installing what {REQUIREMENTS} lists");
    let venv = built("book", "python");
    let python = built("python", "bin/python");
    let uv = || python::own().args(["-m", "uv"]);
    uv().args(["venv", "--quiet", "--clear", "--python"]).args([&python, &venv]).run()?;
    let to = built("book", "python/bin/python");
    uv().args(["pip", "install", "--quiet", "--python"])
        .args([&to])
        .args(["-r", REQUIREMENTS])
        .limit(120)
        .run()?;
    fs::write(&stamp, &wanted).map_err(|e| format!("cannot write {}: {e}", stamp.display()))
}
