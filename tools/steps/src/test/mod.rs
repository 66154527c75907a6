//! `cargo xtask test`: the checks of the project. The gate has every change checked in 25 minutes; the deep checks have the rest,
//! at full size, part by part.
//!
//! [`gate`] and [`deep`] say which steps there are and in what order; a step is a function in one of the files beside them.

mod arm;
mod book;
mod browser;
mod c;
mod candle;
mod cargo;
mod chaos;
mod cluster;
mod conformance;
mod counts;
mod deep;
mod dependencies;
mod fuzz;
mod gate;
mod hosts;
mod launchers;
mod native;
mod nightly;
mod others;
mod processes;
mod python;
mod ray;
mod rdma;
mod rdma_vm;
mod requirements;
mod sanitizers;
mod scope;
mod slurm;
mod ssh;
mod sshd;
mod step;
mod suites;
mod swift;

use scope::Scope;
use step::{Done, Outcome, Step};

/// Choice of steps, from the command line.
#[derive(Debug, PartialEq)]
pub(crate) enum StepChoice {
    List,
    /// Install what the steps need, and run none.
    Prepare(Scope),
    Gate(Scope),
    /// These steps of the gate alone.
    Some(Vec<&'static str>, Scope),
    /// These parts of the deep checks, or all; those that passed at this state too.
    Deep {
        parts: Vec<&'static str>,
        hours: f64,
        again: bool,
    },
}

impl StepChoice {
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        if let ["--deep", rest @ ..] = args {
            return Self::parse_deep(rest);
        }
        let mut only = Vec::new();
        let mut seed = None;
        let mut prepare = false;
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            match arg {
                "--list" => return Ok(Self::List),
                "--prepare" => prepare = true,
                "--only" => {
                    let name = *args.next().ok_or("--only needs the name of a step; see --list")?;
                    let step = gate::all().find(|s| s.name == name);
                    only.push(step.ok_or_else(|| format!("there is no step {name:?}; see --list"))?.name);
                }
                "--seed" => {
                    let number = args.next().and_then(|n| n.parse().ok());
                    seed = Some(number.ok_or("--seed needs a number, as a run prints it")?);
                }
                _ => return Err(format!("test has no option {arg:?}")),
            }
        }
        let scope = Scope::gate(seed);
        Ok(match (prepare, only.is_empty()) {
            (true, _) => Self::Prepare(scope),
            (false, true) => Self::Gate(scope),
            (false, false) => Self::Some(only, scope),
        })
    }

    fn parse_deep(args: &[&str]) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut hours = deep::SOAK_HOURS;
        let mut again = false;
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            match arg {
                "--list" => return Ok(Self::List),
                "--again" => again = true,
                "--hours" => {
                    let number = args.next().and_then(|n| n.parse().ok()).filter(|h| *h > 0.0 && *h <= 240.0);
                    hours = number.ok_or("--hours needs a number of hours for the soak, 240 at most")?;
                }
                name => {
                    let part = deep::PARTS.iter().find(|p| p.step.name == name);
                    parts.push(
                        part.ok_or_else(|| format!("there is no part {name:?}; see --list"))?.step.name,
                    );
                }
            }
        }
        Ok(Self::Deep { parts, hours, again })
    }
}

pub(crate) fn run(choice: &StepChoice) -> Result<(), String> {
    match choice {
        StepChoice::List => {
            println!("The gate, `cargo xtask test` (--only NAME):");
            gate::all().for_each(|s| println!("  {:13} {}", s.name, s.about));
            println!("The deep checks, `cargo xtask test --deep [NAME...]`:");
            deep::PARTS.iter().for_each(|p| println!("  {:13} {}", p.step.name, p.step.about));
            Ok(())
        }
        StepChoice::Prepare(scope) => gate::some(&[gate::PREPARE.name], scope),
        StepChoice::Gate(scope) => gate::run(scope),
        StepChoice::Some(names, scope) => gate::some(names, scope),
        StepChoice::Deep { parts, hours, again } => deep::run(parts, *hours, *again),
    }
}

/// Run a step in this process: `xtask step NAME gate|deep SEED:HOURS:PIECE`, which the functions above start.
pub(crate) fn step(args: &[&str]) -> Result<(), String> {
    let wrong = || "a step is started by `cargo xtask test`".to_owned();
    let [name, kind, numbers] = args else { return Err(wrong()) };
    let deep = *kind == "deep";
    let mut numbers = numbers.split(':');
    let mut next = || numbers.next().ok_or_else(wrong);
    let scope = Scope {
        seed: next()?.parse().map_err(|_| wrong())?,
        deep,
        hours: next()?.parse().map_err(|_| wrong())?,
        piece: next()?.parse().map_err(|_| wrong())?,
    };
    let parts = deep::PARTS.iter().map(|p| &p.step);
    let step = if deep {
        parts.into_iter().find(|s| s.name == *name)
    } else {
        gate::all().find(|s| s.name == *name)
    };
    step.ok_or_else(wrong)?.here(&scope)
}

/// Programs that others than the steps need.
pub(crate) fn install_programs(wanted: &[requirements::Program]) -> Result<(), String> {
    there(requirements::programs(wanted)?)
}

/// Python's own place.
pub(crate) fn prepare_python() -> Result<(), String> {
    there(python::prepare()?)
}

/// The package as released, in that place.
pub(crate) fn released_python() -> Result<(), String> {
    python::install_package(true)
}

fn there(done: Done) -> Result<(), String> {
    match done {
        Done::Passed(_) => Ok(()),
        Done::NotRun(why) => Err(why),
    }
}

/// Something is missing: a failure in CI, a step that was not run elsewhere.
fn missing(why: String) -> Outcome {
    if tasks::in_ci() { Err(why) } else { Ok(Done::NotRun(why)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_parts_are_chosen_by_name() {
        assert_eq!(StepChoice::parse(&["--list"]), Ok(StepChoice::List));
        assert_eq!(
            StepChoice::parse(&["--only", "loom", "--only", "gates", "--seed", "7"]),
            Ok(StepChoice::Some(vec!["loom", "gates"], Scope::gate(Some(7))))
        );
        assert!(matches!(StepChoice::parse(&[]), Ok(StepChoice::Gate(Scope { deep: false, .. }))));
        assert_eq!(
            StepChoice::parse(&["--deep", "soak", "--hours", "0.5"]),
            Ok(StepChoice::Deep { parts: vec!["soak"], hours: 0.5, again: false })
        );
        for bad in [
            &["--only"][..],
            &["--only", "lom"],
            &["--fast"],
            &["--seed", "x"],
            &["--deep", "lom"],
            &["--deep", "--hours", "0"],
        ] {
            assert!(StepChoice::parse(bad).is_err(), "{bad:?}");
        }
    }
}
