//! Lanes of threads that are ranks, over stages in their own memory.

use super::{Carriage, Collective, LaneCall, LaneMemory, LaneStep};
use crate::{DType, ReduceOp, View, ViewMut, sys::Mapping, view::Memory};
use comity_kernel as kernel;
use std::{
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

/// The stages of `size` ranks, each as that rank sees them.
pub(super) fn stages(size: usize, lanes: usize) -> Vec<Arc<LaneMemory>> {
    let made: Vec<_> = (0..size).map(|_| LaneMemory::create(lanes).unwrap()).collect();
    let fds: Vec<_> = made.iter().map(|(_, fd)| fd.try_clone().unwrap()).collect();
    let stage = |(rank, (own, _)): (usize, (Mapping, _))| {
        let map = |(r, fd)| (r != rank).then(|| Mapping::attach_to_read(fd).unwrap());
        Arc::new(LaneMemory::new(own, fds.iter().enumerate().map(map).collect(), rank, lanes).unwrap())
    };
    made.into_iter().enumerate().map(stage).collect()
}

/// Bytes that are values of any type.
fn given(dtype: DType, rank: usize, bytes: usize) -> Vec<u8> {
    let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) as u8 ^ (rank as u8).wrapping_mul(37);
    let mut all: Vec<u8> = (0..bytes).map(byte).collect();
    match dtype {
        DType::Bool => kernel::normalise_bool(&mut all),
        // No number so large that sums are not numbers: those have several bit patterns.
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 | DType::C64 => {
            let size = if dtype == DType::C64 { 4 } else { dtype.size() };
            all.chunks_mut(size).for_each(|e| e[size - 1] = 0x3c | e[size - 1] & 0x80);
        }
        _ => {}
    }
    all
}

/// Result of a call of `rank`, out of place or in place.
fn carry(stage: &Arc<LaneMemory>, call: LaneCall, input: &[u8], in_place: bool) -> Vec<u8> {
    let (in_len, out_len) = call.lengths();
    assert_eq!(in_len, input.len());
    let mut out = vec![0u8; out_len];
    if in_place {
        out.copy_from_slice(input);
    }
    let mut memory = match in_place {
        true => Memory::new(None, Some(ViewMut::from(&mut out[..])), &mut []),
        false => Memory::new(Some(View::from(input)), Some(ViewMut::from(&mut out[..])), &mut []),
    };
    let mut carriage = Carriage::start(stage, call, &mut memory);
    loop {
        match carriage.step() {
            LaneStep::Done => break,
            LaneStep::Moved => {}
            // WAIT(Done): the other threads of this test
            LaneStep::Waits => thread::sleep(Duration::from_micros(50)),
        }
    }
    assert!(!carriage.is_broken());
    drop(carriage);
    out
}

/// Result that `rank` must get.
fn expected(call: &LaneCall, inputs: &[Vec<u8>]) -> Vec<u8> {
    let LaneCall { collective, dtype, reduce, rank, size, bytes, .. } = *call;
    let part = |i: usize| &inputs[i][rank * bytes..][..bytes];
    let reduced = |inputs: Vec<&[u8]>| {
        let mut out = inputs[rank].to_vec();
        kernel::n_way_reduce(dtype, reduce, size, &mut out, None, &inputs[..rank], &inputs[rank + 1..]);
        out
    };
    match collective {
        Collective::AllReduce => reduced(inputs.iter().map(|i| &i[..]).collect()),
        Collective::ReduceScatter => reduced((0..size).map(part).collect()),
        Collective::AllGather => inputs.concat(),
        Collective::AllToAll => (0..size).flat_map(part).copied().collect(),
        Collective::Broadcast(root) => inputs[root].clone(),
    }
}

/// Returns true if the call can be made in place, or out of it.
fn is_possible(call: LaneCall, in_place: bool) -> bool {
    let (in_len, out_len) = call.lengths();
    if in_place { in_len == out_len } else { !matches!(call.collective, Collective::Broadcast(_)) }
}

/// All ranks make `calls` one after the other; each must give what it should.
fn run(size: usize, lanes: usize, calls: &[(Collective, DType, ReduceOp, usize)]) {
    let start = Barrier::new(size);
    thread::scope(|s| {
        for (rank, stage) in stages(size, lanes).into_iter().enumerate() {
            let start = &start;
            s.spawn(move || {
                start.wait();
                for &(collective, dtype, reduce, count) in calls {
                    let bytes = count * dtype.size();
                    let call = LaneCall { collective, dtype, reduce, rank, size, bytes, whole: None, lanes };
                    let of = |rank| given(dtype, rank, LaneCall { rank, ..call }.lengths().0);
                    let inputs: Vec<_> = (0..size).map(of).collect();
                    let whole = expected(&call, &inputs);
                    for in_place in [false, true].into_iter().filter(|p| is_possible(call, *p)) {
                        let out = carry(&stage, call, &inputs[rank], in_place);
                        assert!(out == whole, "{call:?}, in place: {in_place}");
                    }
                }
            });
        }
    });
}

#[test]
fn parts_of_one_buffer_are_summed_in_their_place_and_shared_from_there() {
    let dtype = DType::F32;
    let reduce = ReduceOp::Sum;
    for (size, lanes) in [(2, 3), (3, 2), (4, 1)] {
        // In the second the last part is shorter, in the third some are empty; the last has several windows.
        for whole in [size << 12, (size << 12) - 200, 68_usize, 1_200_004] {
            let bytes = whole.div_ceil(size).next_multiple_of(64);
            thread::scope(|s| {
                for (rank, stage) in stages(size, lanes).into_iter().enumerate() {
                    s.spawn(move || {
                        let call = |collective| LaneCall {
                            collective,
                            dtype,
                            reduce,
                            rank,
                            size,
                            bytes,
                            whole: Some(whole),
                            lanes,
                        };
                        let inputs: Vec<_> = (0..size).map(|r| given(dtype, r, whole)).collect();
                        let of_all = LaneCall { bytes: whole, whole: None, ..call(Collective::AllReduce) };
                        let sum = expected(&of_all, &inputs);
                        for in_place in [false, true] {
                            let own = carry(&stage, call(Collective::ReduceScatter), &inputs[rank], in_place);
                            let begin = (rank * bytes).min(whole);
                            let end = (begin + bytes).min(whole);
                            assert!(own[begin..end] == sum[begin..end], "{size} ranks, {whole} bytes");
                            let rest = [&own[..begin], &own[end..]].concat();
                            let before = [&inputs[rank][..begin], &inputs[rank][end..]].concat();
                            assert!(if in_place { rest == before } else { rest.iter().all(|b| *b == 0) });
                            let all = carry(&stage, call(Collective::AllGather), &own, true);
                            assert!(all == sum, "{size} ranks, {whole} bytes");
                        }
                    });
                }
            });
        }
    }
}

const ALL: [Collective; 6] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::AllToAll,
    Collective::Broadcast(0),
    Collective::Broadcast(1),
];

#[test]
fn every_type_and_reduction_comes_to_the_same_bits_as_in_one_piece() {
    let all = DType::ALL.iter().flat_map(|&d| ReduceOp::ALL.iter().map(move |&r| (d, r)));
    let calls: Vec<_> =
        all.filter(|(d, r)| d.supports(*r)).flat_map(|(d, r)| ALL.map(|c| (c, d, r, 1003))).collect();
    assert!(calls.len() > 100);
    run(3, 2, &calls);
}

#[test]
fn every_number_of_ranks_and_lanes_comes_to_the_same_bits_as_in_one_piece() {
    let of = |counts: &'static [usize]| {
        let calls = ALL.iter().flat_map(|&c| counts.iter().map(move |&n| (c, DType::F32, ReduceOp::Sum, n)));
        calls.collect::<Vec<_>>()
    };
    for (size, lanes) in [(2, 1), (2, 4), (3, 3), (5, 2), (8, 2)] {
        // Shorter than a lane, and one window.
        run(size, lanes, &of(&[1, 17, 3000]));
    }
    // More than are measured.
    run(9, 1, &of(&[3000]));
    // Several windows, the last one not whole.
    run(2, 2, &of(&[300_001]));
    run(3, 1, &of(&[100_001]));
}
