//! Python with what the tests need, and the package in it.

use super::step::{Outcome, Why};
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use tasks::{
    child::Task,
    place::{Scratch, built, program, read, root, write},
};

const REQUIREMENTS: &str = "python/tests/requirements.txt";
/// The rest of what is imported, for the system where packages are not asked what they depend on: see that file.
const PINNED: &str = "python/tests/linux-x86_64.txt";
const ALONE: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));
/// Puts something small in the place of CUDA's libraries.
const WITHOUT_CUDA: &str = "python/tests/without_cuda.py";
/// Installs in half a minute what takes pip five.
const UV: &str = "uv==0.13.9";
/// The cargo that maturin calls: it builds the workspace.
const WORKSPACE_CARGO: &str = "python/tests/workspace/cargo";
/// Shows that nothing is missing that a package imports, and leaves the compiled modules that every test would have to make.
const IMPORTS: &str =
    "import accelerate, jax.numpy, lightning, ml_dtypes, mlx.nn, mlx.optimizers, numpy, pytest
import torch.distributed
from transformers import GPT2LMHeadModel, Trainer";

/// Make an environment anew if what it shall hold is not what it has been made with.
fn keep(name: &str, wanted: &str, make: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let stamp = built(name, "installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(());
    }
    println!("installing what the environment {name} needs");
    make()?;
    write(stamp, wanted)
}

/// Python's own place, with what the tests need in it.
pub(crate) fn prepare() -> Outcome<()> {
    let python = program("python3").ok_or_else(|| Why::Missing("there is no python3".into()))?;
    let version = "import sys, venv; sys.exit(sys.version_info < (3, 11))";
    if Task::new(&python).args(["-c", version]).run().is_err() {
        return Err(Why::Missing("python3 is older than 3.11, or has no venv".into()));
    }
    let mut wanted = format!("{UV}\n{IMPORTS}\n");
    for file in if ALONE { &[REQUIREMENTS, PINNED, WITHOUT_CUDA][..] } else { &[REQUIREMENTS] } {
        wanted += &read(file)?;
    }
    Ok(keep("python", &wanted, || install(&python))?)
}

fn install(python: &Path) -> Result<(), String> {
    Task::new(python).args(["-m", "venv", "--clear"]).arg(built("python", "")).limit(120).run()?;
    own().args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", UV]).limit(300).run()?;
    let all = uv("python", ["-r", REQUIREMENTS]).limit(900);
    if ALONE {
        all.args(["--no-deps", "-r", PINNED]).run()?;
        own().arg(WITHOUT_CUDA).run()?;
    } else {
        all.run()?;
    }
    own().args(["-c", IMPORTS]).limit(300).run().map(drop).map_err(|e| {
        format!("what was installed cannot be imported; does {PINNED} lack a package that one of them imports?\n{e}")
    })
}

/// The program of that environment.
pub(super) fn interpreter() -> PathBuf {
    built("python", "bin/python")
}

/// The interpreter of that place, which is kept between runs. Modules are compiled once, also where the environment says otherwise.
pub(super) fn own() -> Task {
    Task::new(interpreter()).env("PYTHONDONTWRITEBYTECODE", "")
}

/// uv's command that installs into this environment.
fn uv<const N: usize>(into: &str, args: [&str; N]) -> Task {
    own()
        .args(["-m", "uv", "pip", "install", "--quiet", "--python"])
        .arg(built(into, "bin/python"))
        .args(args)
}

/// Python with what the tests need and the package, which is installed if it is not there.
pub(super) fn with_package() -> Outcome<()> {
    prepare()?;
    match own().args(["-c", "import comity"]).run() {
        Ok(_) => Ok(()),
        Err(_) => Ok(install_package("python", false)?),
    }
}

/// The package as a wheel that maturin makes, in this environment. `released`, and where only maturin knows how to link an extension, it is
/// the released one; else its library comes from the build of the workspace that all tests use.
pub(crate) fn install_package(environment: &str, released: bool) -> Result<(), String> {
    let mut wheel = own().args(["-m", "maturin", "build", "--quiet"]);
    let wheels = Scratch::new("wheels")?;
    if released || !cfg!(target_os = "linux") {
        wheel = wheel.arg("--release");
    } else {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        wheel = wheel.args(["--profile", "dev", "--strip", "false"]);
        wheel = wheel.env("CARGO", root().join(WORKSPACE_CARGO)).env("WORKSPACE_CARGO", cargo);
    }
    // Compression takes longer than the rest. What is released may have to be built from nothing, on a busy machine.
    let how = ["--auditwheel", "skip", "--compression-method", "stored", "--out"];
    wheel.args(how).arg(wheels.join("")).limit(if released { 2700 } else { 900 }).run()?;
    let made = fs::read_dir(wheels.join("")).map_err(|e| format!("cannot read the wheels: {e}"))?;
    let made: Vec<PathBuf> = made.filter_map(|f| Some(f.ok()?.path())).collect();
    let [made] = &made[..] else { return Err(format!("maturin made {} wheels", made.len())) };
    uv(environment, ["--reinstall", "--no-deps"]).arg(made).limit(120).run().map(drop)
}

/// Python with the package as released, the tests' packages, and those that this file lists besides.
pub(super) fn prepare_released(more: &str) -> Outcome<()> {
    prepare()?;
    install_package("python", true)?;
    uv("python", ["-r", more]).limit(300).run()?;
    Ok(())
}

/// Another environment, with all that this file lists and no more. It is kept between runs.
pub(super) fn apart(name: &str, all: &str) -> Outcome<()> {
    prepare()?;
    Ok(keep(name, &read(all)?, || {
        own().args(["-m", "venv", "--clear", "--without-pip"]).arg(built(name, "")).limit(120).run()?;
        uv(name, ["--no-deps", "-r", all]).limit(900).run().map(drop)
    })?)
}
