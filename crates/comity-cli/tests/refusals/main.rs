//! Hundreds of bad hostfiles, variables and flags: each ends at once with exit code 2 and an error that names the place, and leaves
//! nothing behind.

mod environment;
mod flags;

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Promised bound. A machine that runs other tests too may be slow now and then: the best of some tries counts.
const AT_ONCE: Duration = Duration::from_millis(100);
const TRIES: usize = 20;

/// Something that must be refused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Case {
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    /// All of these must be in the error.
    pub(crate) says: Vec<String>,
}

impl Case {
    pub(crate) fn new(args: &[&str]) -> Self {
        Self { args: args.iter().map(OsString::from).collect(), ..Self::default() }
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    pub(crate) fn says(mut self, words: &[&str]) -> Self {
        self.says.extend(words.iter().map(|w| (*w).to_owned()));
        self
    }

    /// Runs it in this folder; what is wrong with the outcome.
    pub(crate) fn check(&self, dir: &Path) -> Result<(), String> {
        let temporary = dir.join("tmp");
        let mut best = Duration::MAX;
        for _ in 0..TRIES {
            let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
            command.args(&self.args).env_clear().env("PATH", "/usr/bin:/bin").env("TMPDIR", &temporary);
            command.envs(self.env.iter().map(|(n, v)| (n, v))).current_dir(dir).stdin(Stdio::null());
            let start = Instant::now();
            let out = command.output().unwrap();
            best = best.min(start.elapsed());
            let err = String::from_utf8_lossy(&out.stderr);
            let wrong = |what: &str| Err(format!("{what}: {self:?}\n{err:?}"));
            if out.status.code() != Some(2) {
                return wrong(&out.status.to_string());
            }
            if !out.stdout.is_empty() {
                return wrong("words on standard output");
            }
            if let Some(word) = self.says.iter().find(|w| !err.contains(&***w)) {
                return wrong(&format!("no {word:?}"));
            }
            if err.contains("panicked") || err.len() > 4096 {
                return wrong("a panic, or too many words");
            }
            if err.chars().any(|c| c.is_control() && c != '\n') {
                return wrong("control characters, for the terminal");
            }
            if std::fs::read_dir(&temporary).unwrap().count() > 0 {
                return wrong("left something behind");
            }
            if best < AT_ONCE {
                return Ok(());
            }
        }
        Err(format!("{best:?}: {self:?}"))
    }
}

/// Checks all of them, in a folder of their own that holds in the end what it held before.
fn check_all(cases: impl Fn(&Path) -> Vec<Case>) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let cases = cases(dir);
    std::fs::create_dir(dir.join("tmp")).unwrap();
    let list = || {
        let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = list();
    let wrong: Vec<String> = cases.iter().filter_map(|case| case.check(dir).err()).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert_eq!(list(), before);
}

#[test]
fn bad_hostfiles() {
    check_all(environment::hostfiles);
}

#[test]
fn bad_variables() {
    check_all(environment::variables);
}

#[test]
fn bad_flags() {
    check_all(flags::all);
}
