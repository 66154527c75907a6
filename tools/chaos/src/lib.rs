//! `cargo xtask chaos`: real processes are killed, stopped, cut off, starved and bothered at random moments, over and over;
//! each time every rank must have been told the truth in time, every sum be right, and nothing be left.
//!
//! Four lanes run side by side: ranks on one host that live through many jobs, jobs of `comity launch`, the same over ssh, and ranks on four
//! hosts that fall silent. In the gate the two of the launcher take turns. Each lane has network, process, mount and IPC namespaces of its own, so that what it leaves is seen,
//! and goes with it.

mod blame;
mod crew;
mod fault;
mod lane;
mod lateness;
mod launcher;
mod net;
mod processes;
mod silence;
mod soak;
mod strangers;
mod table;
mod trial;

use fault::{Fault, Lane};
use lane::Orders;
pub use lane::main as lane;
use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use table::Table;
use tasks::{
    child::{Running, Task},
    place::{Scratch, built, own, program},
};

/// Minutes up to which a run takes a share.
const GATE: f64 = 2.0;

/// Build of the programs that are broken.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Profile {
    Debug,
    Release,
}

/// Choice of a run, from the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    minutes: f64,
    seed: u64,
    profile: Profile,
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
            profile: Profile::Debug,
            only: Vec::new(),
            trial: None,
            trials: u64::MAX,
            soak: None,
            detection: 5.0,
        }
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
                choice.profile = Profile::Release;
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
    let release = choice.profile == Profile::Release;
    let profile = if release { "release" } else { "debug" };
    build(choice.profile)?;
    if let Some(minutes) = choice.soak {
        return soak::run(profile, minutes, choice.detection);
    }
    let again = if release { " --release" } else { "" };
    println!(
        "seed {}, {} minutes; again: cargo xtask chaos{again} --minutes {} --seed {}",
        choice.seed, choice.minutes, choice.minutes, choice.seed
    );
    let scratch = Scratch::within(&built(profile, ""), "chaos")?;
    let running = start(choice, profile, &scratch)?;
    judge(choice, running)
}

/// A process for each lane that has something to do.
fn start(choice: &Choice, profile: &str, scratch: &Scratch) -> Result<Vec<(Running, Orders)>, String> {
    let own = own()?;
    let mut running = Vec::new();
    // So that a minute on few cores has trials of each.
    let turn = if choice.seed.is_multiple_of(2) { Lane::Launcher } else { Lane::Fleet };
    for lane in Lane::ALL {
        if choice.minutes <= GATE && choice.only.is_empty() && lane == turn {
            continue;
        }
        let faults: Vec<Fault> = choice.only.iter().copied().filter(|f| f.lane() == lane).collect();
        if faults.is_empty() && !choice.only.is_empty() {
            continue;
        }
        let orders = Orders {
            lane,
            profile: profile.into(),
            seed: choice.seed,
            limit: Duration::from_secs_f64(choice.minutes * 60.0),
            faults,
            trial: choice.trial,
            trials: choice.trials,
            rows: scratch.join(lane.name()),
        };
        let task = apart().args([&own]).args(orders.write()).echo();
        running.push((task.limit((choice.minutes * 60.0) as u64 + 60).start()?, orders));
    }
    Ok(running)
}

/// Wait for the lanes, and say what came out.
fn judge(choice: &Choice, running: Vec<(Running, Orders)>) -> Result<String, String> {
    let mut table = Table::default();
    let mut failed = Vec::new();
    for (lane, orders) in running {
        if let Err(e) = lane.wait() {
            failed.push(e);
        }
        launcher::remove_group(&orders.group());
        let rows = orders.rows;
        match fs::read_to_string(&rows).ok().and_then(|text| Table::read(&text)) {
            Some(more) => table.merge(more),
            None => failed.push(format!("no rows in {}", rows.display())),
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

fn build(profile: Profile) -> Result<(), String> {
    let parts = ["--workspace", "--bin", "comity", "--example", "chaos"];
    let cargo = || Task::cargo().args(["build"]).args(parts).limit(1800);
    match profile {
        Profile::Debug => cargo().run().map(drop),
        Profile::Release => cargo().args(["--release"]).run().map(drop),
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
        assert_eq!((choice.trial, choice.profile, choice.only.len()), (Some(77), Profile::Release, 1));
        for bad in
            [&["--minutes"][..], &["--minutes", "0"], &["--only", "love"], &["--trial", "9"], &["--x", "1"]]
        {
            assert!(Choice::parse(bad).is_err(), "{bad:?}");
        }
    }
}
