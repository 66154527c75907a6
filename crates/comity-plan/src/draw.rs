//! Plans for people: text and a graph. May import the crate's types, `report` and `shape`.

use crate::{
    Plan, ReceiveMode, StepOp,
    report::PlanReport,
    shape::{Kind, Shape},
};
use std::{collections::BTreeMap, fmt::Write};

/// The drawing's width, and how many ranks and rounds it shows.
pub(crate) const WIDTH: usize = 110;
pub(crate) const RANKS: usize = 12;
const ROUNDS: usize = 16;

/// `64 MiB`, `1.5 KiB`, `12 B`.
pub(crate) fn size(bytes: usize) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|&(_, shift)| bytes >= 1 << shift) {
        None => format!("{bytes} B"),
        Some((unit, shift)) => {
            let n = bytes as f64 / (1u64 << shift) as f64;
            if n.fract() == 0.0 || n >= 100.0 { format!("{n:.0} {unit}") } else { format!("{n:.1} {unit}") }
        }
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

pub(crate) fn text(report: &PlanReport, shape: &Shape, grid: &[Plan]) -> String {
    let mut t = String::new();
    let hosts = shape.hosts.last().map_or(1, |h| h + 1);
    let of = if shape.kind == Kind::Barrier { String::new() } else { format!(" of {}", size(report.bytes)) };
    let on = if hosts > 1 { format!(" on {hosts} hosts") } else { String::new() };
    let cut = match report.segment {
        0 => String::new(),
        s => format!(", {} segments of {}", report.bytes.div_ceil(s), size(s)),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(t, "{}{of}, {} ranks{on}: {}{cut}", report.op, report.ranks, report.algorithm);
    let _ = writeln!(
        t,
        "  {} rounds{}, {} messages, about {}",
        report.rounds,
        if report.segment > 0 { " a segment" } else { "" },
        report.messages,
        time(report.seconds)
    );
    if report.lanes > 1 {
        let lanes = report.lanes;
        let within = if hosts > 1 { " within each host" } else { "" };
        let _ = writeln!(
            t,
            "  in {lanes} lanes{within}: as many threads of each rank carry a part of the bytes each"
        );
    }
    let between = if hosts > 1 {
        format!(", {} of it between hosts", size(report.sent_between_hosts))
    } else {
        String::new()
    };
    let _ = writeln!(
        t,
        "  sent: {} at most by a rank, {} in all{between}; working memory {}",
        size(report.sent_most),
        size(report.sent_total),
        size(report.memory)
    );
    if report.rounds > 0 {
        rounds(&mut t, report, shape, grid);
    }
    t
}

/// A row a round, a column a rank.
fn rounds(t: &mut String, report: &PlanReport, shape: &Shape, grid: &[Plan]) {
    let hosts = shape.hosts.last().map_or(1, |h| h + 1);
    t.push('\n');
    let width = ((WIDTH - 7) / grid.len().max(1)).min(24);
    let row = |t: &mut String, name: &str, cells: Vec<String>| {
        let _ = write!(t, "{name:>5}  ");
        for cell in &cells {
            let _ = write!(t, "{:<width$}", fit(cell, width - 1));
        }
        t.truncate(t.trim_end().len());
        t.push('\n');
    };
    if hosts > 1 {
        row(t, "host", (0..grid.len()).map(|r| shape.hosts[r].to_string()).collect());
    }
    row(t, "rank", (0..grid.len()).map(|r| r.to_string()).collect());
    for round in 0..report.rounds.min(ROUNDS) {
        let cells = |way: fn(&StepOp) -> (&str, Vec<usize>)| -> Vec<String> {
            grid.iter().enumerate().map(|(r, p)| cell(p, round as u32, shape.size, r, way)).collect()
        };
        row(t, &round.to_string(), cells(outward));
        row(t, "", cells(inward));
    }
    if report.rounds > ROUNDS {
        let _ = writeln!(t, "       ... and {} rounds more", report.rounds - ROUNDS);
    }
    if shape.size > grid.len() {
        let _ = writeln!(t, "       (ranks {} to {} not shown)", grid.len(), shape.size - 1);
    }
    let more = if t.contains('~') { "   ~ and more" } else { "" };
    t.push_str(&format!("       -> sends to   <- takes from   += adds what comes from{more}\n"));
}

/// Returns the arrow and the receivers of an act.
fn outward(op: &StepOp) -> (&str, Vec<usize>) {
    match op {
        StepOp::Send { to, .. } => ("->", vec![*to]),
        _ => ("", Vec::new()),
    }
}

fn inward(op: &StepOp) -> (&str, Vec<usize>) {
    match op {
        StepOp::Recv { from, mode: ReceiveMode::Copy, .. } => ("<-", vec![*from]),
        StepOp::Recv { from, .. } => ("+=", vec![*from]),
        StepOp::NWayReduce { from, .. } => ("+=", from.clone()),
        _ => ("", Vec::new()),
    }
}

fn cell(plan: &Plan, round: u32, n: usize, me: usize, way: fn(&StepOp) -> (&str, Vec<usize>)) -> String {
    let mut by_sign: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for step in plan.steps.iter().filter(|s| s.round == round) {
        let (sign, peers) = way(&step.op);
        by_sign.entry(sign).or_default().extend(peers);
    }
    by_sign.remove("");
    let mut cells = Vec::new();
    for (sign, mut peers) in by_sign {
        peers.sort_unstable();
        peers.dedup();
        debug_assert!(!peers.contains(&me), "a rank sends to itself");
        let list = match peers.len() {
            k if k > 2 && k == n - 1 => "all".to_owned(),
            _ => runs(&peers),
        };
        cells.push(format!("{sign}{list}"));
    }
    cells.join(" ")
}

/// `1,3-5` for 1, 3, 4, 5.
fn runs(ranks: &[usize]) -> String {
    let name = |run: &[usize]| match run {
        [first, _, .., last] => format!("{first}-{last}"),
        few => few.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    };
    ranks.chunk_by(|a, b| a + 1 == *b).map(name).collect::<Vec<_>>().join(",")
}

fn fit(s: &str, width: usize) -> String {
    match s.chars().count() > width {
        true => s.chars().take(width.saturating_sub(1)).chain(['~']).collect(),
        false => s.to_owned(),
    }
}

pub(crate) fn dot(
    report: &PlanReport,
    shape: &Shape,
    edges: &BTreeMap<(usize, usize), Vec<(u32, usize)>>,
) -> String {
    let mut t = format!(
        "digraph {} {{\n  node [shape=box];\n  edge [fontsize=10];\n  label=\"{}, {} ranks, by {}: a label says round and bytes\";\n",
        report.op, report.op, report.ranks, report.algorithm
    );
    for host in 0..=shape.hosts.last().copied().unwrap_or(0) {
        let _ = writeln!(t, "  subgraph cluster_{host} {{\n    label=\"host {host}\";");
        for r in (0..shape.size).filter(|&r| shape.hosts[r] == host) {
            let _ = writeln!(t, "    {r};");
        }
        t.push_str("  }\n");
    }
    for ((from, to), messages) in edges {
        let label: Vec<_> =
            messages.iter().map(|(round, bytes)| format!("{round}: {}", size(*bytes))).collect();
        let _ = writeln!(t, "  {from} -> {to} [label=\"{}\"];", label.join("\\n"));
    }
    t.push_str("}\n");
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_written_as_runs() {
        assert_eq!(runs(&[1, 3, 4, 5, 8, 9]), "1,3-5,8,9");
        assert_eq!(runs(&[]), "");
    }
}
