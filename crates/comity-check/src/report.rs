//! Result of a check: the rows of the table and the first difference, the same on every rank.

use super::{Options, case::CheckRow};
use comity::{DType, ReduceOp, Result};
use std::fmt;

/// Result of a check, on all ranks together.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// A line for each method, in the order of the table.
    pub lines: Vec<Line>,
    /// The first difference, by row, then by rank.
    pub first: Option<Difference>,
}

impl Report {
    /// Returns whether every result was right on every rank, as far as this rank knows.
    pub fn is_right(&self) -> bool {
        self.first.is_none() && self.lines.iter().all(|l| l.wrong == 0)
    }

    /// Calls made by each rank.
    pub fn cases(&self) -> u64 {
        self.lines.iter().map(|l| l.cases).sum()
    }
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Line {
    /// The method checked.
    pub method: String,
    /// The types it was checked with; none where it takes no buffer.
    pub dtypes: Vec<DType>,
    /// The least and the largest number of elements.
    pub sizes: Option<(usize, usize)>,
    /// Calls made by each rank.
    pub cases: u64,
    /// Wrong results, on all ranks together.
    pub wrong: u64,
    /// Ranks with a wrong result.
    pub ranks: u64,
    /// Reason for which nothing was checked.
    pub skipped: Option<String>,
}

impl Line {
    /// The head of the table.
    pub fn head() -> String {
        format!("{:<31}  {:<14}  {:<15}  {:>6}  result", "operation", "dtypes", "elements", "cases")
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtypes = match self.dtypes.as_slice() {
            [] => "-".into(),
            all if all.len() == DType::ALL.len() => format!("all {}", all.len()),
            few if few.len() <= 3 => few.iter().map(|d| d.name()).collect::<Vec<_>>().join(" "),
            some => format!("{} of {}", some.len(), DType::ALL.len()),
        };
        let sizes = match self.sizes {
            None => "-".into(),
            Some((least, most)) if least == most => least.to_string(),
            Some((least, most)) => format!("{least}..{most}"),
        };
        write!(f, "{:<31}  {dtypes:<14}  {sizes:<15}  {:>6}  ", self.method, self.cases)?;
        match (&self.skipped, self.wrong) {
            (Some(why), _) => write!(f, "skipped: {why}"),
            (None, 0) => f.write_str("ok"),
            (None, wrong) => {
                write!(f, "WRONG: {wrong} on {} rank{}", self.ranks, if self.ranks == 1 { "" } else { "s" })
            }
        }
    }
}

/// A result that was not what it should have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The rank that saw it.
    pub rank: usize,
    /// The call, the rank, the element, what was there and what should have been.
    pub text: String,
}

/// Put the ranks' views of a row together. A rank that saw a difference keeps it, whatever the others say: what carries the
/// news may be what is broken.
pub(super) fn merge(row: CheckRow<'_>, report: &mut Report) -> Result<Line> {
    let mut counts = [row.wrong, u64::from(row.wrong > 0)];
    row.group.all_reduce(&mut counts, ReduceOp::Sum)?;
    let own_wrong = row.wrong > 0;
    let [wrong, ranks] = if own_wrong { [counts[0].max(row.wrong), counts[1].max(1)] } else { counts };
    // Every rank goes the same way, also where it does not believe what it heard.
    if counts[1] > 0 {
        let told = tell(&row)?;
        let first = told.or(row.first);
        report.first = report.first.take().or(first);
    } else if let Some(own) = row.first {
        report.first.get_or_insert(own);
    }
    Ok(Line {
        method: row.name,
        dtypes: in_order(&row.dtypes, row.options),
        sizes: row.sizes,
        cases: row.cases,
        wrong,
        ranks,
        skipped: None,
    })
}

fn in_order(dtypes: &[DType], options: &Options) -> Vec<DType> {
    // A type that the user did not ask for is used where any would do.
    let asked = options.dtypes.iter().copied().filter(|d| dtypes.contains(d));
    let others = dtypes.iter().copied().filter(|d| !options.dtypes.contains(d));
    asked.chain(others).collect()
}

/// The difference of the first rank that has one.
fn tell(row: &CheckRow<'_>) -> Result<Option<Difference>> {
    let group = row.group;
    let text = row.first.as_ref().map(|d| d.text.as_bytes()).unwrap_or_default();
    let mut lengths = vec![0u64; group.size()];
    group.all_gather(&[text.len() as u64], &mut lengths)?;
    let Some(root) = lengths.iter().position(|&l| l > 0) else { return Ok(None) };
    // Longer than any text made here: the length itself came wrong.
    let mut bytes = vec![0u8; lengths[root].min(1 << 16) as usize];
    if root == group.rank() && bytes.len() == text.len() {
        bytes.copy_from_slice(text);
    }
    group.broadcast(&mut bytes, root)?;
    // What carries the news may be what is broken.
    let text = String::from_utf8(bytes).ok().filter(|text| text.starts_with(&row.name));
    Ok(text.map(|text| Difference { rank: root, text }))
}
