//! The Python package: installed as a user installs it, then its linter and its tests.

use super::{Done, Outcome, missing, scope::Scope};
use crate::{
    child::Task,
    place::{built, program, root},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

const REQUIREMENTS: &str = "python/tests/requirements.txt";

/// Python's own place, with what the tests need in it: some gigabytes, most of them torch's.
pub(super) fn prepare() -> Outcome {
    let Some(python) = program("python3") else {
        return missing("there is no python3".into());
    };
    let version = "import sys, venv; sys.exit(sys.version_info < (3, 11))";
    if Task::new(&python).args(["-c", version]).run().is_err() {
        return missing("python3 is older than 3.11, or has no venv".into());
    }
    let own = own();
    let venv = built("python", "");
    if !own.is_file() {
        let venv = venv.to_string_lossy().into_owned();
        Task::new(&python).args(["-m", "venv", &venv]).limit(120).run()?;
    }
    let wanted = read(&root().join(REQUIREMENTS))?;
    let stamp = venv.join("installed.txt");
    if fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        println!("installing what {REQUIREMENTS} lists");
        pip().args(["-r", REQUIREMENTS]).limit(900).run()?;
        fs::write(&stamp, &wanted).map_err(|e| format!("cannot write {}: {e}", stamp.display()))?;
    }
    Ok(Done::Passed(format!("what {REQUIREMENTS} lists")))
}

/// The interpreter of that place, which is kept between runs.
fn own() -> PathBuf {
    built("python", "bin/python")
}

fn pip() -> Task {
    Task::new(own()).args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet"])
}

pub(super) fn check(_: &Scope) -> Outcome {
    if let not_run @ Done::NotRun(_) = prepare()? {
        return Ok(not_run);
    }
    let own = own();
    pip().args(["--force-reinstall", "--no-deps", "."]).limit(900).run()?;
    Task::new(&own).args(["-m", "ruff", "check", "--quiet", "python", "bench", "examples"]).run()?;
    Task::new(&own)
        .args(["-m", "ruff", "format", "--quiet", "--check", "python", "bench", "examples"])
        .run()?;
    // Stands in for NCCL and a driver in tests of device memory.
    Task::cargo().args(["build", "-p", "softnccl"]).limit(600).run()?;
    let stand_in = built("debug", "libsoftnccl.so");
    // Each folder has a conftest of its own, and Python knows one module of that name at a time.
    let mut tests = 0;
    for more in [&["python/tests", "--ignore=python/tests/pytorch"][..], &["python/tests/pytorch"]] {
        let pytest = Task::new(&own).args(["-m", "pytest", "-q"]).args(more);
        let pytest = pytest.env("COMITY_TEST_SOFTNCCL", &stand_in);
        // For tests that hang: each that waits has a limit of its own, and a busy machine must not meet this one.
        tests += tests_in(&pytest.limit(1800).echo().run()?)?;
    }
    Ok(Done::Passed(format!("{tests} tests")))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// How many tests pytest says passed. One that was skipped has shown nothing.
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
