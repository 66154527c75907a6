//! Events of a run: made from its seed alone. Times are microseconds.

use crate::Rule;
use scope::Rng;
use std::ops::RangeInclusive;

pub(super) const MS: u64 = 1_000;
pub(super) const SECOND: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) size: usize,
    /// A store outlives the members.
    pub(super) store: bool,
    pub(super) rule: Rule,
    pub(super) fewest: usize,
    /// A part stands when all members have noted that they make theirs, as where joiners are met or all links are made at once. Else the notes
    /// are skipped: each part stands by itself, and nobody uses it before the plan is decided.
    pub(super) gathers: bool,
    /// Limit on a member's silence.
    pub(super) limit: u64,
    /// Members wait for so long for a new group.
    pub(super) patience: u64,
    /// Range of a message's time on its way.
    pub(super) delay: (u64, u64),
    /// When each member asks, if it does.
    pub(super) begin: Vec<Option<u64>>,
    pub(super) faults: Vec<Fault>,
    pub(super) end: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The process is killed, at once or when it has sent so many more messages.
    Kill { member: usize, at: u64, sends: Option<u32> },
    /// The process does not run for a while.
    Stop { member: usize, at: u64, to: u64 },
    /// Nothing passes between members for which `side` differs.
    Cut { side: Vec<bool>, at: u64, to: u64 },
    /// Two members take each other for dead.
    Reset { a: usize, b: usize, at: u64 },
    /// The next part that a member makes is not made.
    Lack { member: usize },
    /// The member has left the group, and never asks.
    Leave { member: usize },
    /// Nothing is heard of the store any more.
    StoreEnds { at: u64 },
}

impl Scenario {
    pub(super) fn new(seed: u64, sizes: RangeInclusive<usize>) -> Self {
        let mut rng = Rng::new(seed);
        let low = *sizes.start() as u64;
        let high = *sizes.end() as u64;
        // Small groups show most.
        let size =
            if rng.chance(70) { rng.between(low, high.min(low.max(8))) } else { rng.between(low, high) }
                as usize;
        let limit = [200 * MS, SECOND][rng.below(2)];
        let patience = limit * 2 + 4 * SECOND;
        let delay = [(20, 200), (50, 5 * MS), (MS, 50 * MS)][rng.below(3)];
        let spread = [0, MS, 50 * MS, SECOND][rng.below(4)];
        let mut begin: Vec<_> = (0..size).map(|_| Some(10 * MS + rng.between(0, spread))).collect();
        let mut faults = Vec::new();
        let only_kills = rng.chance(40);
        let store = rng.chance(60);
        let rule = if rng.chance(80) { Rule::Majority } else { Rule::Store };
        // Most members are at it in the first moments after the last has asked.
        let span = spread + [0, 4 * delay.1, 12 * delay.1][rng.below(3)];
        let kills = rng.between(0, (size as u64 / 2).clamp(1, 6));
        for member in rng.some(kills as usize, size) {
            let at = if rng.chance(30) { rng.between(0, 5 * MS) } else { 10 * MS + rng.between(0, span) };
            let sends = rng.chance(50).then(|| rng.between(0, 3 * size as u64) as u32);
            faults.push(Fault::Kill { member, at, sends });
        }
        let others = if only_kills { 0 } else { rng.between(1, 4) };
        for _ in 0..others {
            let at = rng.between(0, 20 * MS + span);
            let member = rng.below(size);
            faults.push(match rng.below(8) {
                0 | 1 => Fault::Reset { a: member, b: (member + 1 + rng.below(size - 1)) % size, at },
                2 => Fault::Stop { member, at, to: at + rng.between(MS, 3 * limit) },
                3 => Fault::Cut {
                    side: (0..size).map(|_| rng.chance(50)).collect(),
                    at,
                    to: at + rng.between(MS, 3 * limit),
                },
                4 => Fault::Lack { member },
                5 if store => Fault::StoreEnds { at },
                6 => {
                    begin[member] = None;
                    Fault::Leave { member }
                }
                _ => {
                    begin[member] = if rng.chance(50) { None } else { Some(at + rng.between(0, patience)) };
                    Fault::Lack { member }
                }
            });
        }
        let fewest = if rng.chance(80) { 1 } else { rng.between(1, size as u64) as usize };
        let last = begin.iter().flatten().max().copied().unwrap_or(0);
        let mut one = Self {
            seed,
            size,
            store,
            rule,
            fewest,
            gathers: Rng::new(seed ^ 0x907e).chance(40),
            limit,
            patience,
            delay,
            begin,
            faults,
            end: last + patience + 2 * SECOND,
        };
        if size > 4 && rng.chance(15) {
            one.dies_telling(&mut rng);
        }
        one
    }

    /// Whoever has counted the votes dies as it tells, and so does the first that hears: nobody is left that knows.
    fn dies_telling(&mut self, rng: &mut Rng) {
        let told = 3 * (self.size as u64 - 1) + rng.between(1, 2);
        self.faults = vec![
            Fault::Kill { member: 0, at: 0, sends: Some(told as u32) },
            Fault::Kill { member: 1, at: 0, sends: Some(rng.between(3, 4) as u32) },
        ];
        self.all_ask(rng);
    }

    fn all_ask(&mut self, rng: &mut Rng) {
        let spread = [0, MS, 50 * MS][rng.below(3)];
        self.begin = (0..self.size).map(|_| Some(10 * MS + rng.between(0, spread))).collect();
        self.fewest = 1;
    }

    /// A run in which [that](Self::dies_telling) happens.
    pub(super) fn telling(seed: u64) -> Self {
        let mut one = Self::new(seed, 5..=9);
        one.dies_telling(&mut Rng::new(seed ^ 0x7e11));
        one
    }

    /// A run in which the two lowest members take each other for dead.
    pub(super) fn apart(seed: u64) -> Self {
        let mut one = Self::new(seed, 3..=7);
        let mut rng = Rng::new(seed ^ 0xa9a7);
        one.faults = vec![Fault::Reset { a: 0, b: 1, at: rng.between(0, 20 * MS) }];
        one.all_ask(&mut rng);
        one
    }

    /// A run in which two take each other for dead, whom the lowest member can reach.
    pub(super) fn lost_each_other(seed: u64) -> Self {
        let mut one = Self::new(seed, 3..=9);
        let mut rng = Rng::new(seed ^ 0x105e);
        let a = 1 + rng.below(one.size - 1);
        let b = 1 + (a + rng.below(one.size - 2)) % (one.size - 1);
        one.faults = vec![Fault::Reset { a, b, at: rng.between(0, 20 * MS) }];
        one.all_ask(&mut rng);
        one
    }

    /// True if some members have lost each other, nothing else happens, and enough are left without one of each pair.
    pub(super) fn only_pairs_are_lost(&self) -> bool {
        let is_pair = |f: &Fault| matches!(f, Fault::Reset { a, b, .. } if *a > 0 && *b > 0);
        let all_ask = self.begin.iter().all(Option::is_some);
        all_ask && self.faults.iter().all(is_pair) && self.size >= self.fewest + self.faults.len()
    }

    /// True if members are killed and nothing else happens.
    pub(super) fn only_kills(&self) -> bool {
        self.faults.iter().all(|f| matches!(f, Fault::Kill { .. }))
    }

    /// True if nothing is held up and nobody stops.
    pub(super) fn is_prompt(&self) -> bool {
        self.faults.iter().all(|f| matches!(f, Fault::Kill { .. } | Fault::Reset { .. }))
    }
}
