//! Limits of this machine: the least that any library has to do, by threads that share everything.
//!
//! ```text
//!   memory.rs   buffers that all threads see: each byte is read and written as often as the operation needs, and no more
//!   sockets.rs  bare TCP over loopback: each thread sends and receives what the best known algorithm does
//! ```
//!
//! It writes the same lines as `comity bench --raw`, so that it takes turns with the libraries like one of them. A rank is a thread
//! here: memory is shared alike, and nothing has to be mapped. Where there are more threads than cores they yield.

mod memory;
mod sockets;

use super::{cell::Operation, machine};
use serde_json::json;
use std::{
    fs::File,
    io::Write,
    path::PathBuf,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread,
    time::Instant,
};

/// Samples kept of a cell, as `comity bench` keeps them.
const MOST_SAMPLES: usize = 20_000;
const LEAST_STEPS: f64 = 5.0;
const WARM: f64 = 20.0;
/// Times the budget.
const OVERRUN: f64 = 4.0;

/// Measurements of a limit.
#[derive(Debug)]
pub(crate) struct LimitJob {
    kind: String,
    ranks: usize,
    ops: Vec<Operation>,
    sizes: Vec<u64>,
    budget: f64,
    file: PathBuf,
}

impl LimitJob {
    /// `KIND RANKS OPS SIZES BUDGET TAG`, as this program itself says it.
    pub(crate) fn parse(args: &[&str]) -> Result<Self, String> {
        let wrong = || "a limit is measured by `cargo xtask bench`".to_owned();
        let [kind, ranks, ops, sizes, budget, tag] = args else { return Err(wrong()) };
        let ops: Option<Vec<_>> = ops.split(',').map(Operation::from_name).collect();
        let sizes: Result<Vec<_>, _> = sizes.split(',').map(str::parse).collect();
        Ok(Self {
            kind: (*kind).into(),
            ranks: ranks.parse().ok().filter(|n| (1..=1024).contains(n)).ok_or_else(wrong)?,
            ops: ops.ok_or_else(wrong)?,
            sizes: sizes.map_err(|_| wrong())?,
            budget: budget.parse().map_err(|_| wrong())?,
            file: format!("{tag}.r0.jsonl").into(),
        })
    }

    pub(crate) fn run(&self) -> Result<(), String> {
        let fail = |e| format!("cannot write {}: {e}", self.file.display());
        let mut file = File::create(&self.file).map_err(fail)?;
        for &op in &self.ops {
            for &bytes in &self.sizes {
                let cpu = machine::own_cpu();
                let busy = machine::busy();
                let begun = Instant::now();
                let steps = match self.kind.as_str() {
                    "memory" => timed(self, op, memory::buffers(op, self.ranks, bytes).steps())?,
                    "sockets" => timed(self, op, sockets::steps(op, self.ranks, bytes)?)?,
                    other => return Err(format!("there is no limit called {other:?}")),
                };
                let line = json!({
                    "op": op.name(), "bytes": bytes, "n": self.ranks, "ok": true, "iters": steps.calls, "batch": 1,
                    "busy_s": machine::busy() - busy, "wall_ns": begun.elapsed().as_nanos() as u64,
                    "user_s": machine::own_cpu() - cpu, "sys_s": 0, "peak_kib": null, "times_ns": steps.times,
                });
                writeln!(file, "{line}").map_err(fail)?;
            }
        }
        Ok(())
    }
}

/// A thread's part of a call.
type Step<'a> = Box<dyn FnMut(&mut Turn<'_>) -> Result<(), String> + Send + 'a>;

struct Times {
    calls: usize,
    /// Nanoseconds.
    times: Vec<u64>,
}

/// Each in a cache line of its own, and in the neighbour that is fetched with it.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Flag(AtomicU64);

/// Barrier of the threads.
#[derive(Debug)]
struct Meeting {
    flags: Vec<Flag>,
    crowded: bool,
}

/// Turn of a thread at the meeting.
#[derive(Debug)]
struct Turn<'a> {
    meeting: &'a Meeting,
    me: usize,
    generation: u64,
}

impl Turn<'_> {
    /// Wait until all are here.
    fn meet(&mut self) {
        self.arrive();
        for other in 0..self.meeting.flags.len() {
            self.wait_for(other);
        }
    }

    fn arrive(&mut self) {
        self.generation += 1;
        self.meeting.flags[self.me].0.store(self.generation, Ordering::Release);
    }

    fn wait_for(&self, other: usize) {
        let patience = if self.meeting.crowded { 50 } else { 2_000 };
        let mut spins = 0;
        while self.meeting.flags[other].0.load(Ordering::Acquire) < self.generation {
            spins += 1;
            if spins > patience { thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

/// Each step on a thread of its own, over and over.
fn timed(job: &LimitJob, op: Operation, steps: Vec<Step<'_>>) -> Result<Times, String> {
    let cores = machine::cores();
    let meeting = Meeting {
        flags: steps.iter().map(|_| Flag::default()).collect(),
        crowded: steps.len() > cores.len(),
    };
    let count = AtomicUsize::new(0);
    let each: Vec<Result<Vec<u64>, String>> = thread::scope(|s| {
        let threads: Vec<_> = steps
            .into_iter()
            .enumerate()
            .map(|(me, step)| {
                let meeting = &meeting;
                let count = &count;
                let core = cores[me % cores.len()];
                s.spawn(move || {
                    machine::pin(core);
                    one(step, Turn { meeting, me, generation: 0 }, count, job.budget)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    let each = each.into_iter().collect::<Result<Vec<_>, _>>()?;
    let slowest = |i: usize| each.iter().filter_map(|t| t.get(i)).max().copied().unwrap_or(0);
    let samples = each[0].len();
    let times = (0..samples).map(|i| slowest(i) / op.calls() as u64).collect();
    Ok(Times { calls: samples * op.calls(), times })
}

fn one(mut step: Step<'_>, mut turn: Turn<'_>, count: &AtomicUsize, budget: f64) -> Result<Vec<u64>, String> {
    let mut times = Vec::new();
    step(&mut turn)?;
    // The first thread says how often, by the middle one of three calls; then again, warm.
    for share in [2.0, 1.0] {
        let mut calls = [0.0; 3];
        for call in &mut calls {
            let begun = Instant::now();
            step(&mut turn)?;
            *call = begun.elapsed().as_secs_f64();
        }
        calls.sort_by(f64::total_cmp);
        if turn.me == 0 {
            let each = calls[1];
            let most = if share > 1.0 { WARM } else { MOST_SAMPLES as f64 };
            let least = if share > 1.0 { 1.0 } else { LEAST_STEPS };
            count.store((budget / share / each.max(1e-9)).min(most).max(least) as usize, Ordering::Relaxed);
        }
        turn.meet();
        let steps = count.load(Ordering::Relaxed);
        turn.meet();
        times = Vec::with_capacity(steps);
        let begun = Instant::now();
        let mut last = begun;
        for i in 1..=steps {
            step(&mut turn)?;
            let now = Instant::now();
            times.push((now - last).as_nanos() as u64);
            last = now;
            // On a busy machine some calls take a thousand times as long as others: the first thread ends what takes far too long.
            if i >= LEAST_STEPS as usize && i % (steps / 8).max(1) == 0 {
                if turn.me == 0 && begun.elapsed().as_secs_f64() > OVERRUN * budget {
                    count.store(0, Ordering::Relaxed);
                }
                turn.meet();
                let over = count.load(Ordering::Relaxed) == 0;
                turn.meet();
                if over {
                    break;
                }
                last = Instant::now();
            }
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(kind: &str, file: PathBuf) -> LimitJob {
        LimitJob {
            kind: kind.into(),
            ranks: 3,
            ops: Operation::ALL.into(),
            sizes: vec![64, 200_000],
            budget: 0.0,
            file,
        }
    }

    #[test]
    fn every_operation_has_both_limits() {
        let scratch = tasks::place::Scratch::new("limit").unwrap();
        for kind in ["memory", "sockets"] {
            let file = scratch.join(kind);
            job(kind, file.clone()).run().unwrap();
            let text = std::fs::read_to_string(file).unwrap();
            assert_eq!(text.lines().count(), 2 * Operation::ALL.len());
            for line in text.lines() {
                let value: serde_json::Value = serde_json::from_str(line).unwrap();
                let times = value["times_ns"].as_array().unwrap();
                assert!(times.len() >= 5 && times.iter().any(|t| t.as_u64() > Some(0)), "{line}");
            }
        }
        assert!(job("neither", scratch.join("x")).run().is_err());
    }

    #[test]
    fn words_are_read() {
        let args = ["memory", "2", "all_reduce,barrier", "8,64", "0.1", "/x/tag"];
        let job = LimitJob::parse(&args).unwrap();
        assert_eq!((job.ops.len(), job.file), (2, PathBuf::from("/x/tag.r0.jsonl")));
        assert!(LimitJob::parse(&["memory", "0", "barrier", "8", "1", "t"]).is_err());
        assert!(LimitJob::parse(&["memory"]).is_err());
    }
}
