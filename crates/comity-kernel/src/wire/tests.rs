//! Errors that a wire makes, at every level of this machine.

use super::*;
use proptest::prelude::*;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

/// `values` as they come off the wire, the same at every level.
fn carried(wire: Wire, values: &[f32]) -> Vec<f32> {
    let src = bytes(values);
    let mut first: Option<(Vec<u8>, Vec<f32>)> = None;
    for level in Level::available() {
        let mut coded = vec![0xa5; wire.bytes(values.len())];
        level.encode(wire, DType::F32, &mut coded, &src);
        let mut back = vec![0xa5; src.len()];
        level.decode(wire, DType::F32, &mut back, &coded);
        let mut sums = bytes(&vec![1.0; values.len()]);
        level.add_decoded(wire, &mut sums, &coded);
        let back = floats(&back);
        for (sum, x) in floats(&sums).iter().zip(&back) {
            assert!(*sum == 1.0 + x || x.is_nan() && sum.is_nan(), "{wire} at {level:?}: {sum} of {x}");
        }
        let bits = |all: &[f32]| Vec::from_iter(all.iter().map(|x| if x.is_nan() { 1 } else { x.to_bits() }));
        match &first {
            Some((_, known)) => assert_eq!(bits(&back), bits(known), "{wire} at {level:?}"),
            None => first = Some((coded, back)),
        }
    }
    first.expect("there is a level").1
}

/// Error that the table of [`Wire`] allows for `x`, in a block whose largest finite magnitude is `largest`.
fn allowed(wire: Wire, x: f32, largest: f32) -> f64 {
    let x = f64::from(x.abs());
    match wire {
        Wire::Bf16 => x / 256.0 + 1e-40,
        Wire::F16 => (x / 2048.0).max(3e-8),
        Wire::Int8Block => (f64::from(largest) / 251.0).max(6e-39),
    }
}

fn check(wire: Wire, values: &[f32]) {
    let back = carried(wire, values);
    for (block, back) in values.chunks(BLOCK).zip(back.chunks(BLOCK)) {
        let largest = block.iter().filter(|x| x.is_finite()).fold(0f32, |m, x| m.max(x.abs()));
        for (x, y) in block.iter().zip(back) {
            let becomes_infinite = match wire {
                Wire::F16 => x.abs() >= 65_504.0,
                Wire::Bf16 => x.abs() > 3.38e38,
                Wire::Int8Block => false,
            };
            match x {
                x if x.is_nan() => assert!(y.is_nan(), "{wire}: NaN became {y}"),
                x if x.is_infinite() => assert_eq!(x, y, "{wire}"),
                x if becomes_infinite && y.is_infinite() => assert_eq!(x.signum(), y.signum()),
                x => {
                    let off = (f64::from(*x) - f64::from(*y)).abs();
                    assert!(
                        off <= allowed(wire, *x, largest),
                        "{wire}: {x:e} became {y:e} beside {largest:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn every_length_and_special_value_survives() {
    let specials = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        0.0,
        -0.0,
        1e-45,
        f32::MIN_POSITIVE,
        -3e-38,
        1.0,
    ];
    let lengths: &[usize] = if cfg!(miri) { &[0, 3, 257] } else { &[0, 1, 7, 255, 256, 257, 512, 1000] };
    for wire in Wire::ALL {
        for &n in lengths {
            check(wire, &Vec::from_iter((0..n).map(|i| (i as f32 - 99.0) * 0.37)));
            check(wire, &Vec::from_iter((0..n).map(|i| specials[i % specials.len()])));
        }
        // Each alone in its block.
        specials.iter().for_each(|x| check(wire, &[*x]));
    }
}

#[test]
fn a_value_that_is_none_leaves_the_others_of_its_block_as_they_are() {
    let mut values = Vec::from_iter((-50..50).map(|i| i as f32));
    let before = carried(Wire::Int8Block, &values);
    values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    assert_eq!(carried(Wire::Int8Block, &values)[..100], before[..]);
}

#[test]
fn halves_are_carried_too() {
    let values = Vec::from_iter((0..300).map(|i| (i - 150) as f32));
    for (wire, dtype) in Wire::ALL.iter().flat_map(|w| [(*w, DType::F16), (*w, DType::BF16)]) {
        for level in Level::available() {
            let mut src = vec![0; 600];
            level.narrow(dtype, &mut src, &bytes(&values));
            let mut coded = vec![0; wire.bytes(300)];
            level.encode(wire, dtype, &mut coded, &src);
            let mut back = vec![0; 600];
            level.decode(wire, dtype, &mut back, &coded);
            let mut sums = bytes(&[0.0; 300]);
            level.accumulate(dtype, ReduceOp::Sum, &mut sums, &back);
            // Integers of 8 bits lose nothing but in blocks, and there less than one.
            let near =
                |(x, y): (&f32, &f32)| (x - y).abs() <= if wire == Wire::Int8Block { 1.0 } else { 0.0 };
            assert!(floats(&sums).iter().zip(&values).all(near), "{wire} of {dtype} at {level:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn no_element_is_off_by_more_than_the_table_says(bits in prop::collection::vec(any::<u32>(), 0..600), magnitude in -30i32..30) {
        let any = Vec::from_iter(bits.iter().map(|b| f32::from_bits(*b)));
        let near = Vec::from_iter(bits.iter().map(|b| (*b as f32 / 2f32.powi(31) - 1.0) * 10f32.powi(magnitude)));
        for wire in Wire::ALL {
            check(wire, &any);
            check(wire, &near);
        }
    }
}
