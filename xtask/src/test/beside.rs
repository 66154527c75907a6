//! Steps that keep no time and mind no neighbour, two at a time: most of one is a single thread. Each is this program anew,
//! so that its lines stay together; they are shown when it has ended.

use super::{Done, Outcome, Step};
use crate::child::Task;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How many run at once.
const AT_ONCE: usize = 2;
/// Seconds for one, far beyond those of the commands in it.
const LIMIT: u64 = 3600;

/// All of them, in this order as there is room, until one fails.
pub(super) fn run(steps: &[&Step]) -> Vec<(&'static str, Duration, Outcome)> {
    if !steps.is_empty() {
        let names: Vec<_> = steps.iter().map(|s| s.name).collect();
        println!("\n=== {AT_ONCE} at a time, each shown when it has ended: {}", names.join(", "));
    }
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let failed = |r: &(_, _, Outcome)| r.2.is_err();
            if rows.lock().unwrap_or_else(PoisonError::into_inner).iter().any(failed) {
                return;
            }
            let Some(step) = steps.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let begun = Instant::now();
            let outcome = alone(step);
            rows.lock().unwrap_or_else(PoisonError::into_inner).push((step.name, begun.elapsed(), outcome));
        }
    };
    thread::scope(|s| (0..AT_ONCE).for_each(|_| drop(s.spawn(work))));
    rows.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn alone(step: &Step) -> Outcome {
    let own = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let (text, failure) = match Task::new(own).args(["test", "--only", step.name]).limit(LIMIT).run() {
        Ok(text) => (text, None),
        Err(e) => (e.clone(), Some(e)),
    };
    // One write, so that those of another step stay out of it.
    print!("{text}");
    match (outcome(step.name, &text), failure) {
        (Some(outcome), _) => outcome,
        (None, Some(e)) => Err(e.lines().next().unwrap_or_default().into()),
        (None, None) => Err(format!("it did not say what became of {}", step.name)),
    }
}

/// What the program said of its step.
fn outcome(name: &str, text: &str) -> Option<Outcome> {
    text.lines().find_map(|line| {
        if let Some(why) = line.strip_prefix(&format!("!!! {name} WAS NOT RUN: ")) {
            return Some(Ok(Done::NotRun(why.into())));
        }
        let (word, rest) = line.strip_prefix(&format!("=== {name} "))?.split_once(' ')?;
        let (_, words) = rest.split_once(": ")?;
        match word {
            "passed" => Some(Ok(Done::Passed(words.into()))),
            "FAILED" => Some(Err(words.into())),
            _ => None,
        }
    })
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
        assert_eq!(said("=== loom FAILED after 3.0 s: it broke"), Some(Err("it broke".into())));
        assert_eq!(said("!!! loom WAS NOT RUN: no nightly"), Some(Ok(Done::NotRun("no nightly".into()))));
        assert_eq!(said("=== miri passed in 3.0 s: 2 tests"), None);
    }
}
