//! A run as a file: what was measured, when, where, and every line of it.

use super::{line::Line, machine};
use serde_json::{Map, Value, json};
use std::{fs, path::Path, time::SystemTime};

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

/// `2026-11-24`, in UTC.
pub(crate) fn today() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date(seconds / 86_400)
}

/// The date so many days after 1970 began, by counting years of the Gregorian calendar.
fn date(mut days: u64) -> String {
    let leap = |y: u64| y.is_multiple_of(4) && !y.is_multiple_of(100) || y.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::line::tests::line;

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
    fn days_have_dates() {
        assert_eq!([date(0), date(59), date(20_781)], ["1970-01-01", "1970-03-01", "2026-11-24"]);
        assert_eq!([date(11_016), date(11_017), date(365)], ["2000-02-29", "2000-03-01", "1971-01-01"]);
    }
}
