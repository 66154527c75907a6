//! Algorithms that a program prefers.

use super::*;
use crate::{ReduceOp, engine::tests::each};
use comity_plan::Kind;

#[test]
fn every_algorithm_adds_up() {
    for n in [2, 3, 5] {
        for algorithm in Kind::AllReduce.algorithms() {
            let sums = each(Group::local(n).unwrap(), |group| {
                assert!(group.prefer_algorithm(Some(algorithm)));
                let mut x: Vec<u64> = (0..1000).map(|i| i + group.rank() as u64).collect();
                group.all_reduce(&mut x, ReduceOp::Sum).unwrap();
                x
            });
            let whole: u64 = (0..n as u64).sum();
            let expected: Vec<u64> = (0..1000).map(|i| i * n as u64 + whole).collect();
            assert!(sums.iter().all(|s| *s == expected), "{algorithm:?} on {n}");
        }
    }
}

#[test]
fn ranks_that_prefer_different_ones_are_told() {
    let errors = each(Group::local(2).unwrap(), |group| {
        let which = [Algorithm::Ring, Algorithm::TwoPhase][group.rank()];
        group.prefer_algorithm(Some(which));
        group.all_reduce(&mut [1f32; 64], ReduceOp::Sum).unwrap_err()
    });
    assert!(errors.iter().all(|e| matches!(e.kind(), ErrorKind::Mismatch { .. })), "{errors:?}");
    assert!(errors.iter().all(|e| e.to_string().contains("plan")), "{}", errors[0]);
}
