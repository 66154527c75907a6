//! The programs of `crates/comity-c/tests/c`, as jobs.

use super::{Installed, sources};
use crate::test::{
    jobs::{says, timed},
    scope::Scope,
};
use std::path::Path;
use tasks::{child::Task, place::copy};

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

    says("mistakes", Task::new(&misuse), &["all right"])?;
    let rows = [1, 2, 3, 4].into_iter().flat_map(|n| ["shm", "tcp"].map(|link| (n, link)));
    let rows = scope.share(rows.collect(), HANDS);
    for &(n, link) in &rows {
        let task = installed.job(n).arg(&conformance).env("COMITY_LINKS", link);
        let kind = if n == 1 { "none" } else { link };
        says(&format!("conformance, {n} ranks, {link}"), task, &[&format!("{n} ranks, link {kind}")])?;
    }
    let kinds = ["killed", "mismatch", "timeout", "abort"];
    let cases = scope.share(kinds.into_iter().flat_map(|k| [(k, 2), (k, 3)]).collect(), HANDS);
    for &(kind, n) in &cases {
        timed(&format!("{kind} on {n} ranks"), || fault(installed, &faults, kind, n))?;
    }
    says("the rest, 3 ranks", installed.job(3).arg(&lifecycle), &["all right on rank 2 of 3"])?;
    two_libraries(installed, &twice)?;
    if scope.deep {
        says("the rest, 2 ranks", installed.job(2).arg(&lifecycle), &["all right on rank 1 of 2"])?;
        leaks(installed)?;
    }
    let checked = if scope.deep { ", none of it leaks" } else { "" };
    Ok(format!("conformance on {rows:?}; faults {cases:?}{checked}"))
}

/// Every rank but one that is killed says that it was told.
fn fault(installed: &Installed, program: &Path, kind: &str, n: usize) -> Result<(), String> {
    let killed = kind == "killed";
    let ended = installed.job(n).arg(program).arg(kind).run();
    let (Ok(out) | Err(out)) = &ended;
    let told = (0..n).filter(|r| out.contains(&format!("rank {r} was told: {kind}"))).count();
    match told == n - usize::from(killed) && ended.is_err() == killed {
        true => Ok(()),
        false => Err(format!(
            "{told} ranks were told, and the exit code is right: {}:\n{out}",
            ended.is_err() == killed
        )),
    }
}

/// The same library under two names, both in one process.
fn two_libraries(installed: &Installed, program: &Path) -> Result<(), String> {
    let one = installed.library().join("libcomity.so.0");
    let other = installed.scratch.join("libother.so");
    copy(&one, &other)?;
    let task = installed.job(2).args([program, &one, &other]);
    says("two libraries in one process, 2 ranks", task, &["all right with two libraries"]).map(drop)
}

fn leaks(installed: &Installed) -> Result<(), String> {
    for (name, ranks) in [("misuse", 0), ("conformance", 2), ("lifecycle", 2)] {
        let source = sources().join(format!("{name}.c"));
        let program = installed.compile("cc", &ADDRESS, &source, &format!("{name}.asan"))?;
        let task = if ranks == 0 { Task::new(&program) } else { installed.job(ranks).args([&program]) };
        says(&format!("{name} under AddressSanitizer"), task, &["all right"])?;
    }
    Ok(())
}
