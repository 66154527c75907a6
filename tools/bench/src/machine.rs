//! The machine: its cores, who works on them, and how far two of them are from each other.

use super::record::Distance;
use serde_json::{Value, json};
use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

/// Nanoseconds from one core to another: below the first they share a cache, above the second they do not.
const NEAR: f64 = 120.0;
const FAR: f64 = 180.0;

/// The cores that this process may use.
#[cfg(target_os = "linux")]
pub(crate) fn cores() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let found: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).collect();
    if found.is_empty() { vec![0] } else { found }
}

/// Numbers of the cores: as many as there are.
#[cfg(not(target_os = "linux"))]
pub(crate) fn cores() -> Vec<usize> {
    (0..thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// Keep this thread on a core, where the system allows it.
#[cfg(target_os = "linux")]
pub(crate) fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    // Without it the threads move; times then vary more.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// No other system lets a thread choose.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_: usize) {}

/// Fields of the first line of /proc/stat, in seconds: user nice system idle iowait irq softirq steal.
fn stat() -> Vec<f64> {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    fields.map(|f| f.parse::<f64>().unwrap_or(0.0) / ticks).collect()
}

/// Seconds that all cores have worked, for whomever.
pub(crate) fn busy() -> f64 {
    let fields = stat();
    [0, 1, 2, 5, 6].into_iter().filter_map(|i| fields.get(i)).sum()
}

/// Seconds that the hypervisor kept from this machine's cores.
pub(crate) fn stolen() -> f64 {
    stat().get(7).copied().unwrap_or(0.0)
}

/// Seconds of processor time of this process.
pub(crate) fn own_cpu() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    fields.skip(11).take(2).map(|f| f.parse::<f64>().unwrap_or(0.0) / ticks).sum()
}

/// Nanoseconds that a flag takes from one core to another: the best of some rounds, since others may work meanwhile. None with
/// one core.
pub(crate) fn flag_ns() -> Option<f64> {
    const ROUNDS: u64 = 8;
    const TRIPS: u64 = 4000;
    let cores = cores();
    let (&a, &b) = (cores.first()?, cores.get(1)?);
    #[repr(align(128))]
    struct Line(AtomicU64);
    let ping = Line(AtomicU64::new(0));
    let pong = Line(AtomicU64::new(0));
    let mut best = f64::MAX;
    thread::scope(|s| {
        s.spawn(|| {
            pin(b);
            for i in 1..=ROUNDS * TRIPS {
                until(&ping.0, i);
                pong.0.store(i, Ordering::Release);
            }
        });
        let rounds = s.spawn(|| {
            pin(a);
            let mut best = f64::MAX;
            for round in 0..ROUNDS {
                let begun = Instant::now();
                for i in round * TRIPS + 1..=(round + 1) * TRIPS {
                    ping.0.store(i, Ordering::Release);
                    until(&pong.0, i);
                }
                best = best.min(begun.elapsed().as_nanos() as f64 / TRIPS as f64 / 2.0);
            }
            best
        });
        best = rounds.join().unwrap_or(f64::MAX);
    });
    Some(best)
}

fn until(flag: &AtomicU64, value: u64) {
    let mut spins = 0;
    while flag.load(Ordering::Acquire) < value {
        spins += 1;
        // The other thread may wait for a core.
        if spins > 20_000 {
            thread::yield_now();
            spins = 0;
        }
    }
}

/// By the flag before a launch and after it.
pub(crate) fn distance(before: Option<f64>, after: Option<f64>) -> Distance {
    match (before, after) {
        (Some(a), Some(b)) if a.max(b) < NEAR => Distance::Near,
        (Some(a), Some(b)) if a.min(b) > FAR => Distance::Far,
        _ => Distance::Mixed,
    }
}

/// Description for readers of results.
pub(crate) fn describe() -> Value {
    let line = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let of = |text: &str, key: &str| {
        let found = text.lines().find_map(|l| l.strip_prefix(key)?.split_once(':'));
        found.map_or_else(|| "unknown".to_owned(), |(_, v)| v.trim().to_owned())
    };
    let kib = of(&line("/proc/meminfo"), "MemTotal");
    let gib =
        kib.split_whitespace().next().and_then(|k| k.parse::<f64>().ok()).map(|k| k / f64::from(1 << 20));
    let virtual_ = of(&line("/proc/cpuinfo"), "flags").split_whitespace().any(|f| f == "hypervisor");
    json!({
        "processor": of(&line("/proc/cpuinfo"), "model name"),
        "cores": cores().len(),
        "virtual": virtual_,
        "memory_GiB": gib.map(f64::round),
        "kernel": line("/proc/sys/kernel/osrelease").trim(),
        "congestion_control": line("/proc/sys/net/ipv4/tcp_congestion_control").trim(),
    })
}

/// `one virtual machine with 2 cores (AMD EPYC)`.
pub(crate) fn words(machine: &Value) -> String {
    let what = if machine["virtual"].as_bool() == Some(true) { "virtual machine" } else { "machine" };
    let processor = machine["processor"].as_str().unwrap_or("unknown");
    format!("one {what} with {} cores ({processor})", machine["cores"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_have_names() {
        assert_eq!(distance(Some(43.0), Some(50.0)), Distance::Near);
        assert_eq!(distance(Some(240.0), Some(250.0)), Distance::Far);
        assert_eq!(distance(Some(43.0), Some(250.0)), Distance::Mixed);
        assert_eq!(distance(None, None), Distance::Mixed);
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        assert!(busy() > 0.0 && !cores().is_empty());
        if cores().len() > 1 {
            let ns = flag_ns().unwrap();
            assert!(ns > 1.0, "{ns}");
        }
        let machine = describe();
        assert!(
            words(&machine).contains("cores (") && machine["memory_GiB"].as_f64() > Some(0.0),
            "{machine}"
        );
    }
}
