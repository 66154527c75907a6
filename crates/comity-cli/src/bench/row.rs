//! A row of the table, as text and as JSON.

use super::{measure::MergedMeasurements, op::BenchOp};
use comity::{DType, ReduceOp};
use serde_json::{Value, json};
use std::fmt;

/// Row of one operation at one size.
pub(super) struct BenchRow {
    pub(super) op: BenchOp,
    pub(super) bytes: u64,
    pub(super) count: usize,
    pub(super) dtype: DType,
    pub(super) reduce: ReduceOp,
    pub(super) ranks: usize,
    pub(super) merged: MergedMeasurements,
}

impl BenchRow {
    /// Lines above the rows of an operation.
    pub(super) fn head(op: BenchOp, dtype: DType, reduce: ReduceOp) -> String {
        let of = if op == BenchOp::Barrier { String::new() } else { format!(" {dtype}") };
        let by = if op.reduces() { format!(" {reduce}") } else { String::new() };
        let about = if op.about().is_empty() { String::new() } else { format!(" ({})", op.about()) };
        let names = ["bytes", "count", "min", "median", "p99", "algbw", "busbw", "CPU", "#wrong"];
        let units = ["", "(elements)", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "(s/GB)", ""];
        let [names, units] = [names, units].map(|all| aligned(all.map(String::from)));
        format!("#\n# {}{of}{by}{about}\n{names}\n{}", op.name(), units.trim_end())
    }

    /// Bytes by median time, in GB/s.
    fn algbw(&self) -> f64 {
        if self.merged.median > 0.0 { self.bytes as f64 / self.merged.median / 1e3 } else { 0.0 }
    }

    fn busbw(&self) -> f64 {
        self.algbw() * self.op.bus(self.ranks)
    }

    /// Nothing where no bytes are moved.
    fn cpu_per_gb(&self) -> Option<f64> {
        let gigabytes = self.merged.calls as f64 * self.bytes as f64 / 1e9;
        (gigabytes > 0.0).then(|| self.merged.cpu_s / gigabytes)
    }

    /// JSON object of the row with everything, also of the group, so that lines can be distinguished wherever they end up.
    pub(super) fn to_json(&self, world: &Value) -> Value {
        let m = &self.merged;
        json!({
            "op": self.op.name(), "bytes": self.bytes, "count": self.count, "dtype": self.dtype.name(),
            "redop": self.op.reduces().then(|| self.reduce.name()), "calls": m.calls, "batch": m.batch,
            "min_us": m.min, "median_us": m.median, "p99_us": m.p99, "algbw_GBps": self.algbw(),
            "busbw_GBps": self.busbw(), "cpu_s_per_GB": self.cpu_per_gb(), "wrong": m.wrong, "world": world,
        })
    }
}

impl fmt::Display for BenchRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.merged;
        f.write_str(&aligned([
            self.bytes.to_string(),
            self.count.to_string(),
            digits(m.min),
            digits(m.median),
            digits(m.p99),
            digits(self.algbw()),
            digits(self.busbw()),
            self.cpu_per_gb().map_or_else(|| "-".into(), digits),
            m.wrong.to_string(),
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
