//! Linux on aarch64, emulated by qemu: unit tests, also with pages of 16 and 64 KiB, and `comity check`. The wheel and libcomity for aarch64
//! are tried on a machine of that kind (`.github/workflows/release.yml`).
//!
//! On x86 qemu keeps x86's order of memory, which is stronger than that of an aarch64 core: loom tries the weaker one. This machine's launcher
//! starts the ranks: qemu-user 7.2 refuses the emulated one the call by which it takes in orphans (`PR_SET_CHILD_SUBREAPER`).

use super::{
    jobs::{FEW, QUICK, comity, says},
    requirements::Ask,
    scope::Scope,
    step::{Outcome, passed},
};
use tasks::{child::Task, place::target};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const CC: &str = "aarch64-linux-gnu-gcc";
const QEMU: &str = "qemu-aarch64";
pub(super) const ASKS: &[Ask] = &[
    Ask::X86,
    Ask::Nextest,
    Ask::Program(CC, "gcc-aarch64-linux-gnu"),
    Ask::Program("/usr/aarch64-linux-gnu/lib/crt1.o", "libc6-dev-arm64-cross"),
    Ask::Program(QEMU, "qemu-user"),
    Ask::Target(TARGET),
];
/// Packages that map memory, whose unit tests run with larger pages too.
const MAPPING: &[&str] = &["-p", "comity-base", "-p", "comity-transport"];
/// Others whose unit tests run.
const UNITS: &[&str] =
    &["-p", "comity-kernel", "-p", "comity-plan", "-p", "comity-membership", "-p", "comity-channel"];
/// Pages of most machines, of Macs and of some kernels for aarch64.
const PAGES: [&str; 3] = ["4096", "16384", "65536"];

pub(super) fn run(scope: &Scope) -> Outcome {
    cargo(&["build", "-p", "comity-cli"]).run()?;
    let mut tests = Vec::new();
    for page in PAGES {
        let more = if page == PAGES[0] { UNITS } else { &[] };
        let task = cargo(&["nextest", "run", "--profile", "deep", "--lib"]).args(MAPPING).args(more);
        tests.push(passed(&scope.tell(task.env("QEMU_PAGESIZE", page)).echo().run()?).to_string());
    }
    for (ranks, link, page) in [
        ("2", "shm", "4096"),
        ("3", "shm", "4096"),
        ("2", "tcp", "4096"),
        ("3", "tcp", "4096"),
        ("2", "shm", "65536"),
    ] {
        let task =
            Task::new(comity()).args(["launch", "-n", ranks, "--timeout", &QUICK.to_string(), "--", QEMU]);
        let task =
            task.arg(target().join("arm").join(TARGET).join("debug/comity")).args(["check", "--quick"]);
        let task = task.args(FEW).env("COMITY_LINKS", link).env("QEMU_PAGESIZE", page);
        let task = task.env("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu").limit(QUICK + 30);
        let links = format!("links {link}");
        says(&format!("{link}, {ranks} ranks, pages of {page} bytes"), task, &["all ok", &links])?;
    }
    Ok(format!("{} tests with pages of 4, 16 and 64 KiB; check on 2 and 3 ranks", tests.join(", ")))
}

/// Cargo for aarch64, in a folder of its own: other steps build beside this one. Nobody debugs it.
fn cargo(command: &[&str]) -> Task {
    Task::cargo()
        .args(command)
        .args(["--target", TARGET, "--target-dir"])
        .arg(target().join("arm"))
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", CC)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", QEMU)
        .env("CC_aarch64_unknown_linux_gnu", CC)
        .env("AR_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-ar")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu")
        .limit(3600)
}
