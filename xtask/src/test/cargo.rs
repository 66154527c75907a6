//! The steps that cargo runs.

use super::{Done, Outcome, missing, nightly};
use crate::child::Task;

const MACOS: &str = "aarch64-apple-darwin";

pub(super) fn workspace() -> Outcome {
    let out = Task::cargo().args(["test", "--workspace"]).limit(1800).echo().run()?;
    tests_in(&out)
}

pub(super) fn loom() -> Outcome {
    // Its own folder: other flags would build everything anew, here and in the next ordinary build.
    let args = ["test", "-p", "comity", "--lib", "--release", "--target-dir", "target/loom", "loom"];
    let task = Task::cargo().args(args).env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3");
    tests_in(&task.limit(1500).echo().run()?)
}

pub(super) fn miri() -> Outcome {
    if let Err(why) = nightly::check().and_then(|()| nightly::miri()) {
        return missing(format!("Miri is not there: {why}"));
    }
    let args = ["miri", "test", "-p", "comity", "--lib", "--", "kernel", "plan::schedule", "view"];
    tests_in(&nightly::cargo(&args).limit(2400).echo().run()?)
}

pub(super) fn macos() -> Outcome {
    if let Err(e) = Task::new("rustup").args(["target", "add", MACOS]).limit(180).run() {
        return missing(format!("the target {MACOS} cannot be added, so macOS code was not compiled: {e}"));
    }
    let check = Task::cargo().args(["check", "--workspace", "--target", MACOS]);
    // A dependency has C code, for which there is no compiler of that system here. Types are checked without its objects.
    let check = check.env("CC_aarch64_apple_darwin", "true").env("AR_aarch64_apple_darwin", "true");
    check.limit(1500).echo().run()?;
    Ok(Done::Passed("it compiles; nothing ran".into()))
}

/// How many tests `cargo test` says it ran. None at all means that a filter fits nothing any more.
pub(super) fn count(output: &str) -> Result<u64, String> {
    let ran: u64 = output.lines().filter_map(passed).sum();
    if ran == 0 { Err("no test ran".into()) } else { Ok(ran) }
}

fn tests_in(output: &str) -> Outcome {
    Ok(Done::Passed(format!("{} tests", count(output)?)))
}

/// The count in `test result: ok. 12 passed; ...`.
fn passed(line: &str) -> Option<u64> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    counts.split_once(" passed")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted() {
        let out = "running 2 tests\ntest result: ok. 12 passed; 0 failed\nx\ntest result: \u{1b}[32mok\u{1b}[m. 3 passed; 0 failed\n";
        assert_eq!(tests_in(out), Ok(Done::Passed("15 tests".into())));
        assert_eq!(
            tests_in("test result: ok. 0 passed; 0 failed; 9 filtered out"),
            Err("no test ran".into())
        );
    }
}
