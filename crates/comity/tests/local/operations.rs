//! Every operation on groups of threads, compared with sums made by hand.
use super::{ok, run};
use comity::{Group, ReduceOp, Result};

/// Returns element `i` of rank `r`'s contribution.
fn of(r: usize, i: usize) -> i64 {
    (r * 1000 + i * 7 + 1) as i64
}

fn given(r: usize, count: usize) -> Vec<i64> {
    (0..count).map(|i| of(r, i)).collect()
}

#[test]
fn every_operation_on_small_groups() {
    for n in [1, 2, 3, 4, 5, 8] {
        for count in [0usize, 1, 3, 1000, 70_001] {
            ok(run(n, |g| {
                reduces(&g, count)?;
                rooted(&g, count)?;
                gathers(&g, count)?;
                uneven(&g, count)?;
                g.barrier()?;
                if n > 1 {
                    pairs(&g, count)?;
                }
                Ok(())
            }));
        }
    }
}

fn reduces(g: &Group, count: usize) -> Result<()> {
    let n = g.size();
    let r = g.rank();
    let total = |i: usize| (0..n).map(|r| of(r, i)).sum::<i64>();
    let src = given(r, count);
    let mut x = src.clone();
    g.all_reduce(&mut x, ReduceOp::Sum)?;
    assert!(x.iter().enumerate().all(|(i, &v)| v == total(i)), "all_reduce n={n} count={count}");
    let mut x = vec![0; count];
    g.all_reduce_into(&src, &mut x, ReduceOp::Max)?;
    assert!(x.iter().enumerate().all(|(i, &v)| v == of(n - 1, i)), "all_reduce_into n={n} count={count}");
    Ok(())
}

fn rooted(g: &Group, count: usize) -> Result<()> {
    let n = g.size();
    let r = g.rank();
    let mine = |i: usize| of(r, i);
    let total = |i: usize| (0..n).map(|r| of(r, i)).sum::<i64>();
    let src = given(r, count);
    for root in [0, n - 1] {
        let mut x = src.clone();
        g.reduce(&mut x, ReduceOp::Sum, root)?;
        let want: Vec<_> = (0..count).map(|i| if r == root { total(i) } else { mine(i) }).collect();
        assert_eq!(x, want, "reduce n={n} count={count}");
        let mut x = src.clone();
        g.broadcast(&mut x, root)?;
        assert!(x.iter().enumerate().all(|(i, &v)| v == of(root, i)), "broadcast n={n} count={count}");
        let mut x = vec![0; if r == root { n * count } else { 0 }];
        g.gather(&src, &mut x, root)?;
        assert!(x.iter().enumerate().all(|(i, &v)| v == of(i / count, i % count)), "gather n={n}");
        let all: Vec<i64> =
            if r == root { (0..n * count).map(|i| of(i / count, i % count)).collect() } else { vec![] };
        let mut x = vec![0; count];
        g.scatter(&all, &mut x, root)?;
        assert_eq!(x, src, "scatter n={n} count={count}");
    }
    Ok(())
}

fn gathers(g: &Group, count: usize) -> Result<()> {
    let n = g.size();
    let r = g.rank();
    let mine = |i: usize| of(r, i);
    let total = |i: usize| (0..n).map(|r| of(r, i)).sum::<i64>();
    let src = given(r, count);
    let mut x = vec![0; n * count];
    g.all_gather(&src, &mut x)?;
    assert!(x.iter().enumerate().all(|(i, &v)| v == of(i / count, i % count)), "all_gather n={n}");
    let mut y = vec![0; n * count];
    y[r * count..][..count].copy_from_slice(&src);
    g.all_gather_in_place(&mut y)?;
    assert_eq!(x, y);

    let parts: Vec<i64> = (0..n * count).map(mine).collect();
    let mut x = vec![0; count];
    g.reduce_scatter(&parts, &mut x, ReduceOp::Sum)?;
    assert!(x.iter().enumerate().all(|(i, &v)| v == total(r * count + i)), "reduce_scatter n={n}");
    let mut y = parts.clone();
    g.reduce_scatter_in_place(&mut y, ReduceOp::Sum)?;
    assert_eq!(y[r * count..][..count], x[..]);
    let rest = |y: &[i64]| [&y[..r * count], &y[(r + 1) * count..]].concat();
    assert_eq!(rest(&y), rest(&parts));

    let mut x = vec![0; n * count];
    g.all_to_all(&parts, &mut x)?;
    let want: Vec<_> = (0..n * count).map(|i| of(i / count, r * count + i % count)).collect();
    assert_eq!(x, want, "all_to_all n={n} count={count}");
    let mut y = parts.clone();
    g.all_to_all_in_place(&mut y)?;
    assert_eq!(y, want, "all_to_all_in_place n={n} count={count}");
    Ok(())
}

fn uneven(g: &Group, count: usize) -> Result<()> {
    let n = g.size();
    let r = g.rank();
    let mine = |i: usize| of(r, i);
    let total = |i: usize| (0..n).map(|r| of(r, i)).sum::<i64>();
    let counts: Vec<usize> = (0..n).map(|r| (r * 37 + count) % 900).collect();
    let src: Vec<i64> = (0..counts[r]).map(mine).collect();
    let sum: usize = counts.iter().sum();
    let mut x = vec![0; sum];
    g.all_gather_v(&src, &mut x, &counts)?;
    let want: Vec<_> = (0..n).flat_map(|r| (0..counts[r]).map(move |i| of(r, i))).collect();
    assert_eq!(x, want, "all_gather_v n={n}");
    let parts: Vec<i64> = (0..sum).map(mine).collect();
    let mut x = vec![0; counts[r]];
    g.reduce_scatter_v(&parts, &mut x, &counts, ReduceOp::Sum)?;
    let at: usize = counts[..r].iter().sum();
    assert!(x.iter().enumerate().all(|(i, &v)| v == total(at + i)), "reduce_scatter_v n={n}");
    // Rank a gives (a + 2b) mod 5 elements to rank b.
    let gives = |a: usize, b: usize| (a + 2 * b) % 5;
    let out: Vec<usize> = (0..n).map(|b| gives(r, b)).collect();
    let into: Vec<usize> = (0..n).map(|a| gives(a, r)).collect();
    let src: Vec<i64> = (0..n).flat_map(|b| vec![(r * 100 + b) as i64; gives(r, b)]).collect();
    let mut dst = vec![0; into.iter().sum()];
    g.all_to_all_v(&src, &out, &mut dst, &into)?;
    let want: Vec<i64> = (0..n).flat_map(|a| vec![(a * 100 + r) as i64; gives(a, r)]).collect();
    assert_eq!(dst, want, "all_to_all_v n={n}");
    Ok(())
}

fn pairs(g: &Group, count: usize) -> Result<()> {
    let n = g.size();
    let r = g.rank();
    let mine = |i: usize| of(r, i);
    let next = (r + 1) % n;
    let prev = (r + n - 1) % n;
    let src: Vec<i64> = (0..count).map(mine).collect();
    let mut x = vec![0; count];
    g.sendrecv(&src, next, &mut x, prev, 3)?;
    assert!(x.iter().enumerate().all(|(i, &v)| v == of(prev, i)), "sendrecv n={n}");
    if r == 0 {
        g.send(&[1i32], 1, 10)?;
        g.send(&[2i32, 3], 1, 11)?;
        g.send(&[4i32], 1, 10)?;
    } else if r == 1 {
        let mut a = [0i32];
        let mut b = [0i32; 2];
        let mut c = [0i32];
        g.recv(&mut b, 0, 11)?;
        g.recv(&mut a, 0, 10)?;
        g.recv(&mut c, 0, 10)?;
        assert_eq!((a, b, c), ([1], [2, 3], [4]));
    }
    g.barrier()?;
    Ok(())
}
