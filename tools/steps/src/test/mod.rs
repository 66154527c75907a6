//! `cargo xtask test`: the checks of the project. The gate has every change checked in 25 minutes; the deep checks have the rest,
//! at full size, part by part.
//!
//! [`gate`] and [`deep`] say which steps there are and in what order; a step is a function in one of the files beside them.

mod chaos;
mod cluster;
mod counts;
mod deep;
mod gate;
mod hosts;
mod jobs;
mod python;
mod ray;
mod rdma_vm;
mod requirements;
mod scope;
mod ssh;
mod sshd;
mod step;

pub(crate) use python::{prepare as prepare_python, released as released_python};
pub(crate) use requirements::programs as install_programs;
use scope::Scope;
use step::Step;
pub(crate) use step::Why;

/// Choice of steps, from the command line.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct StepChoice {
    list: bool,
    /// Install what the steps need, and run none.
    prepare: bool,
    deep: bool,
    /// These steps or parts alone.
    names: Vec<&'static str>,
    seed: Option<u64>,
    /// Hours of the soak.
    hours: Option<f64>,
    /// Parts that passed at this state too.
    again: bool,
}

impl StepChoice {
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        let mut choice = Self { deep: args.contains(&"--deep"), ..Self::default() };
        let mut args = args.iter().filter(|arg| **arg != "--deep");
        while let Some(&arg) = args.next() {
            match arg {
                "--list" => choice.list = true,
                "--prepare" if !choice.deep => choice.prepare = true,
                "--again" if choice.deep => choice.again = true,
                "--hours" if choice.deep => {
                    let hours = args.next().and_then(|n| n.parse().ok()).filter(|h| *h > 0.0 && *h <= 240.0);
                    choice.hours =
                        Some(hours.ok_or("--hours needs a number of hours for the soak, 240 at most")?);
                }
                "--seed" if !choice.deep => {
                    let seed = args.next().and_then(|n| n.parse().ok());
                    choice.seed = Some(seed.ok_or("--seed needs a number, as a run prints it")?);
                }
                "--only" => {
                    let name = args.next().ok_or("--only needs the name of a step; see --list")?;
                    let name = named(choice.deep, name)?.name;
                    if choice.deep {
                        return Err(format!("parts have no --only: cargo xtask test --deep {name}"));
                    }
                    choice.names.push(name);
                }
                name if choice.deep && !name.starts_with('-') => choice.names.push(named(true, name)?.name),
                _ if choice.deep => return Err(format!("test --deep has no option {arg:?}")),
                _ => return Err(format!("test has no option {arg:?}")),
            }
        }
        Ok(choice)
    }
}

/// The part of the deep checks, or the step of the gate, of this name. An error has the command of its namesake in the other.
fn named(deep: bool, name: &str) -> Result<&'static Step, String> {
    let step = gate::all().find(|s| s.name == name);
    let part = deep::PARTS.iter().find(|p| p.name == name);
    match (deep, step, part) {
        (false, Some(found), _) | (true, _, Some(found)) => Ok(found),
        (false, None, Some(_)) => {
            Err(format!("{name:?} is a part of the deep checks: cargo xtask test --deep {name}"))
        }
        (true, Some(_), None) => {
            Err(format!("{name:?} is a step of the gate: cargo xtask test --only {name}"))
        }
        (_, None, None) => {
            Err(format!("no step and no deep part is called {name:?}: cargo xtask test --list names them"))
        }
    }
}

pub(crate) fn run(choice: &StepChoice) -> Result<(), String> {
    let scope = Scope::gate(choice.seed);
    if choice.list {
        println!("The gate, `cargo xtask test` (--only NAME):");
        gate::all().for_each(|s| println!("  {:13} {}", s.name, s.about));
        println!("The deep checks, `cargo xtask test --deep [NAME...]`:");
        deep::PARTS.iter().for_each(|p| println!("  {:13} {}", p.name, p.about));
        Ok(())
    } else if choice.deep {
        deep::run(&choice.names, choice.hours.unwrap_or(deep::SOAK_HOURS), choice.again)
    } else if choice.prepare {
        gate::some(&[gate::PREPARE.name], &scope)
    } else if choice.names.is_empty() {
        gate::run(&scope)
    } else {
        gate::some(&choice.names, &scope)
    }
}

/// Run a step in this process: `xtask step NAME gate|deep SEED HOURS FILE`, which the functions above start.
pub(crate) fn step(args: &[&str]) -> Result<(), String> {
    let wrong = || "a step is started by `cargo xtask test`".to_owned();
    let &[name, kind, seed, hours, file] = args else { return Err(wrong()) };
    let scope = Scope {
        deep: kind == "deep",
        seed: seed.parse().map_err(|_| wrong())?,
        hours: hours.parse().map_err(|_| wrong())?,
    };
    named(scope.deep, name)?.here(&scope, file.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_parts_are_chosen_by_name() {
        let choice = |args: &[&str]| StepChoice::parse(args).unwrap();
        assert!(choice(&["--list"]).list && choice(&["--deep", "--list"]).list);
        let some = choice(&["--only", "loom", "--only", "gates", "--seed", "7"]);
        assert_eq!((&some.names[..], some.seed, some.deep), (&["loom", "gates"][..], Some(7), false));
        assert_eq!(choice(&[]), StepChoice::default());
        let deep = choice(&["--deep", "soak", "--hours", "0.5"]);
        assert_eq!((&deep.names[..], deep.hours, deep.deep), (&["soak"][..], Some(0.5), true));
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
        for (wrong, right) in [
            (&["--only", "vast"][..], "cargo xtask test --deep vast"),
            (&["--deep", "--only", "vast"], "cargo xtask test --deep vast"),
            (&["--only", "loom", "--deep"], "cargo xtask test --deep loom"),
            (&["--only", "gates", "--deep"], "cargo xtask test --only gates"),
        ] {
            let e = StepChoice::parse(wrong).unwrap_err();
            assert!(e.ends_with(right), "{wrong:?}: {e}");
        }
    }
}
