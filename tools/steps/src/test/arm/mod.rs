//! Linux on aarch64, emulated by qemu: unit tests, also with pages of 16 and 64 KiB, `comity check`, the wheel, libcomity.
//!
//! ```text
//!   build  all of it compiled, and a Debian with Python and NumPy (`sysroot`): in time that others leave
//!   check  run
//! ```
//! On x86 qemu keeps x86's order of memory, which is stronger than that of an aarch64 core: loom tries the weaker one. This machine's launcher
//! starts the ranks: qemu-user 7.2 refuses the emulated one the call by which it takes in orphans (`PR_SET_CHILD_SUBREAPER`).

mod sysroot;

use super::{
    Done, Outcome, cargo, missing,
    processes::{QUICK, comity, timed},
    requirements,
    scope::Scope,
};
use crate::c::{LibraryKit, lay_out};
use std::path::{Path, PathBuf};
use tasks::{
    child::Task,
    place::{root, target},
};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const CC: &str = "aarch64-linux-gnu-gcc";
const QEMU: &str = "qemu-aarch64";
/// The libraries of the cross compiler.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
const NEEDED: [requirements::Program; 3] = [
    (CC, "gcc-aarch64-linux-gnu"),
    ("/usr/aarch64-linux-gnu/lib/crt1.o", "libc6-dev-arm64-cross"),
    (QEMU, "qemu-user"),
];
/// Packages whose unit tests run.
const UNITS: [&str; 6] = [
    "comity-kernel",
    "comity-plan",
    "comity-membership",
    "comity-base",
    "comity-channel",
    "comity-transport",
];
/// Those that map memory, which run with larger pages too.
const MAPPING: [&str; 2] = ["comity-base", "comity-transport"];
/// Pages of Macs and of some kernels for aarch64.
const PAGES: [&str; 2] = ["16384", "65536"];
/// Enough to go every way; the kernels have every type in their unit tests.
const FEW: [&str; 4] = [
    "--ops",
    "all_reduce,all_gather,reduce_scatter,all_to_all,send,split,spawn",
    "--dtypes",
    "bf16,f32,bool,c64",
];

/// Everything compiled.
fn build() -> Result<(), String> {
    let packages = ["-p", "comity-cli", "-p", "comity-c"];
    compile(Task::cargo().args(["build"])).args(packages).limit(3600).run()?;
    let mut tests = compile(Task::cargo().args(["test", "--no-run", "--lib"]));
    for unit in UNITS {
        tests = tests.args(["-p", unit]);
    }
    tests.limit(3600).run()?;
    sysroot::kept()?;
    sysroot::packages(compile).map(drop)
}

/// All that was compiled, run.
fn check(scope: &Scope) -> Outcome {
    let units = units(scope, &UNITS, None)?;
    let mut paged = 0;
    for page in PAGES {
        paged += self::units(scope, &MAPPING, Some(page))?;
    }
    checks()?;
    wheel()?;
    example()?;
    Ok(Done::Passed(format!(
        "{units} tests, {paged} with pages of 16 and 64 KiB; check on 2 and 3 ranks, the wheel, C"
    )))
}

/// Both, one after the other.
pub(super) fn run(scope: &Scope) -> Outcome {
    if let Some(not_run) = lacking()? {
        return Ok(not_run);
    }
    build()?;
    check(scope)
}

/// The reason why nothing can be run here.
fn lacking() -> Result<Option<Done>, String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(Some(Done::NotRun(
            "for x86_64 with Debian's cross compiler; an aarch64 has the other steps".into(),
        )));
    }
    if let not_run @ Done::NotRun(_) = requirements::programs(&NEEDED)? {
        return Ok(Some(not_run));
    }
    match Task::new("rustup").args(["target", "add", TARGET]).limit(180).run() {
        Ok(_) => Ok(None),
        Err(e) => missing(format!("the target {TARGET} cannot be added: {e}")).map(Some),
    }
}

/// For aarch64, in a folder of its own: other steps build beside this one. Nobody debugs it.
fn compile(task: Task) -> Task {
    task.args(["--target", TARGET, "--target-dir"])
        .args([target().join("arm")])
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", CC)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", QEMU)
        .env("CC_aarch64_unknown_linux_gnu", CC)
        .env("AR_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-ar")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("QEMU_LD_PREFIX", LIBRARIES)
}

fn emulated(name: &str) -> PathBuf {
    target().join("arm").join(TARGET).join("debug").join(name)
}

/// Unit tests of these packages; how many.
fn units(scope: &Scope, packages: &[&str], page: Option<&str>) -> Result<u64, String> {
    let mut task = compile(Task::cargo().args(["test", "--lib"]));
    for package in packages {
        task = task.args(["-p", package]);
    }
    if let Some(page) = page {
        println!("pages of {page} bytes");
        task = task.env("QEMU_PAGESIZE", page);
    }
    cargo::count(&scope.tell(task).limit(1800).echo().run()?)
}

/// A job of emulated ranks, by this machine's launcher.
fn job(ranks: usize, libraries: &Path) -> Result<Task, String> {
    let limit = QUICK.to_string();
    let task =
        Task::new(comity()?).args(["launch", "-n", &ranks.to_string(), "--timeout", &limit, "--", QEMU]);
    Ok(task.env("QEMU_LD_PREFIX", libraries).limit(QUICK + 30))
}

fn checks() -> Result<(), String> {
    let rows =
        [(2, "shm", "4096"), (3, "shm", "4096"), (2, "tcp", "4096"), (3, "tcp", "4096"), (2, "shm", "65536")];
    for (ranks, link, page) in rows {
        let task = job(ranks, Path::new(LIBRARIES))?.args([emulated("comity")]).args(["check", "--quick"]);
        let task = task.args(FEW);
        let what = format!("{link}, {ranks} ranks, pages of {page} bytes");
        let out = timed(&what, task.env("COMITY_LINKS", link).env("QEMU_PAGESIZE", page))?;
        if !out.contains("all ok") || !out.contains(&format!("links {link}")) {
            return Err(format!("{what}: it did not say that all is right:\n{out}"));
        }
    }
    Ok(())
}

/// The wheel and NumPy under Debian's Python.
fn wheel() -> Result<(), String> {
    let root = sysroot::kept()?;
    for part in ["array", "numpy"] {
        let task = job(2, &root)?.args([root.join("usr/bin/python3")]).args(["-m", "comity.selftest", part]);
        let out = timed(&format!("the wheel, {part}"), task.env("PYTHONPATH", target().join("arm/site")))?;
        if !out.contains(&format!("{part} on 2 ranks: all ok")) {
            return Err(format!("the wheel's part {part} did not say that all is right:\n{out}"));
        }
    }
    Ok(())
}

/// An example in C with libcomity, shared.
fn example() -> Result<(), String> {
    let prefix = target().join("arm/prefix");
    let kit = LibraryKit { macos: false, cc: vec![CC.into()], strip: None };
    lay_out(&prefix, &emulated("libcomity_c.a"), &kit)?;
    let source = root().join("examples/c/hello.c");
    let hello = target().join("arm/hello");
    let task = Task::new(CC).args(["-std=c99", "-o"]).args([&hello, &source]);
    let task = task.args([format!("-I{}", prefix.join("include").display())]);
    task.args([format!("-L{}", prefix.join("lib").display()), "-lcomity".into()]).run()?;
    let task = job(2, Path::new(LIBRARIES))?.args(["-E"]);
    let task = task.args([format!("LD_LIBRARY_PATH={}", prefix.join("lib").display())]);
    let out = timed("C, 2 ranks", task.args([hello]))?;
    if !out.contains("rank 1 of 2: the sum is 1") {
        return Err(format!("hello.c did not say its sum:\n{out}"));
    }
    Ok(())
}
