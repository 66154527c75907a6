//! Expected values must hold in every order of combining, and wrong values must be found.

use super::*;
use comity::DType;

/// Combine in three orders: by rank, backwards, and in pairs.
fn orders<T: Sample>(op: ReduceOp, of: &[T]) -> [T; 3] {
    let finish = |x: T| (if op == ReduceOp::Avg { x.divide(of.len()) } else { x }).settle(op);
    let back = of.iter().rev().copied().reduce(|a, b| T::combine(op, a, b)).unwrap();
    let mut level = of.to_vec();
    while level.len() > 1 {
        level =
            level.chunks(2).map(|c| c.iter().copied().reduce(|a, b| T::combine(op, a, b)).unwrap()).collect();
    }
    [T::fold(op, of).settle(op), finish(back), finish(level[0])]
}

#[test]
fn exact_and_special_data_give_the_same_bits_in_every_order() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL.into_iter().filter(|&op| dtype.supports(op)) {
            for n in [1, 2, 3, 5, 8, 64, 300] {
                let deal = Deal::new(7, n as u64);
                for (i, data) in (0..40).flat_map(|i| [(i, Data::Exact), (i, Data::Special)]) {
                    with_type!(dtype, T => {
                        let give = |r| Give { data, op, n, draw: deal.draw(r, i), turn: r + i };
                        let of: Vec<T> = (0..n).map(|r| T::give(give(r))).collect();
                        let [a, b, c] = orders(op, &of);
                        assert!(a.bits() == b.bits() && a.bits() == c.bits(),
                            "{op} of {dtype} on {n}: {a:?} {b:?} {c:?} of {of:?}");
                    });
                }
            }
        }
    }
}

#[test]
fn real_data_stay_within_the_bound_and_a_wrong_element_does_not() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64, DType::C64] {
        for op in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Avg] {
            for n in [1, 2, 3, 8, 64] {
                let deal = Deal::new(1, 2);
                with_type!(dtype, T => {
                    for i in 0..200 {
                        let give = |r| Give { data: Data::Real, op, n, draw: deal.draw(r, i), turn: r + i };
                        let of: Vec<T> = (0..n).map(|r| T::give(give(r))).collect();
                        for got in orders(op, &of) {
                            T::near(op, &of, got).unwrap();
                        }
                    }
                    let of = vec![T::give(Give { data: Data::Real, op, n, draw: 12345 << 40, turn: 1 }); n];
                    let wrong = T::combine(ReduceOp::Sum, T::fold(op, &of), of[0]);
                    let wrong = T::combine(ReduceOp::Sum, wrong, of[0]);
                    if n <= 8 {
                        assert!(T::near(op, &of, wrong).is_err(), "{op} of {dtype} on {n}: {wrong:?} of {of:?}");
                    }
                });
            }
        }
    }
}
