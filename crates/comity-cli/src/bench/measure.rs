//! Timing of a cell.
//!
//! Calls are made back to back, without a barrier between them. A sample is one call, or the mean of a batch where more
//! calls fit into the time than samples are kept. The time of a call is that of the rank where it took longest.

use super::{BenchArgs, op::Cell};
use comity::{Group, Result};
use comity_check::value::Sample;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use std::time::Instant;

/// Samples kept of a cell. With half a second for a cell, calls below 25 us are timed in batches: reading the clock would
/// show in them.
const MOST_SAMPLES: usize = 20_000;
/// Fewer steps than this tell nothing.
const LEAST_STEPS: usize = 5;

#[derive(Clone, Debug)]
pub(super) struct Samples {
    /// Wrong elements of the call that was checked.
    pub(super) wrong: u64,
    /// Calls timed.
    pub(super) calls: usize,
    /// Steps in a sample.
    pub(super) batch: usize,
    /// Nanoseconds of a call, by sample.
    pub(super) times: Vec<f64>,
    pub(super) wall_ns: u128,
    /// Seconds of processor time: this process's own code's, and the system's on its behalf.
    pub(super) user_s: f64,
    pub(super) sys_s: f64,
    /// Seconds that the processors of this host worked meanwhile, for whomever.
    pub(super) busy_s: f64,
    /// The most memory that this process has had, in KiB.
    pub(super) peak_kib: u64,
}

pub(super) fn measure<T: Sample>(
    group: &Group,
    cell: &mut Cell<'_, T>,
    bytes: u64,
    args: &BenchArgs,
) -> Result<Samples> {
    let wrong = cell.check()?;
    let warmup = args.warmup.unwrap_or(if bytes <= 1 << 20 { 20 } else { 2 });
    for _ in 0..warmup {
        cell.step()?;
    }
    cell.finish()?;
    let steps = match args.iters {
        Some(calls) => calls.div_ceil(cell.op.calls()),
        None => {
            let rehearsal = warmup.max(1);
            let start = Instant::now();
            for _ in 0..rehearsal {
                cell.step()?;
            }
            cell.finish()?;
            // Rank 0 decides for everybody.
            let mut each = [start.elapsed().as_secs_f64() / f64::from(rehearsal)];
            group.broadcast(&mut each, 0)?;
            ((args.budget / each[0].max(1e-9)) as usize).max(LEAST_STEPS)
        }
    };
    let batch = args.batch.unwrap_or_else(|| steps.div_ceil(MOST_SAMPLES));
    let samples = (steps / batch).max(1);
    let mut times = Vec::with_capacity(samples);
    group.barrier()?;
    let busy_before = busy();
    let before = cpu();
    let start = Instant::now();
    let mut last = start;
    for _ in 0..samples {
        for _ in 0..batch {
            cell.step()?;
        }
        cell.finish()?;
        let now = Instant::now();
        times.push((now - last).as_nanos() as f64);
        last = now;
    }
    let after = cpu();
    let busy_s = busy() - busy_before;
    let calls = cell.op.calls() * batch;
    times.iter_mut().for_each(|t| *t /= calls as f64);
    Ok(Samples {
        wrong,
        calls: samples * calls,
        batch,
        times,
        wall_ns: (last - start).as_nanos(),
        user_s: after.0 - before.0,
        sys_s: after.1 - before.1,
        busy_s,
        peak_kib: peak_kib(),
    })
}

/// Seconds of processor time that this process has used: for its own code, and for the system's on its behalf.
fn cpu() -> (f64, f64) {
    let seconds = |t: nix::sys::time::TimeVal| t.num_microseconds() as f64 * 1e-6;
    let used = getrusage(UsageWho::RUSAGE_SELF);
    used.map_or((0.0, 0.0), |u| (seconds(u.user_time()), seconds(u.system_time())))
}

/// Seconds that the processors of this host have worked since it started; 0 where the system does not say.
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).map(|f| f.parse().unwrap_or(0)).collect();
    // user nice system idle iowait irq softirq
    let worked: u64 = [0, 1, 2, 5, 6].into_iter().filter_map(|i| fields.get(i)).sum();
    worked as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// The most memory that this process has had, in KiB; 0 where the system does not say.
fn peak_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
