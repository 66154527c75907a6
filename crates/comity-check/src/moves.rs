//! Operations that move elements and do not change them: every type, every root; between two ranks in and out of the order of tags.

use super::{
    case::{Case, CheckRow, GuardedBuffer},
    value::{Sample, gives, unequal},
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
    for counts in unequal(n, count) {
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
    let gives = |from, to| gives(from, to, count);
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

/// Pairs of (sender, receiver): all of them in small groups, else those at distances 1, 2, 4, ...
fn pairs(n: usize) -> Vec<(usize, usize)> {
    let all = n <= 8;
    let steps: Vec<usize> =
        if all { (1..n).collect() } else { (0..).map(|k| 1 << k).take_while(|&d| d < n).collect() };
    steps.into_iter().flat_map(|d| (0..n).map(move |a| (a, (a + d) % n))).collect()
}

/// Every type and size from rank to rank.
pub(super) fn send_recv(row: &mut CheckRow<'_>) -> Result<()> {
    fn call<T: Sample>(row: &mut CheckRow<'_>, count: usize, (from, to): (usize, usize)) -> Result<()> {
        let me = row.rank();
        let deal = row.deal();
        let of = |i| T::any(deal.draw(from, i));
        let case = Case { root: Some(from), note: "root is the sender", ..row.case::<T>(count) };
        if me == from {
            let src = GuardedBuffer::new(count, of);
            row.send(&src, to, count as u32)?;
        } else if me == to {
            let mut dst = GuardedBuffer::stale(count);
            row.in_place(&mut dst, |g, dst| g.recv(dst, from, count as u32))?;
            row.expect_buffer(&case, &dst, of);
        }
        Ok(())
    }
    let pairs = pairs(row.n());
    for dtype in row.options.dtypes.clone() {
        for (i, count) in row.whole(dtype).into_iter().enumerate() {
            let few = if count <= 8 { pairs.as_slice() } else { &pairs[i % pairs.len()..][..1] };
            for &pair in few {
                with_type!(dtype, T => call::<T>(row, count, pair))?;
            }
        }
    }
    Ok(())
}

/// Rings in both directions, and pairs, at once on every rank.
pub(super) fn sendrecv(row: &mut CheckRow<'_>) -> Result<()> {
    fn call<T: Sample>(row: &mut CheckRow<'_>, count: usize, distance: usize) -> Result<()> {
        let me = row.rank();
        let n = row.n();
        let deal = row.deal();
        let of = |r, i| T::any(deal.draw(r, i));
        let case = Case { note: "in a ring", ..row.case::<T>(count) };
        let to = (me + distance) % n;
        let from = (me + n - distance) % n;
        let src = GuardedBuffer::new(count, |i| of(me, i));
        let mut dst = GuardedBuffer::stale(count);
        row.both(&src, &mut dst, |g, src, dst| g.sendrecv(src, to, dst, from, 3))?;
        row.expect_buffer(&case, &dst, |i| of(from, i));
        Ok(())
    }
    let n = row.n();
    let mut distances = vec![1, n / 2, n - 1];
    distances.retain(|&d| d > 0);
    distances.dedup();
    for dtype in row.options.dtypes.clone() {
        for count in row.whole(dtype) {
            for &d in &distances {
                with_type!(dtype, T => call::<T>(row, count, d))?;
            }
        }
    }
    Ok(())
}

/// Messages of one tag in order, those of other tags before them; also ones longer than what a link holds.
pub(super) fn tags(row: &mut CheckRow<'_>) -> Result<()> {
    let me = row.rank();
    let long = if row.options.quick { 300_001 } else { 3_000_001 };
    for (from, to) in pairs(row.n()) {
        for count in [1, 1000, long] {
            if count == long && (from + 1) % row.n() != to {
                continue;
            }
            let deal = row.deal();
            let case = Case { root: Some(from), note: "root is the sender", ..row.case::<u8>(count) };
            let of = |message: usize, i: usize| u8::any(deal.draw(message, i));
            // In the order of sending: tag and elements.
            let messages = [(10, count), (11, 3), (10, 2), (u32::MAX >> 1, 0), (11, count)];
            if me == from {
                for (m, (tag, len)) in messages.into_iter().enumerate() {
                    row.send(&GuardedBuffer::new(len, |i| of(m, i)), to, tag)?;
                }
            } else if me == to {
                for m in [1, 3, 0, 4, 2] {
                    let (tag, len) = messages[m];
                    let mut dst = GuardedBuffer::stale(len);
                    row.in_place(&mut dst, |g, dst| g.recv(dst, from, tag))?;
                    row.expect_buffer(&case, &dst, |i| of(m, i));
                }
            }
        }
    }
    Ok(())
}
