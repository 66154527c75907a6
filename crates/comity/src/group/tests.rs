//! Algorithms that a program prefers. That each adds up is checked by `every_group_of_threads_is_right` of the command.

use super::*;
use crate::{ReduceOp, engine::tests::each};

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
