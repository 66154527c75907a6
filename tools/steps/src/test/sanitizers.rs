//! The suite under AddressSanitizer with its search for leaks, and under ThreadSanitizer: threads, then processes over
//! each link. No finding is suppressed but one: a program whose processes exit in the middle of things leaves threads that have ended and
//! that nobody has waited for, which the thread sanitizer calls a leak.
//!
//! The gate runs the library's own tests, unoptimised: to optimise them under a sanitizer takes three times as long as to run them. The
//! deep checks add jobs, and every program of tests that plays a fault or a mistake with processes, piece by piece.

use super::{
    Done, Outcome, cargo, missing, native, nightly,
    processes::{QUICK, timed},
    rdma,
    scope::Scope,
};
use crate::softverbs;
use std::{fs, path::PathBuf};
use tasks::{
    child::Task,
    place::{Scratch, root},
};

#[derive(Debug)]
struct Sanitizer {
    name: &'static str,
    /// Further flags of cargo: a standard library that is watched too, where its own synchronisation counts.
    flags: &'static [&'static str],
    /// Further flags of rustc.
    rustflags: &'static str,
    variable: &'static str,
    options: &'static str,
    /// And in [`PROGRAMS`].
    also: &'static str,
    /// So many times longer than otherwise may anything take in [`PROGRAMS`].
    slowness: &'static str,
    /// Links of the jobs: those over TCP take the thread sanitizer longer than a gate can wait.
    links: &'static [&'static str],
    /// Tests that have one thread and no unsafe code, for which it is too slow, or that hold a time.
    skipped: &'static [&'static str],
    /// Packages of the reductions' loops, where it takes bearable time.
    kernels: &'static [&'static str],
    /// The stand-ins for libraries are watched too: else it does not see their locks.
    watches_stand_ins: bool,
}

/// Parts of a gate.
const LIBRARY: [&str; 7] = [
    "comity",
    "comity-base",
    "comity-channel",
    "comity-transport",
    "comity-settings",
    "comity-rendezvous",
    "comity-job",
];
/// Their tests.
const TESTS: [&str; 3] = ["--test", "local", "--lib"];
/// Built together with these, tests and command: alone each would have its dependencies with other features, and be built once more.
const COMMAND: [&str; 2] = ["comity-launch", "comity-cli"];

/// Tests that a gate leaves to the deep checks, besides those that are skipped there.
const LONG: [&str; 13] = [
    "any_order_of_calls",
    "connect::tests",
    "sealed",
    "four_apart",
    "three_connections",
    "hello::tests::a",
    "measure",
    "all_that_is_put",
    "apart_back",
    "moves_both_ways",
    "connections_are_replaced",
    "as_any_other_afterwards",
    "does_not_lend",
];

/// Programs of tests, each by itself. Those after the first nine need stand-ins for a library.
const PROGRAMS: [&str; 12] = [
    "comity --test mismatch",
    "comity-cli --test report",
    "comity-cli --test faults",
    "comity-cli --test launch",
    "comity-cli --test hostile",
    "comity-cli --test slow",
    "comity-cli --test links",
    "comity-cli --test check",
    "comity-cli --test refusals",
    "comity-cli --test nccl",
    "comity-cli --test rdma",
    "comity-transport --lib verbs",
];

/// The library with its jobs, then the programs.
pub(super) const PIECES: usize = 1 + PROGRAMS.len();

/// So that a library finds the sanitizer in the program that loads it.
const EXPORTS: &str = " -Clink-arg=-rdynamic";

const ADDRESS: Sanitizer = Sanitizer {
    name: "address",
    flags: &[],
    rustflags: EXPORTS,
    variable: "ASAN_OPTIONS",
    options: "detect_leaks=1:exitcode=86",
    also: "",
    slowness: "6",
    links: &["shm", "tcp"],
    // The last one leaves threads behind on purpose, as a forked child does.
    skipped: &["config::", "tests::jobs", "damage", "up_quickly", "pool::tests::a_process_that_was_forked"],
    kernels: &["comity-kernel"],
    watches_stand_ins: false,
};

const THREAD: Sanitizer = Sanitizer {
    name: "thread",
    flags: &["-Zbuild-std"],
    rustflags: EXPORTS,
    variable: "TSAN_OPTIONS",
    options: "halt_on_error=1:exitcode=86",
    also: ":report_thread_leaks=0",
    slowness: "20",
    links: &["shm"],
    skipped: &[
        "config::",
        "tests::jobs",
        "damage",
        "up_quickly",
        // The command's.
        "bench::",
        "check::",
        "info::",
        "launch::",
        "report::",
        "size::",
    ],
    kernels: &[],
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
        if !cfg!(target_os = "linux") {
            return Ok(Done::NotRun("only on Linux".into()));
        }
        if let Err(why) = nightly::check() {
            return missing(format!("sanitizers need the nightly compiler: {why}"));
        }
        self.cargo(&nightly::host()?, "test", &[self.parts(false), vec!["--no-run"]].concat())?.run()?;
        Ok(Done::Passed("compiled".into()))
    }

    fn run(&self, scope: &Scope) -> Outcome {
        if !cfg!(target_os = "linux") {
            return Ok(Done::NotRun("only on Linux".into()));
        }
        if let Err(why) = nightly::check() {
            return missing(format!("sanitizers need the nightly compiler: {why}"));
        }
        let host = nightly::host()?;
        let ran = match scope.piece.checked_sub(1).and_then(|i| PROGRAMS.get(i)) {
            None => self.library(&host, scope)?,
            Some(program) => self.program(&host, program)?,
        };
        Ok(Done::Passed(format!("{ran} tests")))
    }

    /// Cargo, with what rustc needs. The system is called through libc, where the sanitizer sees memory mapped and unmapped: else
    /// an address that one thread had and another gets later looks like one thing that both write.
    fn cargo(&self, host: &str, command: &str, args: &[&str]) -> Result<Task, String> {
        let folder = self.folder();
        let place = ["--target", host, "--target-dir", &folder];
        let shared = native::shared_args()?;
        let shared = shared.each_ref().map(String::as_str);
        let task = nightly::cargo(&[&[command], &shared[..], self.flags, &place, args].concat());
        let flags = format!("-Zsanitizer={} --cfg=rustix_use_libc{}", self.name, self.rustflags);
        Ok(task.env("RUSTFLAGS", flags).limit(3600))
    }

    /// Packages and their tests.
    fn parts(&self, deep: bool) -> Vec<&'static str> {
        let (more, command): (&[_], &[_]) = if deep { (&COMMAND, &["--bin", "comity"]) } else { (&[], &[]) };
        let packages = cargo::named(&[&LIBRARY, more, self.kernels].concat());
        [&packages, &TESTS[..], command].concat()
    }

    fn folder(&self) -> String {
        format!("target/{}-sanitizer", self.name)
    }

    fn built(&self, host: &str) -> PathBuf {
        root().join(self.folder()).join(host).join("debug")
    }

    /// The library's own tests, and jobs of the command; how many tests ran.
    fn library(&self, host: &str, scope: &Scope) -> Result<u64, String> {
        let parts = self.parts(scope.deep);
        let long: &[&str] = if scope.deep { &[] } else { &LONG };
        let skipped: Vec<&str> = self.skipped.iter().chain(long).flat_map(|s| ["--skip", s]).collect();
        let listed = self.cargo(host, "test", &[&parts, &["--", "--list"][..], &skipped].concat())?.run()?;
        let all: Vec<_> = listed.lines().filter_map(|l| l.strip_suffix(": test")).collect();
        let chosen = scope.share(all, 2);
        let args = [&parts, &["--", "--exact"][..], &chosen].concat();
        let task = scope.tell(self.cargo(host, "test", &args)?);
        let out = task.env(self.variable, self.options).echo().run()?;
        let comity = self.built(host).join("comity");
        let jobs = if scope.deep { self.links } else { &[] };
        if !jobs.is_empty() {
            // Tests of the command's own files bring their program, not the command.
            self.cargo(host, "build", &["-p", "comity", "-p", "comity-cli", "--bin", "comity"])?.run()?;
        }
        for links in jobs {
            let n = "3";
            let task = Task::new(&comity).args(["launch", "-n", n, "--timeout", "300", "--"]).args([&comity]);
            let task = task.args(["check", "--quick"]).env("COMITY_LINKS", *links);
            let task = task.env(self.variable, self.options).limit(300 + QUICK);
            timed(&format!("{n} ranks over {links}, {} sanitizer", self.name), task)?;
        }
        cargo::count(&out)
    }

    /// A program of tests; how many ran.
    fn program(&self, host: &str, program: &str) -> Result<u64, String> {
        let scratch = Scratch::new("sanitizer").map_err(|e| format!("cannot make a folder: {e}"))?;
        let findings = Findings::new(scratch.join("findings"))?;
        let words: Vec<&str> = program.split(' ').collect();
        let args = [&["-p"], &words[..], &["--", "--include-ignored", "--test-threads", "2"]].concat();
        let task = self.cargo(host, "test", &args)?;
        let task =
            task.env(self.variable, format!("{}{}:log_path={}", self.options, self.also, findings.path()));
        let task = task.env("COMITY_TEST_SLOWNESS", self.slowness).env("COMITY_TEST_DEEP", "1");
        let verbs = scratch.join("verbs");
        softverbs::lay_out_built(&verbs)?;
        if self.watches_stand_ins {
            self.cargo(host, "build", &["-p", "softverbs", "-p", "softnccl"])?.run()?;
            let watched = self.built(host).join("libsoftverbs.so");
            fs::copy(&watched, verbs.join("libibverbs.so.1"))
                .map_err(|e| format!("cannot copy {}: {e}", watched.display()))?;
        }
        let task =
            task.env("COMITY_VERBS", verbs.join("libibverbs.so.1")).env("SOFTVERBS_DEVICES", rdma::SOFT);
        let out = task.echo().run();
        findings.check()?;
        cargo::count(&out?)
    }
}

/// Reports of sanitizers in processes that tests start, whatever becomes of their output and exit codes.
struct Findings(PathBuf);

impl Findings {
    /// None yet.
    fn new(folder: PathBuf) -> Result<Self, String> {
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
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
