//! The nightly compiler, for what stable lacks: fuzzing, sanitizers, Miri.

use std::path::Path;
use tasks::child::Task;

/// Through rustup's cargo, which knows `+nightly`.
pub(super) fn cargo(args: &[&str]) -> Task {
    Task::new("cargo").args([&["+nightly"], args].concat())
}

/// Installs what is missing, and changes nothing else of a nightly compiler that is there.
pub(super) fn install() -> Result<(), String> {
    let Err(why) = check().and_then(|()| miri()) else { return Ok(()) };
    println!("installing parts of the nightly compiler: {}", why.lines().next().unwrap_or_default());
    let rustup = |args: &[&str]| Task::new("rustup").args(args).limit(600).run();
    let is_there = Task::new("rustc").args(["+nightly", "--version"]).run().is_ok();
    if is_there {
        rustup(&["component", "add", "--toolchain", "nightly", "rust-src", "miri"])?;
    } else {
        // The newest that has both.
        rustup(&["toolchain", "install", "nightly", "--profile", "minimal", "-c", "rust-src,miri"])?;
    }
    check().and_then(|()| miri())
}

/// Check that there is one, with the standard library's source.
pub(super) fn check() -> Result<(), String> {
    let sysroot = Task::new("rustc").args(["+nightly", "--print", "sysroot"]).run()?;
    let source = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock");
    if source.is_file() {
        Ok(())
    } else {
        Err(format!(
            "rust-src is missing: there is no {}; `rustup component add --toolchain nightly rust-src miri` installs it",
            source.display()
        ))
    }
}

/// Check that it has Miri.
pub(super) fn miri() -> Result<(), String> {
    cargo(&["miri", "--version"]).run().map(drop)
}

/// The machine that nightly compiles for when nothing else is said.
pub(super) fn host() -> Result<String, String> {
    let text = Task::new("rustc").args(["+nightly", "-vV"]).run()?;
    let host = text.lines().find_map(|l| l.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("rustc -vV names no host:\n{text}"))
}
