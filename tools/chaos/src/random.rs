//! Random numbers from a seed, the same on every machine.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `n - 1`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub(super) fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// From `from` to `to`, both in.
    pub(super) fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub(super) fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }
}

/// The seed of one trial of many.
pub(super) fn derived(seed: u64, lane: u64, trial: u64) -> u64 {
    // Short enough to be typed.
    Random::new(seed ^ lane.rotate_left(32) ^ trial.rotate_left(48)).next() >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers() {
        let numbers = |seed: u64| -> Vec<u64> { (0..4).map(|i| Random::new(seed + i).below(1000)).collect() };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(100));
        let mut random = Random::new(3);
        assert!((0..1000).all(|_| (5..=7).contains(&random.within(5, 7))));
        assert_ne!(derived(1, 0, 1), derived(1, 1, 0));
    }
}
