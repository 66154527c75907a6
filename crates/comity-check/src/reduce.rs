//! Operations that reduce: every reduction of every type, on data of three kinds.

use super::{
    case::{Case, CheckRow, GuardedBuffer, given},
    value::{Data, Sample, unequal},
};
use crate::with_type;
use comity::{DType, ReduceOp, Result};

/// Operation, kind of data and count of a reduction.
#[derive(Clone, Copy)]
struct On {
    op: ReduceOp,
    data: Data,
    count: usize,
}

impl On {
    fn case<T: Sample>(self, row: &mut CheckRow<'_>, root: Option<usize>) -> Case {
        let note = match self.data {
            Data::Exact if T::FLOAT => "values that add up exactly",
            Data::Exact => "",
            Data::Special => "NaN, infinities, signed zeros",
            Data::Real => "real values",
        };
        Case { reduce: Some(self.op), root, note, ..row.case::<T>(self.count) }
    }
}

/// Every type and reduction asked for, on every kind of data that says something about them.
fn each(
    row: &mut CheckRow<'_>,
    sizes: fn(&CheckRow<'_>, DType) -> Vec<usize>,
    call: fn(&mut CheckRow<'_>, DType, On) -> Result<()>,
) -> Result<()> {
    for dtype in row.options.dtypes.clone() {
        for op in ReduceOp::ALL.into_iter().filter(|&op| dtype.supports(op)) {
            let float = with_type!(dtype, T => T::FLOAT);
            let ordered = matches!(op, ReduceOp::Min | ReduceOp::Max);
            for count in sizes(row, dtype) {
                // Large buffers are about where bytes go, which no reduction changes.
                let large = count > if row.options.quick { 100 } else { 100_000 };
                if large && op != ReduceOp::Sum {
                    continue;
                }
                call(row, dtype, On { op, data: Data::Exact, count })?;
                if large && row.options.quick {
                    continue;
                }
                if float {
                    call(row, dtype, On { op, data: Data::Special, count })?;
                }
                if float && !ordered {
                    call(row, dtype, On { op, data: Data::Real, count })?;
                }
            }
        }
    }
    Ok(())
}

/// Element `i` of the result, of what each rank gives.
fn result<T: Sample>(op: ReduceOp, n: usize, of: &impl Fn(usize, usize) -> T, i: usize) -> T {
    // One allocation for each element is what takes the time otherwise.
    let mut few = [T::any(0); 16];
    match few.get_mut(..n) {
        Some(few) => {
            few.iter_mut().enumerate().for_each(|(r, x)| *x = of(r, i));
            T::fold(op, few)
        }
        None => T::fold(op, &(0..n).map(|r| of(r, i)).collect::<Vec<_>>()),
    }
}

/// Hold `got`, which starts at element `from` of the whole, against the reference.
fn judge<T: Sample>(
    row: &mut CheckRow<'_>,
    case: &Case,
    on: On,
    got: &[T],
    from: usize,
    of: &impl Fn(usize, usize) -> T,
) {
    let n = row.n();
    if on.data != Data::Real {
        let want: Vec<T> = (0..got.len()).map(|i| result(on.op, n, of, from + i)).collect();
        return row.expect_reduced(case, on.op, got, &want);
    }
    let mut values = vec![T::any(0); n];
    for (i, &x) in got.iter().enumerate() {
        values.iter_mut().enumerate().for_each(|(r, v)| *v = of(r, from + i));
        if let Err(expected) = T::near(on.op, &values, x) {
            return row.differs(case, Some(from + i), format!("{x:?}"), expected);
        }
    }
}

/// The bits of a call and of the same call again.
fn expect_again<T: Sample>(row: &mut CheckRow<'_>, case: &Case, first: &[T], again: &[T]) {
    let case = Case { note: "the same call again", ..*case };
    row.expect(&case, again, |i| first[i]);
}

calls!(all_reduce; whole, |row, on: On| {
    let me = row.rank();
    let of = given::<T>(row.deal(), on.data, on.op, row.n());
    let case = on.case::<T>(row, None);
    let mut buf = GuardedBuffer::new(on.count, |i| of(me, i));
    row.in_place(&mut buf, |g, buf| g.all_reduce(buf, on.op))?;
    judge(row, &case, on, buf.get(), 0, &of);
    row.expect_guarded(&case, &buf);
    if on.data == Data::Real {
        row.expect_everywhere(&case, buf.get())?;
        let mut again = GuardedBuffer::new(on.count, |i| of(me, i));
        row.in_place(&mut again, |g, buf| g.all_reduce(buf, on.op))?;
        expect_again(row, &case, buf.get(), again.get());
    }
    Ok(())
});

calls!(all_reduce_into; whole, |row, on: On| {
    let me = row.rank();
    let of = given::<T>(row.deal(), on.data, on.op, row.n());
    let case = on.case::<T>(row, None);
    let src = GuardedBuffer::new(on.count, |i| of(me, i));
    let dst = row.filled(&src, on.count, |g, src, dst| g.all_reduce_into(src, dst, on.op))?;
    judge(row, &case, on, dst.get(), 0, &of);
    row.expect_guarded(&case, &dst);
    row.expect(&Case { note: "the source", ..case }, src.get(), |i| of(me, i));
    if on.data == Data::Real {
        row.expect_everywhere(&case, dst.get())?;
    }
    Ok(())
});

calls!(reduce; whole, |row, on: On| {
    let me = row.rank();
    for root in row.roots(on.count) {
        let of = given::<T>(row.deal(), on.data, on.op, row.n());
        let case = on.case::<T>(row, Some(root));
        let mut buf = GuardedBuffer::new(on.count, |i| of(me, i));
        row.in_place(&mut buf, |g, buf| g.reduce(buf, on.op, root))?;
        if me == root {
            judge(row, &case, on, buf.get(), 0, &of);
        } else {
            let case = Case { note: "the buffer of another rank than the root", ..case };
            row.expect(&case, buf.get(), |i| of(me, i));
        }
        row.expect_guarded(&case, &buf);
    }
    Ok(())
});

calls!(reduce_scatter; parts, |row, on: On| {
    let me = row.rank();
    let n = row.n();
    let of = given::<T>(row.deal(), on.data, on.op, n);
    let case = on.case::<T>(row, None);
    let src = GuardedBuffer::new(n * on.count, |i| of(me, i));
    let dst = row.filled(&src, on.count, |g, src, dst| g.reduce_scatter(src, dst, on.op))?;
    judge(row, &case, on, dst.get(), me * on.count, &of);
    row.expect_guarded(&case, &dst);
    if on.data == Data::Real {
        let again = row.filled(&src, on.count, |g, src, dst| g.reduce_scatter(src, dst, on.op))?;
        expect_again(row, &case, dst.get(), again.get());
    }
    Ok(())
});

calls!(reduce_scatter_in_place; parts, |row, on: On| {
    let me = row.rank();
    let n = row.n();
    let of = given::<T>(row.deal(), on.data, on.op, n);
    let case = on.case::<T>(row, None);
    let mut buf = GuardedBuffer::new(n * on.count, |i| of(me, i));
    row.in_place(&mut buf, |g, buf| g.reduce_scatter_in_place(buf, on.op))?;
    let (before, rest) = buf.get().split_at(me * on.count);
    let (own, after) = rest.split_at(on.count);
    judge(row, &case, on, own, me * on.count, &of);
    let others = Case { note: "the parts of other ranks", ..case };
    row.expect(&others, before, |i| of(me, i));
    row.expect(&others, after, |i| of(me, (me + 1) * on.count + i));
    row.expect_guarded(&case, &buf);
    Ok(())
});

calls!(reduce_scatter_v; parts, |row, on: On| {
    let me = row.rank();
    let n = row.n();
    for counts in unequal(n, on.count) {
        let of = given::<T>(row.deal(), on.data, on.op, n);
        let case = on.case::<T>(row, None);
        let from: usize = counts[..me].iter().sum();
        let src = GuardedBuffer::new(counts.iter().sum(), |i| of(me, i));
        let dst = row.filled(&src, counts[me], |g, src, dst| g.reduce_scatter_v(src, dst, &counts, on.op))?;
        judge(row, &case, on, dst.get(), from, &of);
        row.expect_guarded(&case, &dst);
    }
    Ok(())
});
