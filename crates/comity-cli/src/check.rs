//! `comity check`: the suite of `comity-check` on the ranks of this job, and what each link takes.
use crate::{
    here,
    say::{Exit, FAULTY, RankLines, complain, say},
};
use clap::builder::PossibleValuesParser;
use comity::{Algorithm, BackendKind, DType, Group, LinkCosts, Result};
use comity_check::{Line, Options, run_with};
use comity_launch::one_of;
use comity_plan::Kind;
use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct CheckArgs {
    /// Only these operations (comma list)
    #[arg(long, value_name = "OP,..", value_delimiter = ',', value_parser = PossibleValuesParser::new(comity_check::op_names()), hide_possible_values = true)]
    ops: Vec<String>,

    /// Only these element types (comma list)
    #[arg(long, value_name = "TYPE,..", value_delimiter = ',', value_parser = one_of(DType::ALL.map(DType::name), DType::from_name), hide_possible_values = true)]
    dtypes: Vec<DType>,

    /// Check this backend: any, mpi, nccl or jaccl [default: COMITY_BACKEND]
    #[arg(long, value_name = "NAME", value_parser = one_of(BackendKind::ALL.map(BackendKind::name), BackendKind::from_name), hide_possible_values = true)]
    backend: Option<BackendKind>,

    /// Only the rows of this algorithm; `comity plan OP` lists them
    #[arg(long, value_name = "NAME", value_parser = one_of(Algorithm::ALL.iter().map(|a| a.name()), Algorithm::from_name), hide_possible_values = true)]
    algorithm: Option<Algorithm>,

    /// Memory of the buffers: host, or cuda, with NCCL
    #[arg(long, value_enum, value_name = "KIND", default_value_t, hide_possible_values = true)]
    device: here::DeviceKind,

    /// Fewer sizes
    #[arg(long)]
    quick: bool,

    /// Also buffers of more than 2 and 4 GiB, as far as memory has room
    #[arg(long)]
    large: bool,

    /// The seed of the data
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Measure latency and bandwidth of every pair and direction instead
    #[arg(long, conflicts_with_all = ["ops", "dtypes", "algorithm", "device", "quick", "large", "seed"])]
    links: bool,

    /// With --links: as JSON, for COMITY_COSTS and `comity plan --costs`
    #[arg(long, requires = "links")]
    json: bool,

    #[command(flatten)]
    trust: here::JobTrust,
}

const AFTER: &str = "\
Run it under a launcher to check the links between its ranks: comity launch -n 4 -- comity check
Alone, it checks a group of one. Every rank takes the same flags.

OP is all_reduce, reduce, broadcast, all_gather, reduce_scatter, gather, scatter, all_to_all, send
(also recv, sendrecv), barrier, split, spawn (also scope) or misuse. TYPE is bool, u8, u16, u32,
u64, i8, i16, i32, i64, f16, bf16, f32, f64 or c64.

Exit code: 0 when everything was right; 1 when something was wrong, with the first difference on
standard error, or when the group failed; 2 for bad arguments or variables.";

pub(crate) fn check(args: CheckArgs) -> Exit {
    let dtypes = if args.dtypes.is_empty() { DType::ALL.to_vec() } else { args.dtypes };
    let (group, device) = here::join(args.backend, args.device, &args.trust)?;
    if args.links {
        return measure_links(&group, args.json);
    }
    let options = Options {
        ops: args.ops,
        dtypes,
        quick: args.quick,
        large: args.large,
        seed: args.seed,
        device,
        algorithm: args.algorithm,
    };
    options.algorithm.map(|algorithm| can_check(&group, &options, algorithm)).transpose()?;
    let speaks = group.rank() == 0;
    let mut lines = RankLines::new(speaks);
    let mut say = |line: String| lines.line(&line);
    let start = Instant::now();
    say(format!("# comity {} check: {}, seed {}", here::VERSION, here::world(&group), options.seed));
    say(Line::head());
    let report = run_with(&group, &options, &mut |line| say(line.to_string()))?;
    if let Some(first) = &report.first {
        // Another rank than the one that saw it speaks only where rank 0 may not know.
        if speaks || first.rank == group.rank() {
            complain("check", format!("first difference: {}", first.text));
        }
        return Ok(FAULTY);
    }
    say(format!("# {} cases on each rank in {:.1} s: all ok", report.cases(), start.elapsed().as_secs_f64()));
    lines.end(u8::from(!report.is_right()))
}

/// Nothing to check is no "all ok".
fn can_check(group: &Group, options: &Options, algorithm: Algorithm) -> Result<()> {
    if group.size() == 1 {
        return here::refused("--algorithm needs two ranks or more: comity launch -n 2 -- comity check ...");
    }
    if !Kind::ALL.into_iter().any(|k| algorithm.serves(k) && options.asks_for(k.name())) {
        let a = algorithm.name();
        let can = here::served_by(algorithm);
        let asked = options.ops.join(", ");
        return here::refused(format!("--algorithm {a} cannot carry out {asked}; it can {can}"));
    }
    here::prefer(group, algorithm)
}

/// Time for measuring, about; a slow link takes longer.
const BUDGET: Duration = Duration::from_secs(8);
/// Groups above this are told by their slowest pairs: a table would be wider than a page.
const WIDE: usize = 12;
const SLOWEST: usize = 10;

/// Measure, and have rank 0 say it.
fn measure_links(group: &Group, json: bool) -> Exit {
    let costs = group.measure_links(BUDGET)?;
    if group.rank() != 0 {
        return Ok(0);
    }
    let text = match json {
        true => costs.to_json(),
        false => {
            format!("# comity {} check --links: {}\n{}", here::VERSION, here::world(group), table(&costs))
        }
    };
    say(format!("{}\n", text.trim_end()), 0)
}

fn table(costs: &LinkCosts) -> String {
    let latency = |a, b| costs.latency(a, b) * 1e6;
    let bandwidth = |a, b| costs.bandwidth(a, b) / 1e9;
    let mut text = String::new();
    for (what, of, worst) in [
        ("latency in us", &latency as &dyn Fn(usize, usize) -> f64, 1.0),
        ("bandwidth in GB/s", &bandwidth, -1.0),
    ] {
        let _ = if costs.size() <= WIDE {
            writeln!(text, "{what}, from row to column\n{}", matrix(costs.size(), of))
        } else {
            writeln!(text, "{what}\n{}", extremes(costs.size(), of, worst))
        };
    }
    text
}

fn number(x: f64) -> String {
    match x {
        x if x < 10.0 => format!("{x:.2}"),
        x if x < 100.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}

fn matrix(n: usize, of: &dyn Fn(usize, usize) -> f64) -> String {
    let mut text = format!("{:>5}", "");
    (0..n).for_each(|b| text += &format!("{b:>8}"));
    for a in 0..n {
        text += &format!("\n{a:>5}");
        for b in 0..n {
            text += &format!("{:>8}", if a == b { "-".into() } else { number(of(a, b)) });
        }
    }
    text
}

/// The median and the worst.
fn extremes(n: usize, of: &dyn Fn(usize, usize) -> f64, worst: f64) -> String {
    let ends = (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b);
    let mut all: Vec<_> = ends.map(|(a, b)| (of(a, b), a, b)).collect();
    all.sort_by(|x, y| (y.0 * worst).total_cmp(&(x.0 * worst)));
    let mut text = format!("  median {} of {} links; the slowest:", number(all[all.len() / 2].0), all.len());
    for (x, a, b) in all.iter().take(SLOWEST) {
        let _ = write!(text, "\n  {:>8}  from {a} to {b}", number(*x));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(n: usize) -> LinkCosts {
        let row = |slow: f64, usual: f64| {
            let cell = |a: usize, b: usize| if (a, b) == (1, 2) { slow } else { usual };
            (0..n).map(|a| (0..n).map(|b| cell(a, b)).collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let json =
            serde_json::json!({ "ranks": n, "latency_s": row(0.25, 2e-6), "bytes_per_s": row(5e6, 12.5e9) });
        LinkCosts::from_json(&json.to_string()).unwrap()
    }

    #[test]
    fn small_groups_have_a_table_and_large_ones_their_slowest() {
        let text = table(&costs(3));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "latency in us, from row to column");
        assert_eq!(lines[3], "    1    2.00       -  250000");
        assert_eq!(lines[8], "    1    12.5       -    0.01");
        let text = table(&costs(20));
        assert!(text.contains("median 2.00 of 380 links; the slowest:\n    250000  from 1 to 2\n"), "{text}");
        assert!(text.contains("median 12.5 of 380 links; the slowest:\n      0.01  from 1 to 2\n"), "{text}");
        assert!(text.lines().all(|l| l.len() <= 100));
    }
}
