//! A lane: a process that is alone with its trials in namespaces of its own, and makes one after the other.

use super::{
    crew::Crew,
    fault::{Fault, Lane, Plan},
    lateness::Lateness,
    launcher::{Launcher, fleet::Fleet},
    net::{self, Slow},
    table::Table,
    trial::{self, Outcome},
};
use scope::Rng;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tasks::{
    child::Task,
    place::{built, root, target},
};

/// The size of `/dev/shm` and `/tmp` in a lane, in bytes.
pub(super) const ROOM: usize = 1 << 20;
/// Interval at which the rows are saved, and interval of its lines.
const SAVE: Duration = Duration::from_secs(5);
const WORD: Duration = Duration::from_secs(60);
/// Times that a trial is made again in which only times were wrong, on a machine that was as late itself.
const AGAIN: usize = 3;
const LATE: Duration = Duration::from_millis(100);
/// Most failed trials that are described.
const TOLD: usize = 10;

/// Orders for a lane.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Orders {
    pub(super) lane: Lane,
    pub(super) profile: String,
    pub(super) seed: u64,
    pub(super) limit: Duration,
    /// Only these.
    pub(super) faults: Vec<Fault>,
    /// This one trial.
    pub(super) trial: Option<u64>,
    /// At most so many.
    pub(super) trials: u64,
    /// File for the rows.
    pub(super) rows: PathBuf,
}

impl Orders {
    /// For the command line of the lane's process.
    pub(super) fn write(&self) -> Vec<String> {
        let faults: Vec<_> = self.faults.iter().map(|f| f.name()).collect();
        vec![
            "chaos-lane".into(),
            self.lane.name().into(),
            self.profile.clone(),
            self.seed.to_string(),
            self.limit.as_secs_f64().to_string(),
            faults.join(","),
            self.trial.map_or_else(|| "-".into(), |t| t.to_string()),
            self.trials.to_string(),
            self.rows.display().to_string(),
        ]
    }

    /// The name of its control group.
    pub(super) fn group(&self) -> String {
        let folder = self.rows.parent().and_then(|p| p.file_name()).unwrap_or_default();
        folder.to_string_lossy().into_owned()
    }

    pub(super) fn read(args: &[&str]) -> Option<Self> {
        let [lane, profile, seed, limit, faults, trial, trials, rows] = args else { return None };
        let faults = faults.split(',').filter(|f| !f.is_empty()).map(Fault::named).collect::<Option<_>>()?;
        Some(Self {
            lane: Lane::ALL.into_iter().find(|l| l.name() == *lane)?,
            profile: (*profile).into(),
            seed: seed.parse().ok()?,
            limit: Duration::try_from_secs_f64(limit.parse().ok()?).ok()?,
            faults,
            trial: if *trial == "-" { None } else { Some(trial.parse().ok()?) },
            trials: trials.parse().ok()?,
            rows: rows.into(),
        })
    }
}

enum Kind {
    Crew(Crew),
    Launcher(Launcher),
    Fleet(Fleet),
}

impl Kind {
    fn run(&mut self, plan: &Plan) -> Result<Outcome, String> {
        match self {
            Self::Crew(crew) => trial::run(crew, plan),
            Self::Launcher(launcher) => launcher.run(plan),
            Self::Fleet(fleet) => fleet.run(plan),
        }
    }
}

/// The lane's process, inside its namespaces.
pub fn main(args: &[&str]) -> Result<(), String> {
    let orders = Orders::read(args).ok_or("a lane is started by `cargo xtask chaos`")?;
    if rustix::process::getpid() != rustix::process::Pid::INIT {
        return Err("a lane needs a process namespace of its own".into());
    }
    empty_folders()?;
    net::ip("link set lo up")?;
    let worker = built(&orders.profile, "examples/chaos");
    let mut lacking = Vec::new();
    let mut kind = match orders.lane {
        Lane::Crew => Kind::Crew(Crew::new(worker, false)),
        Lane::Silence => {
            net::hosts()?;
            let slow = net::slow(0, Slow::Both).and_then(|()| net::hasten(0, Slow::Both));
            lacking.extend(slow.err().map(|why| (Fault::Delay, why)));
            Kind::Crew(Crew::new(worker, true))
        }
        Lane::Fleet => {
            net::hosts()?;
            let fleet = Fleet::new(built(&orders.profile, "comity"), worker);
            if let Err(why) = &fleet.servers {
                lacking.extend(Fault::all().filter(|f| f.lane() == Lane::Fleet).map(|f| (f, why.clone())));
            }
            Kind::Fleet(fleet)
        }
        Lane::Launcher => {
            let comity = built(&orders.profile, "comity");
            let launcher = Launcher::new(comity, worker, &orders.group());
            lacking.extend(launcher.group.as_ref().err().map(|why| (Fault::OutOfMemory, why.clone())));
            Kind::Launcher(launcher)
        }
    };
    lacking.retain(|(fault, _)| orders.faults.is_empty() || orders.faults.contains(fault));
    for (fault, why) in &lacking {
        let words = format!("{}: {why}", fault.name());
        if tasks::in_ci() {
            return Err(words);
        }
        println!("NOT RUN: {words}");
    }
    let lacking: Vec<Fault> = lacking.into_iter().map(|(fault, _)| fault).collect();
    trials(&orders, &lacking, &mut kind)
}

/// The seed of one trial of many, short enough to be typed.
fn derived(seed: u64, lane: u64, trial: u64) -> u64 {
    Rng::new(seed ^ lane.rotate_left(32) ^ trial.rotate_left(48)).between(0, (1 << 48) - 1)
}

fn trials(orders: &Orders, lacking: &[Fault], kind: &mut Kind) -> Result<(), String> {
    let begun = Instant::now();
    let lateness = Lateness::watch();
    let mut table = Table::default();
    let mut saved = begun;
    let mut word = begun;
    let mut told = 0;
    let seeds: Box<dyn Iterator<Item = u64>> = match orders.trial {
        Some(seed) => Box::new(std::iter::repeat(seed)),
        None => Box::new((0..).map(|i| derived(orders.seed, orders.lane as u64, i))),
    };
    let asked: Vec<Fault> = match orders.faults[..] {
        [] => Fault::all().filter(|f| f.lane() == orders.lane).collect(),
        ref some => some.to_vec(),
    };
    let nothing = asked.iter().all(|f| lacking.contains(f));
    for (i, seed) in (0..orders.trials).zip(seeds) {
        if begun.elapsed() >= orders.limit || nothing {
            break;
        }
        let fault = match orders.faults[..] {
            [] => orders.lane.choose(seed),
            ref some => some[i as usize % some.len()],
        };
        if lacking.contains(&fault) {
            continue;
        }
        let plan = Plan::new(fault, seed);
        lateness.take();
        let mut outcome = kind.run(&plan)?;
        for _ in 0..AGAIN {
            let late = lateness.take();
            if !outcome.is_only_late() || late < LATE {
                break;
            }
            println!(
                "{plan} is made again: the machine was late by {late:?}, and {}",
                outcome.broken.join("; ")
            );
            outcome = kind.run(&plan)?;
        }
        leftovers(kind, &mut outcome).map_err(|e| format!("cannot look for what is left: {e}"))?;
        let row = outcome.row.map_or_else(|| plan.row(), str::to_owned);
        table.add(&row, outcome.broken.is_empty(), &outcome.times);
        if outcome.broken.is_empty() && outcome.slow && told < TOLD {
            told += 1;
            println!("SLOW {plan}\n{}", outcome.story);
        }
        if !outcome.broken.is_empty() {
            told += 1;
            if told <= TOLD {
                println!("{}", failed(&plan, orders, &outcome));
            }
        }
        if saved.elapsed() > SAVE {
            saved = Instant::now();
            save(orders, &table)?;
        }
        if word.elapsed() > WORD {
            word = Instant::now();
            println!(
                "{}: {} trials, {} broken, after {:.0} s",
                orders.lane.name(),
                table.tried(),
                table.broken(),
                begun.elapsed().as_secs_f64()
            );
        }
    }
    save(orders, &table)
}

fn save(orders: &Orders, table: &Table) -> Result<(), String> {
    fs::write(&orders.rows, table.write()).map_err(|e| format!("{}: {e}", orders.rows.display()))
}

/// Folders that begin empty in a lane, with [`ROOM`].
const EMPTY: [&str; 3] = ["/tmp", "/dev/shm", "/run"];

/// Mount an empty folder over each. The checkout and what was built may lie in one of them: they are put aside, and back.
fn empty_folders() -> Result<(), String> {
    let mount = |args: &[&str]| Task::new("mount").args(args).run().map(drop);
    let within = |folder: &&str| ours().iter().any(|own| own.starts_with(folder));
    // Those come last, so that there is an empty folder to put things aside in.
    let (last, first): (Vec<&str>, Vec<&str>) = EMPTY.into_iter().partition(within);
    let aside =
        Path::new(first.first().ok_or("the checkout is in all of /tmp, /dev/shm and /run")?).join("aside");
    let size = format!("size={ROOM}");
    for folder in first.iter().chain(&last) {
        let own: Vec<PathBuf> = ours().into_iter().filter(|own| own.starts_with(folder)).collect();
        for (i, own) in own.iter().enumerate() {
            let place = aside.join(i.to_string());
            fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
            mount(&["--rbind", &own.to_string_lossy(), &place.to_string_lossy()])?;
        }
        mount(&["-t", "tmpfs", "-o", &size, "tmpfs", folder])?;
        for (i, own) in own.iter().enumerate() {
            fs::create_dir_all(own).map_err(|e| format!("{}: {e}", own.display()))?;
            mount(&["--move", &aside.join(i.to_string()).to_string_lossy(), &own.to_string_lossy()])?;
        }
    }
    if aside.exists() {
        fs::remove_dir_all(&aside).map_err(|e| format!("{}: {e}", aside.display()))
    } else {
        Ok(())
    }
}

/// The checkout, and what was built where that is elsewhere.
fn ours() -> Vec<PathBuf> {
    let root = root().to_owned();
    let target = target();
    let apart = !target.starts_with(&root);
    std::iter::once(root).chain(apart.then_some(target)).collect()
}

/// Processes that are not the crew's, and files.
fn leftovers(kind: &mut Kind, outcome: &mut Outcome) -> io::Result<()> {
    if let Kind::Crew(crew) = kind {
        let known = crew.pids();
        let strays = crew.processes.alive(&known);
        if !strays.is_empty() {
            outcome.broke(format!("processes are left: {strays:?}"));
        }
    }
    for folder in ["/tmp", "/dev/shm"] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if ours().iter().any(|own| own.starts_with(&path)) {
                continue;
            }
            outcome.broke(format!("{} is left", path.display()));
            if path.is_dir() { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
        }
    }
    Ok(())
}

fn failed(plan: &Plan, orders: &Orders, outcome: &Outcome) -> String {
    let release = if orders.profile == "release" { " --release" } else { "" };
    let what = outcome.broken.join("\n  ");
    format!(
        "BROKEN {plan}\n  {what}\n{}\n  again: cargo xtask chaos{release} --trial {}:{} --trials 20",
        outcome.story,
        plan.fault.name(),
        plan.seed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_command_line() {
        let orders = Orders {
            lane: Lane::Silence,
            profile: "debug".into(),
            seed: 7,
            limit: Duration::from_millis(1500),
            faults: vec![Fault::CutIn, Fault::Blip],
            trial: Some(9),
            trials: 4,
            rows: "/x/rows".into(),
        };
        let words = orders.write();
        let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
        assert_eq!(Orders::read(&words), Some(orders));
        assert_eq!(Orders::read(&["crew"]), None);
    }
}
