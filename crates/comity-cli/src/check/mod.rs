//! `comity check`: every operation against a scalar reference.
//!
//! Data are random and known to all: every rank computes what the others hold, and so what should come out. No operation
//! is trusted to check another, but for the exchange of what was found wrong; a rank that saw a
//! difference itself says so whatever it hears.
//!
//! ```text
//!   mod.rs     the rows of the table, in order
//!   reduce.rs moves.rs pairs.rs groups.rs large.rs   what a row does; algorithms.rs  again by each algorithm
//!   case.rs    a row under way: buffers between guards, comparisons
//!   value.rs   the numbers, and the reference; parts.rs  unequal parts
//!   links.rs   what each link takes; report.rs  what was found, the same on every rank
//! ```
mod algorithms;
mod case;
mod groups;
mod large;
mod links;
mod moves;
mod pairs;
mod parts;
mod reduce;
mod report;
mod through;
pub(crate) mod value;

pub use report::{Difference, Line, Report};

use crate::{here, say::LinesSaid};
use case::CheckRow;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use comity::{Algorithm, BackendKind, ConfigError, DType, Group, Result, tools::cuda::Cuda};
use comity_plan::Kind;
use report::merge;
use std::time::Instant;

/// The families of rows, as `--ops` names them, and what else each is called.
const OPS: [(&str, &[&str]); 13] = [
    ("all_reduce", &[]),
    ("reduce", &[]),
    ("broadcast", &[]),
    ("all_gather", &[]),
    ("reduce_scatter", &[]),
    ("gather", &[]),
    ("scatter", &[]),
    ("all_to_all", &[]),
    ("send", &["recv", "sendrecv"]),
    ("barrier", &[]),
    ("split", &[]),
    ("spawn", &["scope"]),
    ("misuse", &[]),
];

type Check = fn(&mut CheckRow<'_>) -> Result<()>;

/// The table: family, method, what it does.
const ROWS: [(&str, &str, Check); 24] = [
    ("all_reduce", "all_reduce", reduce::all_reduce),
    ("all_reduce", "all_reduce_into", reduce::all_reduce_into),
    ("reduce", "reduce", reduce::reduce),
    ("broadcast", "broadcast", moves::broadcast),
    ("all_gather", "all_gather", moves::all_gather),
    ("all_gather", "all_gather_in_place", moves::all_gather_in_place),
    ("all_gather", "all_gather_v", moves::all_gather_v),
    ("reduce_scatter", "reduce_scatter", reduce::reduce_scatter),
    ("reduce_scatter", "reduce_scatter_in_place", reduce::reduce_scatter_in_place),
    ("reduce_scatter", "reduce_scatter_v", reduce::reduce_scatter_v),
    ("gather", "gather", moves::gather),
    ("scatter", "scatter", moves::scatter),
    ("all_to_all", "all_to_all", moves::all_to_all),
    ("all_to_all", "all_to_all_in_place", moves::all_to_all_in_place),
    ("all_to_all", "all_to_all_v", moves::all_to_all_v),
    ("send", "send, recv", pairs::send_recv),
    ("send", "sendrecv", pairs::sendrecv),
    ("send", "tags out of order", pairs::tags),
    ("barrier", "barrier", groups::barrier),
    ("split", "split, split of split", groups::split),
    ("split", "subgroup", groups::subgroup),
    ("spawn", "spawn", groups::spawn),
    ("spawn", "scope", groups::scope),
    ("misuse", "misuse", groups::misuse),
];

/// Arguments of `comity check`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct CheckArgs {
    /// Only these operations (comma list)
    #[arg(long, value_name = "OP,..", value_delimiter = ',', value_parser = op_parser(), hide_possible_values = true)]
    ops: Vec<String>,

    /// Only these element types (comma list)
    #[arg(long, value_name = "TYPE,..", value_delimiter = ',', value_parser = dtype_parser(), hide_possible_values = true)]
    dtypes: Vec<DType>,

    /// Check this backend: any, mpi, nccl or jaccl [default: COMITY_BACKEND]
    #[arg(long, value_name = "NAME", value_parser = here::backend_parser(), hide_possible_values = true)]
    backend: Option<BackendKind>,

    /// Only the rows of this algorithm; `comity plan OP` lists them
    #[arg(long, value_name = "NAME", value_parser = here::algorithm_parser(), hide_possible_values = true)]
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

fn op_parser() -> PossibleValuesParser {
    PossibleValuesParser::new(OPS.into_iter().flat_map(|(op, more)| [&[op], more].concat()))
}

/// The name of an element type.
pub(crate) fn dtype_parser() -> impl TypedValueParser<Value = DType> {
    PossibleValuesParser::new(DType::ALL.map(DType::name))
        .try_map(|name| DType::from_name(&name).ok_or("no such type"))
}

/// Choice of checks.
#[derive(Clone, Debug)]
pub struct Options {
    /// The operations, by the names of `--ops`; empty for all.
    pub ops: Vec<String>,
    /// The element types.
    pub dtypes: Vec<DType>,
    /// Fewer sizes.
    pub quick: bool,
    /// Also buffers of more than 2 and 4 GiB.
    pub large: bool,
    /// The seed of the data, the same on every rank.
    pub seed: u64,
    /// By way of this device's memory.
    pub device: Option<Cuda>,
    /// Only what this algorithm carries out.
    pub algorithm: Option<Algorithm>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ops: Vec::new(),
            dtypes: DType::ALL.to_vec(),
            quick: false,
            large: false,
            seed: 0,
            device: None,
            algorithm: None,
        }
    }
}

impl Options {
    fn asks_for(&self, family: &str) -> bool {
        let of = |op: &str| OPS.into_iter().find(|(name, more)| *name == op || more.contains(&op));
        self.ops.is_empty() || self.ops.iter().any(|op| of(op).is_some_and(|(name, _)| name == family))
    }
}

/// Check `group`; every rank calls this with the same options.
///
/// # Errors
/// When the group fails. Wrong results are no error: they are in the report.
pub fn run(group: &Group, options: &Options) -> Result<Report> {
    run_with(group, options, &mut |_| {})
}

/// Like [`run`], with each line of the table as soon as it is known.
///
/// # Errors
/// The errors of [`run`].
pub fn run_with(group: &Group, options: &Options, each: &mut dyn FnMut(&Line)) -> Result<Report> {
    let mut report = Report::default();
    if let Some(algorithm) = options.algorithm {
        algorithms::run(group, options, &[algorithm], &mut report, each)?;
        return Ok(report);
    }
    for (_, method, check) in ROWS.into_iter().filter(|(family, ..)| options.asks_for(family)) {
        let mut row = CheckRow::new(group, options, method);
        // Nobody to send to, in a group of one.
        let line = if group.size() == 1 && matches!(method, "send, recv" | "sendrecv" | "tags out of order") {
            Line { skipped: Some("needs two ranks".into()), ..merge(row, &mut report)? }
        } else {
            check(&mut row)?;
            merge(row, &mut report)?
        };
        each(&line);
        report.lines.push(line);
    }
    algorithms::run(group, options, Algorithm::ALL, &mut report, each)?;
    if options.large {
        large::run(group, options, &mut report, each)?;
    }
    Ok(report)
}

/// `comity check`; the exit code.
pub(crate) fn check(args: CheckArgs) -> u8 {
    let dtypes = if args.dtypes.is_empty() { DType::ALL.to_vec() } else { args.dtypes };
    let options = Options {
        ops: args.ops,
        dtypes,
        quick: args.quick,
        large: args.large,
        seed: args.seed,
        device: None,
        algorithm: args.algorithm,
    };
    let joined = here::join_for(args.backend, args.device, &args.trust);
    let (group, device) = match joined {
        Ok(j) => j,
        Err(e) => return here::failed("check", &e),
    };
    if args.links {
        return links::run(&group, args.json);
    }
    let options = Options { device, ..options };
    if let Some(algorithm) = options.algorithm
        && let Err(e) = can_check(&group, &options, algorithm)
    {
        return here::failed("check", &e);
    }
    let speaks = group.rank() == 0;
    let mut lines = LinesSaid::new(speaks);
    let mut say = |line: String| lines.line(&line);
    let start = Instant::now();
    say(format!("# comity {} check: {}, seed {}", here::VERSION, here::world(&group), options.seed));
    say(Line::head());
    let report = match run_with(&group, &options, &mut |line| say(line.to_string())) {
        Ok(report) => report,
        Err(e) => return here::failed("check", &e),
    };
    if let Some(first) = &report.first {
        // Another rank than the one that saw it speaks only where rank 0 may not know.
        if speaks || first.rank == group.rank() {
            here::complain(format!("comity check: first difference: {first}"));
        }
        return 1;
    }
    say(format!("# {} cases on each rank in {:.1} s: all ok", report.cases(), start.elapsed().as_secs_f64()));
    lines.end("check", u8::from(!report.is_right()))
}

/// Nothing to check is no "all ok".
fn can_check(group: &Group, options: &Options, algorithm: Algorithm) -> Result<()> {
    if group.size() == 1 {
        return Err(ConfigError::new(
            "--algorithm needs two ranks or more: comity launch -n 2 -- comity check ...",
        )
        .into());
    }
    if !Kind::ALL.into_iter().any(|k| algorithm.serves(k) && options.asks_for(k.name())) {
        let a = algorithm.name();
        let can = here::served_by(algorithm);
        let asked = options.ops.join(", ");
        return Err(
            ConfigError::new(format!("--algorithm {a} cannot carry out {asked}; it can {can}")).into()
        );
    }
    here::prefer(group, algorithm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_can_be_asked_for_alone() {
        for (family, method, _) in ROWS {
            let asked = Options { ops: vec![family.into()], ..Options::default() };
            assert!(asked.asks_for(family), "{method}");
            let rows: Vec<_> = ROWS.into_iter().filter(|(f, ..)| asked.asks_for(f)).collect();
            assert!(rows.iter().all(|(f, ..)| *f == family));
        }
        let recv = Options { ops: vec!["recv".into()], ..Options::default() };
        assert!(recv.asks_for("send") && !recv.asks_for("split"));
    }
}
