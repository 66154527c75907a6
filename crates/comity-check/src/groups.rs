//! Properties of groups: barriers that hold, groups of groups, work in the background, misuse that harms nothing.

use super::{
    case::{Case, CheckRow},
    value::Deal,
};
use comity::{ErrorKind, Group, Misuse, Op, ReduceOp, Result};
use std::{thread, time::Duration};

/// Nobody leaves before the last has come, by the clock that the processes of a host share.
pub(super) fn barrier(row: &mut CheckRow<'_>) -> Result<()> {
    let g = row.group;
    let me = row.rank();
    let n = row.n();
    let rounds = if row.options.quick { 20 } else { 100 };
    for round in 0..rounds {
        row.cases += 1;
        let case = Case { note: "a barrier", count: round, ..Case::default() };
        if round % n == me && round < 4 * n {
            thread::sleep(Duration::from_millis(1));
        }
        let came = now();
        g.barrier()?;
        let left = now();
        let mut all = vec![0i64; 2 * n];
        g.all_gather(&[came, left], &mut all)?;
        let here = |r: usize| g.members()[r].host == g.members()[me].host;
        for r in (0..n).filter(|&r| here(r)) {
            let late = format!("rank {r} came {} ns after this rank had left", all[2 * r] - left);
            row.expect_that(&case, all[2 * r] <= left, &late, "nobody to leave before the last has come");
        }
    }
    Ok(())
}

fn now() -> i64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as i64 * 1_000_000_000 + t.tv_nsec as i64
}

/// The operations in short on `g`, a group that came of `row`'s.
fn operations(row: &mut CheckRow<'_>, g: &Group) -> Result<()> {
    let me = g.rank();
    let n = g.size();
    for count in [0, 1, 5, 1000] {
        // Alike in all groups of one split, which is how a message of a neighbour group would be noticed.
        let deal = Deal::new(row.options.seed, (n as u64) << 32 | count as u64);
        let of = |r: usize, i: usize| deal.draw(r, i) as i32;
        let case = Case { note: "in a split group", ..row.case::<i32>(count) };
        let own: Vec<i32> = (0..count).map(|i| of(me, i)).collect();
        let mut x = own.clone();
        g.all_reduce(&mut x, ReduceOp::Sum)?;
        let case = Case { reduce: Some(ReduceOp::Sum), ..case };
        row.expect(&case, &x, |i| (0..n).fold(0i32, |a, r| a.wrapping_add(of(r, i))));
        let case = Case { reduce: None, ..case };
        let mut all = vec![0; n * count];
        g.all_gather(&own, &mut all)?;
        row.expect(&case, &all, |i| of(i / count, i % count));
        let root = count % n;
        let mut x = own.clone();
        g.broadcast(&mut x, root)?;
        row.expect(&Case { root: Some(root), ..case }, &x, |i| of(root, i));
        if n > 1 {
            let to = (me + 1) % n;
            let from = (me + n - 1) % n;
            let mut x = vec![0; count];
            g.sendrecv(&own, to, &mut x, from, 7)?;
            row.expect(&case, &x, |i| of(from, i));
        }
    }
    g.barrier()
}

fn expect_place(row: &mut CheckRow<'_>, g: &Group, rank: usize, size: usize) {
    let got = format!("rank {} of {}", g.rank(), g.size());
    let want = format!("rank {rank} of {size}");
    let case = Case { note: "the place in the new group", ..Case::default() };
    row.expect_that(&case, got == want, &got, &want);
}

/// Groups that only their members make: of the even ranks, then of neighbours.
pub(super) fn subgroup(row: &mut CheckRow<'_>) -> Result<()> {
    let g = row.group;
    let me = row.rank();
    let n = row.n();
    row.cases += 1;
    let even: Vec<usize> = (0..n).step_by(2).rev().collect();
    if let Some(place) = even.iter().position(|&r| r == me) {
        let some = g.subgroup(&even, 1)?;
        expect_place(row, &some, place, even.len());
        operations(row, &some)?;
    }
    // Each rank is in two of these, but for the first and the last.
    for low in [me.checked_sub(1), (me + 1 < n).then_some(me)].into_iter().flatten() {
        let two = g.subgroup(&[low, low + 1], 2)?;
        expect_place(row, &two, me - low, 2);
        operations(row, &two)?;
    }
    g.barrier()
}

fn part(g: &Group, color: i32, key: i32) -> Result<Group> {
    let misuse = Misuse::Color(color);
    g.split(Some(color), key)?.ok_or_else(|| ErrorKind::Misuse { op: Op::Split, misuse }.into())
}

/// Groups by color, ordered by key; groups of those; and all of them used in turn.
pub(super) fn split(row: &mut CheckRow<'_>) -> Result<()> {
    let g = row.group;
    let me = row.rank();
    let n = row.n();
    let half = n.div_ceil(2);
    row.cases += 5;
    // Even and odd ranks, the last first.
    let parity = part(g, (me % 2) as i32, -(me as i32))?;
    let size = (n + 1 - me % 2) / 2;
    expect_place(row, &parity, size - 1 - me / 2, size);
    // All again, in another order.
    let turned = part(g, 5, ((me + 1) % n) as i32)?;
    expect_place(row, &turned, (me + 1) % n, n);
    // The lower half and the rest, by rank where keys are equal.
    let halves = part(g, i32::from(me >= half), 0)?;
    let (first, size) = if me < half { (0, half) } else { (half, n - half) };
    expect_place(row, &halves, me - first, size);
    // Only some.
    let some = g.split((me.is_multiple_of(3)).then_some(i32::MAX), 1)?;
    let case = Case { note: "some in no group", ..Case::default() };
    let got = if some.is_some() { "a group" } else { "no group" };
    let want = if me.is_multiple_of(3) { "a group" } else { "no group" };
    row.expect_that(&case, got == want, got, want);
    // A split of a split, and of that.
    let pairs = part(&halves, (halves.rank() / 2) as i32, 0)?;
    let size = if halves.size() % 2 == 1 && halves.rank() + 1 == halves.size() { 1 } else { 2 };
    expect_place(row, &pairs, halves.rank() % 2, size.min(halves.size()));
    let alone = part(&pairs, pairs.rank() as i32, 0)?;
    expect_place(row, &alone, 0, 1);
    for g in [&parity, &turned, &halves, &pairs, &alone].into_iter().chain(&some) {
        operations(row, g)?;
    }
    // Groups that have gone leave the others as they were.
    drop((parity, pairs, alone, some));
    operations(row, &turned)?;
    operations(row, &halves)?;
    operations(row, g)
}

/// Requests in ticket order, among calls made meanwhile, and on two groups at once.
pub(super) fn spawn(row: &mut CheckRow<'_>) -> Result<()> {
    let g = row.group;
    let n = row.n() as u32;
    let pending: Vec<_> = (0..50u32)
        .map(|i| {
            g.spawn(move |g| {
                let mut x = vec![i; 1 + 37 * i as usize];
                g.all_reduce(&mut x, ReduceOp::Sum)?;
                Ok(x)
            })
        })
        .collect();
    let mut x = [1u32];
    g.all_reduce(&mut x, ReduceOp::Sum)?;
    let case = Case { note: "a call made while requests are pending", ..row.case::<u32>(1) };
    row.expect(&case, &x, |_| n);
    for (i, request) in pending.into_iter().enumerate() {
        let x = request.wait()?;
        let case = Case { note: "a request", ..row.case::<u32>(x.len()) };
        row.expect(&case, &x, |_| n * i as u32);
    }
    let other = part(g, 0, 0)?;
    let one = g.spawn(|g| {
        let mut x = [1u32; 1000];
        g.all_reduce(&mut x, ReduceOp::Sum)?;
        Ok(x.to_vec())
    });
    let two = other.spawn(|g| {
        let mut x = [2u32; 1000];
        g.all_reduce(&mut x, ReduceOp::Sum)?;
        Ok(x.to_vec())
    });
    let case = Case { note: "on two groups at once", ..row.case::<u32>(1000) };
    row.expect(&case, &two.wait()?, |_| 2 * n);
    row.expect(&case, &one.wait()?, |_| n);
    // Nobody waits for these, and they end all the same.
    (0..3).for_each(|_| g.spawn(|g| g.barrier()).detach());
    g.barrier()
}

/// Borrowed buffers.
pub(super) fn scope(row: &mut CheckRow<'_>) -> Result<()> {
    let g = row.group;
    let n = row.n();
    let me = row.rank();
    let root = n - 1;
    for count in [0, 1, 1000] {
        let case = Case { note: "borrowed buffers", ..row.case::<u32>(count) };
        let mut sum = vec![me as u32; count];
        let mut last = vec![me as u32; count];
        g.scope(|s| {
            let first = s.spawn(|g| g.all_reduce(&mut sum, ReduceOp::Sum));
            s.spawn(|g| g.broadcast(&mut last, root)).detach();
            first.wait()
        })?;
        row.expect(&case, &sum, |_| (n * (n - 1) / 2) as u32);
        row.expect(&case, &last, |_| root as u32);
    }
    Ok(())
}

/// Calls that break a rule: refused before a byte moves, and the group goes on.
pub(super) fn misuse(row: &mut CheckRow<'_>) -> Result<()> {
    let g = row.group;
    let n = row.n();
    let me = row.rank();
    let mut refused = |what: &'static str, got: Result<()>| -> Result<()> {
        row.cases += 1;
        let case = Case { note: what, ..Case::default() };
        match got {
            Err(e) if matches!(e.kind(), ErrorKind::Misuse { .. }) => Ok(()),
            Err(other) if other.is_fatal() => Err(other),
            Err(other) => {
                row.expect_that(&case, false, &other.to_string(), "a misuse");
                Ok(())
            }
            Ok(()) => {
                row.expect_that(&case, false, "success", "a misuse");
                Ok(())
            }
        }
    };
    refused("a root outside the group", g.broadcast(&mut [0u8], n))?;
    refused("a destination of the wrong length", g.all_gather(&[0u8; 2], &mut vec![0u8; 2 * n + 1]))?;
    refused("two types", g.all_reduce_into(&[0u8; 2], &mut [0u16; 2], ReduceOp::Sum))?;
    refused("xor of f32", g.all_reduce(&mut [0f32], ReduceOp::Xor))?;
    refused("avg of bool", g.all_reduce(&mut [true], ReduceOp::Avg))?;
    refused("counts of too few ranks", g.all_gather_v(&[0u8], &mut [0u8; 2], &vec![1; n - 1]))?;
    refused("a send to itself", g.send(&[0u8], me, 0))?;
    refused("a negative color", g.split(Some(-3), 0).map(drop))?;
    if n > 1 {
        refused("a tag above the largest", g.recv(&mut [0u8], (me + 1) % n, u32::MAX))?;
        refused("a length that does not divide", g.all_to_all_in_place(&mut vec![0u8; n + 1]))?;
    }
    g.barrier()
}
