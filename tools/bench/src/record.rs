//! A run as a file: what was measured, when, where, and every line of it: a cell of one launch, and how disturbed the machine was.

use super::{
    cell::{Cell, Element, Operation},
    contender::Contender,
    machine,
};
use comity_kernel::named;
use serde_json::{Map, Value, json};
use std::{fs, path::Path};
use tasks::child::Task;

/// Raised when a file means something else.
const FORMAT: u64 = 1;

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Day on which it ended.
    pub(crate) date: String,
    pub(crate) command: String,
    pub(crate) machine: Value,
    pub(crate) versions: Map<String, Value>,
    /// Contenders that did not take part and why, launches that failed, and those for which there was no time.
    pub(crate) remarks: Vec<String>,
    pub(crate) lines: Vec<Line>,
}

impl Record {
    pub(crate) fn to_json(&self) -> String {
        let heads = [
            ("format", json!(FORMAT)),
            ("date", json!(self.date)),
            ("command", json!(self.command)),
            ("machine", self.machine.clone()),
            ("versions", json!(self.versions)),
            ("remarks", json!(self.remarks)),
        ];
        let heads: String = heads.iter().map(|(name, value)| format!("\"{name}\": {value},\n")).collect();
        // A line of text for each line of results, so that changes can be read.
        let lines: Vec<String> = self.lines.iter().map(|l| l.to_json().to_string()).collect();
        format!("{{\n{heads}\"lines\": [\n{}\n]\n}}\n", lines.join(",\n"))
    }

    /// # Errors
    /// The text makes no sense; the error says where.
    pub(crate) fn from_json(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if value["format"] != FORMAT {
            return Err(format!("it has format {}, and this version reads {FORMAT}", value["format"]));
        }
        let text = |k: &str| value[k].as_str().map(str::to_owned).ok_or_else(|| format!("it has no {k}"));
        let list = |k: &str| value[k].as_array().ok_or_else(|| format!("it has no {k}"));
        Ok(Self {
            date: text("date")?,
            command: text("command")?,
            machine: value["machine"].clone(),
            versions: value["versions"].as_object().cloned().ok_or("it has no versions")?,
            remarks: list("remarks")?.iter().filter_map(|r| r.as_str().map(str::to_owned)).collect(),
            lines: list("lines")?.iter().map(Line::from_json).collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Self::from_json(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Machine on which it ran, as the beginning of a sentence.
    pub(crate) fn place(&self) -> String {
        let words = machine::words(&self.machine);
        words[..1].to_uppercase() + &words[1..]
    }

    /// `Open MPI 4.1.4, torch 2.15.0`: the versions as their programs say them.
    pub(crate) fn versions(&self) -> String {
        let one =
            |(name, value): (&String, &Value)| format!("{name} {}", value.as_str().unwrap_or("unknown"));
        self.versions.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

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

/// `2026-11-24`, in UTC.
///
/// # Errors
/// The system has no `date`.
pub(crate) fn today() -> Result<String, String> {
    Task::new("date").args(["-u", "+%F"]).run().map(|said| said.trim().to_owned())
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

    pub(crate) fn record(lines: Vec<Line>) -> Record {
        Record {
            date: "2026-11-24".into(),
            command: "cargo xtask bench".into(),
            machine: json!({"processor": "X", "cores": 2, "virtual": true}),
            versions: Map::from_iter([("torch".to_owned(), "2.15".into())]),
            remarks: vec!["mpich does not take part: it is not there".into()],
            lines,
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for lines in [vec![line("comity", 8, 1.0), line("gloo", 8, 90.0)], vec![]] {
            let one = record(lines);
            let text = one.to_json();
            assert_eq!(Record::from_json(&text), Ok(one), "{text}");
        }
        assert!(Record::from_json("{\"format\": 2}").unwrap_err().contains("format 2"));
        assert!(Record::from_json("[").is_err());
    }

    #[test]
    fn a_day_is_year_month_and_day() {
        let day = today().unwrap();
        assert!(day.len() == 10 && day.split('-').map(str::len).eq([4, 2, 2]), "{day}");
    }
}
