//! The suite of `comity check`: every operation against a scalar reference.
//!
//! Data are random and known to all: every rank computes what the others hold, and so what should come out. No operation
//! is trusted to check another, but for the exchange of what was found wrong; a rank that saw a
//! difference itself says so whatever it hears.
//!
//! ```text
//!   lib.rs     the rows of the table, in order
//!   reduce.rs moves.rs groups.rs large.rs   what a row does; algorithms.rs  again by each algorithm
//!   wires.rs  calls on a wire, within their bounds
//!   case.rs    a row under way: buffers between guards, comparisons
//!   value.rs   the numbers, and the reference; unequal parts
//!   report.rs  what was found, the same on every rank
//! ```
//! A crate of its own, so that a build for tests can optimise it alone: it computes every value that it compares.
/// Declares a row: a function that makes a call of elements `T`, for each type, and each of the sizes that this method of the row gives, as the `each` of its file says.
macro_rules! calls {
    ($name:ident; $sizes:ident, |$row:ident, $given:ident: $type:ty| $body:block) => {
        pub(super) fn $name(row: &mut CheckRow<'_>) -> Result<()> {
            fn call<T: Sample>($row: &mut CheckRow<'_>, $given: $type) -> Result<()> $body
            each(row, |row, dtype| row.$sizes(dtype), |row, dtype, given| with_type!(dtype, T => call::<T>(row, given)))
        }
    };
}

mod algorithms;
mod case;
mod groups;
mod large;
mod moves;
mod reduce;
mod report;
pub mod value;
mod wires;

pub use report::{Difference, Line, Report};

use case::CheckRow;
use comity::{Algorithm, DType, Group, Result, tools::cuda::Cuda};
use report::merge;

/// Other names of families of rows.
const ALIASES: [(&str, &str); 3] = [("recv", "send"), ("sendrecv", "send"), ("scope", "spawn")];

type Check = fn(&mut CheckRow<'_>) -> Result<()>;

/// The table: family, method, what it does.
const ROWS: [(&str, &str, Check); 27] = [
    ("all_reduce", "all_reduce", reduce::all_reduce),
    ("all_reduce", "all_reduce_into", reduce::all_reduce_into),
    ("all_reduce", "all_reduce on each wire", wires::all_reduce),
    ("reduce", "reduce", reduce::reduce),
    ("broadcast", "broadcast", moves::broadcast),
    ("all_gather", "all_gather", moves::all_gather),
    ("all_gather", "all_gather_in_place", moves::all_gather_in_place),
    ("all_gather", "all_gather_v", moves::all_gather_v),
    ("all_gather", "all_gather on each wire", wires::all_gather),
    ("reduce_scatter", "reduce_scatter", reduce::reduce_scatter),
    ("reduce_scatter", "reduce_scatter_in_place", reduce::reduce_scatter_in_place),
    ("reduce_scatter", "reduce_scatter_v", reduce::reduce_scatter_v),
    ("reduce_scatter", "reduce_scatter on each wire", wires::reduce_scatter),
    ("gather", "gather", moves::gather),
    ("scatter", "scatter", moves::scatter),
    ("all_to_all", "all_to_all", moves::all_to_all),
    ("all_to_all", "all_to_all_in_place", moves::all_to_all_in_place),
    ("all_to_all", "all_to_all_v", moves::all_to_all_v),
    ("send", "send, recv", moves::send_recv),
    ("send", "sendrecv", moves::sendrecv),
    ("send", "tags out of order", moves::tags),
    ("barrier", "barrier", groups::barrier),
    ("split", "split, split of split", groups::split),
    ("split", "subgroup", groups::subgroup),
    ("spawn", "spawn", groups::spawn),
    ("spawn", "scope", groups::scope),
    ("misuse", "misuse", groups::misuse),
];

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

/// Names that `Options::ops` takes: each family of rows, then what else it is called.
pub fn op_names() -> impl Iterator<Item = &'static str> {
    ROWS.chunk_by(|a, b| a.0 == b.0).flat_map(|rows| {
        let (family, ..) = rows[0];
        let aliases = ALIASES.iter().filter(move |(_, of)| *of == family).map(|(alias, _)| *alias);
        std::iter::once(family).chain(aliases)
    })
}

impl Options {
    /// Returns true if the rows of this family are to be checked.
    pub fn asks_for(&self, family: &str) -> bool {
        let means = |op: &String| op == family || ALIASES.contains(&(op.as_str(), family));
        self.ops.is_empty() || self.ops.iter().any(means)
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
