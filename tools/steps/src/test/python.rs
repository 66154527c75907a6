//! The Python package: installed as a user installs it, then its linter and its tests.

use super::{
    scope::Scope,
    step::{Outcome, Why, passed},
};
use crate::check::PYTHON as SOURCES;
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
pub(super) const WITHOUT_CUDA: &str = "python/tests/without_cuda.py";
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
    let all = uv(&interpreter(), ["-r", REQUIREMENTS]).limit(900);
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

/// uv's command that installs into the environment of this interpreter.
fn uv<const N: usize>(into: &Path, args: [&str; N]) -> Task {
    own().args(["-m", "uv", "pip", "install", "--quiet", "--python"]).arg(into).args(args)
}

pub(super) fn check(scope: &Scope) -> Outcome {
    install_into(&interpreter(), scope.deep)?;
    own().args(["-m", "ruff", "check", "--quiet"]).args(SOURCES).run()?;
    own().args(["-m", "ruff", "format", "--quiet", "--check"]).args(SOURCES).run()?;
    // Each folder has a conftest of its own, and Python knows one module of that name at a time. They run side by side: both wait a good
    // deal, and their limits are far from what they take.
    let torch = pytest(&["python/tests/pytorch"], scope).start()?;
    let others = pytest(&["python/tests", "--ignore=python/tests/pytorch"], scope).echo().run()?;
    let torch = torch.wait()?;
    println!("{}", torch.trim_end());
    let last = |out: &str| out.lines().rfind(|l| l.contains(" passed")).unwrap_or_default().to_owned();
    // One that was skipped has shown nothing.
    match [last(&others), last(&torch)].into_iter().find(|last| passed(last) == 0 || last.contains("skipped"))
    {
        None => Ok(format!("{} tests", passed(&others) + passed(&torch))),
        Some(last) => Err(format!("tests were left out: {last:?}").into()),
    }
}

fn pytest(what: &[&str], scope: &Scope) -> Task {
    // Stands in for NCCL and a driver in tests of device memory; of the same build.
    let stand_in = built("debug", "libsoftnccl.so");
    let pytest = own().args(["-m", "pytest", "-q"]).args(what).env("COMITY_TEST_SOFTNCCL", stand_in);
    // For tests that hang: each that waits has a limit of its own, and a busy machine must not meet this one.
    scope.tell(pytest).limit(1800)
}

/// The package as released, in Python's own place.
pub(crate) fn released() -> Result<(), String> {
    install_into(&interpreter(), true)
}

/// Python with what the tests need and the package, which is installed if it is not there.
pub(super) fn with_package() -> Outcome<()> {
    prepare()?;
    match own().args(["-c", "import comity"]).run() {
        Ok(_) => Ok(()),
        Err(_) => Ok(install_into(&interpreter(), false)?),
    }
}

/// The package as a wheel that maturin makes, for the environment of this interpreter. In the deep tests, and where only maturin knows how to link an extension, it is the released
/// one; else its library comes from the build of the workspace that all tests use.
pub(super) fn install_into(python: &Path, deep: bool) -> Result<(), String> {
    let mut wheel = own().args(["-m", "maturin", "build", "--quiet"]);
    let wheels = Scratch::new("wheels")?;
    if deep || !cfg!(target_os = "linux") {
        wheel = wheel.arg("--release");
    } else {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        wheel = wheel.args(["--profile", "dev", "--strip", "false"]);
        wheel = wheel.env("CARGO", root().join(WORKSPACE_CARGO)).env("WORKSPACE_CARGO", cargo);
    }
    // Compression takes longer than the rest. What is released may have to be built from nothing, on a busy machine.
    let how = ["--auditwheel", "skip", "--compression-method", "stored", "--out"];
    wheel.args(how).arg(wheels.join("")).limit(if deep { 2700 } else { 900 }).run()?;
    let made = fs::read_dir(wheels.join("")).map_err(|e| format!("cannot read the wheels: {e}"))?;
    let made: Vec<PathBuf> = made.filter_map(|f| Some(f.ok()?.path())).collect();
    let [made] = &made[..] else { return Err(format!("maturin made {} wheels", made.len())) };
    uv(python, ["--reinstall", "--no-deps"]).arg(made).limit(120).run().map(drop)
}

/// Python with the package as released, the tests' packages, and those that this file lists besides.
pub(super) fn prepare_released(more: &str) -> Outcome<()> {
    prepare()?;
    released()?;
    uv(&interpreter(), ["-r", more]).limit(300).run()?;
    Ok(())
}

/// The interpreter of another environment, with all that this file lists and no more. Its first commands, run when that was installed anew,
/// are in `after`. It is kept between runs.
pub(super) fn apart(name: &str, all: &str, after: &[&[&str]]) -> Outcome<PathBuf> {
    prepare()?;
    let python = built(name, "bin/python");
    keep(name, &format!("{after:?}\n{}", read(all)?), || {
        own().args(["-m", "venv", "--clear", "--without-pip"]).arg(built(name, "")).limit(120).run()?;
        uv(&python, ["--no-deps", "-r", all]).limit(900).run()?;
        after.iter().try_for_each(|args| Task::new(&python).args(*args).limit(300).run().map(drop))
    })?;
    Ok(python)
}
