//! A Debian for aarch64 under `target/`: Python and the libraries that it needs, unpacked and never installed.

use super::super::python;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tasks::{
    child::Task,
    place::{root, target},
};

/// apt takes along what they depend on.
const PACKAGES: [&str; 3] = ["python3-minimal", "libpython3-stdlib", "libstdc++6"];
/// The file that names the version of NumPy.
const PINNED: &str = "python/tests/requirements.txt";

/// The folder of the Debian, made once.
pub(super) fn kept() -> Result<PathBuf, String> {
    let done = target().join("arm-root");
    if done.is_dir() {
        return Ok(done);
    }
    println!("unpacking a Debian with Python for aarch64, once: 60 MB");
    let apt = target().join("arm-apt");
    // Elsewhere first, so that what is cut short is never taken for the whole.
    let fresh = target().join("arm-root.new");
    for folder in [&apt, &fresh] {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(|e| format!("cannot remove {}: {e}", folder.display()))?;
        }
    }
    for folder in [&apt.join("lists/partial"), &apt.join("archives/partial"), &fresh] {
        fs::create_dir_all(folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    }
    // As if nothing were installed, with lists and files of its own: this machine's stay as they are.
    let status = apt.join("status");
    fs::write(&status, "").map_err(|e| format!("cannot write {}: {e}", status.display()))?;
    let own = [
        "APT::Architecture=arm64".to_owned(),
        "APT::Architectures::=arm64".to_owned(),
        "Acquire::Retries=5".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
        format!("Dir::State={}", apt.display()),
        format!("Dir::State::lists={}", apt.join("lists").display()),
        format!("Dir::State::status={}", status.display()),
        format!("Dir::Cache={}", apt.display()),
        format!("Dir::Cache::archives={}", apt.join("archives").display()),
    ];
    let options: Vec<String> = own.into_iter().flat_map(|o| ["-o".to_owned(), o]).collect();
    Task::new("apt-get").args(&options).args(["update"]).limit(300).run()?;
    let install = ["install", "--download-only", "--yes", "--no-install-recommends"];
    Task::new("apt-get").args(&options).args(install).args(PACKAGES).limit(300).run()?;
    let mut count = 0;
    for file in files(&apt.join("archives"), "deb")? {
        Task::new("dpkg").args(["-x"]).args([&file, &fresh]).run()?;
        count += 1;
    }
    if count == 0 {
        return Err("apt brought no package for arm64".into());
    }
    fs::rename(&fresh, &done).map_err(|e| format!("cannot rename {}: {e}", fresh.display()))?;
    fs::remove_dir_all(&apt).map_err(|e| format!("cannot remove {}: {e}", apt.display()))?;
    Ok(done)
}

/// The package as a wheel for aarch64, and NumPy, in a folder of their own.
pub(super) fn packages(cargo: impl Fn(Task) -> Task) -> Result<PathBuf, String> {
    let wheels = target().join("arm/wheels");
    let site = target().join("arm/site");
    for folder in [&wheels, &site] {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(|e| format!("cannot remove {}: {e}", folder.display()))?;
        }
    }
    let maturin = cargo(python::own().args(["-m", "maturin", "build", "--quiet", "--profile", "dev"]));
    let how = ["--strip", "false", "--auditwheel", "skip", "--compression-method", "stored", "--out"];
    maturin.args(how).args([&wheels]).limit(1800).run()?;
    let pinned = fs::read_to_string(root().join(PINNED)).map_err(|e| format!("{PINNED}: {e}"))?;
    let numpy = pinned.lines().find(|line| line.starts_with("numpy=="));
    let numpy = numpy.ok_or_else(|| format!("{PINNED} names no version of NumPy"))?;
    let uv = ["-m", "uv", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"];
    let there = ["--python-platform", "aarch64-manylinux_2_28", "--python-version", "3.11", "--target"];
    let uv = python::own().args(uv).args(there).args([&site]).args([numpy]);
    uv.args(files(&wheels, "whl")?).limit(300).run()?;
    Ok(site)
}

fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| path.extension().is_some_and(|e| e == ending)).collect())
}
