//! The programs of `crates/comity-c/tests/c`, as jobs.

use super::{Installed, sources};
use crate::test::{processes::timed, scope::Scope};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tasks::child::Task;

/// Number of hands that share the jobs of a gate.
const HANDS: u64 = 4;
/// The compiler's: it sees all that the process takes and gives back, libcomity's included, and says at the end what nothing points to any
/// more. Not valgrind: it takes the system's vDSO away, which a dependency then still reads.
const ADDRESS: [&str; 2] = ["-std=gnu99", "-fsanitize=address"];

/// All of them, or this commit's share of the large ones; what ran, in words.
pub(super) fn run(installed: &Installed, scope: &Scope) -> Result<String, String> {
    let build =
        |name: &str| installed.compile("cc", &["-std=gnu99"], &sources().join(format!("{name}.c")), name);
    let conformance = build("conformance")?;
    let faults = build("faults")?;
    let misuse = build("misuse")?;
    let lifecycle = build("lifecycle")?;
    let twice = build("twice")?;

    said("mistakes", Task::new(&misuse), "all right")?;
    let rows = [1, 2, 3, 4].into_iter().flat_map(|n| ["shm", "tcp"].map(|link| (n, link)));
    let rows = scope.share(rows.collect(), HANDS);
    for &(n, link) in &rows {
        let task = installed.job(n).args([&conformance]).env("COMITY_LINKS", link);
        let kind = if n == 1 { "none" } else { link };
        said(&format!("conformance, {n} ranks, {link}"), task, &format!("{n} ranks, link {kind}"))?;
    }
    let kinds = ["killed", "mismatch", "timeout", "abort"];
    let cases = kinds.into_iter().flat_map(|k| [(k, 2), (k, 3)]).collect();
    let cases = scope.share(cases, HANDS);
    for &(kind, n) in &cases {
        fault(installed, &faults, kind, n)?;
    }
    said("the rest, 3 ranks", installed.job(3).args([&lifecycle]), "all right on rank 2 of 3")?;
    two_libraries(installed, &twice)?;
    if scope.deep {
        said("the rest, 2 ranks", installed.job(2).args([&lifecycle]), "all right on rank 1 of 2")?;
        leaks(installed)?;
    }
    let rows: Vec<_> = rows.iter().map(|(n, link)| format!("{n} {link}")).collect();
    let cases: Vec<_> = cases.iter().map(|(kind, n)| format!("{kind} {n}")).collect();
    let checked = if scope.deep { ", none of it leaks" } else { "" };
    Ok(format!("conformance on {}; faults {}{checked}", rows.join(", "), cases.join(", ")))
}

/// Run, and see that it says so.
pub(super) fn said(what: &str, task: Task, words: &str) -> Result<(), String> {
    let out = timed(what, task)?;
    if out.contains(words) { Ok(()) } else { Err(format!("{what}: did not say `{words}`:\n{out}")) }
}

/// Every rank but one that is killed says that it was told.
fn fault(installed: &Installed, program: &Path, kind: &str, n: usize) -> Result<(), String> {
    let task = installed.job(n).args([program.as_os_str(), kind.as_ref()]);
    let (out, well) = match task.run() {
        Ok(out) => (out, true),
        Err(out) => (out, false),
    };
    let told = (0..n).filter(|r| out.contains(&format!("rank {r} was told: {kind}"))).count();
    let killed = kind == "killed";
    if told != n - usize::from(killed) || well == killed {
        return Err(format!(
            "{kind} on {n} ranks: {told} ranks were told, exit code right: {}:\n{out}",
            well != killed
        ));
    }
    println!("{kind} on {n} ranks: right");
    Ok(())
}

/// The same library under two names, both in one process.
fn two_libraries(installed: &Installed, program: &Path) -> Result<(), String> {
    let one = installed.library().join("libcomity.so.0");
    let other: PathBuf = installed.scratch.join("libother.so");
    fs::copy(&one, &other).map_err(|e| format!("cannot copy libcomity: {e}"))?;
    let task = installed.job(2).args([program, &one, &other]);
    said("two libraries in one process, 2 ranks", task, "all right with two libraries")
}

fn leaks(installed: &Installed) -> Result<(), String> {
    for (name, ranks) in [("misuse", 0), ("conformance", 2), ("lifecycle", 2)] {
        let source = sources().join(format!("{name}.c"));
        let program = installed.compile("cc", &ADDRESS, &source, &format!("{name}.asan"))?;
        let task = if ranks == 0 { Task::new(&program) } else { installed.job(ranks).args([&program]) };
        said(&format!("{name} under AddressSanitizer"), task, "all right")?;
    }
    Ok(())
}
