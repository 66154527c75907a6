//! Trials and their results, by fault.

use std::{collections::BTreeMap, fmt};

/// Times of fewer say nothing: a kill gives seven that belong together.
const ENOUGH: usize = 1000;
/// A killed rank of eight is known everywhere within this: the 99th percentile over all survivors, in milliseconds.
pub(super) const KILL_P99: f64 = 250.0;

#[derive(Debug, Default, PartialEq)]
pub(super) struct Table(BTreeMap<String, Row>);

#[derive(Debug, Default, PartialEq)]
struct Row {
    tried: usize,
    kept: usize,
    /// Milliseconds from the fault, or from the first call after it, to an error; one for each rank that is told.
    times: Vec<f64>,
}

impl Row {
    fn at(&self, quantile: f64) -> Option<f64> {
        at(&self.times, quantile)
    }
}

fn at(times: &[f64], quantile: f64) -> Option<f64> {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times.get(((times.len().max(1) - 1) as f64 * quantile).round() as usize).copied()
}

impl Table {
    fn add(&mut self, fault: &str, kept: bool, times: &[f64]) {
        let row = self.0.entry(fault.to_owned()).or_default();
        row.tried += 1;
        row.kept += usize::from(kept);
        row.times.extend_from_slice(times);
    }

    pub(super) fn tried(&self) -> usize {
        self.0.values().map(|r| r.tried).sum()
    }

    pub(super) fn broken(&self) -> usize {
        self.0.values().map(|r| r.tried - r.kept).sum()
    }

    /// Sentence where kills are known later than promised, in all phases together.
    pub(super) fn late(&self) -> Option<String> {
        let kills = self.0.iter().filter(|(fault, _)| is_kill_of_eight(fault));
        let times: Vec<f64> = kills.flat_map(|(_, row)| &row.times).copied().collect();
        let p99 = at(&times, 0.99).filter(|t| *t > KILL_P99 && times.len() >= ENOUGH)?;
        Some(format!("a kill of one of 8 ranks is known after {p99:.0} ms (p99), promised are {KILL_P99} ms"))
    }

    /// Add the lines of another process of this program; `None` where they make no sense.
    pub(super) fn read(&mut self, lines: &str) -> Option<()> {
        for line in lines.lines() {
            let mut fields = line.split('\t');
            let fault = fields.next()?;
            let kept = fields.next()?.parse().ok()?;
            let times =
                fields.next()?.split_whitespace().map(|t| t.parse().ok()).collect::<Option<Vec<_>>>()?;
            self.add(fault, kept, &times);
        }
        Some(())
    }
}

/// A trial for [`Table::read`].
pub(super) fn line(fault: &str, kept: bool, times: &[f64]) -> String {
    let times: Vec<_> = times.iter().map(|t| format!("{t:.3}")).collect();
    format!("{fault}\t{kept}\t{}\n", times.join(" "))
}

/// A rank's process ended, and nothing kept the others from seeing it.
fn is_kill_of_eight(fault: &str) -> bool {
    fault.starts_with("kill ") && fault.ends_with(", 8 ranks")
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.keys().map(|k| k.chars().count()).max().unwrap_or(0).max(5);
        write!(f, "{:width$}   tried  as promised   p50 ms   p99 ms   max ms", "fault")?;
        for (fault, row) in &self.0 {
            write!(f, "\n{fault:width$}  {:6}  {:11}", row.tried, row.kept)?;
            for quantile in [0.5, 0.99, 1.0] {
                match row.at(quantile) {
                    Some(t) => write!(f, " {t:8.1}")?,
                    None => write!(f, " {:>8}", "-")?,
                }
            }
        }
        write!(f, "\n{:width$}  {:6}  {:11}", "all", self.tried(), self.tried() - self.broken())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_survive_the_way_between_processes() {
        let mut table = Table::default();
        table.add("kill in a call", true, &[1.5, 2.25]);
        table.add("kill in a call", false, &[]);
        table.add("blip", true, &[]);
        let lines =
            [("kill in a call", true, &[1.5, 2.25][..]), ("kill in a call", false, &[]), ("blip", true, &[])];
        let mut read = Table::default();
        read.read(&lines.map(|(fault, kept, times)| line(fault, kept, times)).concat()).unwrap();
        assert_eq!((&read, read.tried(), read.broken()), (&table, 3, 1));
        assert_eq!(read.read("nonsense"), None);
        let text = read.to_string();
        assert!(text.contains("kill in a call") && text.lines().count() == 4, "{text}");
    }

    #[test]
    fn late_kills_are_found() {
        let mut table = Table::default();
        for phase in ["in a call", "while idle"] {
            table.add(&format!("kill {phase}, 8 ranks"), true, &vec![10.0; 600]);
        }
        table.add("stop in a call", true, &vec![1200.0; 200]);
        table.add("kill before it is known", true, &vec![3000.0; 200]);
        assert_eq!(table.late(), None);
        table.add("kill while idle, 8 ranks", true, &[300.0; 7]);
        assert_eq!(table.late(), None, "one kill");
        table.add("kill while joining, 8 ranks", true, &[300.0; 7]);
        assert!(table.late().is_some_and(|l| l.contains("300 ms")));
    }
}
