//! Plans for people: what an operation would do, in numbers, as text and as a graph. May import everything but `simulate`.

use crate::{
    Plan, ReceiveMode, Slice, StepOp,
    algorithms::Algorithm,
    choose::{choose, price},
    lanes::Lanes,
    pipeline::build,
    shape::{Kind, Shape},
    svg,
    topology::{Cost, HostLink, LinkClass, PairCosts, Topology},
};
use std::{collections::BTreeMap, fmt::Write};

/// Ranks beyond this are not laid out.
const MOST_RANKS: usize = 4096;

/// Request to [`plan_report`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlanRequest<'a> {
    /// The operation's name.
    pub op: &'a str,
    /// Number of ranks.
    pub ranks: usize,
    /// Bytes of the whole buffer, as `comity bench` counts them: for all_gather and gather of the result, for reduce_scatter, scatter and
    /// all_to_all of what is dealt out. Parts are equal.
    pub bytes: usize,
    /// Over how many hosts the ranks are dealt, in order.
    pub hosts: usize,
    /// Cores of each host; as many as it has ranks where nobody says.
    pub cores: Option<usize>,
    /// Cost of messages within a host.
    pub within: LinkClass,
    /// Overrules the cost model.
    pub algorithm: Option<Algorithm>,
    /// Costs that were measured between these ranks.
    pub costs: Option<&'a PairCosts>,
}

impl<'a> PlanRequest<'a> {
    /// An operation on the ranks of one host, over shared memory.
    pub const fn new(op: &'a str, ranks: usize, bytes: usize) -> Self {
        Self { op, ranks, bytes, hosts: 1, cores: None, within: LinkClass::SHM, algorithm: None, costs: None }
    }
}

/// Plan of an operation, with its expected cost. See [`plan_report`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlanReport {
    /// The operation.
    pub op: &'static str,
    /// Number of ranks.
    pub ranks: usize,
    /// Bytes of the call, as [`PlanRequest::bytes`].
    pub bytes: usize,
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// Bytes of one segment; 0 for a plan of one segment.
    pub segment: usize,
    /// Threads of each rank that carry a part of the call each; 1 where messages go as the plan says.
    pub lanes: usize,
    /// Rounds of one segment.
    pub rounds: usize,
    /// Messages sent by all ranks together.
    pub messages: usize,
    /// Bytes sent by the rank that sends most.
    pub sent_most: usize,
    /// Bytes sent by all ranks together.
    pub sent_total: usize,
    /// Part of these bytes that pass between hosts.
    pub sent_between_hosts: usize,
    /// Bytes of working memory of the rank that needs most.
    pub memory: usize,
    /// Time that the cost model expects.
    pub seconds: f64,
    /// Part of this time for messages and for ranks that take turns on a core.
    pub messages_s: f64,
    /// Part of this time for bytes that move.
    pub bytes_s: f64,
    /// Part of this time for bytes that are added.
    pub adding_s: f64,
    /// Numbers and a drawing, at most 110 columns wide.
    pub text: String,
    /// The messages as a graph in the language of Graphviz.
    pub dot: String,
    /// The messages as a picture; empty for more ranks than a picture can show.
    pub svg: String,
}

/// Reports the plan of an operation.
///
/// # Errors
/// The fault of the request.
pub fn plan_report(ask: &PlanRequest<'_>) -> Result<PlanReport, String> {
    let ranks = ask.ranks;
    let kind = check(ask)?;
    let host: Vec<_> = (0..ranks).map(|r| r * ask.hosts / ranks).collect();
    let world = Topology::new(host.clone(), ask.cores.unwrap_or_else(|| ranks.div_ceil(ask.hosts)));
    let world = within(ask.within, world);
    let world = match ask.costs {
        Some(c) if c.size() != ranks => return Err(format!("costs of {} ranks, for {ranks}", c.size())),
        Some(c) => world.measured(c.clone()),
        None => world,
    };
    let elem = if ask.bytes.is_multiple_of(4) { 4 } else { 1 };
    let (count, whole) = match kind {
        Kind::Barrier => (0, 0),
        Kind::AllReduce | Kind::Reduce | Kind::Broadcast => (ask.bytes / elem, ask.bytes / elem),
        Kind::AllGather | Kind::ReduceScatter | Kind::Gather | Kind::Scatter | Kind::AllToAll => {
            let part = (ask.bytes / elem).div_ceil(ranks);
            (part, part * ranks)
        }
    };
    let shape = Shape { hosts: &host, ..Shape::new(kind, 0, ranks, count, elem) };
    let common = shape.common();
    let choice = match ask.algorithm {
        None => choose(&common, &world, None),
        Some(a) if a.serves(kind) => price(&common, &world, a),
        Some(a) => {
            let can = names(kind.algorithms().map(Algorithm::name));
            return Err(format!("{:?} cannot carry out {}; {can} can", a.name(), kind.name()));
        }
    };
    let only = |part: fn(&mut Cost), gamma, switch| {
        price(&common, &world.with(part, gamma, switch), choice.algorithm).predicted
    };
    let all = tally(&shape, choice.algorithm, choice.segment);
    let of_one = if choice.segment > 0 { choice.segment.min(count) } else { count };
    let mut report = PlanReport {
        op: kind.name(),
        ranks,
        bytes: whole * elem,
        algorithm: choice.algorithm.name(),
        segment: choice.segment * elem,
        lanes: choice.lanes,
        rounds: 0,
        messages: all.messages,
        sent_most: all.sent_most * elem,
        sent_total: all.sent * elem,
        sent_between_hosts: all.between * elem,
        memory: all.memory * elem,
        seconds: choice.predicted,
        messages_s: only(|c| c.beta = 0.0, 0.0, world.switch),
        bytes_s: only(|c| c.alpha = 0.0, 0.0, 0.0),
        adding_s: only(|c| *c = Cost { alpha: 0.0, beta: 0.0 }, world.gamma, 0.0),
        text: String::new(),
        dot: String::new(),
        svg: String::new(),
    };
    // One segment stands for all.
    lay_out(&mut report, &Shape { count: of_one, ..shape }, choice.algorithm);
    Ok(report)
}

/// The same, with links of this kind within a host. Lanes go through shared memory alone.
fn within(local: LinkClass, world: Topology) -> Topology {
    let usual = (local == LinkClass::SHM).then_some(HostLink::Shm);
    let lanes = if usual.is_some() { world.lanes } else { Lanes::UpTo(1) };
    Topology { local, usual, lanes, ..world }
}

fn check(ask: &PlanRequest<'_>) -> Result<Kind, String> {
    let kind = Kind::from_name(ask.op).ok_or_else(|| {
        format!("no plan for {:?}; there are {}", ask.op, names(Kind::ALL.iter().map(|k| k.name())))
    })?;
    let ranks = ask.ranks;
    let hosts = ask.hosts;
    if !(1..=MOST_RANKS).contains(&ranks) {
        return Err(format!("{ranks} ranks; plans are shown for 1 to {MOST_RANKS}"));
    }
    if !(1..=ranks).contains(&hosts) {
        return Err(format!("{hosts} hosts for {ranks} ranks; there must be 1 to {ranks}"));
    }
    if ask.bytes.checked_mul(2 * ranks).is_none_or(|b| b > isize::MAX as usize) {
        return Err(format!("{} bytes on {ranks} ranks are more than memory can hold", ask.bytes));
    }
    Ok(kind)
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
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
    plan.steps.iter().filter_map(|s| match s.op {
        StepOp::Send { to, src } => Some((s.round, to, src)),
        _ => None,
    })
}

/// Rounds, drawing and graph.
fn lay_out(report: &mut PlanReport, shape: &Shape, algorithm: Algorithm) {
    let plans = (0..shape.size).map(|rank| build(&Shape { rank, ..*shape }, algorithm, 0));
    let mut grid: Vec<Plan> = Vec::new();
    let mut edges = svg::Edges::new();
    for (rank, plan) in plans.enumerate() {
        let rounds = plan.steps.iter().filter(|s| !matches!(s.op, StepOp::Copy { .. })).map(|s| s.round + 1);
        report.rounds = report.rounds.max(rounds.max().unwrap_or(0) as usize);
        for (round, to, src) in sends(&plan) {
            edges.entry((rank, to)).or_default().push((round, src.len * shape.elem));
        }
        if rank < RANKS {
            grid.push(plan);
        }
    }
    report.text = text(report, shape, &grid);
    report.dot = dot(report, shape, &edges);
    if shape.size <= svg::MOST_RANKS {
        report.svg = svg::svg(report, shape, &edges);
    }
}

/// The drawing's width, and how many ranks and rounds it shows.
const WIDTH: usize = 110;
const RANKS: usize = 12;
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

fn dot(report: &PlanReport, shape: &Shape, edges: &BTreeMap<(usize, usize), Vec<(u32, usize)>>) -> String {
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

    #[test]
    fn numbers_and_drawing_of_a_known_plan() {
        let r = plan_report(&PlanRequest {
            algorithm: Some(Algorithm::TwoPhase),
            ..PlanRequest::new("all_reduce", 4, 4000)
        })
        .expect("a plan");
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
                    let r = PlanRequest {
                        hosts,
                        algorithm: Some(algorithm),
                        ..PlanRequest::new(kind.name(), ranks, 1 << 22)
                    };
                    let r = plan_report(&r).expect("a plan");
                    assert!(r.text.lines().all(|l| l.chars().count() <= WIDTH), "{}", r.text);
                    assert_eq!(r.dot.matches("cluster_").count(), hosts);
                    assert_eq!(r.rounds > 0, ranks > 1);
                    assert!(r.seconds.is_finite());
                }
            }
        }
    }

    #[test]
    fn refusals_name_the_choices() {
        let refusal = |op, ranks, bytes, hosts, algorithm| {
            let ask = PlanRequest { hosts, algorithm, ..PlanRequest::new(op, ranks, bytes) };
            plan_report(&ask).err().unwrap_or_default()
        };
        assert!(refusal("allreduce", 2, 8, 1, None).contains("all_reduce, reduce"));
        assert!(refusal("broadcast", 2, 8, 1, Some(Algorithm::Ring)).contains("direct, two-phase, tree"));
        assert!(refusal("broadcast", 0, 8, 1, None).contains("1 to 4096"));
        assert!(refusal("broadcast", 2, 8, 3, None).contains("1 to 2"));
        assert!(refusal("all_gather", 2, usize::MAX, 1, None).contains("memory"));
    }

    #[test]
    fn seconds_are_told_apart_and_add_up() {
        for kind in Kind::ALL {
            for algorithm in kind.algorithms() {
                let ask = PlanRequest::new(kind.name(), 6, 1 << 20);
                let r =
                    plan_report(&PlanRequest { hosts: 2, cores: Some(2), algorithm: Some(algorithm), ..ask })
                        .unwrap();
                let sum = r.messages_s + r.bytes_s + r.adding_s;
                assert!((sum - r.seconds).abs() < 1e-9, "{kind:?} {algorithm:?}: {sum} {}", r.seconds);
            }
        }
    }

    #[test]
    fn bytes_are_of_the_whole_buffer() {
        let bytes = |op, n| plan_report(&PlanRequest::new(op, n, 1 << 20)).unwrap().bytes;
        assert_eq!(
            (bytes("all_gather", 4), bytes("all_reduce", 4), bytes("barrier", 4)),
            (1 << 20, 1 << 20, 0)
        );
        let r = plan_report(&PlanRequest {
            algorithm: Some(Algorithm::Direct),
            ..PlanRequest::new("all_gather", 4, 1 << 20)
        });
        assert_eq!(r.unwrap().sent_most, 3 << 18);
    }
}
