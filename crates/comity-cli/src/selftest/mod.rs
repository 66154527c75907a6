//! `comity selftest`: runs on this machine what the project's own tests run of the product, and says what passed.
//!
//! ```text
//!   mod.rs       flags, the table, the exit code
//!   rows.rs      the rows: the command of each, or why it is not there
//!   report.rs    the file for an issue, and what is taken out of it
//! ```
//! Each row is a command of its own, so that one which hangs is ended and the next one runs.
mod report;
mod rows;

use crate::{
    child, here, save,
    say::{CommandError, Exit, FAULTY, RankLines, complain, say},
};
use comity::Group;
use comity_check::{Line, Options, run_with};
use comity_cluster::{
    facts::HostFacts,
    read::{SURVEY, facts_of},
};
use rows::{Plan, Row};
use std::{
    ffi::OsString,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Time for all rows.
const ALL: Duration = Duration::from_secs(300);
/// Time for a row.
const EACH: Duration = Duration::from_secs(60);
/// Time that a row leaves to its job to end by itself, and to be ended.
const ENDING: Duration = Duration::from_secs(12);
/// Time for this machine to say what it is: `system_profiler` takes seconds.
const SURVEYED: Duration = Duration::from_secs(30);
/// Time limit of a call between threads, which a deadline of the row comes behind.
const CALL: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It checks groups of threads and of processes, each link, MPI and NCCL where they are installed, the packages of a
Python interpreter, the death of a rank, and with --hosts ranks over ssh: five minutes at most. It changes nothing.
Exit code: 0 when no row failed, 1 when one did, 2 for bad arguments.")]
pub(crate) struct SelftestArgs {
    /// Write a report for an issue, without keys, addresses, and names of hosts and users
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Also run ranks on these hosts, as `comity launch --hosts` takes them: a,b
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    hosts: Option<String>,

    /// Test the packages of this Python interpreter (default: python3)
    #[arg(long, value_name = "PROGRAM")]
    python: Option<OsString>,

    /// Only rows with these words in their names
    #[arg(long, value_name = "WORDS", hide = true)]
    only: Option<String>,

    /// The row of groups of threads, with so many
    #[arg(long, value_name = "N", hide = true)]
    threads: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed(String),
    NotThere(String),
}

#[derive(Debug)]
struct Outcome {
    name: String,
    verdict: Verdict,
    took: Duration,
    /// The command, as one would type it, and the end of its output.
    command: String,
    output: String,
}

impl Outcome {
    fn line(&self) -> String {
        let (word, note) = match &self.verdict {
            Verdict::Passed => ("passed", String::new()),
            Verdict::Failed(why) => ("FAILED", format!("  {why}")),
            Verdict::NotThere(why) => ("not there", format!("  {why}")),
        };
        format!("{:<32}  {word:<9}  {:>7.1}{note}", self.name, self.took.as_secs_f64())
    }
}

pub(crate) fn selftest(args: SelftestArgs) -> Exit {
    if let Some(n) = args.threads {
        return on_threads(n);
    }
    let fail = |file: &PathBuf, e| CommandError::usage(format!("--report '{}': {e}", file.display()));
    args.report.as_ref().map(|file| save::can_be_put(file).map_err(|e| fail(file, e))).transpose()?;
    let own = comity_launch::own_program::own_words()
        .map_err(|e| CommandError::usage(format!("this command does not find itself: {e}")))?;
    let begun = Instant::now();
    let machine = machine();
    let mut said = RankLines::new(true);
    said.line(&format!("# comity {} selftest: {}", here::VERSION, machine.summary()));
    said.line(&format!("{:<32}  {:<9}  {:>7}", "row", "result", "seconds"));
    let mut all = Vec::new();
    let only = args.only.unwrap_or_default();
    let mut run = |rows: Vec<Row>| {
        for row in rows.into_iter().filter(|row| row.name.contains(&only)) {
            let outcome = outcome(row, begun + ALL);
            said.line(&outcome.line());
            all.push(outcome);
        }
    };
    run(rows::of_this_machine(&own));
    let python = args.python.or_else(comity_launch::own_program::interpreter);
    run(rows::of_python(&own, python.as_deref(), begun + ALL));
    run(rows::of_hosts(&own, args.hosts.as_deref()));
    let count = |is: fn(&Verdict) -> bool| all.iter().filter(|o| is(&o.verdict)).count();
    let failed = count(|v| matches!(v, Verdict::Failed(_)));
    let sum = format!(
        "# {} passed, {failed} failed, {} not there, in {:.1} s",
        count(|v| *v == Verdict::Passed),
        count(|v| matches!(v, Verdict::NotThere(_))),
        begun.elapsed().as_secs_f64()
    );
    said.line(&sum);
    if let Some(Outcome { name, verdict: Verdict::Failed(why), .. }) =
        all.iter().find(|o| matches!(o.verdict, Verdict::Failed(_)))
    {
        complain("selftest", format!("{name}: {why}"));
    }
    if let Some(file) = &args.report {
        report::write(file, &machine, &all, &sum, args.hosts.as_deref()).map_err(|e| fail(file, e))?;
        said.line(&format!("{} is the report; read it before you pass it on", file.display()));
    }
    said.end(if failed == 0 { 0 } else { FAULTY })
}

/// Runs a row, if there is time left for it.
fn outcome(row: Row, until: Instant) -> Outcome {
    let begun = Instant::now();
    let (verdict, command, output) = match row.plan {
        Err(why) => (Verdict::NotThere(why), String::new(), String::new()),
        Ok(plan) => {
            let left = until.saturating_duration_since(begun).saturating_sub(ENDING).min(EACH);
            let command = plan.shown(left);
            if left.is_zero() {
                (Verdict::Failed("not run: the five minutes were over".into()), command, String::new())
            } else {
                let (verdict, output) = tried(&plan, left);
                (verdict, command, output)
            }
        }
    };
    Outcome { name: row.name, verdict, took: begun.elapsed(), command, output }
}

/// Runs a row's command; the verdict, and the end of its output.
fn tried(plan: &Plan, limit: Duration) -> (Verdict, String) {
    let ended = match child::run(plan.command(limit), limit + ENDING / 3, ENDING / 3) {
        Ok(ended) => ended,
        Err(e) => return (Verdict::Failed(format!("it cannot be started: {e}")), String::new()),
    };
    let verdict = match plan.lacks(&ended) {
        None => Verdict::Passed,
        Some(why) => Verdict::Failed(why),
    };
    (verdict, ended.text())
}

/// Facts of this machine; without them where it does not say.
fn machine() -> HostFacts {
    let mut command = Command::new("sh");
    command.args(["-c", SURVEY]);
    let printed = child::run(command, SURVEYED, Duration::from_secs(1)).map(|e| e.out).unwrap_or_default();
    facts_of("this machine", &printed)
}

/// The suite of `comity check` on groups of `n` threads of this process.
fn on_threads(n: usize) -> Exit {
    let groups = Group::local(n)?;
    let options = Options { quick: true, ..Options::default() };
    let check = |group: Group| {
        let mut cases = 0;
        let mut count = |line: &Line| cases += line.cases;
        let report = run_with(&group.with_timeout(CALL), &options, &mut count)?;
        Ok::<_, comity::Error>((report, cases))
    };
    let reports: Vec<_> = thread::scope(|s| {
        let ranks: Vec<_> = groups.into_iter().map(|g| s.spawn(|| check(g))).collect();
        ranks.into_iter().map(|rank| rank.join()).collect()
    });
    let mut cases = 0;
    for report in reports {
        let (report, n) = report.map_err(|_| CommandError::faulty("a rank panicked"))??;
        if !report.is_right() {
            let first = report.first.map(|first| first.text).unwrap_or_default();
            return Err(CommandError::faulty(format!("first difference: {first}")));
        }
        cases = n;
    }
    say(format!("# {cases} cases on each of {n} threads: all ok\n"), 0)
}
