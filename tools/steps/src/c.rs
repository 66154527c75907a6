//! libcomity, laid out by `scripts/c-install.sh` where programs find it.

use std::path::Path;
use tasks::{child::Task, place::built};

/// Makes the library of an archive, for one system.
#[derive(Debug)]
pub struct LibraryKit {
    /// True for macOS, false for Linux.
    pub macos: bool,
    /// C compiler that links for it, with its first arguments.
    pub cc: Vec<String>,
    /// Program that takes debug information out of an archive, with its first arguments.
    pub strip: Option<Vec<String>>,
}

/// `cargo xtask c-install --prefix DIR [--debug]`: build libcomity and install it with its header.
pub fn run(args: &[&str]) -> Result<(), String> {
    let (prefix, debug) = match args {
        ["--prefix", prefix] => (prefix, false),
        ["--prefix", prefix, "--debug"] | ["--debug", "--prefix", prefix] => (prefix, true),
        _ => return Err("c-install takes --prefix DIR, and --debug for the build of the tests".into()),
    };
    let profile = if debug {
        tasks::build_tests()?;
        "debug"
    } else {
        Task::cargo().args(["build", "--release", "-p", "comity-c"]).limit(1800).echo().run()?;
        "release"
    };
    let prefix = std::path::absolute(prefix).map_err(|e| format!("{prefix}: {e}"))?;
    install(&prefix, profile)?;
    println!("installed into {}", prefix.display());
    Ok(())
}

/// Put what cargo has built in this profile's folder where programs find it.
pub(crate) fn install(prefix: &Path, profile: &str) -> Result<(), String> {
    // A third of a released archive is for debuggers; without a program that takes that out, the archive is larger and works.
    let strips = profile == "release" && tasks::place::program("strip").is_some();
    let strip = strips.then(|| vec!["strip".into(), "-S".into()]);
    let own = LibraryKit { macos: cfg!(target_os = "macos"), cc: vec!["cc".into()], strip };
    lay_out(prefix, &built(profile, "libcomity_c.a"), &own)
}

/// Put libcomity, of this archive, into a folder with its header and what pkg-config, CMake and Swift need.
///
/// # Errors
/// It cannot be linked or written.
pub fn lay_out(prefix: &Path, from: &Path, kit: &LibraryKit) -> Result<(), String> {
    let task = Task::new("sh").args(["tools/steps/scripts/c-install.sh".as_ref(), prefix, from]);
    task.env("CC", kit.cc.join(" "))
        .env("STRIP", kit.strip.as_deref().unwrap_or_default().join(" "))
        .env("MACOS", if kit.macos { "1" } else { "" })
        .env("VERSION", env!("CARGO_PKG_VERSION"))
        .limit(420)
        .run()
        .map(drop)
}
