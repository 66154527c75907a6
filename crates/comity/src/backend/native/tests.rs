//! Calls that the engine makes without a schedule's bookkeeping: the same results as with it, however the ranks come to them.

use super::*;
use crate::{DType, ReduceOp, engine::tests::each, links::LocalWorld, view::ViewMut};
use std::thread;

const LONG: Duration = Duration::from_secs(60);

const BOTH: [Option<Algorithm>; 2] = [Some(Algorithm::Direct), Some(Algorithm::Doubling)];

/// Each rank of `size`, on a thread.
pub(super) fn ranks<T: Send>(
    size: usize,
    algorithm: Option<Algorithm>,
    f: impl Fn(usize, NativeBackend) -> T + Sync,
) -> Vec<T> {
    each(LocalWorld::all(size).into_iter().enumerate(), |(rank, world)| {
        let mut native = NativeBackend::open_all(Arc::new(world), 0, Arc::default(), LONG).unwrap();
        native.prefer(algorithm);
        f(rank, native)
    })
}

fn call<'a>(seq: u64, reduce: ReduceOp, dst: ViewMut<'a>) -> Call<'a> {
    let count = dst.count();
    let dtype = Some(dst.dtype());
    let info = CallInfo::new(Op::AllReduce).with(|c| {
        c.seq = seq;
        c.count = count;
        c.dtype = dtype;
        c.reduce = Some(reduce);
    });
    Call { info, bufs: Bufs::InPlace(dst), counts: &[], recv_counts: &[], whole: None }
}

fn input(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| 1.1_f32.powi((i % 50 + rank) as i32)).collect()
}

#[test]
fn with_the_bits_of_the_schedule_at_every_length() {
    for (size, algorithm) in (2..=6).flat_map(|n| BOTH.map(|a| (n, a))) {
        ranks(size, algorithm, |rank, mut native| {
            let mut seq = 0;
            for count in (0..20).chain([31, 64, 255, 1000, 1023, 1024, 2048, 2049]) {
                for reduce in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max] {
                    let mut results = Vec::new();
                    for short in [true, false] {
                        let mut x = input(rank, count);
                        seq += 1;
                        native.run(call(seq, reduce, (&mut x[..]).into()), LONG).unwrap();
                        results.push(x.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
                        let kept = native.kept.last_mut().unwrap();
                        assert_eq!(kept.short, short && count <= 2048, "{count}");
                        kept.short = !short && count <= 2048;
                    }
                    assert_eq!(results[0], results[1], "{size} ranks, {count} elements");
                }
            }
        });
    }
}

#[test]
fn other_operations_have_the_bits_of_the_schedule() {
    const COUNT: usize = 5;
    for size in 2..=4 {
        ranks(size, None, |rank, mut native| {
            let mut seq = 0;
            for op in [Op::AllGather, Op::ReduceScatter, Op::AllToAll, Op::Broadcast] {
                let mut results = Vec::new();
                // The second by the schedule.
                for short in [true, false] {
                    let src = input(rank, COUNT * size);
                    let mut dst = vec![0.0; COUNT * size];
                    let (given, got) = match op {
                        Op::AllGather => (&src[..COUNT], &mut dst[..]),
                        Op::ReduceScatter => (&src[..], &mut dst[..COUNT]),
                        _ => (&src[..], &mut dst[..]),
                    };
                    seq += 1;
                    let reduce = (op == Op::ReduceScatter).then_some(ReduceOp::Sum);
                    let root = (op == Op::Broadcast).then_some(1);
                    let dtype = Some(DType::F32);
                    let info = CallInfo::new(op).with(|c| {
                        c.seq = seq;
                        c.count = COUNT;
                        c.dtype = dtype;
                        c.reduce = reduce;
                        c.root = root;
                    });
                    if op == Op::Broadcast {
                        got[..COUNT].copy_from_slice(&given[..COUNT]);
                    }
                    let bufs = match op {
                        Op::Broadcast => Bufs::InPlace((&mut got[..COUNT]).into()),
                        _ => Bufs::Both(given.into(), got.into()),
                    };
                    native
                        .run(Call { info, bufs, counts: &[], recv_counts: &[], whole: None }, LONG)
                        .unwrap();
                    results.push(dst.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
                    native.kept.last_mut().unwrap().short &= !short;
                }
                assert_eq!(results[0], results[1], "{op:?} on rank {rank} of {size}");
                if op == Op::Broadcast {
                    assert_eq!(
                        results[0][..COUNT],
                        input(1, COUNT).iter().map(|x| x.to_bits()).collect::<Vec<_>>()
                    );
                }
            }
        });
    }
}

#[test]
fn right_when_ranks_come_late_and_where_the_ring_ends() {
    for (size, algorithm) in [2, 3, 4].into_iter().flat_map(|n| BOTH.map(|a| (n, a))) {
        ranks(size, algorithm, |rank, mut native| {
            // Some 1,000 bytes, so that a message lies across the end of the ring once in 260 calls.
            let wanted: Vec<f32> = (0..249).map(|i| (0..size).map(|r| (i + r) as f32).sum()).collect();
            for seq in 1..=900 {
                if seq % 97 == rank as u64 {
                    thread::sleep(Duration::from_millis(2));
                }
                let mut x: Vec<f32> = (0..249).map(|i| (i + rank) as f32).collect();
                native.run(call(seq, ReduceOp::Sum, (&mut x[..]).into()), LONG).unwrap();
                assert_eq!(x, wanted, "call {seq} on rank {rank} of {size}");
            }
        });
    }
}

#[test]
fn a_rank_that_calls_something_else_is_found_and_nothing_is_written() {
    for (size, algorithm) in [2, 3, 4].into_iter().flat_map(|n| BOTH.map(|a| (n, a))) {
        let told = ranks(size, algorithm, |rank, mut native| {
            let mut x = input(rank, 2);
            let other = if rank == 1 { ReduceOp::Max } else { ReduceOp::Sum };
            let e = native.run(call(1, other, (&mut x[..]).into()), LONG).unwrap_err();
            assert_eq!(x, input(rank, 2), "{e}");
            e
        });
        let is_told = |e: &Error| matches!(e.kind(), ErrorKind::Mismatch { differs: "reduction", .. });
        assert!(told.iter().all(is_told), "{told:#?}");
    }
}

/// Its first partner made the same call, and its second had left before the call that differs could be passed on.
#[test]
fn a_rank_that_comes_when_the_others_have_failed_and_left_is_told_why() {
    let mut worlds: Vec<_> = LocalWorld::all(4).into_iter().enumerate().collect();
    let last = worlds.remove(2);
    let fails = |(rank, world): (usize, LocalWorld)| {
        let mut native = NativeBackend::open_all(Arc::new(world), 0, Arc::default(), LONG).unwrap();
        native.prefer(Some(Algorithm::Doubling));
        let op = if rank == 1 { ReduceOp::Max } else { ReduceOp::Sum };
        let e = native.run(call(1, op, (&mut input(rank, 2)[..]).into()), LONG).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Mismatch { differs: "reduction", .. }), "rank {rank}: {e}");
    };
    thread::scope(|s| worlds.into_iter().for_each(|one| drop(s.spawn(|| fails(one)))));
    fails(last);
}

#[test]
fn parts_of_a_call_that_is_known_differ_from_it_for_nobody() {
    // A rank that waits in a part asks the others after 60 ms, and one of them has only made the call known.
    const ALSO: u64 = 77;
    for preferred in [None, Some(Algorithm::Doubling)] {
        ranks(3, preferred, |rank, mut native| {
            let pause = |of: usize| thread::sleep(Duration::from_millis(if rank == of { 300 } else { 0 }));
            let mut x = input(rank, 5);
            native.agree(&call(1, ReduceOp::Sum, (&mut x[..]).into()), ALSO, LONG).unwrap();
            pause(1);
            native.compare(1, LONG).unwrap();
            native.note(&call(2, ReduceOp::Max, (&mut x[..]).into()), ALSO);
            pause(2);
            let whole = native.known(2);
            native.run(Call { whole, ..call(2, ReduceOp::Max, (&mut x[..]).into()) }, LONG).unwrap();
            assert_eq!(x, input(2, 5));
            native.run(call(3, ReduceOp::Sum, (&mut x[..]).into()), LONG).unwrap();
            pause(0);
            native.compare(3, LONG).unwrap();
            // The numbers that are compared are none of the call's elements.
            let mut truths = [true; 3];
            native.agree(&call(4, ReduceOp::And, (&mut truths[..]).into()), ALSO, LONG).unwrap();
            native.compare(4, LONG).unwrap();
        });
    }
}
