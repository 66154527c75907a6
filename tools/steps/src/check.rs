//! `cargo xtask check`: what a change of the last minutes needs, in under two: formatting, clippy, and the tests of the crates that
//! changed since a commit.

use std::{collections::BTreeSet, time::Instant};
use tasks::{
    child::Task,
    place::{built, root},
};

/// Choice of a check, from the command line.
#[derive(Debug, PartialEq)]
pub(crate) struct CheckChoice {
    since: String,
}

impl CheckChoice {
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        match args {
            [] => Ok(Self { since: "HEAD".into() }),
            ["--since", commit] if !commit.starts_with('-') => Ok(Self { since: (*commit).into() }),
            _ => Err("check takes --since COMMIT (HEAD: what is not committed)".into()),
        }
    }
}

/// Changed parts of a workspace, which have to be looked at.
#[derive(Debug, Default, PartialEq)]
struct Changed {
    packages: BTreeSet<&'static str>,
    python: bool,
    /// Something that every package is built with.
    all: bool,
}

/// The package that a file belongs to. Each has the name of its folder.
fn package(file: &str) -> Option<&'static str> {
    const MANIFEST: &str = include_str!("../../../Cargo.toml");
    let members = MANIFEST.lines().find(|line| line.starts_with("members"))?.split('"').skip(1).step_by(2);
    let mut folders = members.filter(|m| file.strip_prefix(m).is_some_and(|rest| rest.starts_with('/')));
    folders.next()?.rsplit('/').next()
}

impl Changed {
    fn of(files: &str) -> Self {
        let mut changed = Self::default();
        for file in files.lines() {
            let package = package(file);
            changed.packages.extend(package);
            let ends = |kind: &str| file.ends_with(kind);
            changed.python |= ends(".py") || ends(".pyi");
            changed.all |= package.is_none()
                && (ends("Cargo.toml") || ends("Cargo.lock") || file.starts_with(".config/"));
        }
        changed
    }
}

pub(crate) fn run(choice: &CheckChoice) -> Result<(), String> {
    let begun = Instant::now();
    let git = |args: &[&str]| Task::new("git").args(["-C"]).args([root()]).args(args).run();
    let files = git(&["diff", "--name-only", &choice.since])?
        + &git(&["ls-files", "--others", "--exclude-standard"])?;
    let changed = Changed::of(&files);
    let step = |what: &str, task: Task| -> Result<(), String> {
        let begun = Instant::now();
        println!("=== {what}");
        task.limit(1800).echo().run()?;
        println!("=== {what}: {:.1} s", begun.elapsed().as_secs_f64());
        Ok(())
    };
    let sources: Vec<&str> =
        files.lines().filter(|f| f.ends_with(".rs") && root().join(f).is_file()).collect();
    if !sources.is_empty() {
        step("format", Task::new("rustfmt").args(["--edition", "2024", "--check"]).args(sources))?;
    }
    if changed.all || !changed.packages.is_empty() {
        let clippy = Task::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]);
        step("clippy", clippy)?;
        // The Python module has no tests of its own kind.
        let tested: Vec<_> = changed.packages.iter().filter(|p| **p != "comity-py").collect();
        // Without what holds a time, and what takes seconds: the gate has those.
        let nextest = Task::cargo().args(["nextest", "run", "--profile", "check", "--no-tests", "pass"]);
        if changed.all {
            step("tests", nextest.args(["--workspace"]))?;
        } else if !tested.is_empty() {
            // Only these are built: what depends on them was looked at by clippy.
            step("tests", nextest.args(tested.iter().flat_map(|p| ["-p", p])))?;
        }
    }
    if changed.python {
        let python = built("python", "bin/python");
        if python.is_file() {
            let ruff = |args: &[&str]| {
                Task::new(&python).args(["-m", "ruff"]).args(args).args([
                    "python",
                    "bench",
                    "examples",
                    "docs/make",
                    "tools/bench/programs",
                ])
            };
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
    fn files_tell_their_packages() {
        let changed = Changed::of("crates/comity/src/a.rs\ncrates/comity-cli/tests/b.rs\ndocs/x.md\n");
        assert_eq!(changed.packages, BTreeSet::from(["comity", "comity-cli"]));
        assert!(!changed.python && !changed.all);
        assert!(Changed::of("Cargo.lock\n").all && !Changed::of("crates/comity/Cargo.toml").all);
        assert!(Changed::of("python/comity/_core.pyi\n").python);
        assert_eq!(Changed::of("docs/x.md\n"), Changed::default());
    }

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
    }

    #[test]
    fn options_are_read_strictly() {
        assert_eq!(CheckChoice::parse(&["--since", "main"]), Ok(CheckChoice { since: "main".into() }));
        assert!(
            CheckChoice::parse(&["--since"]).is_err() && CheckChoice::parse(&["--since", "--x"]).is_err()
        );
    }
}
