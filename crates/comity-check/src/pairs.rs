//! Two ranks at a time: send, recv and sendrecv, in and out of the order of tags.

use super::{
    case::{Case, CheckRow, GuardedBuffer},
    value::Sample,
};
use crate::with_type;
use comity::Result;

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
