//! The fuzz targets, each for a while.

use super::{Done, Outcome, in_ci, missing};
use crate::{child::Task, place::root};
use std::{env, fs};

/// As `fuzz/Cargo.toml` lists them.
const TARGETS: [&str; 5] = ["frame", "handshake", "messages", "config", "stream"];

pub(super) fn run() -> Outcome {
    let seconds: u64 = match env::var("FUZZ_SECONDS") {
        Err(_) => return Ok(Done::NotRun("by hand: FUZZ_SECONDS=60 cargo xtask test --only fuzz".into())),
        Ok(text) => match text.parse() {
            Ok(n @ 1..=86_400) => n,
            _ => return Err(format!("FUZZ_SECONDS={text} is not a whole number from 1 to 86400")),
        },
    };
    if let Err(why) = ready() {
        return missing(format!("fuzzing needs the nightly compiler and cargo-fuzz: {why}"));
    }
    fuzz(&["build"]).limit(1200).echo().run()?;
    let mut runs = 0;
    for target in TARGETS {
        let (corpus, seeds) = (format!("fuzz/corpus/{target}"), format!("fuzz/seeds/{target}"));
        let folder = root().join(&corpus);
        fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
        let most = format!("-max_total_time={seconds}");
        let args = ["run", target, &corpus, &seeds, "--", &most, "-timeout=10", "-rss_limit_mb=1024"];
        let out = fuzz(&args).limit(seconds + 120).run()?;
        let ran = out.lines().find_map(done).filter(|n| *n > 0);
        let ran = ran.ok_or_else(|| format!("{target} did not say how many inputs it tried:\n{out}"))?;
        println!("{target}: nothing found in {ran} runs");
        runs += ran;
    }
    Ok(Done::Passed(format!("{} targets, {seconds} s each, {runs} runs", TARGETS.len())))
}

/// Through rustup's cargo, which knows `+nightly`.
fn fuzz(args: &[&str]) -> Task {
    Task::new("cargo").args(["+nightly", "fuzz"]).args(args)
}

fn ready() -> Result<(), String> {
    let is_there = || fuzz(&["--version"]).run().map(drop);
    let Err(why) = is_there() else { return Ok(()) };
    if !in_ci() {
        return Err(why);
    }
    let nightly = ["toolchain", "install", "nightly", "--profile", "minimal"];
    Task::new("rustup").args(nightly).limit(600).run()?;
    Task::new("cargo").args(["install", "--locked", "cargo-fuzz"]).limit(900).echo().run()?;
    is_there()
}

/// The count in `Done 91432 runs in 13 second(s)`.
fn done(line: &str) -> Option<u64> {
    line.strip_prefix("Done ")?.split_once(" runs in ")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted() {
        assert_eq!(done("Done 91432 runs in 13 second(s)"), Some(91432));
        assert_eq!(done("#91432\tDONE   cov: 1"), None);
    }

    #[test]
    fn every_target_is_run() {
        let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
        let named = manifest.split("[[bin]]").skip(1).filter_map(|b| b.split('"').nth(1));
        assert_eq!(named.collect::<Vec<_>>(), TARGETS);
        for target in TARGETS {
            assert!(root().join("fuzz/seeds").join(target).is_dir(), "{target} has no seeds");
        }
    }
}
