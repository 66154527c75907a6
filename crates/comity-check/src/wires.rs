//! Calls on a wire: within the bounds that its documentation names, and the same bits on all ranks.
//!
//! The data lie between -1 and 1, so no block of a wire has a larger element than 1.

use super::case::{Case, CheckRow, GuardedBuffer, given};
use super::value::Data;
use comity::{DType, ReduceOp, Result, Wire};

/// A call on `count` elements by one wire.
type Call = fn(&mut CheckRow<'_>, Wire, usize) -> Result<()>;

/// Makes the call by each wire with each count; the elements are `f32`, if they are asked for.
fn each(row: &mut CheckRow<'_>, call: Call) -> Result<()> {
    if !row.options.dtypes.contains(&DType::F32) {
        return Ok(());
    }
    for wire in Wire::ALL {
        for count in row.sizes() {
            call(row, wire, count)?;
        }
    }
    Ok(())
}

fn case(row: &mut CheckRow<'_>, wire: Wire, reduce: Option<ReduceOp>, count: usize) -> Case {
    Case { reduce, note: wire.name(), ..row.case::<f32>(count) }
}

/// Hold `got`, which starts at element `from` of the whole, against the sum of `given`.
fn judge(
    row: &mut CheckRow<'_>,
    case: &Case,
    wire: Wire,
    got: &[f32],
    from: usize,
    given: impl Fn(usize, usize) -> f32,
) {
    let n = row.n();
    for (k, x) in got.iter().enumerate() {
        let values = (0..n).map(|r| f64::from(given(r, from + k)));
        let (sum, magnitudes) = values.fold((0.0, 0.0), |(sum, all), x: f64| (sum + x, all + x.abs()));
        let most = match wire {
            // Nothing crosses a link.
            _ if n == 1 => 0.0,
            Wire::Bf16 => magnitudes / 127.0,
            Wire::F16 => magnitudes / 1023.0 + 3e-8 * (n + 1) as f64,
            _ => n as f64 / 124.0,
        };
        if (f64::from(*x) - sum).abs() > most {
            return row.differs(
                case,
                Some(from + k),
                format!("{x:?}"),
                format!("{sum:?} give or take {most:.1e}"),
            );
        }
    }
}

pub(super) fn all_reduce(row: &mut CheckRow<'_>) -> Result<()> {
    fn call(row: &mut CheckRow<'_>, wire: Wire, count: usize) -> Result<()> {
        let me = row.rank();
        let of = given::<f32>(row.deal(), Data::Real, ReduceOp::Sum, row.n());
        let case = case(row, wire, Some(ReduceOp::Sum), count);
        let mut buf = GuardedBuffer::new(count, |i| of(me, i));
        row.group.with_wire(wire).all_reduce(buf.get_mut(), ReduceOp::Sum)?;
        judge(row, &case, wire, buf.get(), 0, &of);
        row.expect_guarded(&case, &buf);
        row.expect_everywhere(&case, buf.get())
    }
    each(row, call)?;
    // Long calls go in pieces.
    let large = if row.options.quick { &[] } else { row.large(DType::F32) };
    let asked = row.options.dtypes.contains(&DType::F32);
    large.iter().filter(|_| asked).try_for_each(|count| call(row, Wire::Int8Block, *count))
}

pub(super) fn reduce_scatter(row: &mut CheckRow<'_>) -> Result<()> {
    fn call(row: &mut CheckRow<'_>, wire: Wire, count: usize) -> Result<()> {
        let me = row.rank();
        let n = row.n();
        let of = given::<f32>(row.deal(), Data::Real, ReduceOp::Sum, n);
        let case = case(row, wire, Some(ReduceOp::Sum), count);
        let src = GuardedBuffer::new(n * count, |i| of(me, i));
        let mut dst = GuardedBuffer::stale(count);
        row.group.with_wire(wire).reduce_scatter(src.get(), dst.get_mut(), ReduceOp::Sum)?;
        judge(row, &case, wire, dst.get(), me * count, &of);
        row.expect_guarded(&case, &dst);
        Ok(())
    }
    each(row, call)
}

pub(super) fn all_gather(row: &mut CheckRow<'_>) -> Result<()> {
    fn call(row: &mut CheckRow<'_>, wire: Wire, count: usize) -> Result<()> {
        let me = row.rank();
        let n = row.n();
        let of = given::<f32>(row.deal(), Data::Real, ReduceOp::Sum, n);
        let case = case(row, wire, None, count);
        let src = GuardedBuffer::new(count, |i| of(me, i));
        let mut dst = GuardedBuffer::stale(n * count);
        row.group.with_wire(wire).all_gather(src.get(), dst.get_mut())?;
        // One contribution and no sum: the others give nothing.
        judge(row, &case, wire, dst.get(), 0, |r, i| if r == i / count { of(r, i % count) } else { 0.0 });
        row.expect_guarded(&case, &dst);
        row.expect_everywhere(&case, dst.get())
    }
    each(row, call)
}
