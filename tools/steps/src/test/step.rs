//! A step of a run: what it is called, how long it may take, and what came of it.
//!
//! Each step runs as a process of its own, this program anew. So one that hangs is ended at its limit with all that it
//! started, and what it printed stays together.

use super::scope::Scope;
use std::time::{Duration, Instant};
use tasks::{child::Task, place::own};

/// Outcome of a step: a note for the table, or what failed.
pub(super) type Outcome = Result<Done, String>;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Done {
    Passed(String),
    /// It could not run here, and why. Never for something that the checks at landing rely on.
    NotRun(String),
}

/// Something that a run checks.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// Seconds that it takes on 2 cores in the gate; [`Step::limit`] goes by them.
    pub(super) usual: u64,
    /// The step whose product it uses: it is not run when that one failed.
    pub(super) needs: Option<&'static str>,
    pub(super) run: fn(&Scope) -> Outcome,
}

/// Seconds for a deep part, beside what was asked of it.
const DEEP_LIMIT: u64 = 3 * 3600;
/// So many times as long as usual a step may take: a slow machine, or one that has other work, is no failure.
const PATIENCE: u64 = 10;
/// Seconds that every step may take.
const LEAST_LIMIT: u64 = 300;

/// A line of the table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) took: Duration,
    pub(super) outcome: Outcome,
}

impl Step {
    /// Seconds after which it is ended.
    pub(super) fn limit(&self, scope: &Scope) -> u64 {
        if scope.deep {
            DEEP_LIMIT + (scope.hours * 3600.0) as u64
        } else {
            (self.usual * PATIENCE).max(LEAST_LIMIT)
        }
    }

    /// A row that says so, if the step that this one needs brought nothing.
    pub(super) fn blocked(&self, rows: &[Row]) -> Option<Row> {
        let needed = rows.iter().find(|r| self.needs == Some(&r.name))?;
        let why = match needed.outcome {
            Ok(Done::Passed(_)) => return None,
            Ok(Done::NotRun(_)) => format!("the step {} was not run", needed.name),
            Err(_) => format!("the step {} failed", needed.name),
        };
        println!("!!! {} WAS NOT RUN: {why}", self.name);
        Some(Row { name: self.name.into(), took: Duration::ZERO, outcome: Ok(Done::NotRun(why)) })
    }

    /// In this process; the last line says what came of it.
    pub(super) fn here(&self, scope: &Scope) -> Result<(), String> {
        println!("\n=== {}: {}", self.name, self.about);
        let begun = Instant::now();
        let outcome = (self.run)(scope);
        let took = seconds(begun.elapsed());
        match outcome {
            Ok(Done::Passed(note)) => println!("=== {} passed in {took}: {note}", self.name),
            Ok(Done::NotRun(why)) => println!("!!! {} WAS NOT RUN: {why}", self.name),
            Err(e) => {
                println!("=== {} FAILED after {took}: {e}", self.name);
                return Err(format!("{} failed", self.name));
            }
        }
        Ok(())
    }

    /// In a process of its own, whose output is shown while it comes or, if not, when it has ended; and `idle` in time that others leave.
    pub(super) fn apart(&self, scope: &Scope, shown: bool, idle: bool) -> Row {
        let begun = Instant::now();
        let kind = if scope.deep { "deep" } else { "gate" };
        let words = ["step", self.name, kind, &scope.seed.to_string(), &scope.hours.to_string()];
        let task = own().map(|own| Task::new(own).args(words).limit(self.limit(scope)).gentle());
        let outcome = task.and_then(|t| ended(self.name, if idle { t.idle() } else { t }, shown));
        Row { name: self.name.into(), took: begun.elapsed(), outcome }
    }
}

/// Outcome of a step's process.
fn ended(name: &str, task: Task, shown: bool) -> Outcome {
    let end = (if shown { task.echo() } else { task }).start()?.finish();
    if !shown {
        // One write, so that those of another step stay out of it.
        print!("{}", end.output);
    }
    match (outcome(name, &end.output), end.failure) {
        (Some(Err(e)), _) => Err(e),
        (_, Some(e)) => Err(if shown { e } else { e.lines().next().unwrap_or_default().into() }),
        (Some(outcome), None) => outcome,
        (None, None) => Err(format!("it did not say what became of {name}")),
    }
}

/// Outcome of a step, from the output of the program. A failure is told with the lines that follow it.
fn outcome(name: &str, text: &str) -> Option<Outcome> {
    text.rmatch_indices('\n').map(|(at, _)| at + 1).chain([0]).find_map(|begin| {
        let rest = &text[begin..];
        let line = rest.lines().next()?;
        if let Some(why) = line.strip_prefix(&format!("!!! {name} WAS NOT RUN: ")) {
            return Some(Ok(Done::NotRun(why.into())));
        }
        let (word, _) = line.strip_prefix(&format!("=== {name} "))?.split_once(' ')?;
        let (_, words) = line.split_once(": ")?;
        match word {
            "passed" => Some(Ok(Done::Passed(words.into()))),
            "FAILED" => Some(Err(rest.trim_end().split_once(": ")?.1.into())),
            _ => None,
        }
    })
}

/// Table of the steps' outcomes.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::from("step          seconds  result");
    for Row { name, took, outcome } in rows {
        let result = match outcome {
            Ok(Done::Passed(note)) => format!("passed   {note}"),
            Ok(Done::NotRun(why)) => format!("NOT RUN  {why}"),
            Err(e) => format!("FAILED   {}", e.lines().next().unwrap_or_default()),
        };
        text += &format!("\n{name:12} {:>8.1}  {result}", took.as_secs_f64());
    }
    text
}

pub(super) fn seconds(t: Duration) -> String {
    format!("{:.1} s", t.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_said_is_understood() {
        let said = |line: &str| outcome("loom", &format!("\n=== loom: all of it\nnoise\n{line}\nlast\n"));
        assert_eq!(
            said("=== loom passed in 3.0 s: 2 tests: all"),
            Some(Ok(Done::Passed("2 tests: all".into())))
        );
        assert_eq!(said("=== loom FAILED after 3.0 s: it broke"), Some(Err("it broke\nlast".into())));
        assert_eq!(said("!!! loom WAS NOT RUN: no nightly"), Some(Ok(Done::NotRun("no nightly".into()))));
        assert_eq!(said("=== miri passed in 3.0 s: 2 tests"), None);
    }

    #[test]
    fn a_failed_step_has_its_words_whether_they_were_shown_or_not() {
        let sh = |script: &str| Task::new("sh").args(["-c", script]);
        for shown in [true, false] {
            let said =
                ended("loom", sh("echo '=== loom FAILED after 3.0 s: it broke'; seq 30; exit 1"), shown);
            let words: Vec<String> = (1..=30).map(|n| format!("\n{n}")).collect();
            assert_eq!(said, Err(format!("it broke{}", words.concat())));
            let died = ended("loom", sh("echo so far; exit 3"), shown).unwrap_err();
            assert_eq!((died.contains("exit status: 3"), died.contains("\nso far")), (true, shown), "{died}");
        }
    }

    #[test]
    fn the_table_hides_nothing() {
        let row = |name: &str, millis, outcome| Row {
            name: name.into(),
            took: Duration::from_millis(millis),
            outcome,
        };
        let text = table(&[
            row("a", 1500, Ok(Done::Passed("3 tests".into()))),
            row("b", 0, Ok(Done::NotRun("no nightly".into()))),
            row("c", 0, Err("it broke\nlong story".into())),
        ]);
        assert!(text.contains("1.5  passed   3 tests"), "{text}");
        assert!(text.contains("NOT RUN  no nightly") && text.contains("FAILED   it broke"), "{text}");
        assert!(!text.contains("long story"));
    }
}
