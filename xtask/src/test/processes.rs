//! `comity check` as a job of processes on this machine.

use super::{Done, Outcome};
use crate::{child::Task, place::built};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

/// Seconds that a short check may take on a slow machine.
pub(super) const QUICK: u64 = 120;

/// The command, built if it is not yet.
pub(super) fn comity() -> Result<PathBuf, String> {
    crate::demo::build_tests()?;
    Ok(built("debug", "comity"))
}

pub(super) fn quick() -> Outcome {
    let comity = comity()?;
    let mut jobs = 0;
    for links in ["shm", "tcp"] {
        for n in [1, 2, 3, 4, 5, 8] {
            let task = check(Task::new(&comity), &comity, n, QUICK, &["--quick"]).env("COMITY_LINKS", links);
            let out = timed(&format!("{n} ranks over {links}"), task)?;
            // Nothing may fall back to another link in silence.
            let used = format!("links {links}");
            if n > 1 && !out.lines().any(|l| l.contains(&used)) {
                return Err(format!("{n} ranks with COMITY_LINKS={links} did not say `{used}`:\n{out}"));
            }
            jobs += 1;
        }
    }
    // Shared memory and TCP in one group, and several connections per pair.
    for n in [2, 3, 5, 8] {
        let (n_text, name) = (n.to_string(), comity.display().to_string());
        let script = "COMITY_HOST=h$((COMITY_RANK / 2)) exec \"$0\" check --quick";
        let args = ["launch", "-n", &n_text, "--timeout", "120", "--", "sh", "-c", script, &name];
        timed(&format!("{n} ranks, two to a host"), Task::new(&comity).args(args).limit(150))?;
        jobs += 1;
    }
    let task = check(Task::new(&comity), &comity, 3, QUICK, &["--quick"]).env("COMITY_LINKS", "tcp");
    timed("3 ranks over 3 connections each", task.env("COMITY_CONNECTIONS", "3"))?;
    Ok(Done::Passed(format!("{} jobs", jobs + 1)))
}

pub(super) fn full() -> Outcome {
    Task::cargo().args(["build", "--release", "-p", "comity-cli"]).limit(1200).run()?;
    let comity = built("release", "comity");
    let large = check(Task::new(&comity), &comity, 2, 600, &["--quick", "--large", "--ops", "all_reduce"]);
    timed("2 ranks, more than 4 GiB", large)?;
    let out = timed("4 ranks, everything", check(Task::new(&comity), &comity, 4, 600, &[]))?;
    Ok(Done::Passed(last_line(&out)))
}

/// Many ranks, many calls at once, many groups; nothing may grow.
pub(super) fn load() -> Outcome {
    let comity = comity()?;
    Task::cargo().args(["build", "-p", "comity", "--example", "load"]).limit(600).run()?;
    let load = built("debug", "examples/load");
    for (n, what, much) in [("64", "flight", "1000"), ("4", "groups", "1000"), ("3", "grow", "20")] {
        let task = Task::new(&comity).args(["launch", "-n", n, "--timeout", "240", "--"]);
        let out =
            timed(&format!("{n} ranks, {what} {much}"), task.args([&load]).args([what, much]).limit(270))?;
        println!("{}", last_line(&out));
    }
    Ok(Done::Passed(
        "64 ranks x 1,000 calls in flight; 1,000 groups and 20 s of calls leave nothing behind".into(),
    ))
}

fn check(task: Task, comity: &Path, n: usize, limit: u64, flags: &[&str]) -> Task {
    let (n, seconds) = (n.to_string(), limit.to_string());
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
