//! The suite under AddressSanitizer with its search for leaks, and under ThreadSanitizer: threads, then processes over
//! each link. No finding is suppressed.
//!
//! `SANITIZERS=all` adds the tests that play every mistake and every fault with processes, which take longer than a landing can wait.

use super::{
    Done, Outcome, cargo, missing, nightly,
    processes::{QUICK, timed},
};
use crate::{child::Task, place::root};
use std::{env, fs, path::PathBuf, time::Instant};

struct Sanitizer {
    name: &'static str,
    /// What cargo needs besides: a standard library that is watched too, where its own synchronisation counts.
    flags: &'static [&'static str],
    variable: &'static str,
    options: &'static str,
    /// So many times longer than otherwise may anything take in [`MORE`].
    slowness: &'static str,
    /// Jobs over TCP take the thread sanitizer longer than a landing can wait.
    links: &'static [&'static str],
    /// Tests that have one thread and no unsafe code, for which it is too slow, or that hold a time.
    skipped: &'static [&'static str],
}

/// Built together, tests and command: alone each would have its dependencies with other features, and be built once more.
const PARTS: [&str; 6] = ["-p", "comity", "-p", "comity-cli", "--test", "local"];

/// Programs of tests, each by itself.
const MORE: &[&str] = &[
    "comity mismatch",
    "comity-cli report",
    "comity-cli faults",
    "comity-cli launch",
    "comity-cli hostile",
    "comity-cli slow",
    "comity-cli links",
    "comity-cli check",
    "comity-cli refusals",
];
const ALL: [Sanitizer; 2] = [
    Sanitizer {
        name: "address",
        flags: &[],
        variable: "ASAN_OPTIONS",
        options: "detect_leaks=1:exitcode=86",
        slowness: "6",
        links: &["shm", "tcp"],
        skipped: &["plan::", "config::", "simulate", "tests::jobs", "damage", "up_quickly"],
    },
    Sanitizer {
        name: "thread",
        flags: &["-Zbuild-std"],
        variable: "TSAN_OPTIONS",
        options: "halt_on_error=1:exitcode=86",
        slowness: "20",
        links: &["shm"],
        skipped: &[
            "plan::",
            "config::",
            "kernel::",
            "simulate",
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
    },
];

pub(super) fn run() -> Outcome {
    if !cfg!(target_os = "linux") {
        return Ok(Done::NotRun("only on Linux".into()));
    }
    if let Err(why) = nightly::check() {
        return missing(format!("sanitizers need the nightly compiler: {why}"));
    }
    let host = nightly::host()?;
    let mut ran = 0;
    for s in &ALL {
        ran += s.run(&host)?;
    }
    Ok(Done::Passed(format!("address and thread: {ran} tests, 3 jobs of processes; nothing suppressed")))
}

impl Sanitizer {
    /// What rustc needs. The system is called through libc, where the sanitizer sees memory mapped and unmapped: else
    /// an address that one thread had and another gets later looks like one thing that both write.
    fn rustflags(&self) -> String {
        format!("-Zsanitizer={} --cfg=rustix_use_libc", self.name)
    }

    /// How many tests ran.
    fn run(&self, host: &str) -> Result<u64, String> {
        let folder = format!("target/{}-sanitizer", self.name);
        let place = ["--target", host, "--target-dir", &folder];
        let skipped: Vec<&str> = self.skipped.iter().flat_map(|s| ["--skip", s]).collect();
        let args = [&["test"], self.flags, &place, &PARTS, &["--lib", "--"], &skipped].concat();
        let task = nightly::cargo(&args).env("RUSTFLAGS", self.rustflags());
        let out = task.env(self.variable, self.options).limit(1800).echo().run()?;
        let args = [&["build"], self.flags, &place, &PARTS, &["--bin", "comity"]].concat();
        let task = nightly::cargo(&args).env("RUSTFLAGS", self.rustflags());
        task.limit(1200).run()?;
        let comity = root().join(&folder).join(host).join("debug/comity");
        for links in self.links {
            let n = "3";
            let task = Task::new(&comity).args(["launch", "-n", n, "--timeout", "300", "--"]).args([&comity]);
            let task = task.args(["check", "--quick"]).env("COMITY_LINKS", *links);
            let task = task.env(self.variable, self.options).limit(300 + QUICK);
            timed(&format!("{n} ranks over {links}, {} sanitizer", self.name), task)?;
        }
        let mut ran = cargo::count(&out)?;
        if env::var("SANITIZERS").is_ok_and(|which| which == "all") {
            let findings = Findings::new(root().join(&folder).join("findings"))?;
            let options = format!("{}:log_path={}", self.options, findings.path());
            for (package, test) in MORE.iter().filter_map(|m| m.split_once(' ')) {
                let args = [&["test"], self.flags, &place, &["-p", package, "--test", test]].concat();
                let task = nightly::cargo(&args).env("RUSTFLAGS", self.rustflags());
                let task = task.env(self.variable, &options).env("COMITY_TEST_SLOWNESS", self.slowness);
                let begun = Instant::now();
                let out = task.limit(3600).echo().run();
                findings.check()?;
                let tests = cargo::count(&out?)?;
                println!("{package} {test}, {} sanitizer: {tests} tests, {:.0?}", self.name, begun.elapsed());
                ran += tests;
            }
        }
        Ok(ran)
    }
}

/// What sanitizers say in processes that tests start, whatever becomes of their output and exit codes.
struct Findings(PathBuf);

impl Findings {
    /// None yet.
    fn new(folder: PathBuf) -> Result<Self, String> {
        let _ = fs::remove_dir_all(&folder);
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
