//! `cargo xtask chaos --soak MINUTES`: eight ranks to a core that all want it all the time, and nobody is given up for dead.

use crate::{child::Task, place::built};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// Ranks to a core.
const CROWD: usize = 8;
/// Once a minute a rank is stopped this long, below the limit of 5 s.
const BLIP: Duration = Duration::from_secs(4);
const EVERY: Duration = Duration::from_secs(60);

pub(super) fn run(profile: &str, minutes: f64) -> Result<String, String> {
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let (ranks, seconds) = (cores * CROWD, minutes * 60.0);
    println!("{ranks} ranks on {cores} cores for {minutes} minutes");
    let (worker, mark) = (built(profile, "examples/chaos"), format!("soak:{seconds}"));
    let task = Task::new(built(profile, "comity"))
        .args(["launch", "-n", &ranks.to_string(), "--"])
        .args([&worker])
        .args(["launched", &mark, "1"])
        .limit(seconds as u64 + 300);
    let running = task.start()?;
    let begun = Instant::now();
    let ended = thread::spawn(move || running.wait());
    let (mut next, mut blips) = (EVERY / 2, 0usize);
    while !ended.is_finished() {
        thread::sleep(Duration::from_millis(200));
        if begun.elapsed() > next && begun.elapsed().as_secs_f64() + 10.0 < seconds {
            next += EVERY;
            let found = processes(&mark);
            if let Some(pid) = found.get(blips * 5 % found.len().max(1)) {
                blips += 1;
                signal(*pid, "STOP")?;
                thread::sleep(BLIP);
                signal(*pid, "CONT")?;
            }
            println!("{:.0} s, {blips} stops of {} s", begun.elapsed().as_secs_f64(), BLIP.as_secs());
        }
    }
    let said = ended.join().map_err(|_| "the thread that waits for the job panicked")??;
    let ok = said.lines().filter(|l| l.contains("\tok\t")).count();
    if ok != ranks {
        return Err(format!("{ok} of {ranks} ranks ended in good order:\n{said}"));
    }
    let calls = said.lines().find_map(|l| l.split_once("\tok\t")).map_or("?", |(_, calls)| calls);
    Ok(format!(
        "{ranks} ranks, {minutes} minutes, {blips} stops of 4 s, {calls} calls a rank, no false alarm"
    ))
}

fn signal(pid: i32, name: &str) -> Result<(), String> {
    Task::new("kill").args([&format!("-{name}"), &pid.to_string()]).run().map(drop)
}

/// The ranks of this soak, by their arguments: those of one on another target folder look the same, but not their program.
fn processes(mark: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let ours = |pid: &i32| {
        let args = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let args: Vec<&[u8]> = args.split(|b| *b == 0).collect();
        args.get(1) == Some(&&b"launched"[..]) && args.get(2) == Some(&mark.as_bytes())
    };
    numbers.filter(ours).collect()
}
