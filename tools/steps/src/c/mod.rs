//! Installs libcomity, as `cargo-c` would: the shared library with a name and symbol versions of its own, the archive, headers, and what
//! pkg-config, CMake and Swift need to find them.
//!
//! cargo makes an archive of all that Comity is. The shared library is linked from it here, with a version script: the one that rustc
//! makes exports what it likes, and a linker takes one script only.

mod files;

use std::{fs, os::unix::fs::symlink, path::Path};
use tasks::{
    child::Task,
    place::{built, copy, make, read, root, write},
};

/// The version node of symbols, and the number in the shared library's name: they change when a line of the table does.
pub(crate) const NODE: &str = "COMITY_0";
/// The table of symbols and layouts.
pub(crate) const TABLE: &str = "crates/comity-c/abi.txt";
const HEADERS: [&str; 2] = ["comity.h", "comity.hpp"];

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

impl LibraryKit {
    /// Kit of this machine. A third of a released archive is for debuggers; without a program that takes that out, the archive is larger
    /// and works.
    fn own(profile: &str) -> Self {
        let strips = profile == "release" && tasks::place::program("strip").is_some();
        let strip = strips.then(|| vec!["strip".into(), "-S".into()]);
        Self { macos: cfg!(target_os = "macos"), cc: vec!["cc".into()], strip }
    }

    fn soname(&self) -> &'static str {
        if self.macos { "libcomity.0.dylib" } else { "libcomity.so.0" }
    }

    fn link_name(&self) -> &'static str {
        if self.macos { "libcomity.dylib" } else { "libcomity.so" }
    }

    /// Libraries with which a program with the archive must be linked, as rustc says.
    pub(crate) fn system(&self) -> &'static [&'static str] {
        if self.macos {
            &["-lSystem", "-lc", "-lm"]
        } else {
            &["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"]
        }
    }
}

/// `cargo xtask c-install --prefix DIR [--debug]`.
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
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

/// The functions of the table.
pub(crate) fn symbols() -> Result<Vec<String>, String> {
    let text = read(TABLE)?;
    let name = |line: &str| {
        let (before, _) = line.strip_prefix("function ")?.split_once('(')?;
        Some(before.rsplit([' ', '*']).next()?.to_owned())
    };
    let all: Vec<_> = text.lines().filter_map(name).collect();
    if all.is_empty() { Err(format!("{TABLE} has no functions")) } else { Ok(all) }
}

/// Put what cargo has built in this profile's folder where programs find it.
pub(crate) fn install(prefix: &Path, profile: &str) -> Result<(), String> {
    lay_out(prefix, &built(profile, "libcomity_c.a"), &LibraryKit::own(profile))
}

/// Put libcomity, of this archive, into a folder with its header and what pkg-config, CMake and Swift need.
///
/// # Errors
/// It cannot be linked or written.
pub fn lay_out(prefix: &Path, from: &Path, kit: &LibraryKit) -> Result<(), String> {
    let lib = prefix.join("lib");
    let include = prefix.join("include");
    for folder in [&lib.join("pkgconfig"), &lib.join("cmake/comity"), &include] {
        make(folder)?;
    }
    let archive = lib.join("libcomity.a");
    copy(from, &archive)?;
    if let Some([program, args @ ..]) = kit.strip.as_deref() {
        Task::new(program).args(args).arg(&archive).limit(120).run()?;
    }
    for name in HEADERS {
        copy(&root().join("crates/comity-c/include").join(name), &include.join(name))?;
    }
    write(include.join("module.modulemap"), files::MODULE_MAP)?;
    write(lib.join("pkgconfig/comity.pc"), files::pkg_config(kit.system()))?;
    write(lib.join("cmake/comity/comity-config.cmake"), files::cmake(kit.soname(), kit.system()))?;
    write(lib.join("cmake/comity/comity-config-version.cmake"), files::cmake_version())?;
    link(&lib, &archive, kit)?;
    let short = lib.join(kit.link_name());
    let _ = fs::remove_file(&short);
    symlink(kit.soname(), &short).map_err(|e| format!("{}: {e}", short.display()))
}

/// The shared library, of what the functions of the table need.
fn link(lib: &Path, archive: &Path, kit: &LibraryKit) -> Result<(), String> {
    let out = lib.join(kit.soname());
    let [cc, first @ ..] = &kit.cc[..] else { return Err("no C compiler is named".into()) };
    let task = Task::new(cc).args(first);
    let all = symbols()?;
    let exports = lib.join("libcomity.map");
    let text = if kit.macos {
        all.iter().map(|s| format!("_{s}\n")).collect()
    } else {
        format!("{NODE} {{ global: comity_*; local: *; }};\n")
    };
    write(&exports, text)?;
    let task = if kit.macos {
        let name = format!("-Wl,-install_name,@rpath/{}", kit.soname());
        // Zig's linker takes the list and exports other symbols too. It refuses `-exported_symbol`.
        let list = format!("-Wl,-exported_symbols_list,{}", exports.display());
        let wanted = all.iter().map(|s| format!("-Wl,-u,_{s}"));
        task.args(["-dynamiclib", &name, "-Wl,-dead_strip", &list]).args(wanted)
    } else {
        let wanted = all.iter().map(|s| format!("-Wl,-u,{s}"));
        let script = format!("-Wl,--version-script={}", exports.display());
        let flags = ["-Wl,--gc-sections", "-Wl,--as-needed", "-Wl,-z,defs", "-Wl,-z,relro,-z,now"];
        let strip = if kit.strip.is_some() { &["-Wl,--strip-debug"][..] } else { &[] };
        task.args(["-shared", &format!("-Wl,-soname,{}", kit.soname()), &script])
            .args(flags)
            .args(strip)
            .args(wanted)
    };
    task.args([archive]).args(kit.system()).args(["-o"]).args([&out]).limit(300).run()?;
    let _ = fs::remove_file(exports);
    Ok(())
}
