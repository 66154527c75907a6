//! The Python package: installed as a user installs it, then its linter and its tests.

use super::{Done, Outcome, missing, scope::Scope};
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use tasks::{
    child::Task,
    place::{Scratch, built, program, root},
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
const SOURCES: [&str; 5] = ["python", "bench", "examples", "docs/make", "tools/bench/programs"];
/// Shows that nothing is missing that a package imports, and leaves the compiled modules that every test would have to make.
const IMPORTS: &str =
    "import accelerate, jax.numpy, lightning, ml_dtypes, mlx.nn, mlx.optimizers, numpy, pytest
import torch.distributed
from transformers import GPT2LMHeadModel, Trainer";

/// Python's own place, with what the tests need in it.
pub(super) fn prepare() -> Outcome {
    let Some(python) = program("python3") else {
        return missing("there is no python3".into());
    };
    let version = "import sys, venv; sys.exit(sys.version_info < (3, 11))";
    if Task::new(&python).args(["-c", version]).run().is_err() {
        return missing("python3 is older than 3.11, or has no venv".into());
    }
    let files = if ALONE { &[REQUIREMENTS, PINNED, WITHOUT_CUDA][..] } else { &[REQUIREMENTS] };
    let mut wanted = format!("{UV}\n{IMPORTS}\n");
    for file in files {
        wanted += &read(&root().join(file))?;
    }
    let stamp = built("python", "installed.txt");
    if fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        install(&python)?;
        fs::write(&stamp, &wanted).map_err(|e| format!("cannot write {}: {e}", stamp.display()))?;
    }
    Ok(Done::Passed(format!("what {REQUIREMENTS} lists")))
}

fn install(python: &Path) -> Result<(), String> {
    println!("installing what {REQUIREMENTS} lists");
    let venv = built("python", "").to_string_lossy().into_owned();
    Task::new(python).args(["-m", "venv", "--clear", &venv]).limit(120).run()?;
    own().args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", UV]).limit(300).run()?;
    let all = uv(&interpreter(), ["-r", REQUIREMENTS]).limit(900);
    if ALONE {
        all.args(["--no-deps", "-r", PINNED]).run()?;
        own().args([WITHOUT_CUDA]).run()?;
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
    own().args(["-m", "uv", "pip", "install", "--quiet", "--python"]).args([into]).args(args)
}

pub(super) fn check(scope: &Scope) -> Outcome {
    if let not_run @ Done::NotRun(_) = prepare()? {
        return Ok(not_run);
    }
    install_package(scope.deep)?;
    own().args(["-m", "ruff", "check", "--quiet"]).args(SOURCES).run()?;
    own().args(["-m", "ruff", "format", "--quiet", "--check"]).args(SOURCES).run()?;
    // Each folder has a conftest of its own, and Python knows one module of that name at a time. They run side by side: both wait a good
    // deal, and their limits are far from what they take.
    let torch = pytest(&["python/tests/pytorch"], scope).start()?;
    let others = pytest(&["python/tests", "--ignore=python/tests/pytorch"], scope).echo().run()?;
    let torch = torch.wait()?;
    println!("{}", torch.trim_end());
    let tests = tests_in(&others)? + tests_in(&torch)?;
    Ok(Done::Passed(format!("{tests} tests")))
}

fn pytest(what: &[&str], scope: &Scope) -> Task {
    // Stands in for NCCL and a driver in tests of device memory; of the same build.
    let stand_in = built("debug", "libsoftnccl.so");
    let pytest = own().args(["-m", "pytest", "-q"]).args(what).env("COMITY_TEST_SOFTNCCL", stand_in);
    // For tests that hang: each that waits has a limit of its own, and a busy machine must not meet this one.
    scope.tell(pytest).limit(1800)
}

/// The package in Python's own place.
pub(super) fn install_package(deep: bool) -> Result<(), String> {
    install_into(&interpreter(), deep)
}

/// Python with what the tests need and the package, which is installed if it is not there.
pub(super) fn with_package() -> Result<PathBuf, String> {
    if let Done::NotRun(why) = prepare()? {
        return Err(why);
    }
    if own().args(["-c", "import comity"]).run().is_err() {
        install_package(false)?;
    }
    Ok(interpreter())
}

/// The package as a wheel that maturin makes, for the environment of this interpreter. In the deep tests, and where only maturin knows how to link an extension, it is the released
/// one; else its library comes from the build of the workspace that all tests use.
pub(super) fn install_into(python: &Path, deep: bool) -> Result<(), String> {
    let mut wheel = own().args(["-m", "maturin", "build", "--quiet"]);
    let wheels = Scratch::new("wheels").map_err(|e| format!("cannot make a folder for the wheel: {e}"))?;
    let folder = wheels.join("").to_string_lossy().into_owned();
    if deep || !cfg!(target_os = "linux") {
        wheel = wheel.args(["--release"]);
        // Nothing else has built it.
        Task::cargo().args(["build", "-p", "softnccl"]).limit(600).run()?;
    } else {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        wheel = wheel.args(["--profile", "dev", "--strip", "false"]);
        wheel = wheel.env("CARGO", root().join(WORKSPACE_CARGO)).env("WORKSPACE_CARGO", cargo);
    }
    // Compression takes longer than the rest. What is released may have to be built from nothing, on a busy machine.
    wheel
        .args(["--auditwheel", "skip", "--compression-method", "stored", "--out", &folder])
        .limit(if deep { 2700 } else { 900 })
        .run()?;
    let made = fs::read_dir(&folder).map_err(|e| format!("cannot read {folder}: {e}"))?;
    let made: Vec<PathBuf> = made.filter_map(|f| Some(f.ok()?.path())).collect();
    let [made] = &made[..] else { return Err(format!("maturin made {} wheels", made.len())) };
    uv(python, ["--reinstall", "--no-deps"]).args([made]).limit(120).run().map(drop)
}

/// Python with the package as released, the tests' packages, and those that this file lists besides; or why there is none.
pub(super) fn with(more: &str) -> Result<Result<Task, String>, String> {
    if let Done::NotRun(why) = prepare()? {
        return Ok(Err(why));
    }
    install_package(true)?;
    uv(&interpreter(), ["-r", more]).limit(300).run()?;
    Ok(Ok(own()))
}

/// The interpreter of another environment, with all that this file lists and no more; or why there is none. Its first commands, run when
/// that was installed anew, are in `after`. It is kept between runs.
pub(super) fn apart(name: &str, all: &str, after: &[&[&str]]) -> Result<Result<PathBuf, String>, String> {
    if let Done::NotRun(why) = prepare()? {
        return Ok(Err(why));
    }
    let python = built(name, "bin/python");
    let stamp = built(name, "installed.txt");
    let wanted = format!("{after:?}\n{}", read(&root().join(all))?);
    if fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        println!("installing what {all} lists");
        let venv = built(name, "").to_string_lossy().into_owned();
        own().args(["-m", "venv", "--clear", "--without-pip", &venv]).limit(120).run()?;
        uv(&python, ["--no-deps", "-r", all]).limit(900).run()?;
        for args in after {
            Task::new(&python).args(*args).limit(300).run()?;
        }
        fs::write(&stamp, &wanted).map_err(|e| format!("cannot write {}: {e}", stamp.display()))?;
    }
    Ok(Ok(python))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// Number of tests that passed, by pytest. One that was skipped has shown nothing.
fn tests_in(output: &str) -> Result<u64, String> {
    let last = output.lines().rev().find(|l| l.contains(" passed")).unwrap_or_default();
    let count = last.split_whitespace().zip(last.split_whitespace().skip(1));
    let ran = count.filter(|(_, what)| what.starts_with("passed")).find_map(|(n, _)| n.parse::<u64>().ok());
    match ran {
        Some(n) if !last.contains("skipped") && n > 0 => Ok(n),
        _ => Err(format!("tests were left out: {last:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_and_none_is_left_out() {
        assert_eq!(tests_in("....\n12 passed in 3.2s\n"), Ok(12));
        assert!(tests_in("1 skipped, 11 passed in 3.2s").is_err());
        assert!(tests_in("11 passed, 1 skipped in 3.2s").is_err());
        assert!(tests_in("no tests ran in 0.1s").is_err());
    }
}
