//! The check of every change: 25 minutes on 2 cores, from a fresh clone. A longer run says so; it is no failure.
//!
//! ```text
//! requirements, packages  (Debian's and Python's)
//! format gates clippy -> documents build -> tests -> conformance counts -> rdma ... ssh or cluster -> guest, arm or a sanitizer
//!                                                    demo launchers c
//!                        a build for a sanitizer or aarch64, or macos with fuzz or loom, miri and swift's build
//! ```
//!
//! Formatting comes first, so that a mistake shows early. The upper lines get the cores. The last gets the time that they
//! leave, for jobs wait a good deal, and so does a build for its last crates; it begins when clippy has compiled the C that it links.
//! Steps that take turns are in [`OVER_SSH`], one at a time, and in [`TURNS`]; the commit chooses.

mod steps;

use super::{
    scope::Scope,
    step::{End, Row, Step, table},
};
use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
pub(super) use steps::{
    ADDRESS, ALL_TESTS, ARM, C, CONFORMANCE, FUZZ, IN_SWIFT, LAUNCHERS, LOOM, MIRI, MPI, ON_ARM, PREPARE,
    RDMA, SANITIZERS, SWIFT, THREAD, VERBS,
};
use steps::{BUILD, EVERY, LINTS, OVER_SSH, SIDE_BY_SIDE, TESTS, TURNS, Turn};
use tasks::child::is_interrupted;

/// Time for the whole gate.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// All steps that there are.
pub(super) fn all() -> impl Iterator<Item = &'static Step> {
    let turns = TURNS.iter().flat_map(|t| t.beside.iter().chain([&t.last]));
    let jobs = [&TESTS].into_iter().chain(SIDE_BY_SIDE.into_iter().flatten()).chain(EVERY);
    // More than one turn has the same step.
    let mut seen = BTreeSet::new();
    let steps = [&PREPARE].into_iter().chain(LINTS).chain(BUILD).chain(jobs).chain(&OVER_SSH).chain(turns);
    steps.filter(move |step| seen.insert(step.name))
}

/// Steps whose turn it is.
fn turn(scope: &Scope) -> &'static Turn {
    // Other digits than those that deal out the cases: else a turn would always have the same of them.
    &TURNS[(scope.seed >> 20) as usize % TURNS.len()]
}

/// The step over ssh whose turn it is.
fn over_ssh(scope: &Scope) -> &'static [Step] {
    std::slice::from_ref(&OVER_SSH[(scope.seed >> 40) as usize % OVER_SSH.len()])
}

/// Everything whose turn it is. One that fails does not keep those from running that do not need it.
pub(super) fn run(scope: &Scope) -> Result<(), String> {
    let begun = Instant::now();
    let before = since_the_start();
    let built = End::Passed("this program was built".into());
    let mut rows = Vec::from_iter(before.map(|took| Row { name: "xtask".into(), took, end: built }));
    let turn = turn(scope);
    let over_ssh = over_ssh(scope);
    let names: Vec<_> = over_ssh.iter().chain(turn.beside).chain([&turn.last]).map(|s| s.name).collect();
    println!(
        "chosen by {}: a share of each large matrix, and of what takes turns {}",
        scope.seed,
        names.join(", ")
    );
    let shown = |step: &Step| step.apart(scope, true, false);
    // What it says comes when it has ended.
    let hidden = |step: &Step| step.apart(scope, false, false);
    let [first, second] = SIDE_BY_SIDE;
    beside(&mut rows, std::slice::from_ref(&PREPARE), hidden, |rows| one_after_another(LINTS, rows, shown));
    beside(
        &mut rows,
        turn.beside,
        |step| step.apart(scope, false, true),
        |rows| {
            one_after_another(BUILD.iter().chain([&TESTS]), rows, shown);
            beside(rows, second, hidden, |rows| one_after_another(first, rows, shown));
            one_after_another(EVERY.iter().chain(over_ssh), rows, shown);
        },
    );
    one_after_another([&turn.last], &mut rows, shown);
    end(&rows, before.unwrap_or_default() + begun.elapsed(), scope)
}

/// These steps alone, each after the one whose product it uses: its limit has no time for that.
pub(super) fn some(names: &[&str], scope: &Scope) -> Result<(), String> {
    let begun = Instant::now();
    let mut rows = Vec::new();
    one_after_another(with_needed(names), &mut rows, |step| step.apart(scope, true, false));
    end(&rows, begun.elapsed(), scope)
}

/// These steps with those that they need, in the order of [`all`]: a product stands before its users.
fn with_needed(names: &[&str]) -> Vec<&'static Step> {
    let mut names = BTreeSet::from_iter(names.iter().copied());
    let mut steps = Vec::from_iter(all());
    // From the last on, so that what is needed by what is needed is met too.
    for step in steps.iter().rev() {
        if names.contains(step.name) {
            names.extend(step.needs);
        }
    }
    steps.retain(|s| names.contains(s.name));
    steps
}

/// Run those of the steps that have the product they need, until somebody interrupts this program.
fn one_after_another(
    steps: impl IntoIterator<Item = &'static Step>,
    rows: &mut Vec<Row>,
    run: impl Fn(&Step) -> Row,
) {
    for step in steps.into_iter().take_while(|_| !is_interrupted()) {
        let row = step.blocked(rows).unwrap_or_else(|| run(step));
        rows.push(row);
    }
}

/// Run steps in a thread of their own while others run; theirs are the last of the rows.
fn beside(
    rows: &mut Vec<Row>,
    steps: &'static [Step],
    run: impl Fn(&Step) -> Row + Send,
    others: impl FnOnce(&mut Vec<Row>),
) {
    let before = rows.len();
    let mut own = rows.clone();
    let own = thread::scope(|s| {
        let own = s.spawn(move || {
            one_after_another(steps, &mut own, run);
            own.split_off(before)
        });
        others(rows);
        own.join()
    });
    rows.extend(own.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
}

fn end(rows: &[Row], took: Duration, scope: &Scope) -> Result<(), String> {
    println!("\n{}", table(rows));
    println!("{:12} {:>8.1}  of {}", "in all", took.as_secs_f64(), LIMIT.as_secs());
    if took > LIMIT {
        println!("!!! longer than the {} minutes that a check may take", LIMIT.as_secs() / 60);
    }
    if is_interrupted() {
        return Err("interrupted: the table has the steps up to then".into());
    }
    let failed = failures(rows, scope);
    if !failed.is_empty() {
        return Err(failed);
    }
    let notes =
        rows.iter().filter_map(|r| if let End::Passed(note) = &r.end { Some(tests_of(note)) } else { None });
    match notes.sum::<u64>() {
        0 => {}
        tests => println!("tests: {tests} passed, 0 failed"),
    }
    Ok(())
}

/// A paragraph for each step that failed.
fn failures(rows: &[Row], scope: &Scope) -> String {
    let word = |Row { name, end, .. }: &Row| match end {
        End::Failed(why) => Some(format!(
            "the step {name} failed: {why}\nit alone: cargo xtask test --only {name} --seed {}",
            scope.seed
        )),
        _ => None,
    };
    rows.iter().filter_map(word).collect::<Vec<_>>().join("\n")
}

/// The tests that a step counted: the number before that word in its note.
fn tests_of(note: &str) -> u64 {
    note.split_once(" test").and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// Time since the shell began that built this program, if it said so: seconds since 1970 in `GATE_BEGAN`.
fn since_the_start() -> Option<Duration> {
    let began: f64 = std::env::var("GATE_BEGAN").ok()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Duration::try_from_secs_f64(now - began).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_in_notes() {
        assert_eq!(["744 tests", "2 x; 13 tests of links", "no warning"].map(tests_of), [744, 13, 0]);
    }

    #[test]
    fn names_are_steps_and_a_commit_chooses_turns() {
        let mut names: Vec<_> = all().map(|s| s.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        let needed: Vec<_> = all().flat_map(|s| s.needs).collect();
        assert!(needed.len() > 10 && needed.iter().all(|n| names.contains(*n)));
        let of = |number: u64| turn(&Scope::gate(Some(number << 20))).last.name;
        assert_eq!([0, 1, 2, 3, 4, 5].map(of), ["address", "thread", "guest", "swift", "arm", "address"]);
    }

    #[test]
    fn a_step_by_itself_comes_after_what_it_needs() {
        let with = |name| Vec::from_iter(with_needed(&[name]).iter().map(|s| s.name));
        assert_eq!(with("gates"), ["gates"]);
        assert_eq!(with("demo"), ["build", "demo"]);
        assert_eq!(with("address"), ["address-build", "address"]);
        assert_eq!(with("swift"), ["build", "swift-build", "swift"]);
        for step in all() {
            let names = with(step.name);
            assert_eq!(names.last(), Some(&step.name), "what it needs stands before it");
            assert!(step.needs.iter().all(|n| names.contains(n)), "{names:?}");
        }
    }

    #[test]
    fn a_step_that_fails_keeps_only_those_from_running_that_need_it() {
        let mut rows = Vec::new();
        let run = |step: &Step| {
            let broken = ["clippy", "build"].contains(&step.name);
            let end = if broken { End::Failed("it broke".into()) } else { End::Passed("fine".into()) };
            Row { name: step.name.into(), took: Duration::ZERO, end }
        };
        let steps = LINTS.iter().chain(BUILD).chain([&TESTS]).chain(&TURNS[2].beside[..1]);
        one_after_another(steps, &mut rows, run);
        let ends: Vec<_> = rows.iter().map(|r| format!("{} {}", r.name, r.end)).collect();
        assert_eq!(
            ends,
            [
                "format passed   fine",
                "gates passed   fine",
                "clippy FAILED   it broke",
                "documents passed   fine",
                "build FAILED   it broke",
                "tests NOT RUN  the step build failed",
                "macos passed   fine",
            ]
        );
        let told = failures(&rows, &Scope::gate(Some(7)));
        assert!(
            told.contains("the step clippy failed: it broke") && told.contains("--only build --seed 7"),
            "{told}"
        );
    }
}
