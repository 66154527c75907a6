//! The fuzz targets, each for a while, two at a time. They are built as cargo-fuzz builds them, but without it: to
//! compile it takes longer than to compile them.

use super::{native, scope::Scope, step::Outcome};
use std::{env, path::Path};
use tasks::{
    child::{Running, Task},
    place::{Scratch, make, root},
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

/// Number of targets that run at once.
const AT_ONCE: usize = 2;
/// Seconds for each target.
const DEEP: u64 = 600;
const GATE: u64 = 20;
/// Inputs of each target: fewer have looked at nothing. A gate's get the time that others leave, so they may need more of it.
const LEAST: u64 = 1000;

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

pub(super) fn run(scope: &Scope) -> Outcome {
    let seconds = match env::var("FUZZ_SECONDS") {
        Err(_) => {
            if scope.deep {
                DEEP
            } else {
                GATE
            }
        }
        Ok(text) => text.parse().map_err(|_| format!("FUZZ_SECONDS={text} is not a whole number"))?,
    };
    let host = native::host()?;
    let build = [
        "+nightly",
        "build",
        "--release",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--target-dir",
        "fuzz/target",
    ];
    let build = Task::new("cargo").args(build).args(["--target", &host, "--config", &native::config()?]);
    // Of less optimised code fewer inputs are tried, and it is there in half the time.
    let quick: &[&str] = if scope.deep { &[] } else { &["--config", "profile.release.opt-level=1"] };
    build.args(quick).env("RUSTFLAGS", FLAGS).limit(3600).run()?;
    let folder = root().join("fuzz/target").join(host).join("release");
    make(&root().join("fuzz/artifacts"))?;
    // Of a gate an input gets the time that others leave.
    let patience = if scope.deep { 10 } else { 60 };
    let mut runs = 0;
    for some in TARGETS.chunks(AT_ONCE) {
        let start = |target: &Target| target.start(&folder, seconds, patience);
        let started = some.iter().map(start).collect::<Result<Vec<_>, _>>()?;
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
                )
                .into());
            }
            println!("{}: nothing found in {ran} runs", target.name);
            runs += ran;
        }
    }
    Ok(format!("{} targets, {runs} runs, nothing found", TARGETS.len()))
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
        let scratch = if kept.is_dir() { None } else { Some(Scratch::new(name)?) };
        let corpus = scratch.as_ref().map_or(kept, |new| new.join("."));
        let flags = [
            format!("-max_total_time={seconds}"),
            format!("-max_len={}", self.longest),
            format!("-malloc_limit_mb={}", self.memory),
            format!("-artifact_prefix=fuzz/artifacts/{name}-"),
            // Resident memory, the sanitizer's included.
            "-rss_limit_mb=768".into(),
            format!("-timeout={patience}"),
        ];
        let task = Task::new(folder.join(name)).arg(corpus).arg(root().join("fuzz/seeds").join(name));
        Ok((task.args(flags).limit(seconds + 120).start()?, scratch))
    }

    /// Number of inputs that it has tried when it ends: `Done 91432 runs in 13 second(s)`.
    fn runs(&self, running: Running) -> Result<u64, String> {
        let out = running.wait().map_err(|e| {
            format!("{e}\nthe input is in fuzz/artifacts; give it to the program to see it again")
        })?;
        let done = |line: &str| line.strip_prefix("Done ")?.split_once(" runs in ")?.0.parse().ok();
        let ran = out.lines().find_map(done);
        ran.ok_or_else(|| format!("{} did not say how many inputs it tried:\n{out}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
