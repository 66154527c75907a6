//! `cargo xtask test`: the checks of the project. The gate has every change checked in 25 minutes; the deep checks have the rest,
//! at full size, part by part.
//!
//! `tools/steps/steps.sh` lists the steps; [`gate`] and [`deep`] have their order. A step that is no script is a function in one of the files
//! beside them.

mod cluster;
mod counts;
mod deep;
mod gate;
mod hosts;
mod jobs;
mod python;
mod requirements;
mod ssh;
mod sshd;
mod step;

pub(crate) use python::{install_package, prepare as prepare_python};
pub(crate) use requirements::programs as install_programs;
use scope::Scope;
pub(crate) use step::Why;
use step::{STEPS, Step};
use tasks::{child::Task, demo, in_ci};

/// Share of the large matrices that a run takes: the one that its commit chooses, or all of it.
mod scope {
    pub(super) use ::scope::*;
}

/// Choice of steps, from the command line.
#[derive(Debug, Default, PartialEq)]
pub struct StepChoice {
    list: bool,
    deep: bool,
    /// These steps or parts alone.
    names: Vec<&'static str>,
    seed: Option<u64>,
    /// Parts that passed at this state too.
    again: bool,
}

impl StepChoice {
    /// # Errors
    /// The words are no choice; what is wrong with them.
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut choice = Self { deep: args.contains(&"--deep"), ..Self::default() };
        let mut args = args.iter().filter(|arg| **arg != "--deep");
        while let Some(&arg) = args.next() {
            match arg {
                "--list" => choice.list = true,
                "--again" if choice.deep => choice.again = true,
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
    let step = STEPS.iter().find(|step| step.name == name).ok_or_else(|| {
        format!("no step and no deep part is called {name:?}: cargo xtask test --list names them")
    })?;
    match (deep, step.place, step.is_deep) {
        (false, None, _) => {
            Err(format!("{name:?} is a part of the deep checks: cargo xtask test --deep {name}"))
        }
        (true, _, false) => Err(format!("{name:?} is a step of the gate: cargo xtask test --only {name}")),
        _ => Ok(step),
    }
}

/// Number that chooses a run's share: given, or the first 16 digits of the commit's name.
fn seed(given: Option<u64>) -> u64 {
    let commit = || Task::new("git").args(["rev-parse", "HEAD"]).run().ok();
    given.or_else(|| u64::from_str_radix(commit()?.get(..16)?, 16).ok()).unwrap_or(0)
}

/// `cargo xtask test`: the gate, or the deep checks.
pub fn run(choice: &StepChoice) -> Result<(), String> {
    let scope = Scope { seed: seed(choice.seed), deep: choice.deep };
    if choice.list {
        println!(
            "A step of the gate alone: `cargo xtask test --only NAME`; parts of the deep checks: `cargo xtask test --deep NAME...`"
        );
        for step in STEPS.iter() {
            let gate = match step.place {
                Some("ssh" | "last" | "beside") => "in turn",
                Some(_) => "gate",
                None => "",
            };
            println!(
                "{:13} {gate:7} {:4}  {}",
                step.name,
                if step.is_deep { "deep" } else { "" },
                step.about
            );
        }
        Ok(())
    } else if choice.deep {
        deep::run(&choice.names, &scope, choice.again)
    } else if choice.names.is_empty() {
        gate::run(&scope)
    } else {
        gate::some(&choice.names, &scope)
    }
}

/// Run a step's function in this process: `xtask step NAME`, as `steps.sh` says.
pub fn step(args: &[&str]) -> Result<(), String> {
    let scope = Scope::from_env();
    let outcome = match args {
        ["counts"] => counts::run(&scope),
        ["demo"] => demo::run(demo::Profile::Tests).map_err(Why::Failed),
        ["hosts"] => hosts::check(&scope),
        ["package", environment, size] => match install_package(environment, *size == "deep") {
            Ok(()) => Ok("the package is installed".into()),
            Err(why) => Err(Why::Failed(why)),
        },
        ["ssh"] => ssh::check(&scope),
        ["cluster"] => cluster::check(&scope),
        ["shells"] => ssh::shells::check(&scope),
        _ => Err("a step is started by `cargo xtask test`".into()),
    };
    match outcome {
        Ok(note) => println!("=> {note}"),
        Err(Why::Missing(why)) if !in_ci() => println!("=? {why}"),
        Err(why) => return Err(why.text()),
    }
    Ok(())
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
        let deep = choice(&["--deep", "soak", "--again"]);
        assert_eq!((&deep.names[..], deep.again, deep.deep), (&["soak"][..], true, true));
        for bad in [&["--only"][..], &["--only", "lom"], &["--fast"], &["--seed", "x"], &["--deep", "lom"]] {
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
