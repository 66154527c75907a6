//! Every level of this machine against `scalar`.

use super::scalar::{scalar, scalar_divide, single};
use super::*;
use half::{bf16, f16};
use proptest::prelude::*;

const LENGTHS: &[usize] =
    if cfg!(miri) { &[0, 1, 3, 17, 33] } else { &[0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 1000] };
const RANKS: [usize; 4] = [1, 3, 8, 1000];

/// Element bits that random ones rarely hit: zeros of both signs, ones, extremes, infinities, NaNs, subnormals.
fn specials(dtype: DType) -> Vec<u64> {
    match dtype {
        DType::F16 => [0x0000, 0x3c00, 0x7bff, 0x7c00, 0x7e00, 0x7c01, 0x0001, 0x03ff, 0x0400]
            .iter()
            .flat_map(|&b| [b, b | 0x8000])
            .collect(),
        DType::BF16 => [0x0000, 0x3f80, 0x7f7f, 0x7f80, 0x7fc0, 0x7f81, 0x0001, 0x007f, 0x0080]
            .iter()
            .flat_map(|&b| [b, b | 0x8000])
            .collect(),
        DType::F32 => single_specials().collect(),
        DType::C64 => {
            single_specials().flat_map(|re| single_specials().map(move |im| re << 32 | im)).collect()
        }
        DType::F64 => [0.0f64, 1.0, f64::MAX, f64::INFINITY, f64::NAN, 5e-324]
            .iter()
            .flat_map(|x| [x.to_bits(), (-x).to_bits()])
            .collect(),
        _ => vec![
            0,
            1,
            2,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            0x7fff_ffff,
            1 << 31,
            u64::MAX >> 1,
            1 << 63,
            u64::MAX,
        ],
    }
}

fn single_specials() -> impl Iterator<Item = u64> {
    [0.0f32, 1.0, f32::MAX, f32::INFINITY, f32::NAN, 1e-45]
        .into_iter()
        .flat_map(|x| [u64::from(x.to_bits()), u64::from((-x).to_bits())])
}

/// `n` elements: pairs of specials first or random bits, by `seed`.
fn elements(dtype: DType, n: usize, seed: u64) -> Vec<u8> {
    let specials = specials(dtype);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::new();
    for _ in 0..n {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let random = state.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let bits =
            if random.is_multiple_of(3) { specials[(random >> 8) as usize % specials.len()] } else { random };
        let bits = if dtype == DType::Bool { bits % 2 } else { bits };
        bytes.extend_from_slice(&bits.to_le_bytes()[..dtype.size()]);
    }
    bytes
}

fn is_nan(dtype: DType, b: &[u8]) -> bool {
    match dtype {
        DType::F16 => f16::from_ne_bytes([b[0], b[1]]).is_nan(),
        DType::BF16 => bf16::from_ne_bytes([b[0], b[1]]).is_nan(),
        DType::F32 => f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).is_nan(),
        DType::F64 => f64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]).is_nan(),
        _ => false,
    }
}

/// Equal bits, any NaN equal to any other.
fn assert_same(dtype: DType, got: &[u8], want: &[u8], what: &dyn std::fmt::Debug) {
    // The parts of a complex number are NaN on their own.
    let part = if dtype == DType::C64 { DType::F32 } else { dtype };
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.chunks(part.size()).zip(want.chunks(part.size())).enumerate() {
        assert!(
            g == w || (is_nan(part, g) && is_nan(part, w)),
            "{dtype} {what:?}: element {i} is {g:x?}, not {w:x?}"
        );
    }
}

fn reference(dtype: DType, op: ReduceOp, a: &[u8], b: &[u8]) -> Vec<u8> {
    let size = dtype.size();
    a.chunks(size).zip(b.chunks(size)).flat_map(|(a, b)| scalar(dtype, op, a, b)[..size].to_vec()).collect()
}

fn divided(dtype: DType, ranks: usize, a: &[u8]) -> Vec<u8> {
    let size = dtype.size();
    a.chunks(size).flat_map(|a| scalar_divide(dtype, ranks, a)[..size].to_vec()).collect()
}

/// `bytes` at `offset` from an aligned address, and what surrounds them, to see that it stays.
fn shifted(bytes: &[u8], offset: usize) -> (Vec<u64>, std::ops::Range<usize>) {
    let mut room = vec![0xa5a5_a5a5_a5a5_a5a5u64; bytes.len() / 8 + 3];
    let range = offset..offset + bytes.len();
    as_bytes(&mut room)[range.clone()].copy_from_slice(bytes);
    (room, range)
}

fn as_bytes(room: &mut [u64]) -> &mut [u8] {
    // SAFETY: every byte of a u64 is a valid u8, and alignment only shrinks.
    unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast(), size_of_val(room)) }
}

fn pairs() -> impl Iterator<Item = (DType, ReduceOp)> {
    DType::ALL.into_iter().flat_map(|d| ReduceOp::ALL.map(|op| (d, op))).filter(|(d, op)| d.supports(*op))
}

/// Everything that works on two operands, for one input, at all levels.
fn check_two(dtype: DType, op: ReduceOp, a: &[u8], b: &[u8], offset: usize) {
    let want = reference(dtype, op, a, b);
    for level in Level::available() {
        let what = (level, op, a.len(), offset);
        let (mut room, range) = shifted(a, offset);
        let (mut other, other_range) = shifted(b, (offset + 3) % 8);
        let src = &as_bytes(&mut other)[other_range];
        level.combine(dtype, op, &mut as_bytes(&mut room)[range.clone()], src);
        let bytes = as_bytes(&mut room);
        assert_same(dtype, &bytes[range.clone()], &want, &("combine", what));
        assert!(bytes[..range.start].iter().chain(&bytes[range.end..]).all(|&b| b == 0xa5), "{what:?}");

        let (mut room, range) = shifted(&vec![0; a.len()], offset);
        level.combine_into(dtype, op, &mut as_bytes(&mut room)[range.clone()], a, src);
        assert_same(dtype, &as_bytes(&mut room)[range.clone()], &want, &("combine_into", what));

        // Ranks that combine in the other order get the same.
        let mut swapped = b.to_vec();
        level.combine(dtype, op, &mut swapped, a);
        assert_same(dtype, &swapped, &want, &("swapped", what));

        for ranks in RANKS {
            let mut buf = a.to_vec();
            level.finish(dtype, op, ranks, &mut buf);
            let want = if op == ReduceOp::Avg { divided(dtype, ranks, a) } else { a.to_vec() };
            assert_same(dtype, &buf, &want, &("finish", ranks, what));
        }
    }
}

#[test]
fn every_pair_at_awkward_lengths_and_offsets() {
    for (pair, (dtype, op)) in pairs().enumerate() {
        for (i, &n) in LENGTHS.iter().enumerate() {
            // Under Miri each pair meets two or three lengths, and each length half of the pairs.
            if cfg!(miri) && (i + pair) % 2 == 1 {
                continue;
            }
            let a = elements(dtype, n, 2 * i as u64);
            let b = elements(dtype, n, 2 * i as u64 + 1);
            check_two(dtype, op, &a, &b, i % 8);
        }
    }
}

#[test]
fn special_values_meet_each_other() {
    for (dtype, op) in pairs() {
        let specials = specials(dtype);
        let mut a = Vec::new();
        let mut b = Vec::new();
        // Under Miri some of them.
        for (i, (x, y)) in specials.iter().flat_map(|x| specials.iter().map(move |y| (x, y))).enumerate() {
            if !cfg!(miri) || i % 7 == 0 && i < 300 {
                a.extend_from_slice(&x.to_le_bytes()[..dtype.size()]);
                b.extend_from_slice(&y.to_le_bytes()[..dtype.size()]);
            }
        }
        if dtype == DType::Bool {
            a.iter_mut().chain(&mut b).for_each(|b| *b &= 1);
        }
        check_two(dtype, op, &a, &b, 1);
    }
}

#[test]
fn halves_round_as_the_half_crate() {
    // All patterns, each with itself and with an unrelated one.
    let step = if cfg!(miri) { 1021 } else { 1 };
    let a: Vec<u16> = (0..=u16::MAX).step_by(step).collect();
    let bytes = |v: &[u16]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    for factor in [1u16, 0x9e37] {
        let b: Vec<u16> = a.iter().map(|x| x.wrapping_mul(factor) ^ (factor >> 1)).collect();
        for op in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
            for dtype in [DType::F16, DType::BF16] {
                let want = reference(dtype, op, &bytes(&a), &bytes(&b));
                for level in Level::available() {
                    let mut got = bytes(&a);
                    level.combine(dtype, op, &mut got, &bytes(&b));
                    assert_same(dtype, &got, &want, &(level, op, factor));
                }
            }
        }
    }
}

#[test]
fn halves_narrow_as_the_half_crate_at_every_rounding_border() {
    // The lowest 13 bits decide about f16, from 2^-26 to 2^17; the lowest 16 about bf16.
    let thin = if cfg!(miri) { 0x1000 } else { 1 };
    let f16_borders = ((127 - 26) << 23..(127 + 17) << 23).step_by(0x1000 * thin);
    let bf16_borders = (0..=u32::MAX).step_by(0x8000 * thin);
    let singles: Vec<f32> = f16_borders
        .chain(bf16_borders)
        .flat_map(|b: u32| [b.wrapping_sub(1), b, b.wrapping_add(1)])
        .map(f32::from_bits)
        .collect();
    for level in Level::available() {
        for part in singles.chunks(4096) {
            let wide: Vec<u8> = part.iter().flat_map(|x| x.to_ne_bytes()).collect();
            let mut got = vec![0; wide.len() / 2];
            let want: Vec<u8> = part.iter().flat_map(|x| f16::from_f32(*x).to_ne_bytes()).collect();
            level.narrow(DType::F16, &mut got, &wide);
            assert_same(DType::F16, &got, &want, &level);
            let want: Vec<u8> = part.iter().flat_map(|x| bf16::from_f32(*x).to_ne_bytes()).collect();
            level.narrow(DType::BF16, &mut got, &wide);
            assert_same(DType::BF16, &got, &want, &level);
        }
    }
}

/// Reduces as `n_way_reduce` promises: in order, halves in `f32` and rounded once, averages divided before that.
fn n_way_reduced(dtype: DType, op: ReduceOp, ranks: usize, operands: &[Vec<u8>]) -> Vec<u8> {
    let avg = op == ReduceOp::Avg;
    let halves = |wide: fn([u8; 2]) -> f32, narrow: fn(f32) -> [u8; 2]| {
        (0..operands[0].len() / 2)
            .flat_map(|i| {
                let values = operands.iter().map(|o| wide([o[2 * i], o[2 * i + 1]]));
                let r = values.reduce(|a, b| single(op, a, b)).unwrap_or(0.0);
                narrow(if avg { r / ranks as f32 } else { r })
            })
            .collect()
    };
    match dtype {
        DType::F16 => halves(|b| f16::from_ne_bytes(b).to_f32(), |x| f16::from_f32(x).to_ne_bytes()),
        DType::BF16 => halves(|b| bf16::from_ne_bytes(b).to_f32(), |x| bf16::from_f32(x).to_ne_bytes()),
        _ => {
            let (first, rest) = operands.split_first().expect("an operand");
            let r = rest.iter().fold(first.clone(), |a, b| reference(dtype, op, &a, b));
            if avg { divided(dtype, ranks, &r) } else { r }
        }
    }
}

/// `want` is [`n_way_reduced`] of the operands.
fn check_n_way_reduce(
    dtype: DType,
    op: ReduceOp,
    operands: &[Vec<u8>],
    want: &[u8],
    own: usize,
    in_dst: bool,
) {
    let before: Vec<&[u8]> = operands[..own].iter().map(Vec::as_slice).collect();
    let after: Vec<&[u8]> = operands[own + 1..].iter().map(Vec::as_slice).collect();
    for level in Level::available() {
        let mut dst = if in_dst { operands[own].clone() } else { vec![0xa5; want.len()] };
        let own_operand = (!in_dst).then_some(operands[own].as_slice());
        let many =
            NWayReduce { dtype, op, ranks: operands.len(), own: own_operand, before: &before, after: &after };
        many.run(level, &mut dst);
        assert_same(dtype, &dst, want, &(level, op, operands.len(), own, in_dst));
    }
}

#[test]
fn n_way_reduce_keeps_order_and_rounds_once() {
    let counts: &[usize] = if cfg!(miri) { &[3] } else { &[1, 2, 3, 5] };
    // From empty through the short block to several blocks with a rest.
    let lengths: &[usize] = if cfg!(miri) { &[5] } else { &[0, 1, 5, 70, 257, 9001] };
    for (dtype, op) in pairs() {
        for (&count, &n) in counts.iter().flat_map(|c| lengths.iter().map(move |n| (c, n))) {
            let n = n.min(9001 / dtype.size());
            let operands: Vec<_> = (0..count).map(|i| elements(dtype, n, (n + i) as u64)).collect();
            let want = n_way_reduced(dtype, op, count, &operands);
            for own in [0, count / 2, count - 1] {
                check_n_way_reduce(dtype, op, &operands, &want, own, true);
                check_n_way_reduce(dtype, op, &operands, &want, own, false);
            }
        }
    }
}

#[test]
fn n_way_reduce_of_halves_is_better_than_rounding_each_step() {
    // 2048 + 1 is a tie in f16 and goes back to 2048, every time, when each sum is rounded.
    let bytes = |x: f32| f16::from_f32(x).to_ne_bytes().to_vec();
    let large = bytes(2048.0);
    let one = bytes(1.0);
    let mut stepwise = large.clone();
    let mut once = large;
    for _ in 0..4 {
        combine(DType::F16, ReduceOp::Sum, &mut stepwise, &one);
    }
    n_way_reduce(DType::F16, ReduceOp::Sum, 5, &mut once, None, &[&one, &one], &[&one, &one]);
    assert_eq!((stepwise, once), (bytes(2048.0), bytes(2052.0)));
}

#[test]
fn the_table_of_reduce_op_in_examples() {
    fn two<const N: usize>(dtype: DType, op: ReduceOp, a: [u8; N], b: [u8; N]) -> [u8; N] {
        let mut r = [0; N];
        combine_into(dtype, op, &mut r, &a, &b);
        r
    }
    let single =
        |op, a: f32, b: f32| f32::from_ne_bytes(two(DType::F32, op, a.to_ne_bytes(), b.to_ne_bytes()));
    for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
        assert!(single(ReduceOp::Min, a, b).is_sign_negative());
        assert!(single(ReduceOp::Max, a, b).is_sign_positive());
    }
    for (a, b) in [(f32::NAN, f32::INFINITY), (f32::NEG_INFINITY, -f32::NAN)] {
        assert!(single(ReduceOp::Min, a, b).is_nan() && single(ReduceOp::Max, a, b).is_nan());
    }
    assert_eq!(two(DType::Bool, ReduceOp::Sum, [1, 0, 1, 0], [1, 1, 0, 0]), [1, 1, 1, 0]);
    assert_eq!(two(DType::Bool, ReduceOp::Product, [1, 0, 1, 0], [1, 1, 0, 0]), [1, 0, 0, 0]);
    assert_eq!(two(DType::U8, ReduceOp::Sum, [200], [100]), [44]);
    let mut average = (-7i32).to_ne_bytes();
    Level::best().finish(DType::I32, ReduceOp::Avg, 2, &mut average);
    assert_eq!(i32::from_ne_bytes(average), -3);
    let complex = |re: f32, im: f32| {
        let mut b = [0; 8];
        b[..4].copy_from_slice(&re.to_ne_bytes());
        b[4..].copy_from_slice(&im.to_ne_bytes());
        b
    };
    assert_eq!(two(DType::C64, ReduceOp::Product, complex(1.0, 2.0), complex(3.0, 4.0)), complex(-5.0, 10.0));
    assert_eq!(two(DType::C64, ReduceOp::Max, complex(1.0, 2.0), complex(1.0, 4.0)), complex(1.0, 4.0));
    assert_eq!(
        two(DType::C64, ReduceOp::Min, complex(f32::NAN, 2.0), complex(-9.0, 4.0))[4..],
        2f32.to_ne_bytes()
    );
}

#[test]
fn bytes_that_are_no_bool_become_one() {
    let mut buf = [0, 1, 2, 255];
    normalise_bool(&mut buf);
    assert_eq!(buf, [0, 1, 1, 1]);
    for level in Level::available() {
        let mut dst = [2, 2, 0, 0];
        level.combine(DType::Bool, ReduceOp::Xor, &mut dst, &[0, 4, 8, 0]);
        assert_eq!(dst, [1, 0, 1, 0], "{level:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn random_bits(pair in 0..pairs().count(), bits in prop::collection::vec(any::<(u64, u64)>(), 0..100), offset in 0usize..8) {
        let (dtype, op) = pairs().nth(pair).expect("in range");
        let bytes = |x: u64| x.to_ne_bytes().into_iter().take(dtype.size()).collect::<Vec<u8>>();
        let a: Vec<u8> = bits.iter().flat_map(|b| bytes(b.0)).collect();
        let b: Vec<u8> = bits.iter().flat_map(|b| bytes(b.1)).collect();
        check_two(dtype, op, &a, &b, offset);
    }

    #[test]
    fn random_n_way_reduces(
        pair in 0..pairs().count(),
        bits in prop::collection::vec(any::<[u64; 5]>(), 0..50),
        count in 1usize..=5,
        own in 0usize..5,
        in_dst: bool,
    ) {
        let (dtype, op) = pairs().nth(pair).expect("in range");
        let bytes = |x: u64| x.to_ne_bytes().into_iter().take(dtype.size()).collect::<Vec<u8>>();
        let operands: Vec<Vec<u8>> = (0..count).map(|i| bits.iter().flat_map(|b| bytes(b[i])).collect()).collect();
        let want = n_way_reduced(dtype, op, count, &operands);
        check_n_way_reduce(dtype, op, &operands, &want, own % count, in_dst);
    }
}
