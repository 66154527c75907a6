//! Tests under AddressSanitizer with its search for leaks, and under ThreadSanitizer. No finding is suppressed but one: a program whose
//! processes exit in the middle of things leaves threads that have ended and that nobody has waited for, which the thread sanitizer calls
//! a leak.
//!
//! The gate runs half of the library's own tests, unoptimised: to optimise them under a sanitizer takes three times as long as to run them.
//! The deep checks run all of them, and every program of tests that plays a fault or a mistake with processes. The profiles
//! `address` and `thread` of `.config/nextest.toml` leave out what a sanitizer is too slow for.

use super::{
    native, rdma,
    requirements::Ask,
    scope::Scope,
    step::{Outcome, passed},
};
use crate::softverbs;
use std::{fs, path::PathBuf};
use tasks::{
    child::Task,
    place::{Scratch, copy, make, root},
};

pub(super) const ASKS: &[Ask] = &[Ask::Linux, Ask::Nightly, Ask::Nextest];

#[derive(Debug)]
struct Sanitizer {
    /// That of its profile too.
    name: &'static str,
    /// Further flags of cargo: a standard library that is watched too, where its own synchronisation counts.
    flags: &'static [&'static str],
    variable: &'static str,
    options: &'static str,
    /// And in [`PROGRAMS`].
    also: &'static str,
    /// So many times longer than otherwise may anything take in [`PROGRAMS`].
    slowness: &'static str,
    /// The stand-ins for libraries are watched too: else it does not see their locks.
    watches_stand_ins: bool,
}

/// Packages whose unit tests run, and of `comity` the jobs of threads.
const LIBRARY: [&str; 8] = [
    "comity",
    "comity-base",
    "comity-channel",
    "comity-transport",
    "comity-settings",
    "comity-rendezvous",
    "comity-job",
    "comity-kernel",
];
const TESTS: [&str; 3] = ["--lib", "--test", "local"];
/// Packages of the deep checks besides.
const COMMAND: [&str; 2] = ["comity-launch", "comity-cli"];

/// Tests that a gate leaves to the deep checks.
const LONG: &str = "not test(/any_order_of_calls|connect::tests|sealed|four_apart|three_connections|hello::tests::a|measure|all_that_is_put|apart_back\
    |moves_both_ways|connections_are_replaced|as_any_other_afterwards|does_not_lend/)";

/// Programs of tests whose processes are watched. The last three need stand-ins for a library.
const PROGRAMS: &str = "binary(/^(mismatch|report|faults|launch|hostile|slow|links|check|refusals|nccl|rdma)$/) \
    | package(comity-transport) & test(/^verbs::/)";

const ADDRESS: Sanitizer = Sanitizer {
    name: "address",
    flags: &[],
    variable: "ASAN_OPTIONS",
    options: "detect_leaks=1:exitcode=86",
    also: "",
    slowness: "6",
    watches_stand_ins: false,
};

const THREAD: Sanitizer = Sanitizer {
    name: "thread",
    flags: &["-Zbuild-std"],
    variable: "TSAN_OPTIONS",
    options: "halt_on_error=1:exitcode=86",
    also: ":report_thread_leaks=0",
    slowness: "20",
    watches_stand_ins: true,
};

pub(super) fn address(scope: &Scope) -> Outcome {
    ADDRESS.run(scope)
}

pub(super) fn thread(scope: &Scope) -> Outcome {
    THREAD.run(scope)
}

/// Compile the tests that the step of a gate runs.
pub(super) fn build_address(_: &Scope) -> Outcome {
    ADDRESS.build()
}

pub(super) fn build_thread(_: &Scope) -> Outcome {
    THREAD.build()
}

impl Sanitizer {
    fn build(&self) -> Outcome {
        self.tests(&LIBRARY, &TESTS)?.arg("--no-run").run()?;
        Ok("compiled".into())
    }

    fn run(&self, scope: &Scope) -> Outcome {
        let ran = if scope.deep {
            let library = self.tests(&[&LIBRARY[..], &COMMAND].concat(), &TESTS)?;
            passed(&self.watched(scope.tell(library)).run()?) + self.programs(scope)?
        } else {
            let library = self.tests(&LIBRARY, &TESTS)?.args(["-E", LONG, &scope.part(2)]);
            passed(&self.watched(scope.tell(library)).run()?)
        };
        Ok(format!("{ran} tests"))
    }

    /// Cargo, with what rustc needs. The system is called through libc, where the sanitizer sees memory mapped and unmapped: else
    /// an address that one thread had and another gets later looks like one thing that both write. A library finds the sanitizer in the
    /// program that loads it, which exports it.
    fn cargo(&self, command: &[&str]) -> Result<Task, String> {
        let config = native::config()?;
        let place = ["--config", &config, "--target", &native::host()?, "--target-dir", &self.folder()];
        let flags = format!("-Zsanitizer={} --cfg=rustix_use_libc -Clink-arg=-rdynamic", self.name);
        let task = Task::new("cargo").arg("+nightly").args(command).args(self.flags).args(place);
        Ok(task.env("RUSTFLAGS", flags).limit(2 * 3600).echo())
    }

    /// Tests of these packages, by nextest.
    fn tests(&self, packages: &[&str], which: &[&str]) -> Result<Task, String> {
        let words = ["nextest", "run", "--profile", self.name, "--status-level", "slow"];
        Ok(self.cargo(&words)?.args(packages.iter().flat_map(|p| ["-p", p])).args(which))
    }

    fn watched(&self, task: Task) -> Task {
        task.env(self.variable, self.options)
    }

    fn folder(&self) -> String {
        format!("target/{}-sanitizer", self.name)
    }

    /// The programs of tests; how many tests ran.
    fn programs(&self, scope: &Scope) -> Result<u64, String> {
        tasks::build_tests()?;
        let scratch = Scratch::new("sanitizer")?;
        let findings = Findings::new(scratch.join("findings"))?;
        let verbs = scratch.join("verbs");
        softverbs::lay_out_built(&verbs)?;
        if self.watches_stand_ins {
            self.cargo(&["build"])?.args(["-p", "softverbs", "-p", "softnccl"]).run()?;
            let built = root().join(self.folder()).join(native::host()?).join("debug");
            copy(&built.join("libsoftverbs.so"), &verbs.join("libibverbs.so.1"))?;
        }
        let task = self.tests(&["comity", "comity-cli", "comity-transport"], &["--lib", "--tests"])?;
        let task = task.args(["--ignore-default-filter", "--run-ignored", "all", "--test-threads", "2"]);
        let options = format!("{}{}:log_path={}", self.options, self.also, findings.path());
        let task = scope.tell(task).args(["-E", PROGRAMS]).env(self.variable, options);
        let task = task.env("COMITY_TEST_SLOWNESS", self.slowness);
        let task =
            task.env("COMITY_VERBS", verbs.join("libibverbs.so.1")).env("SOFTVERBS_DEVICES", rdma::SOFT);
        let out = task.run();
        findings.check()?;
        Ok(passed(&out?))
    }
}

/// Reports of sanitizers in processes that tests start, whatever becomes of their output and exit codes.
struct Findings(PathBuf);

impl Findings {
    /// None yet.
    fn new(folder: PathBuf) -> Result<Self, String> {
        make(&folder)?;
        Ok(Self(folder))
    }

    /// To which each process adds its number.
    fn path(&self) -> String {
        self.0.join("process").display().to_string()
    }

    fn check(&self) -> Result<(), String> {
        let files = fs::read_dir(&self.0).map_err(|e| format!("{}: {e}", self.0.display()))?;
        let mut told = Vec::new();
        for file in files {
            let path = file.map_err(|e| e.to_string())?.path();
            let text = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            told.push(String::from_utf8_lossy(&text).into_owned());
        }
        if told.is_empty() { Ok(()) } else { Err(told.join("\n")) }
    }
}
