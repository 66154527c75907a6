//! `comity check` as a job of processes on this machine.

use super::{Done, Outcome, scope::Scope};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};
use tasks::{child::Task, place::built};

/// Seconds that a job of a short check may take: ten times as long as the slowest, 8 ranks on 2 cores.
pub(super) const QUICK: u64 = 600;

/// The same for a job that takes a minute or two.
const LONG: u64 = 1200;

/// The command, built if it is not yet.
pub(super) fn comity() -> Result<PathBuf, String> {
    tasks::build_tests()?;
    Ok(built("debug", "comity"))
}

pub(super) fn full(_: &Scope) -> Outcome {
    Task::cargo().args(["build", "--release", "-p", "comity-cli"]).limit(3600).run()?;
    let comity = built("release", "comity");
    let large = check(Task::new(&comity), &comity, 2, LONG, &["--quick", "--large", "--ops", "all_reduce"]);
    timed("2 ranks, more than 4 GiB", large)?;
    let out = timed("4 ranks, everything", check(Task::new(&comity), &comity, 4, LONG, &[]))?;
    Ok(Done::Passed(last_line(&out)))
}

/// Many ranks, many calls at once, many groups; nothing may grow.
pub(super) fn load(_: &Scope) -> Outcome {
    let comity = comity()?;
    Task::cargo().args(["build", "--workspace", "--example", "load"]).limit(600).run()?;
    let load = built("debug", "examples/load");
    for (n, what, much) in [("64", "flight", "1000"), ("4", "groups", "1000"), ("3", "grow", "20")] {
        let task = Task::new(&comity).args(["launch", "-n", n, "--timeout", &LONG.to_string(), "--"]);
        let out = timed(
            &format!("{n} ranks, {what} {much}"),
            task.args([&load]).args([what, much]).limit(LONG + 30),
        )?;
        println!("{}", last_line(&out));
    }
    Ok(Done::Passed(
        "64 ranks x 1,000 calls in flight; 1,000 groups and 20 s of calls leave nothing behind".into(),
    ))
}

fn check(task: Task, comity: &Path, n: usize, limit: u64, flags: &[&str]) -> Task {
    let n = n.to_string();
    let seconds = limit.to_string();
    let task = task.args(["launch", "-n", &n, "--timeout", &seconds, "--"]).args([comity]);
    task.args(["check"]).args(flags).limit(limit + 30)
}

/// Run, and say how long it took.
pub(super) fn timed(what: &str, task: Task) -> Result<String, String> {
    let start = Instant::now();
    let out = task.run()?;
    println!("{what}: right, {:.1} s", start.elapsed().as_secs_f64());
    Ok(out)
}

fn last_line(text: &str) -> String {
    text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("it said nothing").trim().into()
}
