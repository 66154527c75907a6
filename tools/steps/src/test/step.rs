//! A step of a run: its name, what it asks of the machine, how long it may take, and its end.
//!
//! Each step runs as a process of its own, this program anew. So one that hangs is ended at its limit with all that it
//! started, and what it printed stays together.

use super::{requirements::Ask, scope::Scope};
use std::{
    fmt::{self, Display},
    fs,
    path::Path,
    time::{Duration, Instant},
};
use tasks::{
    child::Task,
    in_ci,
    place::{Scratch, own, target, write},
};

/// A note for the table, or why there is none.
pub(crate) type Outcome<T = String> = Result<T, Why>;

/// Reason why a step has no note.
#[derive(Debug)]
pub(crate) enum Why {
    Failed(String),
    /// Something is missing here: a failure in CI.
    Missing(String),
    /// Nothing that the checks at landing rely on.
    NotHere(String),
}

impl Why {
    pub(crate) fn text(self) -> String {
        let (Self::Failed(why) | Self::Missing(why) | Self::NotHere(why)) = self;
        why
    }
}

impl From<String> for Why {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<&str> for Why {
    fn from(why: &str) -> Self {
        Self::Failed(why.into())
    }
}

/// The work of a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Code(fn(&Scope) -> Outcome),
    /// Lines of `sh`, of which the first that fails ends the step. They have the variables of [`run_lines()`].
    Lines(&'static str),
}

/// Something that a run checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Seconds that it takes on 2 cores in the gate; [`Step::limit`] goes by them.
    pub(super) usual: u64,
    /// Steps whose products it uses: it is not run when one of them failed.
    pub(super) needs: &'static [&'static str],
    pub(super) asks: &'static [Ask],
    pub(super) work: Work,
}

const fn step(name: &'static str, usual: u64, work: Work, about: &'static str) -> Step {
    Step { name, about, usual, needs: &[], asks: &[], work }
}

/// A step with code of its own.
pub(super) const fn code(
    name: &'static str,
    usual: u64,
    run: fn(&Scope) -> Outcome,
    about: &'static str,
) -> Step {
    step(name, usual, Work::Code(run), about)
}

/// A step of a few commands.
pub(super) const fn lines(name: &'static str, usual: u64, script: &'static str, about: &'static str) -> Step {
    step(name, usual, Work::Lines(script), about)
}

/// Seconds for a deep part, beside what was asked of it.
const DEEP_LIMIT: u64 = 3 * 3600;
/// So many times as long as usual a step may take: a slow machine, or one that has other work, is no failure.
const PATIENCE: u64 = 10;
/// Seconds that every step may take.
const LEAST_LIMIT: u64 = 300;

/// End of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    Passed(String),
    NotRun(String),
    Failed(String),
}

impl End {
    fn of(outcome: Outcome, in_ci: bool) -> Self {
        match outcome {
            Ok(note) => Self::Passed(note),
            Err(Why::Missing(why)) if !in_ci => Self::NotRun(why),
            Err(Why::NotHere(why)) => Self::NotRun(why),
            Err(Why::Failed(why) | Why::Missing(why)) => Self::Failed(why),
        }
    }

    /// The end that [`Display`] has written.
    fn parse(text: &str) -> Option<Self> {
        let (word, words) = text.split_at_checked(9)?;
        match word {
            "passed   " => Some(Self::Passed(words.into())),
            "NOT RUN  " => Some(Self::NotRun(words.into())),
            "FAILED   " => Some(Self::Failed(words.into())),
            _ => None,
        }
    }
}

impl Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(note) => write!(f, "passed   {note}"),
            Self::NotRun(why) => write!(f, "NOT RUN  {why}"),
            Self::Failed(why) => write!(f, "FAILED   {why}"),
        }
    }
}

/// A line of the table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) took: Duration,
    pub(super) end: End,
}

impl Step {
    /// The step, which asks this of the machine.
    pub(super) const fn asks(self, asks: &'static [Ask]) -> Self {
        Self { asks, ..self }
    }

    /// The step, which needs the products of others.
    pub(super) const fn after(self, needs: &'static [&'static str]) -> Self {
        Self { needs, ..self }
    }

    /// The step, which needs the build of everything.
    pub(super) const fn built(self) -> Self {
        self.after(&["build"])
    }

    /// Seconds after which it is ended.
    fn limit(&self, scope: &Scope) -> u64 {
        if scope.deep {
            DEEP_LIMIT + (scope.hours * 3600.0) as u64
        } else {
            (self.usual * PATIENCE).max(LEAST_LIMIT)
        }
    }

    /// A row that says so, if a step that this one needs brought nothing.
    pub(super) fn blocked(&self, rows: &[Row]) -> Option<Row> {
        let why = rows.iter().filter(|r| self.needs.contains(&&*r.name)).find_map(|r| match r.end {
            End::Passed(_) => None,
            End::NotRun(_) => Some(format!("the step {} was not run", r.name)),
            End::Failed(_) => Some(format!("the step {} failed", r.name)),
        })?;
        println!("!!! {} WAS NOT RUN: {why}", self.name);
        Some(Row { name: self.name.into(), took: Duration::ZERO, end: End::NotRun(why) })
    }

    fn work(&self, scope: &Scope) -> Outcome {
        super::requirements::meet(self.asks)?;
        if self.needs.contains(&"build") {
            // Nothing is left to do in a gate; a deep part may be the first.
            tasks::build_tests()?;
        }
        match self.work {
            Work::Code(run) => run(scope),
            Work::Lines(script) => run_lines(script, scope),
        }
    }

    /// In this process; its end is written to this file.
    pub(super) fn here(&self, scope: &Scope, to: &Path) -> Result<(), String> {
        println!("\n=== {}: {}", self.name, self.about);
        let begun = Instant::now();
        let end = End::of(self.work(scope), in_ci());
        println!("=== {} after {:.1} s: {end}", self.name, begun.elapsed().as_secs_f64());
        write(to, end.to_string())
    }

    /// In a process of its own, whose output is shown while it comes or, if not, when it has ended; and `idle` in time that others leave.
    pub(super) fn apart(&self, scope: &Scope, shown: bool, idle: bool) -> Row {
        let begun = Instant::now();
        let end = self.process(scope, shown, idle).unwrap_or_else(End::Failed);
        Row { name: self.name.into(), took: begun.elapsed(), end }
    }

    fn process(&self, scope: &Scope, shown: bool, idle: bool) -> Result<End, String> {
        let scratch = Scratch::new("step")?;
        let file = scratch.join("end");
        let kind = if scope.deep { "deep" } else { "gate" };
        let words = ["step", self.name, kind, &scope.seed.to_string(), &scope.hours.to_string()];
        let task = if idle { Task::idle(own()?) } else { Task::new(own()?) };
        let task = task.args(words).arg(&file).limit(self.limit(scope)).gentle();
        ended(if shown { task.echo() } else { task }, shown, &file)
    }
}

/// End that a step's process has written, or what became of the process.
fn ended(task: Task, shown: bool, file: &Path) -> Result<End, String> {
    let child = task.start()?.finish();
    if !shown {
        // One write, so that those of another step stay out of it.
        print!("{}", child.output);
    }
    let end = fs::read_to_string(file).ok().and_then(|text| End::parse(&text));
    match (end, child.failure) {
        (Some(end), None) => Ok(end),
        (_, Some(e)) if shown => Err(e),
        (_, Some(e)) => Err(e.lines().next().unwrap_or_default().into()),
        (None, None) => Err("it did not say what became of it".into()),
    }
}

/// Run lines of `sh` in the workspace's root, after `scripts/prelude.sh`. They have the variables of the tests' scope and
///
/// - BUILT, PYTHON, COMITY, TOOLBOX, WORK: cargo's folder, the interpreter of the tests, the command, this program, a folder that goes away;
/// - SIZE, HALF, QUARTER, HAND: nextest's profile, its flag for a gate's share of so many, a hand of four.
fn run_lines(script: &str, scope: &Scope) -> Outcome {
    let target = target();
    let scratch = Scratch::new("lines")?;
    // A file: what failed is told with its command.
    write(scratch.join("script"), [include_str!("../../scripts/prelude.sh"), script].concat())?;
    let task = Task::new("sh")
        .arg(scratch.join("script"))
        .env("BUILT", &target)
        .env("PYTHON", target.join("python/bin/python"))
        // Modules are compiled once, also where the environment says otherwise.
        .env("PYTHONDONTWRITEBYTECODE", "")
        .env("COMITY", target.join("debug/comity"))
        .env("TOOLBOX", own()?)
        .env("WORK", scratch.join("."))
        .env("SIZE", if scope.deep { "deep" } else { "gate" })
        .env("HALF", scope.part(2))
        .env("QUARTER", scope.part(4))
        .env("HAND", (scope.seed % 4).to_string());
    let ended = scope.tell(task).limit(DEEP_LIMIT).echo().run();
    let output = ended.map_err(|e| match e.split_once("/script` ") {
        Some((_, how)) => format!("it {how}"),
        None => e,
    })?;
    Ok(note(&output))
}

/// Lines that begin with `=> `, and the number of tests; else the last line.
pub(super) fn note(output: &str) -> String {
    let mut words: Vec<_> = output.lines().filter_map(|l| Some(l.strip_prefix("=> ")?.to_owned())).collect();
    let tests = passed(output);
    if tests > 0 {
        words.push(format!("{tests} tests"));
    }
    if words.is_empty() {
        words.push(output.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("nothing to say").trim().into());
    }
    words.join("; ")
}

/// Number of tests in the last words of nextest (`Summary [1.2s] 9 tests run: 9 passed`), cargo's doctests (`test result: ok. 9 passed`)
/// or pytest (`9 passed in 3.2s`, `9 passed, 1 warning in 3.2s`).
pub(super) fn passed(output: &str) -> u64 {
    let pytest = |l: &str| l.contains(" passed in ") || l.contains(" passed, ");
    let last = |l: &&str| l.contains("Summary [") || l.starts_with("test result: ") || pytest(l);
    let number = |l: &str| l.split_once(" passed")?.0.rsplit(' ').next()?.parse::<u64>().ok();
    output.lines().filter(last).filter_map(number).sum()
}

/// Table of the steps' ends.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::from("step          seconds  result");
    for Row { name, took, end } in rows {
        text += &format!("\n{name:13} {:>7.1}  {}", took.as_secs_f64(), in_a_line(&end.to_string()));
    }
    text
}

/// The first line; where it only announces others, the last of them too.
pub(super) fn in_a_line(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
    let first = lines.next().unwrap_or_default();
    match (first.strip_suffix(':'), lines.next_back()) {
        (Some(_), Some(last)) => format!("{first} {last}"),
        (Some(alone), None) => alone.into(),
        (None, _) => first.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steps_end_comes_back_whole_and_only_ci_needs_all() {
        let scratch = Scratch::new("steps-test").unwrap();
        let file = scratch.join("end");
        for end in [End::Passed("2: 3".into()), End::NotRun("no".into()), End::Failed("a\nb".into())] {
            fs::write(&file, end.to_string()).unwrap();
            assert_eq!(ended(Task::sh("seq 30"), false, &file), Ok(end));
        }
        let died = |shown| ended(Task::sh("echo so far; exit 3"), shown, &file).unwrap_err();
        assert!(died(true).contains("so far") && died(false).contains("exit status: 3"));
        assert!(ended(Task::sh("true"), true, &scratch.join("none")).unwrap_err().contains("did not say"));
        let missing = |in_ci| End::of(Err(Why::Missing("x".into())), in_ci);
        assert_eq!([missing(true), missing(false)], [End::Failed("x".into()), End::NotRun("x".into())]);
        assert_eq!(End::of(Err(Why::NotHere("x".into())), true), End::NotRun("x".into()));
    }

    #[test]
    fn lines_that_fail_are_told_by_their_last_words() {
        let scope = Scope { seed: 6, deep: false, hours: 0.0 };
        assert_eq!(run_lines("echo \"=> $HAND $SIZE $COMITY_TEST_SEED\"", &scope).unwrap(), "2 gate 6");
        for script in ["says b echo a", "echo it did not say; false; echo on"] {
            let Err(Why::Failed(why)) = run_lines(script, &scope) else { panic!("{script}") };
            assert!(why.starts_with("it failed (exit status: 1)") && why.contains("it did not say"), "{why}");
            assert!(!why.contains("echo on") && !why.ends_with("\non"), "{why}");
        }
    }

    #[test]
    fn notes_are_words_or_numbers_of_tests() {
        let out = "test result: ok. 12 passed; 0 failed\nx\n  Summary [ 12.3s] 744 tests run: 743 passed (2 slow)\n3 passed in 1s\n5 passed, 1 warning in 2s\n";
        assert_eq!((passed(out), note(out).as_str()), (763, "763 tests"));
        assert_eq!(note("=> a\n9 passed in 2s\n=> b\n"), "a; b; 9 tests");
        assert_eq!((passed("2 hosts passed"), note("x\nlast\n\n").as_str()), (0, "last"));
    }

    #[test]
    fn the_table_hides_nothing() {
        let row = |name: &str, end| Row { name: name.into(), took: Duration::from_millis(1500), end };
        let text = table(&[
            row("a", End::Passed("3 tests".into())),
            row("b", End::NotRun("no nightly".into())),
            row("c", End::Failed("it failed (exit status: 1):\nfirst of all\nthe reason\n\n".into())),
            row("d", End::Failed("it failed (exit status: 1):".into())),
            row("e", End::Failed("it broke\nlong story".into())),
        ]);
        assert!(text.contains("1.5  passed   3 tests") && text.contains("NOT RUN  no nightly"), "{text}");
        let failed = Vec::from_iter(text.lines().filter_map(|l| Some(l.split_once("FAILED   ")?.1)));
        let c = "it failed (exit status: 1): the reason";
        assert_eq!(failed, [c, "it failed (exit status: 1)", "it broke"]);
    }
}
