//! `cargo xtask chaos`: real processes are killed, stopped, cut off, starved and bothered at random moments, over and over;
//! each time every rank must have been told the truth in time, every sum be right, and nothing be left.
//!
//! Two lanes run side by side: ranks on one host that live through many jobs, and ranks on four hosts that fall silent. Each lane has network,
//! process, mount and IPC namespaces of its own, so that what it leaves is seen, and goes with it. Jobs of `comity launch` are broken by the tests
//! of the command, and over ssh by the step `ssh`.

mod crew;
mod fault;
mod held;
mod lane;
mod lateness;
mod net;
mod processes;
mod soak;
mod table;
mod trial;

use fault::{Fault, Lane};
pub use held::Held;
pub use lane::main as lane;
pub use processes::monotonic;
use std::{
    fs,
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};
use table::Table;
use tasks::{
    child::{Running, Task},
    place::{Scratch, built, own, program},
};

/// Choice of a run, from the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    minutes: f64,
    seed: u64,
    /// Build of the programs that are broken: `debug` or `release`, the folder beside what cargo built.
    profile: &'static str,
    only: Vec<Fault>,
    trial: Option<u64>,
    trials: u64,
    soak: Option<f64>,
    detection: f64,
}

impl Choice {
    fn minutes(minutes: f64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = u64::from(now.subsec_nanos()) + now.as_secs() % 1000 * 1_000_000_000;
        Self {
            minutes,
            seed,
            profile: "debug",
            only: Vec::new(),
            trial: None,
            trials: u64::MAX,
            soak: None,
            detection: 5.0,
        }
    }

    /// The options by which [`Self::parse`] makes it again, for the process of a lane.
    fn options(&self) -> Vec<String> {
        let mut options = vec!["--minutes".into(), self.minutes.to_string()];
        options.extend(["--seed".into(), self.seed.to_string(), "--trials".into(), self.trials.to_string()]);
        for fault in &self.only {
            let name = fault.name();
            options.extend(match self.trial {
                Some(seed) => ["--trial".into(), format!("{name}:{seed}")],
                None => ["--only".into(), name.into()],
            });
        }
        options.extend(self.flag().split_whitespace().map(str::to_owned));
        options
    }

    /// The flag for it.
    fn flag(&self) -> &'static str {
        if self.profile == "release" { " --release" } else { "" }
    }

    /// From the command line.
    ///
    /// # Errors
    /// The arguments make no sense; the text says why.
    pub fn parse(args: &[&str]) -> Result<Self, String> {
        let mut choice = Self::minutes(5.0);
        let mut args = args.iter();
        while let Some(&arg) = args.next() {
            if arg == "--release" {
                choice.profile = "release";
                continue;
            }
            let value =
                *args.next().ok_or_else(|| format!("{arg} needs a value, or is no option of chaos"))?;
            let bad = || format!("{arg} {value}: not a number that makes sense here");
            let number = || value.parse::<f64>().ok().filter(|m| *m > 0.0 && *m < 1e6).ok_or_else(bad);
            let fault =
                |name| Fault::named(name).ok_or_else(|| format!("there is no fault {name:?}; {}", known()));
            match arg {
                "--minutes" => choice.minutes = number()?,
                "--soak" => choice.soak = Some(number()?),
                "--detection" => choice.detection = number()?,
                "--seed" => choice.seed = value.parse().map_err(|_| bad())?,
                "--trials" => choice.trials = value.parse().map_err(|_| bad())?,
                "--only" => choice.only.push(fault(value)?),
                "--trial" => {
                    let (name, seed) = value.split_once(':').ok_or("--trial takes FAULT:SEED")?;
                    choice.only = vec![fault(name)?];
                    choice.trial = Some(seed.parse().map_err(|_| bad())?);
                }
                _ => return Err(format!("chaos has no option {arg:?}")),
            }
        }
        Ok(choice)
    }
}

fn known() -> String {
    let names: Vec<_> = Fault::all().map(Fault::name).collect();
    format!("there are {}", names.join(", "))
}

/// Reason why this machine cannot run it, if so.
pub fn unable() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("namespaces are Linux's".into());
    }
    let lacking: Vec<_> = ["ip", "unshare", "nsenter", "setsid", "mount"]
        .into_iter()
        .filter(|p| program(p).is_none())
        .collect();
    if !lacking.is_empty() {
        return Some(format!("these programs are missing: {}", lacking.join(", ")));
    }
    apart().args(["true"]).run().err().map(|e| format!("namespaces cannot be made here: {e}"))
}

/// A command in namespaces of its own, as their process 1; it ends with this program.
fn apart() -> Task {
    let task = Task::new("unshare").args(["--net", "--mount", "--ipc", "--pid", "--fork", "--kill-child"]);
    let task = task.args(["--mount-proc"]);
    if rustix::process::geteuid().is_root() { task } else { task.args(["--user", "--map-root-user"]) }
}

/// Break jobs; how many faults there were, in words.
///
/// # Errors
/// A promise was broken, nothing was tried, or it cannot be tried here.
pub fn run(choice: &Choice) -> Result<String, String> {
    if let Some(why) = unable() {
        return Err(why);
    }
    let profile = choice.profile;
    let parts = ["build", "--workspace", "--bin", "comity", "--example", "chaos"];
    Task::cargo().args(parts).args(choice.flag().split_whitespace()).limit(1800).run()?;
    if let Some(minutes) = choice.soak {
        return soak::run(profile, minutes, choice.detection);
    }
    println!(
        "seed {}, {} minutes; again: cargo xtask chaos{} --minutes {} --seed {}",
        choice.seed,
        choice.minutes,
        choice.flag(),
        choice.minutes,
        choice.seed
    );
    let scratch = Scratch::within(&built(profile, ""), "chaos")?;
    let own = own()?;
    let mut running = Vec::new();
    for lane in Lane::ALL {
        let only: Vec<Fault> = choice.only.iter().copied().filter(|f| f.lane() == lane).collect();
        if only.is_empty() && !choice.only.is_empty() {
            continue;
        }
        let choice = Choice { only, ..choice.clone() };
        let rows = scratch.join(lane.name());
        let task =
            apart().arg(&own).args(["chaos-lane", lane.name()]).arg(&rows).args(choice.options()).echo();
        running.push((task.limit((choice.minutes * 60.0) as u64 + 60).start()?, rows));
    }
    judge(choice, running)
}

/// Wait for the lanes, and say what came out.
fn judge(choice: &Choice, running: Vec<(Running, PathBuf)>) -> Result<String, String> {
    let mut table = Table::default();
    let mut failed = Vec::new();
    for (lane, rows) in running {
        if let Err(e) = lane.wait() {
            failed.push(e);
        }
        if fs::read_to_string(&rows).ok().and_then(|text| table.read(&text)).is_none() {
            failed.push(format!("no rows in {}", rows.display()));
        }
    }
    println!("\n{table}\n");
    failed.extend(table.late());
    if table.broken() > 0 {
        failed.push(format!(
            "{} of {} trials broke a promise (seed {})",
            table.broken(),
            table.tried(),
            choice.seed
        ));
    }
    if table.tried() == 0 {
        failed.push("nothing was tried".into());
    }
    if failed.is_empty() {
        Ok(format!("{} faults, seed {}", table.tried(), choice.seed))
    } else {
        Err(failed.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_strictly() {
        let choice = Choice::parse(&["--minutes", "0.5", "--seed", "3", "--only", "blip"]).unwrap();
        assert_eq!((choice.minutes, choice.seed, &choice.only[..]), (0.5, 3, &[Fault::Blip][..]));
        let choice = Choice::parse(&["--trial", "kill-idle:77", "--release"]).unwrap();
        assert_eq!((choice.trial, choice.profile, choice.only.len()), (Some(77), "release", 1));
        for wanted in
            [choice, Choice { only: vec![Fault::CutIn, Fault::Blip], trials: 4, ..Choice::minutes(0.5) }]
        {
            let options = wanted.options();
            assert_eq!(Choice::parse(&Vec::from_iter(options.iter().map(String::as_str))), Ok(wanted));
        }
        for bad in
            [&["--minutes"][..], &["--minutes", "0"], &["--only", "love"], &["--trial", "9"], &["--x", "1"]]
        {
            assert!(Choice::parse(bad).is_err(), "{bad:?}");
        }
    }
}
