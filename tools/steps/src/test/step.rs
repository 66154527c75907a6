//! A step of a run: what `tools/steps/steps.sh` says of it, its process, and its end.

use super::{requirements, scope::Scope};
use std::{
    fmt::{self, Display},
    mem,
    sync::LazyLock,
    time::{Duration, Instant},
};
use tasks::{
    child::{self, Task},
    in_ci,
    place::{Scratch, own, target, write},
};

/// All of them.
pub(super) static STEPS: LazyLock<Vec<Step>> =
    LazyLock::new(|| include_str!("../../steps.sh").split("\n#= ").skip(1).map(Step::parse).collect());

/// Places of a gate's run.
const PLACES: [&str; 9] = ["prepare", "lint", "build", "job", "other", "alone", "ssh", "last", "beside"];

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

/// Something that a run checks.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Place in a gate's run, of [`PLACES`]; a step that is deep alone has none.
    pub(super) place: Option<&'static str>,
    /// Seconds that it takes on 2 cores in the gate; [`Step::limit`] goes by them.
    usual: u64,
    /// Steps of the place `last` with which it takes its turn.
    pub(super) with: Vec<&'static str>,
    pub(super) is_deep: bool,
    /// Steps whose products it uses: it is not run when one of them failed.
    pub(super) needs: Vec<&'static str>,
    asks: Vec<&'static str>,
    commands: &'static str,
}

/// Seconds for a deep part.
const DEEP_LIMIT: u64 = 5 * 3600;
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

impl From<Outcome> for End {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(note) => Self::Passed(note),
            Err(Why::Missing(why)) if !in_ci() => Self::NotRun(why),
            Err(Why::NotHere(why)) => Self::NotRun(why),
            Err(Why::Failed(why) | Why::Missing(why)) => Self::Failed(why),
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

/// Handling of a step's process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// Its output is shown while it comes.
    Shown,
    /// Its output is shown when it has ended.
    Hidden,
    /// The same, in time that others leave.
    Idle,
}

impl Step {
    /// A section of `steps.sh` without the mark at its head.
    fn parse(text: &'static str) -> Self {
        let (head, rest) = text.split_once("\n# ").unwrap_or((text, ""));
        let (about, commands) = rest.split_once('\n').unwrap_or((rest, ""));
        let mut words = head.split_whitespace().filter(|word| *word != "#+");
        let name = words.next().unwrap_or_default();
        let mut step = Self { name, about, commands, ..Self::default() };
        for word in words {
            match word.split_once('=') {
                None if word == "deep" => step.is_deep = true,
                Some(("after", names)) => step.needs = names.split(',').collect(),
                Some(("with", names)) => step.with = names.split(',').collect(),
                Some((place, seconds)) if PLACES.contains(&place) => {
                    step.place = Some(place);
                    step.usual = seconds.parse().unwrap_or(0);
                }
                _ => step.asks.push(word),
            }
        }
        step
    }

    /// Seconds after which it is ended.
    fn limit(&self, scope: &Scope) -> u64 {
        if scope.deep { DEEP_LIMIT } else { (self.usual * PATIENCE).max(LEAST_LIMIT) }
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

    /// Run it in a process of its own: one that hangs is ended at its limit with all that it started.
    pub(super) fn run(&self, scope: &Scope, way: Way) -> Row {
        let begun = Instant::now();
        let mut text = format!("\n=== {}: {}\n", self.name, self.about);
        if way == Way::Shown {
            print!("{}", mem::take(&mut text));
        }
        let end = End::from(self.work(scope, way, &mut text));
        let took = begun.elapsed();
        // One write, so that those of another step stay out of what was not shown.
        println!("{text}=== {} after {:.1} s: {end}", self.name, took.as_secs_f64());
        Row { name: self.name.into(), took, end }
    }

    fn work(&self, scope: &Scope, way: Way, text: &mut String) -> Outcome {
        requirements::meet(&self.asks)?;
        if self.needs.contains(&"build") || scope.deep && !self.needs.is_empty() {
            // Nothing is left to do in a gate; a deep part may be the first.
            tasks::build_tests()?;
        }
        let scratch = Scratch::new("step")?;
        let task = self.task(&scratch, scope, way == Way::Idle)?.limit(self.limit(scope));
        let ended = if way == Way::Shown { task.echo() } else { task }.start()?.finish();
        if way != Way::Shown {
            *text += &ended.output;
        }
        outcome(&ended)
    }

    /// Its commands in the workspace's root, with the variables that `steps.sh` names.
    fn task(&self, scratch: &Scratch, scope: &Scope, idle: bool) -> Result<Task, String> {
        let target = target();
        let is_empty = self.commands.lines().all(|line| line.is_empty() || line.starts_with('#'));
        let own_script = format!(". tools/steps/scripts/{}.sh\n", self.name);
        let commands = if is_empty { &own_script } else { self.commands };
        // A file: what failed is told with its command.
        write(scratch.join("script"), [include_str!("../../scripts/prelude.sh"), commands].concat())?;
        let part = |hands| match scope.deep {
            true => String::new(),
            false => format!("--partition=hash:{}/{hands}", scope.seed % hands + 1),
        };
        let task = if idle { Task::idle("sh") } else { Task::new("sh") }.gentle();
        let task = task
            .arg(scratch.join("script"))
            .env("BUILT", &target)
            .env("PYTHON", target.join("python/bin/python"))
            // Modules are compiled once, also where the environment says otherwise.
            .env("PYTHONDONTWRITEBYTECODE", "")
            .env("COMITY", target.join("debug/comity"))
            .env("TOOLBOX", own()?)
            .env("WORK", scratch.join("."))
            .env("SIZE", if scope.deep { "deep" } else { "gate" })
            .env("HALF", part(2))
            .env("QUARTER", part(4))
            .env("HAND", (scope.seed % 4).to_string())
            .env(scope::SEED, scope.seed.to_string());
        Ok(if scope.deep { task.env(scope::DEEP, "1") } else { task })
    }
}

/// Result of a step's commands, by their end. A line `=? WHY` says what is missing here.
fn outcome(ended: &child::End) -> Outcome {
    let output = &ended.output;
    let Some(failure) = &ended.failure else {
        let missing = output.lines().find_map(|l| l.strip_prefix("=? "));
        return missing.map_or_else(|| Ok(note(output)), |why| Err(Why::Missing(why.into())));
    };
    let how = failure.split_once("/script` ").map_or(&**failure, |(_, how)| how);
    Err(match format!("\n{output}").rsplit_once("\nxtask: ") {
        // The whole reason of a step that is code of this program.
        Some((_, why)) if how.starts_with("failed (") => why.trim_end().into(),
        _ => format!("it {how}").into(),
    })
}

/// Lines that begin with `=> `, and the number of tests; else the last line.
fn note(output: &str) -> String {
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
fn passed(output: &str) -> u64 {
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
    fn every_word_of_the_list_is_understood() {
        let names: Vec<_> = STEPS.iter().map(|s| s.name).collect();
        for (at, step) in STEPS.iter().enumerate() {
            assert!(!step.about.is_empty() && !names[..at].contains(&step.name), "{step:?}");
            assert!(step.is_deep || step.place.is_some_and(|_| step.usual > 0), "{step:?}");
            assert!(step.needs.iter().chain(&step.with).all(|name| names.contains(name)), "{step:?}");
            assert_eq!(
                step.asks.iter().find(|ask| requirements::known(ask).is_none()),
                None,
                "{}",
                step.name
            );
        }
    }

    #[test]
    fn a_step_ends_as_its_commands_say() {
        let scope = Scope { seed: 6, deep: false };
        let end = |commands| Step { name: "x", commands, ..Step::default() }.run(&scope, Way::Hidden).end;
        assert_eq!(end("echo \"=> $HAND $SIZE $COMITY_TEST_SEED\""), End::Passed("2 gate 6".into()));
        assert_eq!(end("echo; echo '=? no nightly'"), Err(Why::Missing("no nightly".into())).into());
        assert_eq!(end("echo a; echo 'xtask: b:\nc' >&2; exit 3"), End::Failed("b:\nc".into()));
        for commands in ["says b echo a", "echo it did not say; false; echo on"] {
            let End::Failed(why) = end(commands) else { panic!("{commands}") };
            assert!(why.starts_with("it failed (exit status: 1)") && why.contains("it did not say"), "{why}");
            assert!(!why.contains("echo on") && !why.ends_with("\non"), "{why}");
        }
        let End::Failed(why) = end("") else { panic!("there is no scripts/x.sh") };
        assert!(why.contains("x.sh"), "{why}");
    }

    #[test]
    fn only_ci_needs_all() {
        let missing = End::from(Err(Why::Missing("x".into())));
        assert_eq!(missing, if in_ci() { End::Failed("x".into()) } else { End::NotRun("x".into()) });
        assert_eq!(End::from(Err(Why::NotHere("x".into()))), End::NotRun("x".into()));
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
