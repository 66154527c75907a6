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
//! One of the steps over ssh takes its turn, and one of those at the end; the commit chooses which.

use super::{
    scope::Scope,
    step::{End, Row, STEPS, Step, Way, table},
};
use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tasks::child::is_interrupted;

/// Time for the whole gate.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// All steps that there are, in their order.
fn all() -> impl DoubleEndedIterator<Item = &'static Step> {
    STEPS.iter().filter(|step| step.place.is_some())
}

/// Steps of a place.
fn at(place: &str) -> Vec<&'static Step> {
    all().filter(|step| step.place == Some(place)).collect()
}

/// Steps whose turn it is: of those over ssh, and of those at the end.
fn turn(seed: u64) -> [&'static Step; 2] {
    // Other digits than those that deal out the cases: else a turn would always have the same of them.
    [("ssh", 40), ("last", 20)].map(|(place, digits)| {
        let steps = at(place);
        steps[(seed >> digits) as usize % steps.len()]
    })
}

/// Everything whose turn it is. One that fails does not keep those from running that do not need it.
pub(super) fn run(scope: &Scope) -> Result<(), String> {
    let begun = Instant::now();
    let before = since_the_start();
    let built = End::Passed("this program was built".into());
    let mut rows = Vec::from_iter(before.map(|took| Row { name: "xtask".into(), took, end: built }));
    println!(
        "chosen by {}: a share of each large matrix, and of what takes turns {}",
        scope.seed,
        turn(scope.seed).map(|step| step.name).join(", ")
    );
    in_order(scope.seed, &mut rows, |step, way| step.run(scope, way));
    end(&rows, before.unwrap_or_default() + begun.elapsed(), scope)
}

/// Runs the steps as the picture above has them.
fn in_order(seed: u64, rows: &mut Vec<Row>, run: impl Fn(&Step, Way) -> Row + Sync) {
    let [over_ssh, last] = turn(seed);
    let shown = |step: &Step| run(step, Way::Shown);
    let hidden = |step: &Step| run(step, Way::Hidden);
    let with_last = at("beside").into_iter().filter(|step| step.with.contains(&last.name)).collect();
    beside(rows, at("prepare"), hidden, |rows| one_after_another(at("lint"), rows, shown));
    beside(
        rows,
        with_last,
        |step| run(step, Way::Idle),
        |rows| {
            one_after_another(at("build"), rows, shown);
            beside(rows, at("other"), hidden, |rows| one_after_another(at("job"), rows, shown));
            one_after_another(at("alone").into_iter().chain([over_ssh]), rows, shown);
        },
    );
    one_after_another([last], rows, shown);
}

/// These steps alone, each after the one whose product it uses: its limit has no time for that.
pub(super) fn some(names: &[&str], scope: &Scope) -> Result<(), String> {
    let begun = Instant::now();
    let mut rows = Vec::new();
    one_after_another(with_needed(names), &mut rows, |step| step.run(scope, Way::Shown));
    end(&rows, begun.elapsed(), scope)
}

/// These steps with those that they need, in the order of [`all`]: a product stands before its users.
fn with_needed(names: &[&str]) -> Vec<&'static Step> {
    let mut names = BTreeSet::from_iter(names.iter().copied());
    // From the last on, so that what is needed by what is needed is met too.
    for step in all().rev() {
        if names.contains(step.name) {
            names.extend(&step.needs);
        }
    }
    all().filter(|step| names.contains(step.name)).collect()
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
    steps: Vec<&'static Step>,
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
    fn each_step_has_its_turn_after_what_it_needs() {
        let turns = 0..5u64;
        let all_turns = turns.flat_map(|n| (0..2u64).map(move |m| n << 20 | m << 40));
        let mut ran = BTreeSet::new();
        for seed in all_turns {
            let mut rows = Vec::new();
            in_order(seed, &mut rows, |step, _| Row {
                name: step.name.into(),
                took: Duration::ZERO,
                end: End::Passed("fine".into()),
            });
            for step in rows.iter().filter_map(|row| all().find(|step| step.name == row.name)) {
                let has_run = |needed: &&str| rows.iter().any(|row| row.name == **needed);
                assert!(step.needs.iter().all(has_run), "{step:?}");
            }
            ran.extend(rows.into_iter().map(|row| row.name));
        }
        let missed: Vec<_> = all().map(|step| step.name).filter(|name| !ran.contains(*name)).collect();
        assert_eq!(missed, [""; 0]);
        assert_eq!(turn(4 << 20).map(|step| step.name), ["ssh", "arm"]);
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
        one_after_another([at("lint"), at("build"), at("beside")].concat(), &mut rows, run);
        let ends: Vec<_> = rows.iter().map(|r| format!("{} {}", r.name, r.end)).collect();
        assert!(ends[6..].iter().all(|end| end.ends_with(" passed   fine")), "{ends:?}");
        assert_eq!(
            ends[..6],
            [
                "format passed   fine",
                "gates passed   fine",
                "clippy FAILED   it broke",
                "documents passed   fine",
                "build FAILED   it broke",
                "tests NOT RUN  the step build failed",
            ]
        );
        let told = failures(&rows, &Scope { seed: 7, deep: false });
        assert!(
            told.contains("the step clippy failed: it broke") && told.contains("--only build --seed 7"),
            "{told}"
        );
    }
}
