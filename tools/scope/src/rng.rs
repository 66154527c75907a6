//! Random numbers that a seed repeats (SplitMix64), for simulators.

use crate::{STEP, mix};

/// Source of numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The source of a seed: neighbouring seeds give unlike numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(STEP) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn next(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high.max(low) - low + 1)
    }

    /// From 0 to below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.between(0, n as u64 - 1) as usize
    }

    /// Random element of these.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// True in so many of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.between(0, 99) < percent
    }

    /// `n` of the numbers below `of`, in random order.
    pub fn some(&mut self, n: usize, of: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of).collect();
        for i in 0..n {
            let j = i + self.below(of - i);
            all.swap(i, j);
        }
        all.truncate(n);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers() {
        let numbers = |seed| {
            let mut rng = Rng::new(seed);
            [(); 3].map(|()| rng.between(0, 999))
        };
        // Seeds of failures that somebody wrote down stay what they were.
        assert_eq!((numbers(1), numbers(2)), ([143, 544, 89], [605, 56, 223]));
        let mut some = Rng::new(3).some(5, 9);
        some.sort_unstable();
        some.dedup();
        assert!(some.len() == 5 && some[4] < 9);
    }
}
