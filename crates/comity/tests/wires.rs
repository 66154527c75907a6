//! Calls on a wire: their errors, the same bits on all ranks, over memory and over TCP, and refusals.

mod common;

use comity::{ErrorKind, Group, LinkKind, Misuse, ReduceOp, Result, Wire, half::bf16};
use common::{LONG, job};
use proptest::prelude::*;
use std::{sync::Barrier, time::Duration};

fn each<T: Send>(groups: Vec<Group>, f: impl Fn(Group) -> T + Sync) -> Vec<T> {
    common::each(groups, |g| f(g.with_timeout(LONG)))
}

/// Numbers between -1 and 1 that look random, of another magnitude from block to block.
fn given(rank: usize, count: usize, seed: u64) -> Vec<f32> {
    let mut state = (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 2f32.powi(23) - 1.0
    };
    (0..count).map(|i| next() * 10f32.powi((i / 300 % 7) as i32 - 3)).collect()
}

/// Errors that the documentation allows the elements of a sum: each contribution is rounded once, and the sum once more.
fn allowed(wire: Wire, parts: &[Vec<f32>]) -> Vec<f64> {
    let magnitudes = |i: usize| parts.iter().map(move |p| f64::from(p[i].abs()));
    let count = parts[0].len();
    let largest =
        |p: &Vec<f32>| Vec::from_iter(p.chunks(256).map(|b| b.iter().fold(0f32, |m, x| m.max(x.abs()))));
    let largest = Vec::from_iter(parts.iter().map(largest));
    // Blocks begin with a rank's part, which this test does not know: so the largest of three.
    let near = |blocks: &Vec<f32>, i: usize| {
        let from = (i / 256).saturating_sub(1);
        let to = (i / 256 + 2).min(blocks.len());
        blocks[from..to].iter().fold(0f64, |m, x| m.max(f64::from(*x)))
    };
    let one = |i: usize| match wire {
        Wire::Bf16 => magnitudes(i).sum::<f64>() / 127.0,
        Wire::F16 => magnitudes(i).sum::<f64>() / 1023.0 + 3e-8 * (parts.len() + 1) as f64,
        _ => largest.iter().map(|blocks| near(blocks, i)).sum::<f64>() / 124.0,
    };
    (0..count).map(one).collect()
}

/// All forms of the three calls on this rank: their results, by their bits.
fn all(g: &Group, wire: Wire, count: usize) -> Result<Vec<Vec<u32>>> {
    let n = g.size();
    let r = g.rank();
    let given = |rank: usize, count| given(rank, count, 7);
    let parts: Vec<_> = (0..n).map(|p| given(p, count)).collect();
    let exact = |i: usize| parts.iter().map(|p| f64::from(p[i])).sum::<f64>();
    let most = allowed(wire, &parts);
    let near = |got: &[f32], from: usize, by: f64| {
        for (k, x) in got.iter().enumerate() {
            let off = (f64::from(*x) - exact(from + k) / by).abs();
            let most = most[from + k] / by;
            assert!(off <= most, "{wire}, {n} ranks of {count}: element {k} is {x}, off by {off} > {most}");
        }
    };
    let on = g.with_wire(wire);
    let mut results = Vec::new();

    let mut sum = parts[r].clone();
    on.all_reduce(&mut sum, ReduceOp::Sum)?;
    near(&sum, 0, 1.0);
    let mut into = vec![0.0; count];
    on.all_reduce_into(&parts[r], &mut into, ReduceOp::Sum)?;
    assert_eq!(sum, into);
    let mut avg = parts[r].clone();
    on.spawn(move |g| g.all_reduce(&mut avg, ReduceOp::Avg).map(|()| avg)).wait().map(|avg| {
        near(&avg, 0, n as f64);
        results.push(avg);
    })?;
    results.push(sum);

    // Parts of equal lengths, and of others.
    let part = count / n;
    let mut dst = vec![0.0; part];
    on.reduce_scatter(&parts[r][..part * n], &mut dst, ReduceOp::Sum)?;
    near(&dst, r * part, 1.0);
    let mut own = parts[r][..part * n].to_vec();
    on.reduce_scatter_in_place(&mut own, ReduceOp::Sum)?;
    assert_eq!(own[r * part..][..part], dst);
    let mut counts = vec![count / (2 * n); n];
    counts[n - 1] = count - count / (2 * n) * (n - 1);
    if n > 2 {
        (counts[0], counts[1]) = (0, counts[0] + counts[1]);
    }
    let before: usize = counts[..r].iter().sum();
    let mut own = vec![0.0; counts[r]];
    on.reduce_scatter_v(&parts[r], &mut own, &counts, ReduceOp::Avg)?;
    near(&own, before, n as f64);

    let mine = &parts[r][before..before + counts[r]];
    let mut gathered = vec![0.0; count];
    on.all_gather_v(mine, &mut gathered, &counts)?;
    results.push(gathered);
    let mut gathered = vec![0.0; n * count];
    on.all_gather(&parts[r], &mut gathered)?;
    let mut placed = vec![0.0; n * count];
    placed[r * count..][..count].copy_from_slice(&parts[r]);
    on.all_gather_in_place(&mut placed)?;
    assert_eq!(placed, gathered);
    for (p, got) in parts.iter().zip(gathered.chunks(count.max(1))) {
        for ((x, y), most) in p.iter().zip(got).zip(allowed(wire, std::slice::from_ref(p))) {
            assert!(f64::from((x - y).abs()) <= most, "{wire}: {x} became {y}");
        }
    }
    results.push(gathered);
    Ok(results.into_iter().map(|x| x.iter().map(|x| x.to_bits()).collect()).collect())
}

/// Runs all calls, and compares the bits of all ranks.
fn check(groups: Vec<Group>, count: usize) {
    let results = each(groups, |g| Vec::from_iter(Wire::ALL.map(|wire| all(&g, wire, count).unwrap())));
    for (r, result) in results.iter().enumerate() {
        assert!(*result == results[0], "rank {r} has other bits, of {count}");
    }
}

#[test]
fn every_form_on_one_to_four_ranks_gives_the_same_bits() {
    for n in 1..=4 {
        for count in [0, 1, 3, 1303] {
            check(Group::local(n).unwrap(), count);
        }
    }
}

#[test]
fn long_calls_go_in_pieces() {
    // Several pieces of 1 Mi elements, the last one short.
    for (n, count) in [(2, 1 << 20 | 1001), (3, 3 << 19 | 77)] {
        let sums = each(Group::local(n).unwrap(), |g| {
            let mut x: Vec<f32> = (0..count).map(|i| (i % 97 + g.rank()) as f32).collect();
            g.with_wire(Wire::Bf16).all_reduce(&mut x, ReduceOp::Sum).unwrap();
            x
        });
        let want = |i: usize| (0..n).map(|r| (i % 97 + r) as f32).sum::<f32>();
        for sum in sums {
            // Up to 256 all integers are exact, and above every other one.
            assert!(sum.iter().enumerate().all(|(i, x)| (x - want(i)).abs() <= 1.0 && x.fract() == 0.0));
        }
    }
}

#[test]
fn over_tcp_and_shared_memory() {
    for kind in [LinkKind::Tcp, LinkKind::Shm] {
        check(job(3, |c| c.links([kind])), 2503);
    }
}

#[test]
fn what_has_no_smaller_form_is_refused_and_the_group_goes_on() {
    each(Group::local(2).unwrap(), |g| {
        let on = g.with_wire(Wire::Int8Block);
        let refused = |out: Result<()>, words: &str| {
            let e = out.unwrap_err();
            let is_wire = |m: &Misuse| matches!(m, Misuse::Wire { wire: Wire::Int8Block, .. });
            assert!(matches!(e.kind(), ErrorKind::Misuse { misuse, .. } if is_wire(misuse)), "{e}");
            assert!(e.to_string().contains(words), "{words}");
        };
        refused(on.all_reduce(&mut [1i32], ReduceOp::Sum), "for elements of f32, f16 and bf16, not for i32");
        refused(on.all_reduce(&mut [1f64], ReduceOp::Sum), "not for f64");
        refused(on.all_reduce(&mut [1f32], ReduceOp::Max), "for sums and averages, not for max");
        refused(on.all_gather(&[1u8], &mut [0u8; 2]), "not for u8");
        refused(
            on.broadcast(&mut [1f32], 0),
            "for all_reduce, reduce_scatter and all_gather, not for broadcast",
        );
        refused(on.barrier(), "not for barrier");
        // Without it, and with halves.
        on.with_wire(None).barrier().unwrap();
        let mut x = [bf16::ONE; 4];
        on.all_reduce(&mut x, ReduceOp::Sum).unwrap();
        assert_eq!(x, [bf16::from_f32(2.0); 4]);
    });
}

#[test]
fn ranks_that_name_different_wires_are_told_before_anything_is_written() {
    let errors = each(Group::local(3).unwrap(), |g| {
        let mut x = [1.5f32; 1000];
        let wire = [Wire::Bf16, Wire::Int8Block, Wire::Bf16][g.rank()];
        let e = g.with_wire(wire).all_reduce(&mut x, ReduceOp::Sum).unwrap_err();
        assert_eq!(x, [1.5; 1000]);
        e
    });
    for e in errors {
        assert!(matches!(e.root().kind(), ErrorKind::Mismatch { .. }), "{e}");
        let words = e.to_string();
        assert!(
            words.contains("ranks disagree in wire") && words.contains("f32[1000] sum wire int8"),
            "{words}"
        );
        assert!(words.contains("sum wire bf16"), "{words}");
    }
}

#[test]
fn fewer_bytes_are_sent() {
    for (wire, percent) in
        [(None, 100), (Some(Wire::Bf16), 50), (Some(Wire::F16), 50), (Some(Wire::Int8Block), 26)]
    {
        each(Group::local(4).unwrap(), |g| {
            g.with_wire(wire).all_reduce(&mut [0.3f32; 40_000], ReduceOp::Sum).unwrap();
            // Three quarters of 160,000 bytes twice, but for rounding up.
            let sent = g.stats().bytes_sent;
            assert!(sent.abs_diff(2400 * percent) <= 2400, "{wire:?}: {sent}");
        });
    }
}

#[test]
fn the_limit_is_that_of_the_whole_call() {
    let limit = Duration::from_millis(200);
    let other_gave_up = Barrier::new(2);
    let errors = each(Group::local(2).unwrap(), |g| {
        let g = g.with_wire(Wire::Bf16).with_timeout(limit);
        if g.rank() == 1 {
            other_gave_up.wait();
            return g.all_reduce(&mut [0f32; 8], ReduceOp::Sum).unwrap_err();
        }
        let error = g.all_reduce(&mut [0f32; 8], ReduceOp::Sum).unwrap_err();
        other_gave_up.wait();
        error
    });
    let ErrorKind::Timeout { call, after, .. } = errors[0].root().kind() else { panic!("{}", errors[0]) };
    assert_eq!((call.to_string().as_str(), *after), ("all_reduce #1 f32[8] sum wire bf16", limit));
}

#[test]
fn nan_and_infinities_reach_all_ranks() {
    for wire in Wire::ALL {
        each(Group::local(3).unwrap(), |g| {
            let mut x = [1f32; 600];
            x[g.rank()] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][g.rank()];
            g.with_wire(wire).all_reduce(&mut x, ReduceOp::Sum).unwrap();
            assert!(x[0].is_nan() && x[1] == f32::INFINITY && x[2] == f32::NEG_INFINITY, "{wire}");
            assert!(x[3..].iter().all(|x| (x - 3.0).abs() < 0.05), "{wire}: {x:?}");
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn no_sum_is_off_by_more_than_the_documentation_says(n in 2usize..=4, count in 1usize..2000, seed: u64) {
        each(Group::local(n).unwrap(), |g| {
            let parts: Vec<_> = (0..n).map(|p| given(p, count, seed)).collect();
            for wire in Wire::ALL {
                let mut x = parts[g.rank()].clone();
                g.with_wire(wire).all_reduce(&mut x, ReduceOp::Sum).unwrap();
                for (i, (x, most)) in x.iter().zip(allowed(wire, &parts)).enumerate() {
                    let exact: f64 = parts.iter().map(|p| f64::from(p[i])).sum();
                    assert!((f64::from(*x) - exact).abs() <= most, "{wire}: {x} for {exact}, more than {most} off");
                }
            }
        });
    }
}
