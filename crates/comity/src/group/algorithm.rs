//! Algorithm of a group's operations, where the user chooses one.

use super::Group;
use crate::sync::lock;
use comity_plan::Algorithm;

impl Group {
    /// [`tools::prefer_algorithm`](crate::tools::prefer_algorithm).
    pub(crate) fn prefer_algorithm(&self, algorithm: Option<Algorithm>) -> bool {
        self.in_turn(|| {
            let mut state = lock(&self.core.state);
            state.backend.as_mut().is_some_and(|b| b.prefer(algorithm))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ReduceOp};
    use comity_plan::Kind;
    use std::thread;

    fn together<T: Send>(n: usize, f: impl Fn(&Group) -> T + Sync) -> Vec<T> {
        thread::scope(|s| {
            let ranks: Vec<_> = Group::local(n)
                .unwrap()
                .into_iter()
                .map(|g| {
                    s.spawn({
                        let f = &f;
                        move || f(&g)
                    })
                })
                .collect();
            ranks.into_iter().map(|r| r.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_algorithm_adds_up() {
        for n in [2, 3, 5] {
            for algorithm in Kind::AllReduce.algorithms() {
                let sums = together(n, |group| {
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
        let errors = together(2, |group| {
            let which = [Algorithm::Ring, Algorithm::TwoPhase][group.rank()];
            group.prefer_algorithm(Some(which));
            group.all_reduce(&mut [1f32; 64], ReduceOp::Sum).unwrap_err()
        });
        assert!(errors.iter().all(|e| matches!(e, Error::Mismatch { .. })), "{errors:?}");
        assert!(errors.iter().all(|e| e.to_string().contains("plan")), "{}", errors[0]);
    }
}
