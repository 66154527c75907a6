//! A job of `--tune` and `--predict`: every algorithm of every operation at some sizes, each timed, with its predicted time.

use super::super::{BenchArgs, BenchOp, Cell, elements};
use crate::here;
use comity::{Algorithm, DType, Group, ReduceOp, Result, tools};
use comity_plan::Kind;
use serde::{Deserialize, Serialize};
use std::{io::Write, time::Instant};

/// Reading the clock shows in a sample that is shorter.
const SAMPLE: f64 = 20e-6;
/// Calls before the clock runs; of those that take long one.
const WARM: usize = 4;
const LONG: f64 = 2e-3;
/// The most steps that are timed.
const MOST: f64 = 50_000.0;

/// Timing of one algorithm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SurveyRow {
    pub(super) op: String,
    pub(super) algorithm: String,
    /// Bytes of the whole buffer, as asked for.
    pub(super) bytes: u64,
    /// Microseconds of a call: the median of what the slowest rank took.
    pub(super) us: f64,
    pub(super) predicted_us: f64,
    /// It is the algorithm that Comity would choose.
    pub(super) chosen: bool,
}

/// `comity bench --survey`, in a job; the exit code.
pub(in super::super) fn survey(group: &Group, args: &BenchArgs) -> u8 {
    match rows(group, args) {
        Ok(rows) => {
            let speaks = group.rank() == 0;
            for row in rows.iter().filter(|_| speaks) {
                // The job that reads this may have gone.
                let _ = writeln!(std::io::stdout(), "{}", serde_json::to_string(row).unwrap_or_default());
            }
            0
        }
        Err(e) => here::failed("bench", &e),
    }
}

fn rows(group: &Group, args: &BenchArgs) -> Result<Vec<SurveyRow>> {
    let n = group.size();
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        let op = BenchOp::from_name(kind.name()).filter(|_| args.tune.wants(&args.ops, kind));
        let Some(op) = op else { continue };
        let sizes = if kind == Kind::Barrier { &[0][..] } else { &args.tune.at_sizes };
        for &asked in sizes {
            let (count, _) = elements(op, asked, DType::F32, n, false)?;
            let mut cell = Cell::<f32>::new(op, ReduceOp::Sum, group, count, None, false)?;
            cell.check()?;
            let part = if kind.has_parts() { count / n } else { count };
            let predict = |by: Option<Algorithm>| tools::predict(group, kind, part, size_of::<f32>(), by);
            let chosen = predict(None).map(|c| c.algorithm);
            for algorithm in kind.algorithms() {
                here::prefer(group, algorithm)?;
                let seconds = time(group, &mut cell, args.budget)?;
                rows.push(SurveyRow {
                    op: kind.name().into(),
                    algorithm: algorithm.name().into(),
                    bytes: asked,
                    us: seconds * 1e6,
                    predicted_us: predict(Some(algorithm)).map_or(0.0, |c| c.predicted * 1e6),
                    chosen: chosen == Some(algorithm),
                });
            }
            tools::prefer_algorithm(group, None);
        }
    }
    Ok(rows)
}

/// Seconds of a call, in about `budget` seconds.
fn time(group: &Group, cell: &mut Cell<'_, f32>, budget: f64) -> Result<f64> {
    let mut step = || -> Result<f64> {
        let start = Instant::now();
        cell.step()?;
        Ok(start.elapsed().as_secs_f64())
    };
    // The first one is prepared, and finds its memory cold. Rank 0 decides for everybody.
    step()?;
    let mut each = [step()?];
    group.broadcast(&mut each, 0)?;
    if each[0] < LONG {
        for _ in 0..WARM {
            each = [step()?];
        }
        group.broadcast(&mut each, 0)?;
    }
    let steps = (budget / each[0].max(1e-8)).clamp(2.0, MOST);
    let batch = (SAMPLE / each[0].max(1e-8)).ceil().clamp(1.0, steps) as usize;
    let samples = (steps as usize / batch).max(1);
    let mut times = Vec::with_capacity(samples);
    group.barrier()?;
    let mut last = Instant::now();
    for _ in 0..samples {
        for _ in 0..batch {
            cell.step()?;
        }
        let now = Instant::now();
        times.push((now - last).as_secs_f64() / (batch * cell.op.calls()) as f64);
        last = now;
    }
    group.all_reduce(&mut times, ReduceOp::Max)?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
