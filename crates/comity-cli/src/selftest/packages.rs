//! The rows of a Python interpreter: NumPy, torch and MLX over Comity, each where it is installed.
use super::rows::{Plan, Row};
use crate::child;
use serde_json::Value;
use std::{
    ffi::{OsStr, OsString},
    process::Command,
    time::{Duration, Instant},
};

/// Time for an interpreter to say what it has: it imports torch.
const ASKED: Duration = Duration::from_secs(60);
const MODULE: &str = "comity.selftest";

/// A part of `comity.selftest`: its row, its word, and the reason where this interpreter cannot run it.
type Part = (&'static str, &'static str, fn(&Value) -> Option<String>);

const PARTS: [Part; 6] = [
    ("Python arrays", "array", |_| None),
    ("NumPy", "numpy", |found| lacks(found, "numpy")),
    ("torch, CPU", "torch", |found| lacks(found, "torch")),
    ("torch, Apple GPU", "torch-mps", |found| {
        let seen = found["mps"] == true;
        lacks(found, "torch").or_else(|| (!seen).then(|| "torch sees no Apple GPU".into()))
    }),
    ("torch, CUDA", "torch-cuda", |found| {
        let seen = devices(found) > 0;
        lacks(found, "torch").or_else(|| (!seen).then(|| "torch sees no CUDA device".into()))
    }),
    ("MLX", "mlx", |found| lacks(found, "mlx")),
];

fn devices(found: &Value) -> u64 {
    found["cuda"].as_u64().unwrap_or(0)
}

fn lacks(found: &Value, package: &str) -> Option<String> {
    found[package].is_null().then(|| "not installed in this Python".into())
}

/// A job for each package that the interpreter has.
pub(super) fn rows(own: &[OsString], python: Option<&OsStr>, until: Instant) -> Vec<Row> {
    let program = python.unwrap_or_else(|| OsStr::new("python3"));
    let found = match found(program, until) {
        Ok(found) => found,
        Err(why) => return vec![Row::not_there("Python: NumPy, torch, MLX", why)],
    };
    let row = |(name, word, lacks): Part| {
        if let Some(why) = lacks(&found) {
            return Row::not_there(name, why);
        }
        let ranks = if word == "torch-cuda" { devices(&found).min(2) as usize } else { 2 };
        let s = if ranks == 1 { "" } else { "s" };
        let words = ["-m", MODULE, word].map(OsString::from);
        let words = [program.to_owned()].into_iter().chain(words).collect();
        Row { name: format!("{name}, {ranks} rank{s}"), plan: Ok(Plan::job(own, ranks, &[], words)) }
    };
    PARTS.into_iter().map(row).collect()
}

/// Packages and devices of the interpreter, as it says.
fn found(program: &OsStr, until: Instant) -> Result<Value, String> {
    let shown = program.to_string_lossy();
    let mut command = Command::new(program);
    command.args(["-m", MODULE]);
    let left = until.saturating_duration_since(Instant::now()).min(ASKED);
    let ended = child::run(command, left, Duration::from_secs(1))
        .map_err(|e| format!("{shown} cannot be started: {e}; --python names another"))?;
    if ended.late.is_some() {
        return Err(format!("{shown} did not say within {} s what it has", left.as_secs()));
    }
    if ended.code != 0 {
        let last = ended.err.trim_end().lines().last().unwrap_or_default();
        return Err(match last.contains("No module named") {
            true => format!("{shown} has no package comity of this version; --python names another"),
            false => format!("{shown} -m {MODULE}: {last}"),
        });
    }
    let line = ended.out.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|e| format!("{shown} -m {MODULE} said {line:?}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_part_says_why_it_is_not_there() {
        let reasons = |found: &Value| PARTS.map(|(_, word, lacks)| (word, lacks(found)));
        let all = json!({ "numpy": "2.4", "torch": "2.15", "mlx": "0.32", "mps": true, "cuda": 2 });
        assert!(reasons(&all).iter().all(|(_, why)| why.is_none()));
        let bare = json!({ "numpy": null, "torch": "2.15", "mlx": null, "mps": false, "cuda": 0 });
        let there: Vec<_> = reasons(&bare).into_iter().filter(|r| r.1.is_none()).map(|r| r.0).collect();
        assert_eq!(there, ["array", "torch"]);
        assert_eq!(reasons(&bare)[3].1.as_deref(), Some("torch sees no Apple GPU"));
    }

    #[test]
    fn an_interpreter_that_is_not_there_is_a_reason() {
        let rows = rows(&["comity".into()], Some(OsStr::new("no-python")), Instant::now() + ASKED);
        let why = rows[0].plan.as_ref().unwrap_err();
        assert!(rows.len() == 1 && why.starts_with("no-python cannot be started"), "{why}");
    }
}
