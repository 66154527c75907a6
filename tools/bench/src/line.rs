//! A line of results: a cell of one launch, and how disturbed the machine was.

use super::{
    cell::{Cell, Element, Operation},
    contender::Contender,
};
use comity_kernel::named;
use serde_json::{Value, json};

named! {
    /// Distance of the first two cores from each other, by a flag that they hand to and fro.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum Distance: "distance" {
        /// In a complex of cores with a common cache.
        Near => "near",
        /// In two complexes, or two sockets.
        Far => "far",
        /// It changed meanwhile, or is in between.
        Mixed => "mixed",
    }
}

/// Results of one launch for one cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) who: &'static Contender,
    pub(crate) cell: Cell,
    pub(crate) round: u32,
    /// True if the call that was checked came out right.
    pub(crate) ok: bool,
    /// Calls timed.
    pub(crate) calls: u64,
    /// Microseconds of a call.
    pub(crate) median: f64,
    pub(crate) min: Option<f64>,
    pub(crate) p99: Option<f64>,
    /// Processor seconds of all ranks for 1e9 bytes.
    pub(crate) cpu_per_gb: Option<f64>,
    /// The largest memory of a rank up to then.
    pub(crate) peak_kib: Option<u64>,
    /// Seconds of the whole command without its timed loops.
    pub(crate) start_s: Option<f64>,
    /// Cores that others used meanwhile.
    pub(crate) foreign: f64,
    /// Others used so much, or the hypervisor took so much, that the time says little.
    pub(crate) disturbed: bool,
    pub(crate) distance: Distance,
}

/// Contenders are compared by name.
impl PartialEq for Contender {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Line {
    pub(crate) fn to_json(&self) -> Value {
        let c = &self.cell;
        json!({
            "who": self.who.name, "op": c.op.name(), "dtype": c.element.name(), "ranks": c.ranks, "bytes": c.bytes,
            "round": self.round, "ok": self.ok, "calls": self.calls, "median_us": self.median, "min_us": self.min,
            "p99_us": self.p99, "cpu_s_per_GB": self.cpu_per_gb, "peak_KiB": self.peak_kib, "start_s": self.start_s,
            "foreign_cores": self.foreign, "disturbed": self.disturbed, "cores_are": self.distance.name(),
        })
    }

    /// # Errors
    /// The field that is missing or means nothing.
    pub(crate) fn from_json(value: &Value) -> Result<Self, String> {
        let text = |k: &str| value[k].as_str().ok_or_else(|| format!("a line has no {k}: {value}"));
        let number = |k: &str| value[k].as_f64().filter(|n| n.is_finite() && *n >= 0.0);
        let needed = |k: &str| number(k).ok_or_else(|| format!("a line has no {k}: {value}"));
        let unknown = |k: &str| format!("a line has a {k} that this version does not know: {value}");
        Ok(Self {
            who: Contender::from_name(text("who")?).ok_or_else(|| unknown("who"))?,
            cell: Cell {
                op: Operation::from_name(text("op")?).ok_or_else(|| unknown("op"))?,
                element: Element::from_name(text("dtype")?).ok_or_else(|| unknown("dtype"))?,
                ranks: needed("ranks")? as usize,
                bytes: needed("bytes")? as u64,
            },
            round: number("round").unwrap_or(0.0) as u32,
            ok: value["ok"].as_bool().ok_or_else(|| unknown("ok"))?,
            calls: number("calls").unwrap_or(0.0) as u64,
            median: needed("median_us")?,
            min: number("min_us"),
            p99: number("p99_us"),
            cpu_per_gb: number("cpu_s_per_GB"),
            peak_kib: number("peak_KiB").map(|n| n as u64),
            start_s: number("start_s"),
            foreign: number("foreign_cores").unwrap_or(0.0),
            disturbed: value["disturbed"].as_bool().unwrap_or(false),
            distance: Distance::from_name(text("cores_are")?).ok_or_else(|| unknown("cores_are"))?,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A line of an undisturbed launch.
    pub(crate) fn line(who: &str, bytes: u64, median: f64) -> Line {
        let cell = Cell { op: Operation::AllReduce, element: Element::F32, ranks: 2, bytes };
        Line {
            who: Contender::from_name(who).unwrap(),
            cell,
            round: 0,
            ok: true,
            calls: 100,
            median,
            min: Some(median / 2.0),
            p99: Some(median * 2.0),
            cpu_per_gb: None,
            peak_kib: Some(2048),
            start_s: Some(0.25),
            foreign: 0.0,
            disturbed: false,
            distance: Distance::Near,
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let mut one = line("openmpi", 64, 2.5);
        one.p99 = None;
        assert_eq!(Line::from_json(&one.to_json()), Ok(one.clone()));
        let mut value = one.to_json();
        value["who"] = "nobody".into();
        assert!(Line::from_json(&value).unwrap_err().contains("does not know"));
        value = one.to_json();
        value["median_us"] = Value::Null;
        assert!(Line::from_json(&value).unwrap_err().contains("no median_us"));
    }
}
