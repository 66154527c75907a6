//! `cargo xtask test`: every check of the project, step by step, up to the first that fails.

mod beside;
mod cargo;
mod chaos;
mod conformance;
mod fuzz;
mod gates;
mod hosts;
mod launchers;
mod nightly;
mod processes;
mod python;
mod rdma;
mod rdma_vm;
mod requirements;
mod sanitizers;

use std::time::{Duration, Instant};

/// What a step came to: a note for the summary, or what failed.
type Outcome = Result<Done, String>;

#[derive(Debug, PartialEq)]
enum Done {
    Passed(String),
    /// It could not run here, and why. Never for something that the checks at landing rely on.
    NotRun(String),
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    about: &'static str,
    run: fn() -> Outcome,
}

const STEPS: &[Step] = &[
    Step {
        name: "requirements",
        about: "install the programs that the tests use",
        run: requirements::install,
    },
    Step {
        name: "gates",
        about: "unsafe code, waits and file sizes stay where they belong",
        run: gates::check,
    },
    Step { name: "workspace", about: "unit, integration and documentation tests", run: cargo::workspace },
    Step { name: "demo", about: "train on 1, 2 and 4 ranks; the weights agree", run: demo },
    Step {
        name: "conformance",
        about: "every operation over each link and backend: shared memory, TCP, MPI, NCCL's stand-in",
        run: conformance::run,
    },
    Step { name: "load", about: "64 ranks, 1,000 calls in flight; nothing grows", run: processes::load },
    Step {
        name: "full",
        about: "every operation, type and size, 4 processes, as released",
        run: processes::full,
    },
    Step { name: "python", about: "the Python package, installed; 1 to 4 processes", run: python::check },
    Step { name: "torch", about: "the same with torch's variables", run: launchers::torch },
    Step { name: "mpi", about: "the same under Open MPI and MPICH", run: launchers::mpi },
    Step {
        name: "rdma",
        about: "rdma-core's programs on a software device; layouts against its header",
        run: rdma::run,
    },
    Step {
        name: "rdma-vm",
        about: "the kernel's Soft-RoCE and rdma-core's library, in a QEMU guest",
        run: rdma_vm::run,
    },
    Step { name: "hosts", about: "two hosts, as network namespaces, IPv4 and IPv6", run: hosts::check },
    Step { name: "chaos", about: "jobs broken at random, CHAOS_MINUTES (5) and CHAOS_SEED", run: chaos::run },
    Step {
        name: "sanitizers",
        about: "threads and processes under AddressSanitizer and ThreadSanitizer",
        run: sanitizers::run,
    },
    Step { name: "miri", about: "undefined behaviour in pure code", run: cargo::miri },
    Step {
        name: "fuzz",
        about: "decoders on hostile bytes, 10 s each (60 in CI, or FUZZ_SECONDS)",
        run: fuzz::run,
    },
    Step { name: "loom", about: "all interleavings of the lock-free parts", run: cargo::loom },
    Step { name: "macos", about: "type-check for aarch64-apple-darwin", run: cargo::macos },
];

/// The last of them, which run two at a time.
const BESIDE: [&str; 4] = ["miri", "fuzz", "loom", "macos"];

/// Which steps to run.
#[derive(Debug, PartialEq)]
pub(crate) enum Choice {
    List,
    /// Install what the steps need, and run none.
    Prepare,
    Run(Vec<&'static str>),
}

impl Choice {
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        let (mut only, mut args) = (Vec::new(), args.iter());
        while let Some(&arg) = args.next() {
            match arg {
                "--list" => return Ok(Self::List),
                "--prepare" => return Ok(Self::Prepare),
                "--only" => {
                    let name = *args.next().ok_or("--only needs the name of a step; see --list")?;
                    let step = STEPS.iter().find(|s| s.name == name);
                    only.push(step.ok_or_else(|| format!("there is no step {name:?}; see --list"))?.name);
                }
                _ => return Err(format!("test has no option {arg:?}")),
            }
        }
        if only.is_empty() {
            only.extend(STEPS.iter().map(|s| s.name));
        }
        Ok(Self::Run(only))
    }
}

pub(crate) fn run(choice: &Choice) -> Result<(), String> {
    let names = match choice {
        Choice::Run(names) => names,
        Choice::List => {
            STEPS.iter().for_each(|s| println!("{:13} {}", s.name, s.about));
            return Ok(());
        }
        Choice::Prepare => return prepare(),
    };
    let (start, mut rows) = (Instant::now(), Vec::new());
    let chosen = STEPS.iter().filter(|s| names.contains(&s.name));
    let (mut beside, mut alone): (Vec<&Step>, Vec<&Step>) = chosen.partition(|s| BESIDE.contains(&s.name));
    if beside.len() == 1 {
        alone.append(&mut beside);
    }
    for step in alone {
        println!("\n=== {}: {}", step.name, step.about);
        let begun = Instant::now();
        let outcome = (step.run)();
        let took = begun.elapsed();
        match &outcome {
            Ok(Done::Passed(note)) => println!("=== {} passed in {}: {note}", step.name, seconds(took)),
            Ok(Done::NotRun(why)) => println!("\n!!! {} WAS NOT RUN: {why}\n", step.name),
            Err(e) => println!("=== {} FAILED after {}: {e}", step.name, seconds(took)),
        }
        let failed = outcome.is_err();
        rows.push((step.name, took, outcome));
        if failed {
            beside.clear();
            break;
        }
    }
    rows.extend(beside::run(&beside));
    let failure = rows.iter().find(|(_, _, outcome)| outcome.is_err()).map(|(name, ..)| *name);
    println!("\n{}", summary(&rows));
    println!("{} in all", seconds(start.elapsed()));
    failure.map_or(Ok(()), |name| {
        Err(format!("the step {name} failed; run it alone: cargo xtask test --only {name}"))
    })
}

fn prepare() -> Result<(), String> {
    let begun = Instant::now();
    for part in [requirements::install, python::prepare] {
        match part()? {
            Done::Passed(what) => println!("prepared in {}: {what}", seconds(begun.elapsed())),
            Done::NotRun(why) => println!("not prepared: {why}"),
        }
    }
    Ok(())
}

fn summary(rows: &[(&str, Duration, Outcome)]) -> String {
    let mut text = String::from("step             time  result");
    for (name, took, outcome) in rows {
        let result = match outcome {
            Ok(Done::Passed(note)) => format!("passed   {note}"),
            Ok(Done::NotRun(why)) => format!("NOT RUN  {why}"),
            Err(e) => format!("FAILED   {}", e.lines().next().unwrap_or_default()),
        };
        text += &format!("\n{name:13} {:>7}  {result}", seconds(*took));
    }
    text
}

fn seconds(t: Duration) -> String {
    format!("{:.1} s", t.as_secs_f64())
}

/// Whether the checks run at landing, where what is missing is a failure.
pub(crate) fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|v| v == "true" || v == "1")
}

/// Something is missing: a failure in CI, a step that was not run elsewhere.
fn missing(why: String) -> Outcome {
    if in_ci() { Err(why) } else { Ok(Done::NotRun(why)) }
}

fn demo() -> Outcome {
    crate::demo::run(crate::demo::Profile::Tests).map(Done::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name() {
        assert_eq!(Choice::parse(&["--list"]), Ok(Choice::List));
        assert_eq!(Choice::parse(&["--prepare"]), Ok(Choice::Prepare));
        assert_eq!(
            Choice::parse(&["--only", "loom", "--only", "gates"]),
            Ok(Choice::Run(vec!["loom", "gates"]))
        );
        let Ok(Choice::Run(all)) = Choice::parse(&[]) else { panic!() };
        assert_eq!(all.len(), STEPS.len());
        assert_eq!(all[all.len() - BESIDE.len()..], BESIDE);
        for bad in [&["--only"][..], &["--only", "lom"], &["--fast"]] {
            assert!(Choice::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_summary_hides_nothing() {
        let text = summary(&[
            ("a", Duration::from_millis(1500), Ok(Done::Passed("3 tests".into()))),
            ("b", Duration::ZERO, Ok(Done::NotRun("no nightly".into()))),
            ("c", Duration::ZERO, Err("it broke\nlong story".into())),
        ]);
        assert!(text.contains("1.5 s  passed   3 tests"), "{text}");
        assert!(text.contains("NOT RUN  no nightly") && text.contains("FAILED   it broke"), "{text}");
        assert!(!text.contains("long story"));
    }
}
