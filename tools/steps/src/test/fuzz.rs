//! The fuzz targets, each for a while, two at a time. They are built as cargo-fuzz builds them, but without it: to
//! compile it takes longer than to compile them.

use super::{Done, Outcome, deep, missing, native, nightly, scope::Scope};
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use tasks::{
    child::Running,
    place::{Scratch, root},
};

/// Targets as `fuzz/Cargo.toml` lists them.
const TARGETS: [Target; 6] = [
    Target { name: "frame", longest: 64 << 10, memory: 1 },
    Target { name: "handshake", longest: 4 << 10, memory: 1 },
    Target { name: "messages", longest: 72 << 10, memory: 1 },
    // A hostfile of the longest that is read, as JSON values.
    Target { name: "config", longest: 64 << 10, memory: 2 },
    Target { name: "stream", longest: 64 << 10, memory: 1 },
    Target { name: "flight", longest: 64 << 10, memory: 2 },
];

/// Resident memory of one, the sanitizer's included.
const RESIDENT: &str = "-rss_limit_mb=768";

/// Number of targets that run at once.
const AT_ONCE: usize = 2;

const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Zsanitizer=address -Ccodegen-units=1 \
    -Cdebug-assertions=yes";

struct Target {
    name: &'static str,
    /// Bytes of an input.
    longest: usize,
    /// A single allocation of so many MiB fails the run: no length that came over the wire may be believed before it
    /// was bounded.
    memory: usize,
}

/// Seconds for each target in a gate.
const GATE: u64 = 20;

/// Inputs of each target: fewer have looked at nothing. A gate's get the time that others leave, so they may need more of it.
const LEAST: u64 = 1000;

pub(super) fn run(scope: &Scope) -> Outcome {
    let seconds: u64 = match env::var("FUZZ_SECONDS") {
        Err(_) if scope.deep => deep::FUZZ,
        Err(_) => GATE,
        Ok(text) => match text.parse() {
            Ok(n @ 1..=86_400) => n,
            _ => return Err(format!("FUZZ_SECONDS={text} is not a whole number from 1 to 86400")),
        },
    };
    if let Err(why) = nightly::check() {
        return missing(format!("fuzzing needs the nightly compiler: {why}"));
    }
    let host = nightly::host()?;
    let build = ["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "fuzz/target"];
    let shared = native::shared_args()?;
    let shared = shared.each_ref().map(String::as_str);
    // Of less optimised code fewer inputs are tried, and it is there in half the time.
    let quick: &[&str] = if scope.deep { &[] } else { &["--config", "profile.release.opt-level=1"] };
    let build = nightly::cargo(&[&build[..], &["--target", &host], &shared, quick].concat());
    build.env("RUSTFLAGS", FLAGS).limit(3600).run()?;
    let folder = root().join("fuzz/target").join(host).join("release");
    let crashes = root().join("fuzz/artifacts");
    fs::create_dir_all(&crashes).map_err(|e| format!("cannot make {}: {e}", crashes.display()))?;
    // Of a gate it gets the time that others leave.
    let patience = if scope.deep { 10 } else { 60 };
    let mut runs = 0;
    for some in TARGETS.chunks(AT_ONCE) {
        let started: Vec<_> =
            some.iter().map(|t| t.start(&folder, seconds, patience)).collect::<Result<_, _>>()?;
        for (target, (running, _corpus)) in some.iter().zip(started) {
            let mut ran = target.runs(running)?;
            if ran < LEAST {
                ran += target.runs(target.start(&folder, 4 * seconds, patience)?.0)?;
            }
            if ran < LEAST {
                return Err(format!(
                    "{}: {ran} inputs in {} s, of {LEAST} at least",
                    target.name,
                    5 * seconds
                ));
            }
            println!("{}: nothing found in {ran} runs", target.name);
            runs += ran;
        }
    }
    Ok(Done::Passed(format!("{} targets, {runs} runs, nothing found", TARGETS.len())))
}

impl Target {
    /// Start the target. New inputs are kept in `fuzz/corpus` where that exists, for a longer search; else they go.
    fn start(
        &self,
        folder: &Path,
        seconds: u64,
        patience: u64,
    ) -> Result<(Running, Option<Scratch>), String> {
        let name = self.name;
        let kept = root().join("fuzz/corpus").join(name);
        let (corpus, scratch) = if kept.is_dir() {
            (kept, None)
        } else {
            let new = Scratch::new(name).map_err(|e| format!("cannot make a folder: {e}"))?;
            (new.join("."), Some(new))
        };
        let seeds: PathBuf = root().join("fuzz/seeds").join(name);
        let flags = [
            format!("-max_total_time={seconds}"),
            format!("-max_len={}", self.longest),
            format!("-malloc_limit_mb={}", self.memory),
            format!("-artifact_prefix=fuzz/artifacts/{name}-"),
            RESIDENT.into(),
            format!("-timeout={patience}"),
        ];
        let task = tasks::child::Task::new(folder.join(name)).args([corpus, seeds]).args(flags);
        Ok((task.limit(seconds + 120).start()?, scratch))
    }

    /// Number of inputs that it has tried when it ends.
    fn runs(&self, running: Running) -> Result<u64, String> {
        let out = running.wait().map_err(|e| {
            format!("{e}\nthe input is in fuzz/artifacts; give it to the program to see it again")
        })?;
        let ran = out.lines().find_map(done).filter(|n| *n > 0);
        ran.ok_or_else(|| format!("{} did not say how many inputs it tried:\n{out}", self.name))
    }
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
        assert_eq!(named.collect::<Vec<_>>(), TARGETS.map(|t| t.name));
        for Target { name, longest, .. } in TARGETS {
            let seeds = fs::read_dir(root().join("fuzz/seeds").join(name)).unwrap();
            let sizes: Vec<u64> = seeds.map(|s| s.unwrap().metadata().unwrap().len()).collect();
            assert!(!sizes.is_empty(), "{name} has no seeds");
            assert!(sizes.iter().all(|&s| s <= longest as u64), "{name}: a seed longer than -max_len");
        }
    }
}
