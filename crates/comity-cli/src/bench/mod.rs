//! `comity bench`: how long operations take, and what that is in bytes per second.
//!
//! ```text
//!   mod.rs      arguments, and which cells there are    op.rs   one call of each operation, checked
//!   measure.rs  how a cell is timed                     row.rs  a row, beside an earlier run; as CSV, as a page; samples, for other tools
//! ```
mod measure;
mod op;
mod row;

use crate::{
    here, save,
    say::{CommandError, Exit, RankLines, has_colour},
    size::Sizes,
};
use clap::builder::PossibleValuesParser;
use comity::{Algorithm, BackendKind, DType, Group, ReduceOp, Result, Wire, tools, tools::cuda::Cuda};
use comity_launch::one_of;
use comity_plan::Kind;
use measure::measure;
use op::{BenchOp, Cell};
use row::{BenchRow, Earlier, RawFile};
use serde_json::{Value, json};
use std::{collections::BTreeSet, path::PathBuf, time::SystemTime};

const AFTER: &str = "\
Run it under a launcher: comity launch -n 4 -- comity bench
OP is all_reduce (when none is named), all_gather, reduce_scatter, broadcast, reduce, all_to_all,
gather, scatter, sendrecv (every rank to the next), pingpong (ranks 0 and 1) or barrier; or all.

The time of a call is that of the rank where it took longest. algbw is bytes by median time; busbw
is what each link carries then, as nccl-tests count it; CPU is processor time of all ranks for 1e9
bytes. One call of each row is checked before the clock runs; #wrong counts elements, and any of
them makes the exit code 1.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct BenchArgs {
    /// Operations to measure
    #[arg(value_name = "OP", value_parser = PossibleValuesParser::new(["all"].into_iter().chain(BenchOp::ALL.map(BenchOp::name))), hide_possible_values = true)]
    ops: Vec<String>,

    /// Bytes: sizes and ranges (comma list; binary K, M, G)
    #[arg(long, value_name = "A:B", value_delimiter = ',', default_value = "8:256M")]
    sizes: Vec<Sizes>,

    /// From one size of a range to the next
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,

    /// The element type: u8, i32, bf16, f32, ...
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = one_of(DType::ALL.map(DType::name), DType::from_name), hide_possible_values = true)]
    dtype: DType,

    /// The reduction: sum, product, min, max, avg, and, or, xor
    #[arg(long, value_name = "OP", default_value = "sum", value_parser = one_of(ReduceOp::ALL.map(ReduceOp::name), ReduceOp::from_name), hide_possible_values = true)]
    op: ReduceOp,

    /// Elements cross the links in this form: bf16, f16 or int8
    #[arg(long, value_name = "WIRE", value_parser = one_of(Wire::ALL.map(Wire::name), Wire::from_name), hide_possible_values = true)]
    wire: Option<Wire>,

    /// Time to measure each row, at least 5 calls
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = seconds)]
    budget: f64,

    /// Number of calls to measure for each row, instead of --budget
    #[arg(long, value_name = "N", conflicts_with = "budget", value_parser = count)]
    iters: Option<usize>,

    /// Calls before the clock runs [default: 20, above 1 MiB 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    warmup: Option<u32>,

    /// Measure this backend: any, mpi, nccl or jaccl [default: COMITY_BACKEND]
    #[arg(long, value_name = "NAME", value_parser = one_of(BackendKind::ALL.map(BackendKind::name), BackendKind::from_name), hide_possible_values = true)]
    backend: Option<BackendKind>,

    /// By this algorithm instead of the cheapest; `comity plan OP` lists them
    #[arg(long, value_name = "NAME", value_parser = one_of(Algorithm::ALL.iter().map(|a| a.name()), Algorithm::from_name), hide_possible_values = true)]
    algorithm: Option<Algorithm>,

    /// Memory of the buffers: host, or cuda, with NCCL
    #[arg(long, value_enum, value_name = "KIND", default_value_t, hide_possible_values = true)]
    device: here::DeviceKind,

    /// In buffers that the ranks of a host read where they lie
    #[arg(long, conflicts_with = "device")]
    shared_buffers: bool,

    /// Calls in a sample, waited for together [default: 1, more if short]
    #[arg(long, value_name = "N", value_parser = count)]
    batch: Option<usize>,

    /// Print a JSON object for each row
    #[arg(long)]
    json: bool,

    /// A line of comma-separated values for each row
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Beside each row, how often as fast it is as in this file of --json
    #[arg(long, value_name = "OLD.json", conflicts_with_all = ["json", "csv"])]
    compare: Option<PathBuf>,

    /// Also write a page with curves to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write each rank's samples to DIR/TAG.rN.jsonl
    #[arg(long, value_name = "DIR/TAG", hide = true)]
    raw: Option<PathBuf>,

    #[command(flatten)]
    trust: here::JobTrust,
}

fn seconds(s: &str) -> Result<f64, String> {
    let ok = s.parse().ok().filter(|n: &f64| *n > 0.0 && *n <= 3600.0);
    ok.ok_or_else(|| "seconds are a number above 0 and up to 3600".into())
}

fn count(s: &str) -> Result<usize, String> {
    let ok = s.parse().ok().filter(|n| (1..=100_000_000).contains(n));
    ok.ok_or_else(|| "calls are a whole number from 1 to 100000000".into())
}

pub(crate) fn bench(args: BenchArgs) -> Exit {
    if !args.dtype.supports(args.op) {
        return Err(CommandError::usage(format!(
            "--op {} is not defined on --dtype {}",
            args.op, args.dtype
        )));
    }
    let (group, device) = here::join(args.backend, args.device, &args.trust)?;
    let raw = args.raw.as_deref().map(|tag| {
        RawFile::create(tag, group.rank())
            .map_err(|e| CommandError::usage(format!("--raw {}: {e}", tag.display())))
    });
    let raw = raw.transpose()?;
    // A launcher's pipe is no terminal: there CLICOLOR_FORCE asks for colours.
    let forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|v| v != "0" && !v.is_empty());
    let colours = has_colour(forced);
    let earlier = args.compare.as_deref().map(|path| Earlier::read(path, colours)).transpose();
    let earlier = earlier.map_err(CommandError::usage)?.unwrap_or_default();
    let speaks = group.rank() == 0;
    let mut lines = RankLines::new(speaks);
    let say = |line: String| lines.line(&line);
    let mut rows = Vec::new();
    let wrong = table(&group, device.as_ref(), (&args, &earlier), (raw, &mut rows), say)?;
    let notes = [pulled(), in_lanes()];
    let told = notes.iter().flatten().filter(|_| speaks && !args.json && !args.csv);
    told.for_each(|words| lines.line(words));
    if let (Some(file), true) = (&args.html, speaks) {
        save::replace(file, row::html(&rows, &here::world(&group)).as_bytes(), save::FOR_ALL)
            .map_err(|e| CommandError::usage(format!("--html {}: {e}", file.display())))?;
    }
    lines.end(u8::from(wrong > 0))
}

/// The whole table; how many elements were wrong.
fn table(
    group: &Group,
    device: Option<&Cuda>,
    (args, earlier): (&BenchArgs, &Earlier),
    (mut raw, rows): (Option<RawFile>, &mut Vec<Value>),
    mut say: impl FnMut(String),
) -> Result<u64> {
    let n = group.size();
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let is_table = !args.json && !args.csv;
    if args.csv {
        say(row::COLUMNS.into());
    }
    if is_table {
        let kind = if args.shared_buffers { ", shared buffers" } else { "" };
        say(format!("# comity {} bench: {}{kind}", here::VERSION, here::world(group)));
        let by = args.algorithm.map_or_else(String::new, |a| format!(", by {}", a.name()));
        let wire = args.wire.map_or_else(String::new, |wire| format!(", wire {wire}"));
        say(format!("# {date}, {} cores on the host of rank 0{by}{wire}", here::cores()));
    }
    let world = json!({
        "version": here::VERSION, "date": date, "ranks": n, "hosts": here::hosts(group), "links": here::links(group),
        "wire": args.wire.map(Wire::name),
    });
    let on_wire = group.with_wire(args.wire);
    let mut wrong = 0;
    if let Some(algorithm) = args.algorithm {
        here::prefer(group, algorithm)?;
    }
    for op in ops(&args.ops, args.algorithm)? {
        if is_table {
            say(BenchRow::head(op, args));
        }
        let mut seen = BTreeSet::new();
        for asked in args.sizes.iter().flat_map(|s| s.by(args.factor)) {
            let (count, bytes) = elements(op, asked, args.dtype, n, raw.is_some())?;
            if !seen.insert(bytes) && raw.is_none() {
                continue;
            }
            let samples = comity_check::with_type!(args.dtype, T => {
                let mut cell = Cell::<T>::new(op, (args.op, args.wire), &on_wire, count, device, args.shared_buffers)?;
                measure(group, &mut cell, bytes, args)
            })?;
            if let Some(raw) = &mut raw {
                raw.write(op, asked, n, &samples)?;
            }
            let row = BenchRow::of(samples, args, group, op, count, bytes)?;
            wrong += row.wrong;
            let value = row.to_json(&world);
            say(match (args.json, args.csv, &args.compare) {
                (true, ..) => value.to_string(),
                (_, true, _) => row::csv(&value),
                (.., Some(_)) => row.to_string() + &earlier.words(&value),
                _ => row.to_string(),
            });
            rows.push(value);
        }
    }
    Ok(wrong)
}

/// Comment line on the bytes that this rank has read in the memory of others, if any.
fn pulled() -> Option<String> {
    let bytes = tools::bytes_pulled();
    (bytes > 0)
        .then(|| format!("# comity read {} MiB where they lay in the memory of other ranks", bytes >> 20))
}

/// Bytes that this rank has moved in lanes, if it has any.
fn in_lanes() -> Option<String> {
    let bytes = tools::bytes_in_lanes();
    (bytes > 0).then(|| format!("# comity moved {} MiB in lanes", bytes >> 20))
}

/// Operations to measure; of `all` only those that the algorithm can carry out.
fn ops(names: &[String], algorithm: Option<Algorithm>) -> Result<Vec<BenchOp>> {
    let serves =
        |op: &BenchOp| algorithm.is_none_or(|a| Kind::from_name(op.name()).is_some_and(|k| a.serves(k)));
    if names.iter().any(|name| name == "all") {
        return Ok(BenchOp::ALL.into_iter().filter(serves).collect());
    }
    let named: Vec<_> = names.iter().filter_map(|name| BenchOp::from_name(name)).collect();
    let ops = if named.is_empty() { vec![BenchOp::AllReduce] } else { named };
    match (algorithm, ops.iter().find(|op| !serves(op))) {
        (Some(a), Some(op)) => {
            let can = here::served_by(a);
            let a = a.name();
            here::refused(format!("--algorithm {a} cannot carry out {}; it can {can}", op.name()))
        }
        _ => Ok(ops),
    }
}

/// Elements and bytes of the whole buffer next to what was asked for: at least one element, the same for each rank.
/// `exactly` as benchmarks of other libraries do it, which may come to nothing.
fn elements(op: BenchOp, asked: u64, dtype: DType, n: usize, exactly: bool) -> Result<(usize, u64)> {
    let size = dtype.size();
    let whole = usize::try_from(asked).unwrap_or(usize::MAX) / size;
    let least = usize::from(!exactly);
    let count = match op {
        BenchOp::Barrier => 0,
        _ if op.has_parts() => (whole / n).max(least) * n,
        _ => whole.max(least),
    };
    let bytes = count.checked_mul(size).filter(|&b| b <= isize::MAX as usize);
    match bytes {
        Some(bytes) => Ok((count, bytes as u64)),
        None => here::refused(format!("--sizes: {asked} bytes are more than this machine can address")),
    }
}

#[cfg(test)]
mod tests;
