//! `cargo xtask chaos --soak MINUTES`: eight ranks to a core that all want it all the time, and nobody is given up for dead.
//!
//! A limit below the default of 5 s makes it stricter: beats come as much more often and may be as much less late, so that an hour
//! at 0.5 s has the beats of ten at 5 s. The longest silence is printed, to be compared with the limit, and what
//! the ranks hold after half a minute and at the end, to be compared with each other.

use super::{Held, processes::signal};
use rustix::process::{Pid, Signal};
use std::{
    fs, thread,
    time::{Duration, Instant},
};
use tasks::{child::Task, place::built};

/// Ranks to a core.
const CROWD: usize = 8;
/// Once a minute a rank is stopped until this is left of the limit; of a shorter limit, never.
const LEFT: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_secs(60);

pub(super) fn run(profile: &str, minutes: f64, limit: f64) -> Result<String, String> {
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let ranks = cores * CROWD;
    let seconds = minutes * 60.0;
    let blip = Duration::from_secs_f64(limit).checked_sub(LEFT).filter(|b| !b.is_zero());
    println!("{ranks} ranks on {cores} cores for {minutes} minutes; who is silent for {limit} s is given up");
    let worker = built(profile, "examples/chaos");
    let mark = seconds.to_string();
    let task = Task::new(built(profile, "comity"))
        .args(["launch", "-n", &ranks.to_string(), "--"])
        .args([&worker])
        .args(["soak", &mark])
        .env("COMITY_DETECTION", limit.to_string())
        .limit(seconds as u64 + 300);
    let running = task.start()?;
    let begun = Instant::now();
    let ended = thread::spawn(move || running.wait());
    let mut next = EVERY / 2;
    let mut blips = 0usize;
    let mut held = Vec::new();
    while !ended.is_finished() {
        thread::sleep(Duration::from_millis(200));
        if begun.elapsed() > next && begun.elapsed().as_secs_f64() + 10.0 < seconds {
            next += EVERY;
            let found = processes(&mark);
            let now = words(&found);
            if let (Some(pid), Some(blip)) = (found.get(blips * 5 % found.len().max(1)), blip) {
                blips += 1;
                signal(*pid, Signal::STOP);
                thread::sleep(blip);
                signal(*pid, Signal::CONT);
            }
            println!(
                "{:.0} s, {} ranks run, {blips} stops, they hold {now}",
                begun.elapsed().as_secs_f64(),
                found.len()
            );
            held.push(now);
        }
    }
    let said = ended.join().map_err(|_| "the thread that waits for the job panicked")??;
    let ok = said.lines().filter(|l| l.contains("\tok\t")).count();
    if ok != ranks {
        return Err(format!("{ok} of {ranks} ranks ended in good order:\n{said}"));
    }
    let calls = said.lines().find_map(|l| l.split_once("\tok\t")).map_or("?", |(_, calls)| calls);
    let silences =
        said.lines().filter_map(|l| l.split_once("\tsilence\t")?.1.rsplit('\t').next()?.parse().ok());
    let silences: Vec<u64> = silences.collect();
    let longest = silences.iter().max().filter(|_| silences.len() == ranks);
    let longest =
        longest.ok_or_else(|| format!("{} ranks said how long others were silent", silences.len()))?;
    let stops = blip.map_or_else(|| "no stops".into(), |b| format!("{blips} stops of {} s", b.as_secs_f64()));
    Ok(format!(
        "{ranks} ranks, {minutes} minutes, limit {limit} s, {stops}, {calls} calls a rank, no false alarm; longest silence {longest} ms; \
         held at first {}, at last {}",
        held.first().map_or("nothing", String::as_str),
        held.last().map_or("nothing", String::as_str),
    ))
}

/// Resources that all ranks together hold.
fn words(processes: &[Pid]) -> String {
    let all: Vec<Held> = processes.iter().map(|pid| Held::by(pid.as_raw_pid().cast_unsigned())).collect();
    let sum = |of: fn(&Held) -> usize| all.iter().map(of).sum::<usize>();
    format!(
        "{} MiB, {} descriptors, {} threads",
        sum(|h| h.kib) >> 10,
        sum(|h| h.descriptors),
        sum(|h| h.threads)
    )
}

/// The ranks of this soak, by their arguments: those of one on another target folder look the same, but not their program.
fn processes(mark: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|e| Pid::from_raw(e.file_name().to_str()?.parse().ok()?));
    let ours = |pid: &Pid| {
        let args = fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
        let args: Vec<&[u8]> = args.split(|b| *b == 0).collect();
        args.get(1) == Some(&&b"soak"[..]) && args.get(2) == Some(&mark.as_bytes())
    };
    numbers.filter(ours).collect()
}
