//! The ranks' samples become one line a cell: a call takes as long as on the rank where it took longest.

use super::{
    cell::{Cell, Operation},
    line::{Distance, Line},
    plan::Launch,
};
use serde_json::Value;
use std::collections::BTreeSet;

/// Others may use so much of a core during a cell, and so many seconds besides: /proc/stat counts in ticks.
const FOREIGN: f64 = 0.12;
const TICKS: f64 = 0.02;
/// The hypervisor may keep so much of a core.
const STOLEN: f64 = 0.05;

/// Facts about a launch beside its ranks' files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    /// Seconds of the whole command.
    pub(crate) took: f64,
    /// Seconds that the hypervisor kept meanwhile.
    pub(crate) stolen: f64,
    pub(crate) distance: Distance,
}

/// The lines of a launch, from a text for each rank.
///
/// # Errors
/// The ranks' lines do not fit together.
pub(crate) fn lines(
    launch: &Launch<'_>,
    texts: &[String],
    around: Surroundings,
) -> Result<Vec<Line>, String> {
    let key = launch.key();
    let mut ranks = Vec::new();
    for text in texts {
        let lines: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
        ranks.push(lines.map_err(|e| format!("{key}: a rank wrote a line that is no JSON: {e}"))?);
    }
    let rows = ranks.first().map_or(0, Vec::len);
    if rows == 0 || ranks.iter().any(|r| r.len() != rows) {
        return Err(format!(
            "{key}: the ranks wrote {:?} lines",
            ranks.iter().map(Vec::len).collect::<Vec<_>>()
        ));
    }
    let loops: f64 = ranks[0].iter().map(|v| v["wall_ns"].as_f64().unwrap_or(0.0) * 1e-9).sum();
    let start = (around.took - loops).max(0.0);
    let mut lines = Vec::new();
    let mut seen = BTreeSet::new();
    for row in 0..rows {
        let each: Vec<&Value> = ranks.iter().map(|r| &r[row]).collect();
        let mut line = merged(launch, &each, around)?;
        line.start_s = Some(start);
        if seen.insert(line.cell) {
            lines.push(line);
        }
    }
    Ok(lines)
}

fn merged(launch: &Launch<'_>, each: &[&Value], around: Surroundings) -> Result<Line, String> {
    let bad = |what: &str| format!("{}: {what} in {}", launch.key(), each[0]["op"]);
    let op = each[0]["op"].as_str().and_then(Operation::from_name).ok_or_else(|| bad("no operation"))?;
    let asked = each[0]["bytes"].as_u64().ok_or_else(|| bad("no bytes"))?;
    let bytes = if op == Operation::Barrier { 0 } else { asked };
    let cell = Cell { op, element: launch.part.element, ranks: launch.part.ranks, bytes };
    let sum = |k: &str| each.iter().filter_map(|v| v[k].as_f64()).sum::<f64>();
    let most = |k: &str| each.iter().filter_map(|v| v[k].as_f64()).fold(0.0, f64::max);
    let times = slowest(each).ok_or_else(|| bad("no times"))?;
    let at = |part: f64| times[((times.len() as f64 * part) as usize).min(times.len() - 1)] / 1e3;
    let calls = each[0]["iters"].as_u64().unwrap_or(0);
    let wall = most("wall_ns") * 1e-9;
    let cpu = sum("user_s") + sum("sys_s");
    let foreign = (most("busy_s") - cpu).max(0.0);
    let gigabytes = calls as f64 * bytes as f64 / 1e9;
    Ok(Line {
        who: launch.who,
        cell,
        round: launch.round,
        ok: each.iter().all(|v| v["ok"] == true),
        calls,
        median: at(0.5),
        min: Some(at(0.0)),
        p99: Some(at(0.99)),
        cpu_per_gb: (gigabytes > 0.0).then(|| cpu / gigabytes),
        peak_kib: Some(most("peak_kib") as u64).filter(|k| *k > 0),
        start_s: None,
        foreign: if wall > 0.0 { foreign / wall } else { 0.0 },
        disturbed: foreign > FOREIGN * wall + TICKS || around.stolen > STOLEN * around.took,
        distance: around.distance,
    })
}

/// Times of the slowest rank in each sample, sorted.
fn slowest(each: &[&Value]) -> Option<Vec<f64>> {
    let times: Option<Vec<&Vec<Value>>> = each.iter().map(|v| v["times_ns"].as_array()).collect();
    let times = times?;
    let samples = times.iter().map(|t| t.len()).min().filter(|n| *n > 0)?;
    let of = |i: usize| times.iter().filter_map(|t| t[i].as_f64()).fold(0.0, f64::max);
    let mut slowest: Vec<f64> = (0..samples).map(of).collect();
    slowest.sort_by(f64::total_cmp);
    Some(slowest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{contender::Contender, plan::sample};
    use serde_json::json;

    fn rank(op: &str, bytes: u64, busy: f64, times: [u64; 4]) -> String {
        json!({"op": op, "bytes": bytes, "n": 2, "ok": true, "iters": 4, "batch": 1, "busy_s": busy, "wall_ns": 1e9,
            "user_s": 0.5, "sys_s": 0.25, "peak_kib": 100, "times_ns": times})
        .to_string()
    }

    fn merge(texts: &[String], stolen: f64) -> Result<Vec<Line>, String> {
        let parts = sample();
        let launch = Launch { part: &parts[0], round: 1, who: Contender::from_name("comity").unwrap() };
        lines(&launch, texts, Surroundings { took: 3.5, stolen, distance: Distance::Near })
    }

    #[test]
    fn the_slowest_rank_counts() {
        let texts = [
            rank("all_reduce", 1 << 30, 1.5, [1000, 4000, 2000, 3000]),
            rank("all_reduce", 1 << 30, 1.5, [2000, 1000, 9000, 3000]),
        ];
        let lines = merge(&texts, 0.0).unwrap();
        let line = &lines[0];
        assert_eq!((line.min, line.median, line.p99), (Some(2.0), 4.0, Some(9.0)));
        assert_eq!((line.cell.bytes, line.calls, line.peak_kib), (1 << 30, 4, Some(100)));
        assert!((line.cpu_per_gb.unwrap() - 1.5 / 4.295).abs() < 1e-3 && line.start_s == Some(2.5));
        assert!(!line.disturbed && line.foreign == 0.0 && line.round == 1);
    }

    #[test]
    fn a_cell_is_disturbed_by_others_and_by_the_hypervisor() {
        let of = |busy| vec![rank("barrier", 8, busy, [1; 4]), rank("barrier", 8, busy, [1; 4])];
        let line = &merge(&of(1.6), 0.0).unwrap()[0];
        assert!(!line.disturbed && (line.foreign - 0.1).abs() < 1e-9 && line.cell.bytes == 0);
        assert!(merge(&of(1.7), 0.0).unwrap()[0].disturbed);
        assert!(merge(&of(1.5), 0.3).unwrap()[0].disturbed);
    }

    #[test]
    fn ranks_that_do_not_fit_together_are_an_error() {
        let one = rank("barrier", 8, 1.0, [1; 4]);
        assert!(merge(&[one.clone(), String::new()], 0.0).unwrap_err().contains("[1, 0]"));
        assert!(merge(&[], 0.0).is_err() && merge(&["{".into()], 0.0).is_err());
        // A barrier of two sizes is one cell.
        assert_eq!(merge(&[format!("{one}\n{one}")], 0.0).unwrap().len(), 1);
    }
}
