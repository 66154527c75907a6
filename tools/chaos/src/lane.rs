//! A lane: a process that is alone with its trials in namespaces of its own, and makes one after the other.

use super::{
    Choice,
    crew::Crew,
    fault::{Fault, Lane, Plan},
    lateness::Lateness,
    net::{self, Way},
    table,
    trial::{self, Outcome},
};
use scope::Rng;
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tasks::{
    child::Task,
    place::{built, make, root, target},
};

/// The size of `/dev/shm` and `/tmp` in a lane, in bytes.
pub(super) const ROOM: usize = 1 << 20;
/// Interval of its lines.
const WORD: Duration = Duration::from_secs(60);
/// Times that a trial is made again in which only times were wrong, on a machine that was as late itself.
const AGAIN: usize = 3;
const LATE: Duration = Duration::from_millis(100);
/// Most failed trials that are described.
const TOLD: usize = 10;

/// Lane's process, inside its namespaces: `LANE ROWS` and the options of a run.
pub fn main(args: &[&str]) -> Result<(), String> {
    let wrong = "a lane is started by `cargo xtask chaos`";
    let &[name, rows, ref options @ ..] = args else { return Err(wrong.into()) };
    let lane = Lane::ALL.into_iter().find(|l| l.name() == name).ok_or(wrong)?;
    let choice = Choice::parse(options)?;
    if rustix::process::getpid() != rustix::process::Pid::INIT {
        return Err("a lane needs a process namespace of its own".into());
    }
    empty_folders()?;
    net::ip("link set lo up")?;
    let mut faults: Vec<Fault> = Fault::all().filter(|f| f.lane() == lane).collect();
    faults.retain(|f| choice.only.is_empty() || choice.only.contains(f));
    if lane == Lane::Silence {
        net::hosts()?;
        let slow = net::slow(0, Way::Both).and_then(|()| net::hasten(0, Way::Both));
        if let Some(why) = slow.err().filter(|_| faults.contains(&Fault::Delay)) {
            let words = format!("{}: {why}", Fault::Delay.name());
            if tasks::in_ci() {
                return Err(words);
            }
            println!("NOT RUN: {words}");
            faults.retain(|f| *f != Fault::Delay);
        }
    }
    let crew = Crew::new(built(choice.profile, "examples/chaos"), lane == Lane::Silence);
    trials(lane, &choice, &faults, crew, rows.as_ref())
}

/// The seed of one trial of many, short enough to be typed.
fn derived(seed: u64, lane: u64, trial: u64) -> u64 {
    Rng::new(seed ^ lane.rotate_left(32) ^ trial.rotate_left(48)).between(0, (1 << 48) - 1)
}

/// Trials of these faults, one after the other; each has a line in the file of rows.
fn trials(lane: Lane, choice: &Choice, faults: &[Fault], mut crew: Crew, rows: &Path) -> Result<(), String> {
    let fail = |e: io::Error| format!("{}: {e}", rows.display());
    let mut rows = fs::File::create(rows).map_err(fail)?;
    let begun = Instant::now();
    let limit = Duration::from_secs_f64(choice.minutes * 60.0);
    let lateness = Lateness::watch();
    let mut word = begun;
    let mut tried = 0;
    let mut broken = 0;
    let mut told = 0;
    for i in 0..choice.trials {
        if begun.elapsed() >= limit || faults.is_empty() {
            break;
        }
        let seed = choice.trial.unwrap_or_else(|| derived(choice.seed, lane as u64, i));
        let fault =
            if choice.only.is_empty() { lane.choose(seed) } else { faults[i as usize % faults.len()] };
        if !faults.contains(&fault) {
            continue;
        }
        let plan = Plan::new(fault, seed);
        lateness.take();
        let mut outcome = trial::run(&mut crew, &plan)?;
        for _ in 0..AGAIN {
            let late = lateness.take();
            if !outcome.is_only_late() || late < LATE {
                break;
            }
            println!(
                "{plan} is made again: the machine was late by {late:?}, and {}",
                outcome.broken.join("; ")
            );
            outcome = trial::run(&mut crew, &plan)?;
        }
        leftovers(&mut crew, &mut outcome).map_err(|e| format!("cannot look for what is left: {e}"))?;
        let row = outcome.row.map_or_else(|| plan.row(), str::to_owned);
        let kept = outcome.broken.is_empty();
        rows.write_all(table::line(&row, kept, &outcome.times).as_bytes()).map_err(fail)?;
        tried += 1;
        broken += usize::from(!kept);
        if (!kept || outcome.slow) && told < TOLD {
            told += 1;
            let slow = || format!("SLOW {plan}\n{}", outcome.story);
            println!("{}", if kept { slow() } else { failed(&plan, choice, &outcome) });
        }
        if word.elapsed() > WORD {
            word = Instant::now();
            let seconds = begun.elapsed().as_secs_f64();
            println!("{}: {tried} trials, {broken} broken, after {seconds:.0} s", lane.name());
        }
    }
    Ok(())
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
            make(&place)?;
            mount(&["--rbind", &own.to_string_lossy(), &place.to_string_lossy()])?;
        }
        mount(&["-t", "tmpfs", "-o", &size, "tmpfs", folder])?;
        for (i, own) in own.iter().enumerate() {
            make(own)?;
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
fn leftovers(crew: &mut Crew, outcome: &mut Outcome) -> io::Result<()> {
    let known = crew.pids();
    let strays = crew.processes.alive(&known);
    if !strays.is_empty() {
        outcome.broke(format!("processes are left: {strays:?}"));
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

fn failed(plan: &Plan, choice: &Choice, outcome: &Outcome) -> String {
    format!(
        "BROKEN {plan}\n  {}\n{}\n  again: cargo xtask chaos{} --trial {}:{} --trials 20",
        outcome.broken.join("\n  "),
        outcome.story,
        choice.flag(),
        plan.fault.name(),
        plan.seed
    )
}
