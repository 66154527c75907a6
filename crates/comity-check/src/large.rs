//! Buffers whose bytes, or whose elements, no 32 bits can count.

use super::{
    Options,
    case::{Case, CheckRow},
    report::{Line, Report, merge},
    value::Sample,
};
use comity::{Group, ReduceOp, Result};

/// Elements added to 2 and to 4 GiB, so that nothing divides.
const ODD: usize = 13;

struct Large {
    method: &'static str,
    /// Bytes of the largest buffer.
    bytes: usize,
    call: fn(&mut CheckRow<'_>, usize) -> Result<()>,
}

const ROWS: [Large; 6] = [
    Large { method: "all_reduce > 2 GiB", bytes: (1 << 31) + 4 * ODD, call: all_reduce::<f32> },
    Large { method: "broadcast > 2 GiB", bytes: (1 << 31) + 4 * ODD, call: broadcast::<f32> },
    Large { method: "all_gather > 2 GiB", bytes: (1 << 31) + 4 * ODD, call: all_gather::<f32> },
    Large { method: "all_reduce > 4 GiB", bytes: (1 << 32) + ODD, call: all_reduce::<u8> },
    Large { method: "broadcast > 4 GiB", bytes: (1 << 32) + ODD, call: broadcast::<u8> },
    Large { method: "all_gather > 4 GiB", bytes: (1 << 32) + ODD, call: all_gather::<u8> },
];

/// Every row that memory has room for; the others say what they need.
pub(super) fn run(
    group: &Group,
    options: &Options,
    report: &mut Report,
    each: &mut dyn FnMut(&Line),
) -> Result<()> {
    for large in ROWS.iter().filter(|l| options.asks_for(l.method.split(' ').next().unwrap_or_default())) {
        let host = &group.members()[group.rank()].host;
        let here = group.members().iter().filter(|m| m.host == *host).count();
        // The buffer, what a plan keeps beside it, and a part more.
        let need = here as u64 * (large.bytes as u64 / 2 * 3);
        let free = free_memory().unwrap_or(u64::MAX);
        // The tightest host decides for all.
        let mut room = [i64::try_from(free).unwrap_or(i64::MAX).saturating_sub_unsigned(need)];
        group.all_reduce(&mut room, ReduceOp::Min)?;
        let mut row = CheckRow::new(group, options, large.method);
        let line = if room[0] < 0 {
            let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
            let short = gib(room[0].unsigned_abs());
            let skipped =
                Some(format!("needs {:.1} GiB free on this host; {short:.1} GiB too little", gib(need)));
            Line { skipped, ..merge(row, report)? }
        } else {
            (large.call)(&mut row, large.bytes)?;
            merge(row, report)?
        };
        each(&line);
        report.lines.push(line);
    }
    Ok(())
}

/// Memory that can be used without swapping, where the system says so.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// A type with a value that costs next to nothing to compute, four billion times.
trait Cheap: Sample {
    fn at(rank: usize, i: usize) -> Self;
}

/// Not periodic in any size of segment: the high bits of the index count too.
fn pattern(rank: usize, i: usize) -> u8 {
    let rank = rank as u8;
    let high = ((i >> 16) as u8).wrapping_mul(3) ^ (i >> 24) as u8;
    (i as u8).wrapping_mul(31) ^ ((i >> 8) as u8).wrapping_mul(7) ^ high.wrapping_add(rank.wrapping_mul(13))
}

impl Cheap for u8 {
    fn at(rank: usize, i: usize) -> Self {
        pattern(rank, i)
    }
}

impl Cheap for f32 {
    fn at(rank: usize, i: usize) -> Self {
        // Whole numbers, whose sum is exact.
        Self::from(pattern(rank, i))
    }
}

fn filled<T: Cheap>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|i| T::at(rank, i)).collect()
}

fn all_reduce<T: Cheap>(row: &mut CheckRow<'_>, bytes: usize) -> Result<()> {
    let n = row.n();
    let count = bytes / T::DTYPE.size();
    let case = Case { reduce: Some(ReduceOp::Sum), ..row.case::<T>(count) };
    let mut x = filled::<T>(row.rank(), count);
    row.group.all_reduce(&mut x, ReduceOp::Sum)?;
    let sum = |i| (1..n).fold(T::at(0, i), |a, r| T::combine(ReduceOp::Sum, a, T::at(r, i)));
    row.expect(&case, &x, sum);
    Ok(())
}

fn broadcast<T: Cheap>(row: &mut CheckRow<'_>, bytes: usize) -> Result<()> {
    let root = row.n() - 1;
    let count = bytes / T::DTYPE.size();
    let case = Case { root: Some(root), ..row.case::<T>(count) };
    let mut x = filled::<T>(row.rank(), count);
    row.group.broadcast(&mut x, root)?;
    row.expect(&case, &x, |i| T::at(root, i));
    Ok(())
}

fn all_gather<T: Cheap>(row: &mut CheckRow<'_>, bytes: usize) -> Result<()> {
    let part = (bytes / T::DTYPE.size()).div_ceil(row.n());
    let case = row.case::<T>(part);
    let src = filled::<T>(row.rank(), part);
    let mut dst = vec![T::any(0); part * row.n()];
    row.group.all_gather(&src, &mut dst)?;
    row.expect(&case, &dst, |i| T::at(i / part, i % part));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_tells_ranks_and_segments_apart() {
        let same = |a: usize, b: usize| (0..1000).all(|i| pattern(0, a + i) == pattern(0, b + i));
        for shift in [1, 256, 4096, 65_536, 1 << 20, 1 << 24, 3 << 20] {
            assert!(!same(0, shift), "{shift}");
        }
        assert_ne!(pattern(0, 5), pattern(1, 5));
        assert!(free_memory().is_none_or(|m| m > 1 << 20));
    }
}
