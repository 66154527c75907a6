//! `cargo xtask check`: what a change of the last minutes needs, in under two: formatting, the rules of `tools/gates.py`, clippy, and the
//! tests of the crates that changed since a commit.

use std::{collections::BTreeSet, time::Instant};
use tasks::{
    child::Task,
    place::{built, root},
};

/// Files of Python that the linter reads.
pub(crate) const PYTHON: [&str; 6] =
    ["python", "bench", "examples", "docs/make", "tools/bench/programs", "tools/gates.py"];

/// The commit, from the command line.
pub(crate) fn since<'a>(args: &[&'a str]) -> Result<&'a str, String> {
    match args {
        [] => Ok("HEAD"),
        ["--since", commit] if !commit.starts_with('-') => Ok(commit),
        _ => Err("check takes --since COMMIT (HEAD: what is not committed)".into()),
    }
}

/// The package that a file belongs to. Each has the name of its folder.
fn package(file: &str) -> Option<&'static str> {
    const MANIFEST: &str = include_str!("../../../Cargo.toml");
    let members = MANIFEST.lines().find(|line| line.starts_with("members"))?.split('"').skip(1).step_by(2);
    let mut folders = members.filter(|m| file.strip_prefix(m).is_some_and(|rest| rest.starts_with('/')));
    folders.next()?.rsplit('/').next()
}

/// Return whether every package is built with this file.
fn is_for_all(file: &str) -> bool {
    let shared = ["Cargo.toml", "Cargo.lock"].contains(&file) || file.starts_with(".config/");
    shared && package(file).is_none()
}

fn step(what: &str, task: Task) -> Result<(), String> {
    let begun = Instant::now();
    println!("=== {what}");
    task.limit(1800).echo().run()?;
    println!("=== {what}: {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

pub(crate) fn run(since: &str) -> Result<(), String> {
    let begun = Instant::now();
    let git = |args: &[&str]| Task::new("git").args(args).run();
    let files =
        git(&["diff", "--name-only", since])? + &git(&["ls-files", "--others", "--exclude-standard"])?;
    let ending =
        |end: &'static str| files.lines().filter(move |f| f.ends_with(end) && root().join(f).is_file());
    if ending(".rs").next().is_some() {
        step("format", Task::new("rustfmt").args(["--edition", "2024", "--check"]).args(ending(".rs")))?;
        step("gates", Task::new("python3").arg("tools/gates.py"))?;
    }
    let packages: BTreeSet<_> = files.lines().filter_map(package).collect();
    let all = files.lines().any(is_for_all);
    if all || !packages.is_empty() {
        let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        step("clippy", Task::cargo().args(clippy))?;
        // Without what holds a time, and what takes seconds: the gate has those. Only these are built: what depends on them was looked at
        // by clippy. The Python module has no tests of its own kind.
        let nextest = Task::cargo().args(["nextest", "run", "--profile", "check", "--no-tests", "pass"]);
        let tested: Vec<_> = packages.iter().filter(|p| **p != "comity-py").flat_map(|p| ["-p", p]).collect();
        if all {
            step("tests", nextest.arg("--workspace"))?;
        } else if !tested.is_empty() {
            step("tests", nextest.args(tested))?;
        }
    }
    if ending(".py").chain(ending(".pyi")).next().is_some() {
        let python = built("python", "bin/python");
        if python.is_file() {
            let ruff = |args: &[&str]| Task::new(&python).args(["-m", "ruff"]).args(args).args(PYTHON);
            step("ruff", ruff(&["check", "--quiet"]))?;
            step("ruff format", ruff(&["format", "--quiet", "--check"]))?;
        } else {
            println!("!!! Python files changed and were not looked at: `cargo xtask test --prepare` first");
        }
    }
    println!("in all {:.1} s; before you hand it on: cargo xtask test", begun.elapsed().as_secs_f64());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_the_names_of_their_folders() {
        let args = ["metadata", "--no-deps", "--format-version", "1", "--offline"];
        let said = Task::cargo().args(args).run().unwrap();
        for manifest in said.split("\"manifest_path\":\"").skip(1) {
            let file = manifest.split('"').next().unwrap();
            let file = file.strip_prefix(&format!("{}/", root().display())).unwrap();
            let name = package(file).unwrap();
            assert!(said.contains(&format!("\"name\":\"{name}\",\"version\"")), "{file}");
        }
        assert_eq!([package("fuzz/a.rs"), package("crates/comity-x/a.rs"), package("Cargo.toml")], [None; 3]);
        assert!(is_for_all("Cargo.lock") && !is_for_all("crates/comity/Cargo.toml"));
    }

    #[test]
    fn options_are_read_strictly() {
        assert_eq!((since(&["--since", "main"]), since(&[])), (Ok("main"), Ok("HEAD")));
        assert!(since(&["--since"]).is_err() && since(&["--since", "--x"]).is_err());
    }
}
