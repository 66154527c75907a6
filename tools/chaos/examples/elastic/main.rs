//! Jobs that go on after deaths and take in joiners: how long that takes, and whether they stand it for an hour.
//!
//! ```text
//! cargo run --release -p chaos --example elastic -- kill --ranks 8 --trials 100 --links tcp
//! ```
//!
//! | first word | what is done |
//! |---|---|
//! | `kill` | A rank is killed, and a joiner takes its place; each time both are timed |
//! | `silent` | The same with a rank that is stopped: it stays silent, and nothing says that it has ended |
//! | `healthy` | All ranks of a healthy group form it again |
//! | `chaos` | Deaths, stops, cuts and joiners, one after the other, while the ranks train |
//! | `hosts` | Joiners come from another host, a network namespace; then its cable is cut, and both sides live |
//! | `rank` | A rank of such a job, which the others start |

mod hosts;
mod hour;
mod job;
mod rank;
mod times;

use std::process::ExitCode;

const USAGE: &str = "\
elastic kill | silent | healthy | chaos | hosts
    --ranks N       ranks of the job (8)
    --trials N      kills, stops or new groups (100)
    --links LIST    kinds of links, as in COMITY_LINKS (shm,tcp)
    --hosts 2       kill, silent: every second rank on another host, a network namespace
    --detection S   the limit on a rank's silence (1)
    --minutes M     length of chaos (1)
    --seed N        faults of chaos (1)";

/// Choice of a run.
#[derive(Clone, Debug)]
struct Choice {
    ranks: usize,
    trials: usize,
    links: String,
    two_hosts: bool,
    detection: f64,
    minutes: f64,
    seed: u64,
}

impl Choice {
    fn parse(args: &[&str]) -> Option<Self> {
        let mut choice = Self {
            ranks: 8,
            trials: 100,
            links: "shm,tcp".into(),
            two_hosts: false,
            detection: 1.0,
            minutes: 1.0,
            seed: 1,
        };
        for pair in args.chunks(2) {
            let [name, value] = pair else { return None };
            match *name {
                "--ranks" => choice.ranks = value.parse().ok().filter(|n| *n >= 3)?,
                "--trials" => choice.trials = value.parse().ok().filter(|n| *n > 0)?,
                "--links" => choice.links = (*value).into(),
                "--hosts" => choice.two_hosts = *value == "2",
                "--detection" => choice.detection = value.parse().ok().filter(|s| *s > 0.0)?,
                "--minutes" => choice.minutes = value.parse().ok().filter(|m| *m > 0.0)?,
                "--seed" => choice.seed = value.parse().ok()?,
                _ => return None,
            }
        }
        Some(choice)
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["rank", ref orders @ ..] => return rank::run(orders),
        [mode, ref rest @ ..] => match (mode, Choice::parse(rest)) {
            ("kill", Some(choice)) => times::kill(&choice, false),
            ("silent", Some(choice)) => times::kill(&choice, true),
            ("healthy", Some(choice)) => times::healthy(&choice),
            ("chaos", Some(choice)) => hour::run(&choice),
            ("hosts", Some(choice)) => hosts::run(&choice),
            _ => Err(USAGE.into()),
        },
        [] => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
