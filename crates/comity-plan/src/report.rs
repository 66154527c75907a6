//! Plans for people: what an operation would do, in numbers, as text and as a graph.

use crate::{
    Act, Plan, Slice, Take,
    algorithms::Algorithm,
    choose::{choose, price},
    model::Topology,
    pairs::PairCosts,
    pipeline::build,
    shape::{Kind, Shape},
};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Ranks beyond this are not laid out.
const MOST_RANKS: usize = 4096;
/// The drawing's width, and how many ranks and rounds it shows.
const WIDTH: usize = 110;
const DRAWN_RANKS: usize = 12;
const DRAWN_ROUNDS: usize = 16;

/// What an operation would do. See [`plan_report`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlanReport {
    /// The operation.
    pub op: &'static str,
    /// How many ranks.
    pub ranks: usize,
    /// Bytes of the call.
    pub bytes: usize,
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// Bytes of one segment; 0 for a plan of one segment.
    pub segment: usize,
    /// Rounds of one segment.
    pub rounds: usize,
    /// Messages sent by all ranks together.
    pub messages: usize,
    /// Bytes sent by the rank that sends most.
    pub sent_most: usize,
    /// Bytes sent by all ranks together.
    pub sent_total: usize,
    /// Of these, bytes that pass between hosts.
    pub sent_between_hosts: usize,
    /// Bytes of working memory of the rank that needs most.
    pub memory: usize,
    /// What the cost model expects.
    pub seconds: f64,
    /// Numbers and a drawing, at most 110 columns wide.
    pub text: String,
    /// The messages as a graph in the language of Graphviz.
    pub dot: String,
}

/// What `op` would do on `ranks` ranks, dealt to `hosts` hosts in order. `bytes` is the size of the whole buffer for
/// all_reduce, reduce and broadcast, of one part for the others. `algorithm` overrules the cost model; `costs` were measured
/// between these ranks.
pub fn plan_report(
    op: &str,
    ranks: usize,
    bytes: usize,
    hosts: usize,
    algorithm: Option<&str>,
    costs: Option<&PairCosts>,
) -> Result<PlanReport, String> {
    let kind = Kind::from_name(op).ok_or_else(|| {
        format!("no plan for {op:?}; there are {}", names(Kind::ALL.iter().map(|k| k.name())))
    })?;
    if !(1..=MOST_RANKS).contains(&ranks) {
        return Err(format!("{ranks} ranks; plans are shown for 1 to {MOST_RANKS}"));
    }
    if !(1..=ranks).contains(&hosts) {
        return Err(format!("{hosts} hosts for {ranks} ranks; there must be 1 to {ranks}"));
    }
    if bytes.checked_mul(2 * ranks).is_none_or(|b| b > isize::MAX as usize) {
        return Err(format!("{bytes} bytes on {ranks} ranks are more than memory can hold"));
    }
    let host: Vec<_> = (0..ranks).map(|r| r * hosts / ranks).collect();
    let world = Topology::new(host.clone(), ranks.div_ceil(hosts));
    let world = match costs {
        Some(c) if c.size() != ranks => return Err(format!("costs of {} ranks, for {ranks}", c.size())),
        Some(c) => world.measured(c.clone()),
        None => world,
    };
    let elem = if bytes.is_multiple_of(4) { 4 } else { 1 };
    let count = if kind == Kind::Barrier { 0 } else { bytes / elem };
    let shape = Shape { hosts: &host, ..Shape::new(kind, 0, ranks, count, elem) };
    let choice = match algorithm {
        None => choose(&shape.common(), &world, None),
        Some(name) => price(&shape.common(), &world, parse(kind, name)?),
    };
    let all = tally(&shape, choice.algorithm, choice.segment);
    // One segment stands for all.
    let drawn = Shape { count: if choice.segment > 0 { choice.segment.min(count) } else { count }, ..shape };
    let mut report = PlanReport {
        op: kind.name(),
        ranks,
        bytes: count * elem,
        algorithm: choice.algorithm.name(),
        segment: choice.segment * elem,
        rounds: 0,
        messages: all.messages,
        sent_most: all.sent_most * elem,
        sent_total: all.sent * elem,
        sent_between_hosts: all.between * elem,
        memory: all.memory * elem,
        seconds: choice.predicted,
        text: String::new(),
        dot: String::new(),
    };
    draw(&mut report, &drawn, choice.algorithm);
    Ok(report)
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

fn parse(kind: Kind, name: &str) -> Result<Algorithm, String> {
    Algorithm::from_name(name).filter(|a| a.serves(kind)).ok_or_else(|| {
        format!(
            "{name:?} cannot carry out {}; {} can",
            kind.name(),
            names(kind.algorithms().map(Algorithm::name))
        )
    })
}

/// Sums over all ranks' plans, in elements.
#[derive(Default)]
struct Tally {
    messages: usize,
    sent: usize,
    sent_most: usize,
    between: usize,
    memory: usize,
}

fn tally(shape: &Shape, algorithm: Algorithm, segment: usize) -> Tally {
    let mut all = Tally::default();
    for rank in 0..shape.size {
        let plan = build(&Shape { rank, ..*shape }, algorithm, segment);
        let mut sent = 0;
        for (to, src) in sends(&plan).map(|(_, to, src)| (to, src)) {
            all.messages += 1;
            sent += src.len;
            all.between += if shape.hosts[to] == shape.hosts[rank] { 0 } else { src.len };
        }
        all.sent += sent;
        all.sent_most = all.sent_most.max(sent);
        all.memory = all.memory.max(plan.tmp);
    }
    all
}

/// Round, receiver and range of what a plan sends.
fn sends(plan: &Plan) -> impl Iterator<Item = (u32, usize, Slice)> {
    plan.steps.iter().filter_map(|s| match s.act {
        Act::Send { to, src } => Some((s.round, to, src)),
        _ => None,
    })
}

/// `64 MiB`, `1.5 KiB`, `12 B`.
fn size(bytes: usize) -> String {
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

fn draw(report: &mut PlanReport, shape: &Shape, algorithm: Algorithm) {
    let plans = (0..shape.size).map(|rank| build(&Shape { rank, ..*shape }, algorithm, 0));
    let mut grid: Vec<Plan> = Vec::new();
    let mut edges: BTreeMap<(usize, usize), Vec<(u32, usize)>> = BTreeMap::new();
    for (rank, plan) in plans.enumerate() {
        let rounds = plan.steps.iter().filter(|s| !matches!(s.act, Act::Copy { .. })).map(|s| s.round + 1);
        report.rounds = report.rounds.max(rounds.max().unwrap_or(0) as usize);
        for (round, to, src) in sends(&plan) {
            edges.entry((rank, to)).or_default().push((round, src.len * shape.elem));
        }
        if rank < DRAWN_RANKS {
            grid.push(plan);
        }
    }
    report.text = text(report, shape, &grid);
    report.dot = dot(report, shape, &edges);
}

fn text(report: &PlanReport, shape: &Shape, grid: &[Plan]) -> String {
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
    if report.rounds == 0 {
        return t;
    }
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
        row(&mut t, "host", (0..grid.len()).map(|r| shape.hosts[r].to_string()).collect());
    }
    row(&mut t, "rank", (0..grid.len()).map(|r| r.to_string()).collect());
    for round in 0..report.rounds.min(DRAWN_ROUNDS) {
        let cells = |way: fn(&Act) -> (&str, Vec<usize>)| -> Vec<String> {
            grid.iter().enumerate().map(|(r, p)| cell(p, round as u32, shape.size, r, way)).collect()
        };
        row(&mut t, &round.to_string(), cells(outward));
        row(&mut t, "", cells(inward));
    }
    if report.rounds > DRAWN_ROUNDS {
        let _ = writeln!(t, "       ... and {} rounds more", report.rounds - DRAWN_ROUNDS);
    }
    if shape.size > grid.len() {
        let _ = writeln!(t, "       (ranks {} to {} not shown)", grid.len(), shape.size - 1);
    }
    t.push_str("       -> sends to   <- takes from   += adds what comes from\n");
    t
}

/// What an act sends: an arrow and the receivers.
fn outward(act: &Act) -> (&str, Vec<usize>) {
    match act {
        Act::Send { to, .. } => ("->", vec![*to]),
        _ => ("", Vec::new()),
    }
}

fn inward(act: &Act) -> (&str, Vec<usize>) {
    match act {
        Act::Recv { from, take: Take::Copy, .. } => ("<-", vec![*from]),
        Act::Recv { from, .. } => ("+=", vec![*from]),
        Act::Fold { from, .. } => ("+=", from.clone()),
        _ => ("", Vec::new()),
    }
}

fn cell(plan: &Plan, round: u32, n: usize, me: usize, way: fn(&Act) -> (&str, Vec<usize>)) -> String {
    let mut by_sign: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for step in plan.steps.iter().filter(|s| s.round == round) {
        let (sign, peers) = way(&step.act);
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

/// Shortened to `width` columns.
fn fit(s: &str, width: usize) -> String {
    match s.chars().count() > width {
        true => s.chars().take(width.saturating_sub(1)).chain(['~']).collect(),
        false => s.to_owned(),
    }
}

fn dot(report: &PlanReport, shape: &Shape, edges: &BTreeMap<(usize, usize), Vec<(u32, usize)>>) -> String {
    let mut t = format!("digraph {} {{\n  node [shape=box];\n", report.op);
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
    fn numbers_and_drawing_of_a_known_plan() {
        let r = plan_report("all_reduce", 4, 4000, 1, Some("two-phase"), None).expect("a plan");
        assert_eq!((r.rounds, r.messages), (2, 24));
        assert_eq!((r.sent_most, r.sent_total), (6000, 24000));
        assert!(
            r.text.contains("->all") && r.text.contains("+=all") && r.text.contains("<-all"),
            "{}",
            r.text
        );
        assert!(r.dot.contains("0 -> 1 [label=\"0: 1000 B\\n1: 1000 B\"];"), "{}", r.dot);
    }

    #[test]
    fn every_plan_fits_the_page() {
        for kind in Kind::ALL {
            for algorithm in kind.algorithms() {
                for (ranks, hosts) in [(1, 1), (2, 2), (7, 3), (12, 3), (64, 8)] {
                    let r = plan_report(kind.name(), ranks, 1 << 22, hosts, Some(algorithm.name()), None)
                        .expect("a plan");
                    assert!(r.text.lines().all(|l| l.chars().count() <= WIDTH), "{}", r.text);
                    assert_eq!(r.dot.matches("cluster_").count(), hosts);
                    assert_eq!(r.rounds > 0, ranks > 1);
                    assert!(r.seconds.is_finite());
                }
            }
        }
    }

    #[test]
    fn neighbours_are_written_as_runs() {
        assert_eq!(runs(&[1, 3, 4, 5, 8, 9]), "1,3-5,8,9");
        assert_eq!(runs(&[]), "");
    }

    #[test]
    fn refusals_name_the_choices() {
        let refusal = |op, ranks, bytes, hosts, a| {
            plan_report(op, ranks, bytes, hosts, a, None).err().unwrap_or_default()
        };
        assert!(refusal("allreduce", 2, 8, 1, None).contains("all_reduce, reduce"));
        assert!(refusal("broadcast", 2, 8, 1, Some("ring")).contains("direct, two-phase, tree"));
        assert!(refusal("broadcast", 0, 8, 1, None).contains("1 to 4096"));
        assert!(refusal("broadcast", 2, 8, 3, None).contains("1 to 2"));
        assert!(refusal("all_gather", 2, usize::MAX, 1, None).contains("memory"));
    }
}
