//! Other libraries beside Comity: the code of `docs/rust-libraries.md`, and candle's own models beside the examples of `crates/comity-candle`. They are a workspace
//! of their own, which is fetched and compiled here.

use super::{Done, Outcome, cargo, scope::Scope};
use tasks::{child::Task, place::target};

const MANIFEST: &str = "tools/others/Cargo.toml";
/// Seconds: some hundred crates are compiled from nothing.
const LIMIT: u64 = 3600;

pub(crate) fn check(_: &Scope) -> Outcome {
    let folder = target().join("others");
    let out = Task::cargo()
        .args(["test", "--locked", "--manifest-path", MANIFEST, "--target-dir"])
        .args([&folder])
        .limit(LIMIT)
        .echo()
        .run()?;
    let tests = cargo::count(&out)?;
    Ok(Done::Passed(format!("{tests} tests: burn, candle's own models, a tensor type without a library")))
}
