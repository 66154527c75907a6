//! The check of every change: 25 minutes at most on 2 cores, from a fresh clone.
//!
//! ```text
//! requirements, packages          (Debian's and Python's)
//! format gates clippy documents build -> tests demo conformance ... ssh or cluster -> guest or a sanitizer
//!                                        macos, fuzz or miri or loom, a sanitizer's build
//! ```
//!
//! Formatting comes first, so that a mistake shows early. The upper line gets the cores. What is below it gets the time that the
//! jobs of the tests leave, for those wait a good deal. What runs in every gate is in [`EVERY`]; what takes turns is in
//! [`OVER_SSH`], one at a time, and in [`TURNS`]; the commit chooses.

use super::{
    Done, Outcome, Step, book, c, cargo, chaos, cluster, conformance, counts, fuzz, hosts, launchers, python,
    rdma, rdma_vm, requirements, sanitizers,
    scope::Scope,
    ssh,
    step::{Row, table},
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tasks::place::root;

/// What the whole may take.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// Brings what later steps need, beside the first of them.
pub(super) const PREPARE: Step = Step {
    name: "prepare",
    about: "install the programs and Python packages that the tests use",
    limit: 900,
    run: prepare,
};

/// Steps that only read and compile, so that nothing disturbs them: `prepare` runs beside them.
const FIRST: &[Step] = &[
    Step { name: "format", about: "rustfmt", limit: 60, run: cargo::format },
    Step {
        name: "gates",
        about: "imports, unsafe code, waits, names and file sizes are as they should be",
        limit: 60,
        run: gates,
    },
    Step { name: "clippy", about: "lints, none allowed", limit: 900, run: cargo::clippy },
    Step { name: "documents", about: "rustdoc, no warning allowed", limit: 300, run: cargo::documents },
    Step { name: "build", about: "everything that the tests use, once", limit: 1200, run: cargo::build },
];

/// Every run has these.
const EVERY: &[Step] = &[
    Step {
        name: "tests",
        about: "unit, property, integration and documentation tests",
        limit: 900,
        run: cargo::tests,
    },
    Step { name: "demo", about: "train on 1, 2 and 4 ranks; the weights agree", limit: 240, run: demo },
    Step {
        name: "conformance",
        about: "every operation over each link and backend: shared memory, TCP, MPI, NCCL's stand-in",
        limit: 480,
        run: conformance::run,
    },
    Step {
        name: "c",
        about: "libcomity installed: its symbols, C programs as jobs, examples by pkg-config and CMake",
        limit: 180,
        run: c::run,
    },
    Step {
        name: "rdma",
        about: "rdma-core's programs on a software device; layouts against its header",
        limit: 300,
        run: rdma::run,
    },
    Step {
        name: "hosts",
        about: "two and three hosts as network namespaces: IPv4 and IPv6, cables without a switch, a relay",
        limit: 180,
        run: hosts::check,
    },
    Step {
        name: "launchers",
        about: "under torch's variables, Open MPI and MPICH",
        limit: 240,
        run: launchers::run,
    },
    Step {
        name: "python",
        about: "the Python package, installed; 1 to 4 processes",
        limit: 900,
        run: python::check,
    },
    Step {
        name: "counts",
        about: "instructions of one small call, by single steps: Rust, C, NumPy and torch, each below its limit",
        limit: 300,
        run: counts::run,
    },
    Step {
        name: "book",
        about: "the documents as a book: no warning; links, paths, examples in Python",
        limit: 300,
        run: book::check,
    },
    Step { name: "chaos", about: "jobs broken at random, for a minute", limit: 300, run: chaos::run },
];

/// Jobs on three hosts over ssh; one of them a run.
const OVER_SSH: [Step; 2] = [
    Step {
        name: "ssh",
        about: "comity launch over ssh: three hosts with their own sshd, and what can happen to them",
        limit: 180,
        run: ssh::check,
    },
    Step {
        name: "cluster",
        about: "comity cluster and doctor on three hosts: cables found, set up, undone; planted faults found",
        limit: 180,
        run: cluster::check,
    },
];

/// Two of them a run, and what they need compiled.
struct Turn {
    /// Only computes, and holds no time: in time that [`EVERY`] leaves.
    beside: &'static [Step],
    /// Alone, at the end.
    last: Step,
}

/// What only compiles, or tries a bounded number of things: it may take as long as the whole.
const BESIDE: u64 = 1500;

const TURNS: [Turn; 3] = [
    Turn {
        beside: &[
            Step {
                name: "address-build",
                about: "what the step address runs, compiled",
                limit: BESIDE,
                run: sanitizers::build_address,
            },
            Step { name: "miri", about: "undefined behaviour in pure code", limit: BESIDE, run: cargo::miri },
        ],
        last: Step {
            name: "address",
            about: "threads and processes under AddressSanitizer",
            limit: 900,
            run: sanitizers::address,
        },
    },
    Turn {
        beside: &[
            Step {
                name: "thread-build",
                about: "what the step thread runs, compiled",
                limit: BESIDE,
                run: sanitizers::build_thread,
            },
            Step {
                name: "loom",
                about: "all interleavings of the lock-free parts",
                limit: BESIDE,
                run: cargo::loom,
            },
        ],
        last: Step {
            name: "thread",
            about: "threads and processes under ThreadSanitizer",
            limit: 900,
            run: sanitizers::thread,
        },
    },
    Turn {
        beside: &[Step { name: "fuzz", about: "decoders on hostile bytes", limit: BESIDE, run: fuzz::run }],
        last: Step {
            name: "guest",
            about: "the kernel's Soft-RoCE and rdma-core's library, in a QEMU guest",
            limit: 600,
            run: rdma_vm::run,
        },
    },
];

/// In every run, in time that the others leave.
const MACOS: Step =
    Step { name: "macos", about: "type-check for aarch64-apple-darwin", limit: BESIDE, run: cargo::macos };

/// All steps that there are.
pub(super) fn all() -> impl Iterator<Item = &'static Step> {
    let turns = TURNS.iter().flat_map(|t| t.beside.iter().chain([&t.last]));
    [&PREPARE].into_iter().chain(FIRST).chain(EVERY).chain([&MACOS]).chain(&OVER_SSH).chain(turns)
}

/// Whose turn it is.
fn turn(scope: &Scope) -> &'static Turn {
    // Other digits than those that deal out the cases: else a turn would always have the same of them.
    &TURNS[(scope.seed >> 20) as usize % TURNS.len()]
}

/// The step over ssh whose turn it is.
fn over_ssh(scope: &Scope) -> &'static [Step] {
    std::slice::from_ref(&OVER_SSH[(scope.seed >> 40) as usize % OVER_SSH.len()])
}

/// Everything whose turn it is, up to the first that fails.
pub(super) fn run(scope: &Scope) -> Result<(), String> {
    let begun = Instant::now();
    let mut rows = Vec::new();
    if let Some(took) = since_the_start() {
        rows.push(Row {
            name: "xtask".into(),
            took,
            outcome: Ok(Done::Passed("this program was built".into())),
        });
    }
    let before: Duration = rows.iter().map(|r| r.took).sum();
    let turn = turn(scope);
    let over_ssh = over_ssh(scope);
    let names: Vec<_> = over_ssh.iter().chain(turn.beside).chain([&turn.last]).map(|s| s.name).collect();
    println!(
        "chosen by {}: a share of each large matrix, and of what takes turns {}",
        scope.seed,
        names.join(", ")
    );
    let prepared = thread::scope(|s| {
        let prepared = s.spawn(|| PREPARE.apart(scope, false));
        one_after_another(FIRST, scope, &mut rows);
        prepared.join()
    });
    rows.push(prepared.map_err(|_| "the thread that installs what is needed panicked".to_owned())?);
    if rows.iter().all(|r| r.outcome.is_ok()) {
        // Then no more is begun beside.
        let failed = AtomicBool::new(false);
        let computed = thread::scope(|s| {
            let computed = s.spawn(|| {
                let steps = [&MACOS].into_iter().chain(turn.beside);
                let wanted = steps.take_while(|_| !failed.load(Ordering::Relaxed));
                wanted.map(|step| step.beside(scope)).collect::<Vec<_>>()
            });
            one_after_another(EVERY.iter().chain(over_ssh), scope, &mut rows);
            failed.store(rows.iter().any(|r| r.outcome.is_err()), Ordering::Relaxed);
            computed.join()
        });
        rows.extend(computed.map_err(|_| "the thread of the steps that only compute panicked".to_owned())?);
    }
    if rows.iter().all(|r| r.outcome.is_ok()) {
        one_after_another([&turn.last], scope, &mut rows);
    }
    end(&rows, before + begun.elapsed(), scope)
}

/// These steps alone, after `build` where one of them uses what that makes: a step's limit has no time for it.
pub(super) fn some(names: &[&str], scope: &Scope) -> Result<(), String> {
    let (begun, mut rows) = (Instant::now(), Vec::new());
    let mut jobs = EVERY.iter().chain(&OVER_SSH).chain(TURNS.iter().map(|t| &t.last));
    let uses_build = jobs.any(|s| names.contains(&s.name));
    for step in all().filter(|s| names.contains(&s.name) || uses_build && s.name == "build") {
        rows.push(step.apart(scope, true));
        if rows.iter().any(|r| r.outcome.is_err()) {
            break;
        }
    }
    end(&rows, begun.elapsed(), scope)
}

fn one_after_another(steps: impl IntoIterator<Item = &'static Step>, scope: &Scope, rows: &mut Vec<Row>) {
    for step in steps {
        let row = step.apart(scope, true);
        let failed = row.outcome.is_err();
        rows.push(row);
        if failed {
            return;
        }
    }
}

fn end(rows: &[Row], took: Duration, scope: &Scope) -> Result<(), String> {
    println!("\n{}", table(rows));
    println!("{:12} {:>8.1}  of {}", "in all", took.as_secs_f64(), LIMIT.as_secs());
    if took > LIMIT {
        println!("!!! longer than the {} minutes that a check may take", LIMIT.as_secs() / 60);
    }
    match rows.iter().find(|r| r.outcome.is_err()) {
        None => {
            let tests: u64 = rows.iter().map(tests_of).sum();
            if tests > 0 {
                println!("tests: {tests} passed, 0 failed");
            }
            Ok(())
        }
        Some(Row { name, outcome, .. }) => {
            let why = outcome.as_ref().err().map_or("", String::as_str);
            Err(format!(
                "the step {name} failed: {why}\nit alone: cargo xtask test --only {name} --seed {}",
                scope.seed
            ))
        }
    }
}

/// The tests that a step counted: the number before that word in its note.
fn tests_of(row: &Row) -> u64 {
    let Ok(Done::Passed(note)) = &row.outcome else { return 0 };
    let words: Vec<&str> = note.split_whitespace().collect();
    words.windows(2).find(|w| w[1].starts_with("test")).and_then(|w| w[0].parse().ok()).unwrap_or(0)
}

/// How long ago the shell began that built this program, if it said so: seconds since 1970 in `GATE_BEGAN`.
fn since_the_start() -> Option<Duration> {
    let began: f64 = std::env::var("GATE_BEGAN").ok()?.parse().ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
    Duration::try_from_secs_f64(now - began).ok()
}

fn prepare(_: &Scope) -> Outcome {
    let mut notes = Vec::new();
    for part in [requirements::install, python::prepare] {
        match part()? {
            Done::Passed(what) => notes.push(what),
            not_run @ Done::NotRun(_) => return Ok(not_run),
        }
    }
    Ok(Done::Passed(notes.join("; ")))
}

fn gates(_: &Scope) -> Outcome {
    ::gates::check(root()).map(|count| Done::Passed(format!("{count} files")))
}

fn demo(_: &Scope) -> Outcome {
    crate::demo::run(crate::demo::Profile::Tests).map(Done::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_in_notes() {
        let row = |note: &str| Row { name: "x".into(), took: LIMIT, outcome: Ok(Done::Passed(note.into())) };
        assert_eq!([tests_of(&row("744 tests and 13 examples")), tests_of(&row("no warning"))], [744, 0]);
    }

    #[test]
    fn names_are_steps_and_a_commit_chooses_turns() {
        let mut names: Vec<_> = all().map(|s| s.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        let of = |number: u64| turn(&Scope::gate(Some(number << 20))).last.name;
        assert_eq!([of(0), of(1), of(2), of(3)], ["address", "thread", "guest", "address"]);
    }
}
