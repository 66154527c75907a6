//! The nightly compiler, for what stable lacks: fuzzing, sanitizers, Miri.

use crate::child::Task;
use std::path::Path;

/// What the steps need of it.
const COMPONENTS: &str = "miri,rust-src";

/// Through rustup's cargo, which knows `+nightly`.
pub(super) fn cargo(args: &[&str]) -> Task {
    Task::new("cargo").args([&["+nightly"], args].concat())
}

/// Installs what is missing.
pub(super) fn install() -> Result<(), String> {
    let Err(why) = check() else { return Ok(()) };
    println!("installing the nightly compiler: {why}");
    let args = ["toolchain", "install", "nightly", "--profile", "minimal", "-c", COMPONENTS];
    Task::new("rustup").args(args).limit(600).run()?;
    check()
}

/// Whether all is there.
pub(super) fn check() -> Result<(), String> {
    let sysroot = Task::new("rustc").args(["+nightly", "--print", "sysroot"]).run()?;
    let source = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock");
    if !source.is_file() {
        return Err(format!(
            "the nightly compiler is there without rust-src ({} is missing)",
            source.display()
        ));
    }
    cargo(&["miri", "--version"]).run().map(drop)
}

/// The machine that nightly compiles for when nothing else is said.
pub(super) fn host() -> Result<String, String> {
    let text = Task::new("rustc").args(["+nightly", "-vV"]).run()?;
    let host = text.lines().find_map(|l| l.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("rustc -vV names no host:\n{text}"))
}
