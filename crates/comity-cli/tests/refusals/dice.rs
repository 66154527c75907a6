//! Numbers from a seed (SplitMix64).

pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(salt: u64) -> Self {
        let seed = match std::env::var("COMITY_TEST_SEED") {
            Ok(text) => text.parse().unwrap(),
            Err(_) => 1,
        };
        println!("COMITY_TEST_SEED={seed}");
        Self(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
