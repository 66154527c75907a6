//! Predictions beside measurements, and what would be chosen beside the best: as Markdown and as JSON.

use super::jobs::{Timed, TimingPlace, Timings, middle};
use crate::here;
use comity::tools::{self, CostsNote};
use comity_plan::HostLink;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Write};

/// A prediction is near within this part of what was measured.
const NEAR: f64 = 0.25;
/// A choice is good that takes no more than this part longer than the best.
const GOOD: f64 = 0.10;

/// Everything under one circumstance.
#[derive(Debug)]
struct Circumstance<'a> {
    place: &'a TimingPlace,
    timed: Vec<&'a Timed>,
}

/// The whole.
#[derive(Debug)]
pub(super) struct PredictReport<'a> {
    head: Value,
    all: Vec<Circumstance<'a>>,
}

/// Some of it, counted.
#[derive(Debug, Default)]
struct Count {
    timings: usize,
    near: usize,
    off: Vec<f64>,
    choices: usize,
    good: usize,
    slowest: f64,
}

impl Timed {
    /// Predicted over measured.
    fn ratio(&self) -> f64 {
        self.predicted_us / self.us().max(1e-9)
    }
}

impl Circumstance<'_> {
    fn chosen(&self) -> Option<&Timed> {
        self.timed.iter().copied().find(|t| t.chosen)
    }

    fn best(&self) -> Option<&Timed> {
        self.timed.iter().copied().min_by(|a, b| a.us().total_cmp(&b.us()))
    }

    /// Time of the chosen algorithm over that of the best, by the middle of the rounds: the two are compared within a round, in one job.
    fn slower(&self) -> f64 {
        let Some(chosen) = self.chosen() else { return 1.0 };
        let against = |t: &&Timed| {
            middle(chosen.rounds.iter().zip(&t.rounds).map(|(a, b)| a / b.max(1e-9)).collect::<Vec<_>>())
        };
        self.timed.iter().map(against).fold(1.0, f64::max)
    }
}

impl Count {
    fn of<'a>(all: impl Iterator<Item = &'a Circumstance<'a>>) -> Self {
        let mut count = Self { slowest: 1.0, ..Self::default() };
        for c in all {
            let off = c.timed.iter().map(|t| (t.ratio() - 1.0).abs());
            count.timings += c.timed.len();
            count.near += off.clone().filter(|o| *o <= NEAR).count();
            count.off.extend(off);
            let slower = c.slower();
            count.choices += 1;
            count.good += usize::from(slower <= 1.0 + GOOD);
            count.slowest = count.slowest.max(slower);
        }
        count
    }

    /// Cells of a row.
    fn cells(&self) -> String {
        let worst = self.off.iter().copied().fold(0.0, f64::max);
        format!(
            "{} | {} ({:.0} %) | {:.0} % | {:.0} % | {} | {} ({:.0} %) | {:.2}",
            self.timings,
            self.near,
            percent(self.near, self.timings),
            100.0 * middle(self.off.clone()),
            100.0 * worst,
            self.choices,
            self.good,
            percent(self.good, self.choices),
            self.slowest
        )
    }

    fn json(&self) -> Value {
        json!({
            "timings": self.timings, "within_25_percent": self.near, "median_off": middle(self.off.clone()),
            "choices": self.choices, "within_10_percent_of_best": self.good, "slowest_choice_over_best": self.slowest,
        })
    }
}

fn percent(part: usize, of: usize) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

impl<'a> PredictReport<'a> {
    pub(super) fn new(found: &'a Timings, costs: &CostsNote, cores: usize, date: String) -> Self {
        let mut places: BTreeMap<&TimingPlace, Vec<&Timed>> = BTreeMap::new();
        found.all.iter().for_each(|(place, timed)| places.entry(place).or_default().push(timed));
        let head = json!({
            "version": here::VERSION, "date": date, "processor": tools::processor(), "cores": cores,
            "rounds": found.rounds, "costs": costs.used, "costs_from": costs.date, "costs_why": costs.why,
        });
        Self { head, all: places.into_iter().map(|(place, timed)| Circumstance { place, timed }).collect() }
    }

    /// By operation and kind of link.
    fn counts(&self) -> Vec<(String, Count)> {
        let mut keys: Vec<_> = self.all.iter().map(|c| (&c.place.op, c.place.link)).collect();
        keys.dedup();
        let count = |(op, link): (&'a String, HostLink)| {
            let some = self.all.iter().filter(|c| &c.place.op == op && c.place.link == link);
            (format!("{op} | {}", link.name()), Count::of(some))
        };
        keys.into_iter().map(count).collect()
    }

    pub(super) fn summary(&self) -> String {
        let mut t = String::from(
            "| operation | links | timings | predicted within 25 % | median off | most off | choices | within 10 % of the best | slowest / best |\n\
             |---|---|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        // Writing to a string cannot fail.
        for (name, count) in self.counts() {
            let _ = writeln!(t, "| {name} | {} |", count.cells());
        }
        let _ = writeln!(t, "| all | | {} |", Count::of(self.all.iter()).cells());
        t
    }

    pub(super) fn markdown(&self) -> String {
        let of = |name: &str| match &self.head[name] {
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        let mut t = format!(
            "# Predictions beside measurements\n\n\
             Comity {}, {}, {}, {} cores, {} rounds; costs: {} ({}). Times in us of one call: each round's is the median of what the slowest \
             rank took, and the middle of the rounds is shown. A choice is compared with the others within a round.\n\n",
            of("version"),
            of("date"),
            of("processor"),
            of("cores"),
            of("rounds"),
            of("costs"),
            of("costs_why"),
        );
        t += &self.summary();
        t += "\n## Choices more than 10 % slower than the best\n\n\
              | operation | links | ranks | bytes | chosen | us | best | us | slower |\n|---|---|---:|---:|---|---:|---|---:|---:|\n";
        for c in self.all.iter().filter(|c| c.slower() > 1.0 + GOOD) {
            let (Some(chosen), Some(best)) = (c.chosen(), c.best()) else { continue };
            let (a, b) = (&chosen.algorithm, &best.algorithm);
            let (x, y) = (chosen.us(), best.us());
            let _ = writeln!(t, "| {} | {a} | {x:.2} | {b} | {y:.2} | {:.2} |", c.place, c.slower());
        }
        t += "\n## All timings\n\n\
              | operation | links | ranks | bytes | algorithm | predicted | measured | predicted / measured | |\n|---|---|---:|---:|---|---:|---:|---:|---|\n";
        for (c, timed) in self.all.iter().flat_map(|c| c.timed.iter().map(move |t| (c, *t))) {
            let marks = [
                timed.chosen.then_some("chosen"),
                c.best().filter(|b| *b == timed).map(|_| "best"),
                ((timed.ratio() - 1.0).abs() > NEAR).then_some("off"),
            ];
            let marks: Vec<_> = marks.into_iter().flatten().collect();
            let _ = writeln!(
                t,
                "| {} | {} | {:.2} | {:.2} | {:.2} | {} |",
                c.place,
                timed.algorithm,
                timed.predicted_us,
                timed.us(),
                timed.ratio(),
                marks.join(", ")
            );
        }
        t
    }

    pub(super) fn json(&self) -> String {
        let timing = |t: &Timed| {
            json!({
                "algorithm": t.algorithm, "predicted_us": t.predicted_us, "measured_us": t.us(), "rounds_us": t.rounds,
                "chosen": t.chosen,
            })
        };
        let place = |c: &Circumstance<'_>| {
            json!({
                "op": c.place.op, "links": c.place.link.name(), "ranks": c.place.ranks, "bytes": c.place.bytes,
                "chosen_over_best": c.slower(), "timings": c.timed.iter().map(|t| timing(t)).collect::<Vec<_>>(),
            })
        };
        let mut all = self.head.clone();
        all["all"] = Count::of(self.all.iter()).json();
        all["rows"] = self.all.iter().map(place).collect();
        all.to_string()
    }
}

impl std::fmt::Display for TimingPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} | {} | {} | {}", self.op, self.link.name(), self.ranks, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_and_predictions_are_judged() {
        let timed = |algorithm: &str, rounds: &[f64], predicted_us, chosen| Timed {
            algorithm: algorithm.into(),
            rounds: rounds.to_vec(),
            predicted_us,
            chosen,
        };
        let place = |bytes| TimingPlace { op: "all_reduce".into(), link: HostLink::Shm, ranks: 4, bytes };
        let all = vec![
            // A slow round of all is no reason to blame the choice.
            (place(8), timed("direct", &[1.0, 5.0, 1.0], 1.1, true)),
            (place(8), timed("ring", &[2.0, 4.9, 2.0], 2.6, false)),
            (place(64), timed("direct", &[3.0, 3.0], 3.0, true)),
            (place(64), timed("ring", &[2.0, 2.5], 3.0, false)),
        ];
        let found = Timings { all, rounds: 3 };
        let costs = CostsNote { used: "tuned", file: None, date: None, why: "a file".into() };
        let report = PredictReport::new(&found, &costs, 4, "2026".into());
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["all"]["timings"], 4);
        assert_eq!(json["all"]["within_25_percent"], 2);
        assert_eq!(
            (&json["all"]["choices"], &json["all"]["within_10_percent_of_best"]),
            (&json!(2), &json!(1))
        );
        assert_eq!(
            (&json["rows"][0]["chosen_over_best"], &json["rows"][1]["chosen_over_best"]),
            (&json!(1.0), &json!(1.2))
        );
        let text = report.markdown();
        assert!(text.contains("| all_reduce | shm | 4 | 2 (50 %)"), "{text}");
        assert!(
            text.contains("| all_reduce | shm | 4 | 64 | direct | 3.00 | ring | 2.00 | 1.20 |"),
            "{text}"
        );
        assert!(
            text.contains("| all_reduce | shm | 4 | 8 | direct | 1.10 | 1.00 | 1.10 | chosen, best |"),
            "{text}"
        );
    }
}
