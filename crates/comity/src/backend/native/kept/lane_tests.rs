//! Calls that lanes carry: the bits of the plain path, and the promises of every call.

use super::super::*;
use crate::{DType, ReduceOp, View, ViewMut, engine::tests::each, links::LocalWorld};
use std::sync::Barrier;

const LONG: Duration = Duration::from_secs(60);
/// Not whole windows or cache lines.
const COUNT: usize = (1 << 16) + 1001;

/// Each rank of `size`, on a thread, told so many lanes.
fn ranks<T: Send>(
    size: usize,
    lanes: impl Fn(usize) -> usize + Sync,
    f: impl Fn(usize, NativeBackend) -> T + Sync,
) -> Vec<T> {
    ranks_on(&vec![0; size], lanes, f)
}

/// The same, with the host of each rank.
fn ranks_on<T: Send>(
    hosts: &[usize],
    lanes: impl Fn(usize) -> usize + Sync,
    f: impl Fn(usize, NativeBackend) -> T + Sync,
) -> Vec<T> {
    each(LocalWorld::all(hosts.len()).into_iter().enumerate(), |(rank, mut world)| {
        world.lanes = Some(lanes(rank));
        world.hosts = hosts.to_vec();
        let mut native = NativeBackend::open_all(Arc::new(world), 0, Arc::default(), LONG).unwrap();
        if hosts.contains(&1) {
            native.prefer(Some(Algorithm::Hierarchy));
        }
        f(rank, native)
    })
}

fn info(seq: u64, op: Op, count: usize) -> CallInfo {
    let reduce = matches!(op, Op::AllReduce | Op::ReduceScatter).then_some(ReduceOp::Sum);
    CallInfo::new(op).with(|c| {
        c.seq = seq;
        c.count = count;
        c.dtype = Some(DType::F32);
        c.reduce = reduce;
    })
}

fn made<'a>(info: CallInfo, bufs: Bufs<'a>) -> Call<'a> {
    Call { info, bufs, counts: &[], recv_counts: &[], whole: None }
}

fn all_reduce(native: &mut NativeBackend, seq: u64, x: &mut [f32], limit: Duration) -> Result<()> {
    native.run(made(info(seq, Op::AllReduce, x.len()), Bufs::InPlace(ViewMut::from(x))), limit)
}

fn input(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| 1.1_f32.powi((i % 50 + rank) as i32)).collect()
}

/// In how many lanes the last call went.
fn lanes_of(native: &NativeBackend) -> usize {
    native.kept.last().unwrap().carried.as_ref().map_or(1, |c| c.lanes)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The results of one call of each kind, on one rank, and in how many lanes each went.
fn one_of_each(native: &mut NativeBackend, rank: usize, size: usize) -> Vec<(usize, Vec<u32>)> {
    let mut all = Vec::new();
    let whole = input(rank, COUNT * size);
    for (seq, op) in
        [Op::AllReduce, Op::ReduceScatter, Op::AllGather, Op::AllToAll, Op::AllReduce].iter().enumerate()
    {
        let (given, got) = match op {
            Op::AllGather => (COUNT, COUNT * size),
            Op::ReduceScatter => (COUNT * size, COUNT),
            Op::AllReduce => (COUNT, COUNT),
            _ => (COUNT * size, COUNT * size),
        };
        let mut out = vec![0.0; got];
        let bufs = Bufs::Both(View::from(&whole[..given]), ViewMut::from(&mut out[..]));
        native.run(made(info(seq as u64 + 1, *op, COUNT), bufs), LONG).unwrap();
        all.push((lanes_of(native), bits(&out)));
    }
    // The same memory for both.
    let mut out = vec![0.0; COUNT * size];
    out[rank * COUNT..][..COUNT].copy_from_slice(&whole[..COUNT]);
    native.run(made(info(6, Op::AllGather, COUNT), Bufs::OwnIn(ViewMut::from(&mut out[..]))), LONG).unwrap();
    all.push((lanes_of(native), bits(&out)));
    let mut out = whole.clone();
    native
        .run(made(info(7, Op::ReduceScatter, COUNT), Bufs::OwnOut(ViewMut::from(&mut out[..]))), LONG)
        .unwrap();
    all.push((lanes_of(native), bits(&out[rank * COUNT..][..COUNT])));
    for root in 0..size {
        let mut out = whole.clone();
        broadcast(native, 8 + root as u64, &mut out, root).unwrap();
        all.push((lanes_of(native), bits(&out)));
    }
    all
}

fn broadcast(native: &mut NativeBackend, seq: u64, x: &mut [f32], root: usize) -> Result<()> {
    let info = info(seq, Op::Broadcast, x.len()).with(|c| c.root = Some(root));
    native.run(made(info, Bufs::InPlace(ViewMut::from(x))), LONG)
}

#[test]
fn every_number_of_lanes_gives_the_bits_of_the_plain_path() {
    for size in [2, 3, 4] {
        let run = |lanes| ranks(size, |_| lanes, |rank, mut native| one_of_each(&mut native, rank, size));
        let plain = run(1);
        assert!(plain.iter().flatten().all(|(lanes, _)| *lanes == 1));
        for lanes in 2..=4 {
            for (rank, (with, without)) in run(lanes).into_iter().zip(&plain).enumerate() {
                for (call, (a, b)) in with.iter().zip(without).enumerate() {
                    assert_eq!(a.0, lanes, "{size} ranks, call {call}");
                    assert!(a.1 == b.1, "{size} ranks, {lanes} lanes, rank {rank}, call {call}");
                }
            }
        }
    }
}

/// The results of all_reduces and reduce_scatters of lengths that no host divides, on one rank, and in how many lanes each went.
fn awkward(native: &mut NativeBackend, rank: usize, size: usize) -> Vec<(usize, Vec<u32>)> {
    let mut all = Vec::new();
    let calls =
        [(Op::AllReduce, ReduceOp::Avg), (Op::AllReduce, ReduceOp::Max), (Op::ReduceScatter, ReduceOp::Avg)];
    // Of the second the last parts are shorter, or empty.
    for count in [COUNT, (1 << 15) + 1] {
        for (op, reduce) in calls {
            let given = input(rank, if op == Op::AllReduce { count } else { count * size });
            let mut out = vec![0.0; count];
            let info = info(100 + all.len() as u64, op, count).with(|c| c.reduce = Some(reduce));
            let bufs = Bufs::Both(View::from(&given[..]), ViewMut::from(&mut out[..]));
            native.run(made(info, bufs), LONG).unwrap();
            all.push((lanes_of(native), bits(&out)));
        }
    }
    all
}

#[test]
fn lanes_within_each_host_give_the_bits_of_the_plain_path() {
    let all_hosts: [&[usize]; 3] = [&[0, 0, 1, 1], &[0, 1, 0, 1], &[0, 0, 1, 1, 2, 2]];
    for hosts in all_hosts {
        let size = hosts.len();
        let run = |lanes| {
            ranks_on(
                hosts,
                |_| lanes,
                |rank, mut native| {
                    let mut all = one_of_each(&mut native, rank, size);
                    all.extend(awkward(&mut native, rank, size));
                    all
                },
            )
        };
        let plain = run(1);
        assert!(plain.iter().flatten().all(|(lanes, _)| *lanes == 1));
        let lanes = 1 + size / 2;
        // Of a host whose ranks do not lie side by side only the all_reduces.
        let parts = if hosts[1] == 0 { lanes } else { 1 };
        let mut wanted = vec![lanes, parts, parts, 1, lanes, parts, parts];
        wanted.extend(vec![1; size]);
        wanted.extend([lanes, lanes, parts, lanes, lanes, parts]);
        for (rank, (with, without)) in run(lanes).into_iter().zip(&plain).enumerate() {
            assert_eq!(with.iter().map(|(lanes, _)| *lanes).collect::<Vec<_>>(), wanted, "{hosts:?}");
            for (call, (a, b)) in with.iter().zip(without).enumerate() {
                assert!(a.1 == b.1, "{hosts:?}, {lanes} lanes, rank {rank}, call {call}");
            }
        }
    }
}

#[test]
fn lanes_within_each_host_need_as_many_ranks_on_each() {
    let told = ranks_on(
        &[0, 0, 1],
        |_| 2,
        |rank, mut native| {
            all_reduce(&mut native, 1, &mut input(rank, COUNT), LONG).unwrap();
            lanes_of(&native)
        },
    );
    assert_eq!(told, [1; 3]);
}

#[test]
fn calls_that_differ_are_told_before_any_output_is_written() {
    for hosts in [&[0, 0][..], &[0, 0, 0], &[0, 0, 1, 1]] {
        let all_have_ended_the_first = Barrier::new(hosts.len());
        ranks_on(
            hosts,
            |_| 3,
            |rank, mut native| {
                let mut x = input(rank, COUNT);
                all_reduce(&mut native, 1, &mut x, LONG).unwrap();
                assert_eq!(lanes_of(&native), 3);
                all_have_ended_the_first.wait();
                let before = input(rank, COUNT + 64 * rank);
                let mut x = before.clone();
                let error = all_reduce(&mut native, 2, &mut x, LONG).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error:?}");
                assert!(x == before, "rank {rank} wrote its output");
            },
        );
    }
}

#[test]
fn roots_that_differ_are_told_before_a_broadcast_is_written() {
    let all_have_ended_the_first = Barrier::new(3);
    ranks(
        3,
        |_| 3,
        |rank, mut native| {
            broadcast(&mut native, 1, &mut input(rank, COUNT), 2).unwrap();
            assert_eq!(lanes_of(&native), 3);
            all_have_ended_the_first.wait();
            let before = input(rank, COUNT);
            let mut x = before.clone();
            let error = broadcast(&mut native, 2, &mut x, usize::from(rank == 1)).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Mismatch { differs: "root", .. }), "{error:?}");
            assert!(x == before, "rank {rank} wrote its output");
        },
    );
}

#[test]
fn ranks_that_were_told_different_numbers_of_lanes_are_told_so() {
    let told = ranks(
        2,
        |rank| rank + 2,
        |rank, mut native| all_reduce(&mut native, 1, &mut input(rank, COUNT), LONG).unwrap_err().to_string(),
    );
    assert!(told.iter().all(|t| t.contains(Header::PLAN)), "{told:?}");
}

/// Rank 1 announces a call as all do and then does nothing for it.
fn announce_only(native: &mut NativeBackend, seq: u64, x: &mut [f32]) {
    native.kept.last_mut().unwrap().carried = None;
    all_reduce(native, seq, x, LONG).unwrap();
}

#[test]
fn a_rank_that_stops_in_the_middle_is_named_at_the_limit() {
    for hosts in [&[0, 0][..], &[0, 0, 1, 1]] {
        stops_in_the_middle(hosts);
    }
}

/// Rank 1 announces a call and carries nothing of it: rank 0 of its host names it at its limit, and all end.
fn stops_in_the_middle(hosts: &[usize]) {
    let limit = Duration::from_millis(300);
    let done = Barrier::new(hosts.len());
    ranks_on(
        hosts,
        |_| 3,
        |rank, mut native| {
            let mut x = input(rank, COUNT);
            all_reduce(&mut native, 1, &mut x, LONG).unwrap();
            let since = Instant::now();
            if rank == 1 {
                announce_only(&mut native, 2, &mut x);
                done.wait();
                return;
            }
            let limit = if rank == 0 { limit } else { LONG };
            let error = all_reduce(&mut native, 2, &mut x, limit).unwrap_err();
            done.wait();
            assert!(since.elapsed() < LONG / 2, "{error}");
            if rank > 0 {
                return;
            }
            assert!(matches!(error.kind(), ErrorKind::Timeout { .. }), "{error:?}");
            // A rank of another host waits as long for this one.
            let named = if hosts.contains(&1) { "rank" } else { "rank 1" };
            assert!(error.to_string().contains(named), "{error}");
        },
    );
}

#[test]
fn an_abort_or_a_goodbye_ends_a_call_in_the_middle_of_its_lanes() {
    for (leaves, hosts) in [(false, [0; 4]), (true, [0; 4]), (false, [0, 0, 1, 1]), (true, [0, 0, 1, 1])] {
        ranks_on(
            &hosts,
            |_| 2,
            |rank, mut native| {
                let mut x = input(rank, COUNT);
                all_reduce(&mut native, 1, &mut x, LONG).unwrap();
                if rank == 1 {
                    announce_only(&mut native, 2, &mut x);
                    if !leaves {
                        let failure = crate::status::Failure::reported(1, "enough");
                        native.abort_handle().unwrap().raise(failure);
                    }
                    return;
                }
                let since = Instant::now();
                let error = all_reduce(&mut native, 2, &mut x, LONG).unwrap_err();
                assert!(since.elapsed() < LONG / 2, "{error}");
                match error.kind() {
                    ErrorKind::PeerLost { peer, left, .. } if leaves => {
                        assert!(peer.rank == 1 && *left, "{error}")
                    }
                    ErrorKind::Aborted { .. } if !leaves => {}
                    _ => panic!("{error:?}"),
                }
            },
        );
    }
}
