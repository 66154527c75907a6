//! Suites that others wrote, run against Comity and beside what they were written for, and small programs after what others' users
//! reported. The programs in `python/suites` run them, count, and compare with what is known.

use super::{Done, Outcome, missing, python, scope::Scope, ssh};
use tasks::{
    child::Task,
    place::{built, target},
};

const REQUIREMENTS: &str = "python/suites/requirements.txt";
const TORCHFT: &str = "python/suites/torchft.txt";
/// Seconds: 91 tests on 2, 3 and 8 ranks for two backends.
const LIMIT: u64 = 3600;

/// torch's own tests of a backend, for gloo and for Comity.
pub(super) fn torch(_: &Scope) -> Outcome {
    run("torch_suite.py", &["--ranks", "2", "3", "8"])
}

/// MLX's own distributed tests, for its ring and for Comity. No package has them: without a checkout they are not run, in CI too.
pub(super) fn mlx(_: &Scope) -> Outcome {
    match std::env::var("COMITY_MLX_SOURCE") {
        Ok(source) => run("mlx_suite.py", &["--source", &source]),
        Err(_) => Ok(Done::NotRun("COMITY_MLX_SOURCE names no checkout of github.com/ml-explore/mlx".into())),
    }
}

/// torch's own tests of groups whose members change, for gloo and for Comity. No package has them: without a checkout they are not run.
pub(super) fn reconfigure(_: &Scope) -> Outcome {
    match std::env::var("COMITY_TORCH_SOURCE") {
        Ok(source) => run("torch_reconfigure.py", &["--source", &source]),
        Err(_) => {
            Ok(Done::NotRun("COMITY_TORCH_SOURCE names no checkout of github.com/pytorch/pytorch".into()))
        }
    }
}

/// Small programs after reports of other systems' users, beside gloo; and hosts whose login shells are theirs.
pub(super) fn strangers(_: &Scope) -> Outcome {
    let shells = ssh::shells::check()?;
    let programs = run("strangers.py", &[])?;
    match (programs, shells) {
        (Done::Passed(programs), Done::Passed(shells)) => Ok(Done::Passed(format!("{programs}; {shells}"))),
        (Done::Passed(_), not_run) => Ok(not_run),
        (not_run, _) => Ok(not_run),
    }
}

/// The examples of `crates/comity-candle` beside transformers; their checkpoints read by others.
pub(super) fn candle(_: &Scope) -> Outcome {
    if let not_run @ Done::NotRun(_) = python::prepare()? {
        return Ok(not_run);
    }
    let parts = ["build", "--package", "comity-cli", "--package", "comity-candle", "--bins", "--examples"];
    Task::cargo().args(parts).limit(LIMIT).run()?;
    counted(python::own(), "candle_suite.py", &[built("debug", ""), target().join("minilm")])
}

/// torchft's manager over gloo and over Comity: a replica is killed, and comes back. With a checkout its example programs too, which are in
/// no package.
pub(super) fn torchft(_: &Scope) -> Outcome {
    if let Ok(source) = std::env::var("COMITY_TORCHFT_SOURCE") {
        run_with(TORCHFT, "torchft_examples.py", &["--source", &source, "--over", "gloo", "comity"])?;
    }
    run_with(TORCHFT, "torchft_suite.py", &[])
}

fn run(program: &str, args: &[&str]) -> Outcome {
    run_with(REQUIREMENTS, program, args)
}

fn run_with(requirements: &str, program: &str, args: &[&str]) -> Outcome {
    match python::with(requirements)? {
        Ok(python) => counted(python, program, args),
        Err(why) => missing(why),
    }
}

/// Run a program of `python/suites`, which says in lines with `=>` what it has run.
fn counted(python: Task, program: &str, args: &[impl AsRef<std::ffi::OsStr>]) -> Outcome {
    let program = format!("python/suites/{program}");
    let said = python.args([program.as_str()]).args(args).limit(LIMIT).echo().run()?;
    let words: Vec<_> = said.lines().filter_map(|l| l.strip_prefix("=> ")).collect();
    if words.is_empty() {
        Err(format!("{program} counted nothing"))
    } else {
        Ok(Done::Passed(words.join("; ")))
    }
}
