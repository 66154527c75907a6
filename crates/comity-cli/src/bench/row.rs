//! A row of the table, as text and as JSON.

use super::{BenchArgs, measure::Samples, op::BenchOp};
use comity::{Group, ReduceOp, Result};
use serde_json::{Value, json};
use std::fmt;

/// Row of one operation at one size: measurements of all ranks.
pub(super) struct BenchRow<'a> {
    args: &'a BenchArgs,
    op: BenchOp,
    bytes: u64,
    count: usize,
    ranks: usize,
    pub(super) wrong: u64,
    calls: usize,
    batch: usize,
    /// Microseconds of a call.
    min: f64,
    median: f64,
    p99: f64,
    /// Processor seconds of all ranks.
    cpu_s: f64,
}

impl<'a> BenchRow<'a> {
    pub(super) fn of(
        mut samples: Samples,
        args: &'a BenchArgs,
        group: &Group,
        op: BenchOp,
        (count, bytes): (usize, u64),
    ) -> Result<Self> {
        group.all_reduce(&mut samples.times, ReduceOp::Max)?;
        let mut sums = [samples.user_s + samples.sys_s, samples.wrong as f64];
        group.all_reduce(&mut sums, ReduceOp::Sum)?;
        samples.times.sort_by(f64::total_cmp);
        let len = samples.times.len() as f64;
        let at = |part: f64| samples.times.get((len * part) as usize).map_or(0.0, |t| t / 1e3);
        Ok(Self {
            args,
            op,
            bytes,
            count,
            ranks: group.size(),
            wrong: sums[1] as u64,
            calls: samples.calls,
            batch: samples.batch,
            min: at(0.0),
            median: at(0.5),
            p99: at(0.99),
            cpu_s: sums[0],
        })
    }

    /// Lines above the rows of an operation.
    pub(super) fn head(op: BenchOp, args: &BenchArgs) -> String {
        let of = if op == BenchOp::Barrier { String::new() } else { format!(" {}", args.dtype) };
        let by = if op.reduces() { format!(" {}", args.op) } else { String::new() };
        let about = if op.about().is_empty() { String::new() } else { format!(" ({})", op.about()) };
        let names = ["bytes", "count", "min", "median", "p99", "algbw", "busbw", "CPU", "#wrong"];
        let units = ["", "(elements)", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "(s/GB)", ""];
        let [names, units] = [names, units].map(|all| aligned(all.map(String::from)));
        format!("#\n# {}{of}{by}{about}\n{names}\n{}", op.name(), units.trim_end())
    }

    /// Bytes by median time, in GB/s.
    fn algbw(&self) -> f64 {
        if self.median > 0.0 { self.bytes as f64 / self.median / 1e3 } else { 0.0 }
    }

    fn busbw(&self) -> f64 {
        self.algbw() * self.op.bus(self.ranks)
    }

    /// Nothing where no bytes are moved.
    fn cpu_per_gb(&self) -> Option<f64> {
        let gigabytes = self.calls as f64 * self.bytes as f64 / 1e9;
        (gigabytes > 0.0).then(|| self.cpu_s / gigabytes)
    }

    /// JSON object of the row with everything, also of the group, so that lines can be distinguished wherever they end up.
    pub(super) fn to_json(&self, world: &Value) -> Value {
        json!({
            "op": self.op.name(), "bytes": self.bytes, "count": self.count, "dtype": self.args.dtype.name(),
            "redop": self.op.reduces().then(|| self.args.op.name()), "calls": self.calls, "batch": self.batch,
            "min_us": self.min, "median_us": self.median, "p99_us": self.p99, "algbw_GBps": self.algbw(),
            "busbw_GBps": self.busbw(), "cpu_s_per_GB": self.cpu_per_gb(), "wrong": self.wrong, "world": world,
        })
    }
}

impl fmt::Display for BenchRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&aligned([
            self.bytes.to_string(),
            self.count.to_string(),
            digits(self.min),
            digits(self.median),
            digits(self.p99),
            digits(self.algbw()),
            digits(self.busbw()),
            self.cpu_per_gb().map_or_else(|| "-".into(), digits),
            self.wrong.to_string(),
        ]))
    }
}

fn aligned(cells: [String; 9]) -> String {
    let widths = [13, 12, 11, 11, 11, 9, 9, 9, 8];
    cells.iter().zip(widths).map(|(c, w)| format!("{c:>w$}")).collect()
}

fn digits(x: f64) -> String {
    match x {
        x if x >= 1000.0 => format!("{x:.0}"),
        x if x >= 100.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}
