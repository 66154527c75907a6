//! Operations that move elements and do not change them: every type, every root.

use super::{
    case::{Case, CheckRow, GuardedBuffer},
    parts,
    value::Sample,
};
use crate::with_type;
use comity::{DType, Result};

fn each(
    row: &mut CheckRow<'_>,
    sizes: fn(&CheckRow<'_>, DType) -> Vec<usize>,
    call: fn(&mut CheckRow<'_>, DType, usize) -> Result<()>,
) -> Result<()> {
    for dtype in row.options.dtypes.clone() {
        for count in sizes(row, dtype) {
            call(row, dtype, count)?;
        }
    }
    Ok(())
}

/// Returns the value that rank `r` holds at `i`.
fn held<T: Sample>(row: &CheckRow<'_>) -> impl Fn(usize, usize) -> T + use<T> {
    let deal = row.deal();
    move |r, i| T::any(deal.draw(r, i))
}

calls!(broadcast; whole, |row, count: usize| {
    let me = row.rank();
    for root in row.roots(count) {
        let of = held::<T>(row);
        let case = Case { root: Some(root), ..row.case::<T>(count) };
        let mut buf = GuardedBuffer::new(count, |i| of(me, i));
        row.in_place(&mut buf, |g, buf| g.broadcast(buf, root))?;
        row.expect_buffer(&case, &buf, |i| of(root, i));
    }
    Ok(())
});

calls!(all_gather; parts, |row, count: usize| {
    let me = row.rank();
    let n = row.n();
    let of = held::<T>(row);
    let case = row.case::<T>(count);
    let src = GuardedBuffer::new(count, |i| of(me, i));
    let dst = row.filled(&src, n * count, |g, src, dst| g.all_gather(src, dst))?;
    row.expect_buffer(&case, &dst, |i| of(i / count, i % count));
    row.expect_everywhere(&case, dst.get())
});

calls!(all_gather_in_place; parts, |row, count: usize| {
    let me = row.rank();
    let n = row.n();
    let of = held::<T>(row);
    let case = row.case::<T>(count);
    let mut buf = GuardedBuffer::stale(n * count);
    buf.get_mut()[me * count..][..count].iter_mut().enumerate().for_each(|(i, x)| *x = of(me, i));
    row.in_place(&mut buf, |g, buf| g.all_gather_in_place(buf))?;
    row.expect_buffer(&case, &buf, |i| of(i / count, i % count));
    Ok(())
});

calls!(all_gather_v; parts, |row, count: usize| {
    let me = row.rank();
    let n = row.n();
    for counts in parts::unequal(n, count) {
        let of = held::<T>(row);
        let case = row.case::<T>(count);
        let src = GuardedBuffer::new(counts[me], |i| of(me, i));
        let dst = row.filled(&src, counts.iter().sum(), |g, src, dst| g.all_gather_v(src, dst, &counts))?;
        let want: Vec<T> =
            (0..n).flat_map(|r| (0..counts[r]).map(move |i| (r, i))).map(|(r, i)| of(r, i)).collect();
        row.expect_buffer(&case, &dst, |i| want[i]);
    }
    Ok(())
});

calls!(gather; parts, |row, count: usize| {
    let me = row.rank();
    let n = row.n();
    for root in row.roots(count) {
        let of = held::<T>(row);
        let case = Case { root: Some(root), ..row.case::<T>(count) };
        let src = GuardedBuffer::new(count, |i| of(me, i));
        let len = if me == root { n * count } else { 0 };
        let dst = row.filled(&src, len, |g, src, dst| g.gather(src, dst, root))?;
        row.expect_buffer(&case, &dst, |i| of(i / count, i % count));
    }
    Ok(())
});

calls!(scatter; parts, |row, count: usize| {
    let me = row.rank();
    let n = row.n();
    for root in row.roots(count) {
        let of = held::<T>(row);
        let case = Case { root: Some(root), ..row.case::<T>(count) };
        let src = GuardedBuffer::new(if me == root { n * count } else { 0 }, |i| of(root, i));
        let dst = row.filled(&src, count, |g, src, dst| g.scatter(src, dst, root))?;
        row.expect_buffer(&case, &dst, |i| of(root, me * count + i));
    }
    Ok(())
});

calls!(all_to_all; parts, |row, count: usize| {
    let me = row.rank();
    let n = row.n();
    let of = held::<T>(row);
    let case = row.case::<T>(count);
    let src = GuardedBuffer::new(n * count, |i| of(me, i));
    let dst = row.filled(&src, n * count, |g, src, dst| g.all_to_all(src, dst))?;
    row.expect_buffer(&case, &dst, |i| of(i / count, me * count + i % count));
    Ok(())
});

calls!(all_to_all_in_place; parts, |row, count: usize| {
    let me = row.rank();
    let n = row.n();
    let of = held::<T>(row);
    let case = row.case::<T>(count);
    let mut buf = GuardedBuffer::new(n * count, |i| of(me, i));
    row.in_place(&mut buf, |g, buf| g.all_to_all_in_place(buf))?;
    row.expect_buffer(&case, &buf, |i| of(i / count, me * count + i % count));
    Ok(())
});

calls!(all_to_all_v; parts, |row, count: usize| {
    let me = row.rank();
    let n = row.n();
    let of = held::<T>(row);
    let case = row.case::<T>(count);
    let gives = |from, to| parts::gives(from, to, count);
    let out: Vec<usize> = (0..n).map(|to| gives(me, to)).collect();
    let into: Vec<usize> = (0..n).map(|from| gives(from, me)).collect();
    // Element k of what `from` gives to `to` is drawn at a place of its own.
    let at = |from: usize, to: usize, k: usize| of(from, to << 24 | k);
    let sent: Vec<T> = (0..n).flat_map(|to| (0..out[to]).map(move |k| at(me, to, k))).collect();
    let want: Vec<T> = (0..n).flat_map(|from| (0..into[from]).map(move |k| at(from, me, k))).collect();
    let src = GuardedBuffer::new(sent.len(), |i| sent[i]);
    let dst = row.filled(&src, want.len(), |g, src, dst| g.all_to_all_v(src, &out, dst, &into))?;
    row.expect_buffer(&case, &dst, |i| want[i]);
    Ok(())
});
