//! The steps that cargo runs.

use super::{Done, Outcome, missing, native, nightly, requirements, scope::Scope};
use std::path::Path;
use tasks::child::Task;

const MACOS: &str = "aarch64-apple-darwin";

/// Seconds for a command of cargo: the limit of its step comes before.
const COMPILING: u64 = 3600;

/// Packages with code of their own for a system. The rest is checked for macOS in the deep checks.
const NATIVE: [&str; 13] = [
    "comity",
    "comity-base",
    "comity-channel",
    "comity-transport",
    "comity-settings",
    "comity-rendezvous",
    "comity-job",
    "comity-kernel",
    "comity-launch",
    "comity-cli",
    "comity-py",
    "toolbox",
    "xtask",
];

/// Flags of cargo that name these packages.
pub(super) fn named<'a>(packages: &[&'a str]) -> Vec<&'a str> {
    packages.iter().flat_map(|package| ["-p", package]).collect()
}

pub(super) fn format(_: &Scope) -> Outcome {
    // The command names every file, so its own text tells nothing.
    rustfmt_check()?
        .echo()
        .run()
        // `cargo fmt` does not see modules that a macro declares.
        .map_err(|_| "the lines above are not as rustfmt writes them: `rustfmt --edition 2024 FILE` mends each file")?;
    Ok(Done::Passed("as rustfmt writes it".into()))
}

pub(super) fn clippy(_: &Scope) -> Outcome {
    let task = Task::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    task.limit(COMPILING).echo().run()?;
    Ok(Done::Passed("no warning".into()))
}

pub(super) fn documents(_: &Scope) -> Outcome {
    // With the examples, whose dependencies clippy has looked at: without them all would be looked at once more, with other features.
    let task = Task::cargo().args(["doc", "--workspace", "--no-deps", "--lib", "--bins", "--examples"]);
    let task = task.env("RUSTDOCFLAGS", "-D warnings");
    task.limit(COMPILING).echo().run()?;
    Ok(Done::Passed("no warning".into()))
}

/// All that later steps run. In one build: a part of the workspace alone can need its dependencies with other features, and
/// build them once more.
pub(super) fn build(_: &Scope) -> Outcome {
    tasks::build_tests()?;
    Ok(Done::Passed("libraries, programs, examples and tests".into()))
}

pub(super) fn tests(scope: &Scope) -> Outcome {
    let nextest = requirements::nextest()?;
    // In time that the tests leave, which wait a good deal.
    let docs = Task::cargo().args(["test", "--workspace", "--doc"]).limit(COMPILING).idle().start()?;
    let args = ["nextest", "run", "--workspace", "--no-fail-fast", "--status-level", "slow"];
    let task =
        scope.tell(Task::cargo().args(args).args(["--profile", if scope.deep { "deep" } else { "gate" }]));
    let out = task.limit(if scope.deep { 7200 } else { COMPILING }).echo().run()?;
    let ran = nextest_count(&out)?;
    let docs = count(&docs.wait()?)?;
    Ok(Done::Passed(format!("{ran} tests and {docs} examples of documents, by {nextest}")))
}

pub(super) fn loom(scope: &Scope) -> Outcome {
    // Its own folder: other flags would build everything anew, here and in the next ordinary build.
    let packages = named(&["comity", "comity-base", "comity-transport"]);
    let args = ["--lib", "--target-dir", "target/loom", "loom"];
    let deeper = if scope.deep { "3" } else { "2" };
    let task = native::shared(Task::cargo())?
        .args(["test"])
        .args(packages)
        .args(args)
        .env("RUSTFLAGS", "--cfg loom");
    // A model that fails says which step did: nobody reads lines of code there.
    let task = task.env("CARGO_PROFILE_DEV_DEBUG", "0");
    let out = task.env("LOOM_MAX_PREEMPTIONS", deeper).limit(3600).echo().run()?;
    Ok(Done::Passed(format!("{} tests, {deeper} preemptions", count(&out)?)))
}

/// rustfmt on every file: `cargo fmt` does not find those that a macro's table names, as of algorithms and transports.
fn rustfmt_check() -> Result<Task, String> {
    let files =
        Task::new("git").args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"]).run()?;
    let files: Vec<&str> = files.lines().filter(|f| Path::new(f).is_file()).collect();
    if files.is_empty() {
        return Err("git lists no Rust file here".into());
    }
    Ok(Task::new("rustfmt").args(["--edition", "2024", "--check"]).args(files))
}

pub(super) fn miri(scope: &Scope) -> Outcome {
    if let Err(why) = nightly::check().and_then(|()| nightly::miri()) {
        return missing(format!("Miri is not there: {why}"));
    }
    // The one crate with unsafe code and without system calls.
    let task = nightly::cargo(&["miri", "nextest", "run", "-p", "comity-kernel", "--lib"]).limit(3600);
    let ran = nextest_count(&scope.tell(scope.part(task, 4)).echo().run()?)?;
    Ok(Done::Passed(format!("{ran} tests")))
}

pub(super) fn macos(scope: &Scope) -> Outcome {
    if let Err(e) = Task::new("rustup").args(["target", "add", MACOS]).limit(180).run() {
        return missing(format!("the target {MACOS} cannot be added, so macOS code was not compiled: {e}"));
    }
    let all = || vec!["--workspace", "--features", "comity-candle/metal"];
    let parts = if scope.deep { all() } else { named(&NATIVE) };
    // Its own folder, so that no other step waits for it: it runs beside them.
    let check = Task::cargo().args(["check", "--target", MACOS, "--target-dir", "target/macos"]).args(parts);
    // A dependency has C code, for which there is no compiler of that system here. Types are checked without its objects.
    let check = check.env("CC_aarch64_apple_darwin", "true").env("AR_aarch64_apple_darwin", "true");
    check.limit(COMPILING).echo().run()?;
    Ok(Done::Passed("it compiles; nothing ran".into()))
}

/// Number of tests that `cargo test` says it ran. None at all means that a filter fits nothing any more.
pub(super) fn count(output: &str) -> Result<u64, String> {
    let ran: u64 = output.lines().filter_map(passed).sum();
    if ran == 0 { Err("no test ran".into()) } else { Ok(ran) }
}

/// The count in `test result: ok. 12 passed; ...`.
fn passed(line: &str) -> Option<u64> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    counts.split_once(" passed")?.0.parse().ok()
}

/// The count in nextest's `Summary [   12.3s] 744 tests run: 744 passed (2 slow), 13 skipped`.
pub(super) fn nextest_count(output: &str) -> Result<u64, String> {
    let line = output.lines().rev().find(|l| l.contains("Summary") && l.contains("run: "));
    let line = line.map(plain);
    let words: Vec<&str> = line.as_deref().unwrap_or_default().split_whitespace().collect();
    let ran = words.windows(2).find(|w| w[1].starts_with("passed")).and_then(|w| w[0].parse().ok());
    match ran {
        Some(0) | None => Err(format!("no test ran: {}", line.as_deref().unwrap_or("there is no summary"))),
        Some(ran) => Ok(ran),
    }
}

/// A line without the codes that colour it.
fn plain(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted() {
        let out = "running 2 tests\ntest result: ok. 12 passed; 0 failed\nx\ntest result: \u{1b}[32mok\u{1b}[m. 3 passed; 0 failed\n";
        assert_eq!(count(out), Ok(15));
        assert_eq!(count("test result: ok. 0 passed; 0 failed; 9 filtered out"), Err("no test ran".into()));
        let out = "a\n     Summary [  12.3s] 744 tests run: 743 passed (2 slow), 1 failed, 13 skipped\nb";
        assert_eq!(nextest_count(out), Ok(743));
        let out = "\u{1b}[32;1m     Summary\u{1b}[0m [  12.3s] \u{1b}[1m7\u{1b}[0m tests run: \u{1b}[1m7\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, 0 skipped";
        assert_eq!(nextest_count(out), Ok(7));
        assert!(nextest_count("     Summary [ 0.0s] 0 tests run: 0 passed, 744 skipped").is_err());
        assert!(nextest_count("").is_err());
    }
}
