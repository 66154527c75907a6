//! Events of a run: made from its seed alone. Times are microseconds.

pub(super) mod vast;

use crate::overlay_neighbours;
use scope::Rng;
use std::ops::RangeInclusive;

pub(super) const MS: u64 = 1000;
pub(super) const SECOND: u64 = 1_000_000;
pub(super) const NEVER: u64 = u64::MAX / 2;

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) size: usize,
    /// Limit on a rank's silence.
    pub(super) limit: u64,
    /// Range of a note's time on its way.
    pub(super) delay: (u64, u64),
    /// Range of the time until a control thread acts that has something to do.
    pub(super) lag: (u64, u64),
    pub(super) groups: Vec<SimulatedGroup>,
    /// Ranks whose processes end in good order, and when.
    pub(super) goodbyes: Vec<(usize, u64)>,
    pub(super) faults: Vec<PlantedFault>,
    /// Range of the time for which ranks keep a group that has failed; `None`: to the end.
    pub(super) linger: Option<(u64, u64)>,
    pub(super) end: u64,
    /// Ranks are connected to their neighbours in the graph only.
    pub(super) sparse: bool,
}

/// A group.
#[derive(Clone, Debug)]
pub(super) struct SimulatedGroup {
    pub(super) group_id: u64,
    /// World ranks.
    pub(super) members: Vec<usize>,
    /// When each member opens it; [`NEVER`]: not at all.
    pub(super) enter: Vec<u64>,
    /// When each member leaves it in good order, if it does.
    pub(super) leave: Vec<Option<u64>>,
}

#[derive(Clone, Debug)]
pub(super) enum PlantedFault {
    /// The process is killed, at once or when it has sent so many more notes.
    Kill { rank: usize, at: u64, sends: Option<u32> },
    /// The host has no power any more.
    Power { rank: usize, at: u64 },
    /// The process does not run from `at` to `to`, or never again; with its host (`host`) or alone.
    Stop { rank: usize, at: u64, to: Option<u64>, host: bool },
    /// Nothing comes from ranks for which `side` is true to the others, nor back if `both`.
    Cut { side: Vec<bool>, both: bool, at: u64, to: Option<u64> },
    /// A connection breaks.
    Reset { a: usize, b: usize, at: u64 },
    /// The control thread of a rank gets its turn late.
    Slow { rank: usize, at: u64, to: u64, lag: u64 },
    /// A member finds a group to have failed.
    Abort { group: usize, by: usize, culprit: usize, at: u64 },
}

impl Scenario {
    /// Return whether no edge of a large job's graph leads from one rank to the other once those between the two sides are gone.
    pub(super) fn are_apart(&self, side: &[bool], one: usize, other: usize) -> bool {
        let mut here = vec![false; self.size];
        here[one] = true;
        let mut next = vec![one];
        while let Some(rank) = next.pop() {
            for near in self.neighbours(rank).into_iter().filter(|n| side[*n] == side[rank]) {
                if !std::mem::replace(&mut here[near], true) {
                    next.push(near);
                }
            }
        }
        !here[other]
    }

    pub(super) fn new(seed: u64, sizes: Option<RangeInclusive<usize>>) -> Self {
        let mut rng = Rng::new(seed);
        let size = size(&mut rng, sizes);
        let limit = if size > 32 {
            SECOND
        } else {
            [200 * MS, SECOND, SECOND, 5 * SECOND, 30 * SECOND][rng.below(5)]
        };
        let delay = match rng.below(3) {
            0 => (20, 300),
            1 => (100, 5 * MS),
            _ => (1, (limit / 100).min(50 * MS) + MS),
        };
        let lag = (5, [50, 2 * MS, (limit / 100).min(50 * MS)][rng.below(3)]);
        let mut s = Self {
            seed,
            size,
            limit,
            delay,
            lag,
            groups: Vec::new(),
            goodbyes: Vec::new(),
            faults: Vec::new(),
            linger: [None, Some((0, 3 * MS)), Some((0, limit / 4))][rng.below(3)],
            end: 0,
            sparse: false,
        };
        let calm = rng.chance(25);
        s.gather(&mut rng, calm);
        s.strike(&mut rng, calm);
        let last = s.faults.iter().map(PlantedFault::last).max().unwrap_or(0);
        let opened = s.opened();
        s.end = last.max(opened) + limit + SECOND + s.most_lateness() + 2 * s.slack() + 10 * MS;
        s
    }

    /// A rank that connects with all and is stopped before its first beat.
    pub(super) fn joining(seed: u64) -> Self {
        let mut s = Self::new(seed, Some(2..=12));
        let n = s.size;
        let limit = s.limit;
        let enter = (0..n as u64).map(|m| m * limit / 10).collect();
        s.groups =
            vec![SimulatedGroup { group_id: 1, members: (0..n).collect(), enter, leave: vec![None; n] }];
        s.goodbyes = Vec::new();
        s.linger = None;
        let rank = Rng::new(seed).below(n);
        s.faults = vec![PlantedFault::Stop { rank, at: 0, to: None, host: seed.is_multiple_of(2) }];
        s.end = n as u64 * limit / 10 + limit + 2 * SECOND;
        s
    }

    /// An hour of a job that nothing ends: a rank a minute stands still until a second of the limit is left, and control threads are as late
    /// as on a machine with eight ranks to a core.
    pub(super) fn hour(seed: u64) -> Self {
        let mut s = Self::new(seed, Some(2..=16));
        let n = s.size;
        s.limit = 5 * SECOND;
        s.lag = (5, 160 * MS);
        s.delay = (20, 5 * MS);
        s.groups = vec![SimulatedGroup {
            group_id: 1,
            members: (0..n).collect(),
            enter: vec![MS; n],
            leave: vec![None; n],
        }];
        s.goodbyes = Vec::new();
        s.linger = None;
        let mut rng = Rng::new(seed ^ 2);
        let stop = |minute: u64| {
            let at = minute * 60 * SECOND + rng.between(0, 50 * SECOND);
            PlantedFault::Stop { rank: rng.below(n), at, to: Some(at + s.limit - SECOND), host: false }
        };
        s.faults = (0..60).map(stop).collect();
        s.end = 3600 * SECOND;
        s
    }

    /// Make groups.
    fn gather(&mut self, rng: &mut Rng, calm: bool) {
        // The world of most jobs, and some parts of it.
        let splits = if self.size > 2 { rng.below(4) } else { 0 };
        for i in 0..=splits {
            let n = if i == 0 && rng.chance(90) { self.size } else { 2 + rng.below(self.size - 1) };
            let mut members = rng.some(n, self.size);
            if rng.chance(60) {
                members.sort_unstable();
            }
            let begin = i as u64 * rng.between(0, self.limit / 5);
            let spread = [MS, 50 * MS, self.limit / 2][if calm { rng.below(2) } else { rng.below(3) }];
            let absent = if !calm && rng.chance(15) { rng.between(10, 95) } else { 0 };
            let mut comes = |_| if rng.chance(absent) { NEVER } else { begin + rng.between(0, spread) };
            let enter: Vec<u64> = members.iter().map(&mut comes).collect();
            let mut leave = vec![None; n];
            if !calm && rng.chance(40) {
                let percent = [5, 30, 90][rng.below(3)];
                for (leave, enter) in leave.iter_mut().zip(&enter) {
                    if *enter < NEVER && rng.chance(percent) {
                        *leave = Some(enter + rng.between(0, self.limit / 2));
                    }
                }
            }
            self.groups.push(SimulatedGroup { group_id: i as u64 + 1, members, enter, leave });
        }
        if !calm && rng.chance(20) {
            let n = 1 + rng.below(self.size.div_ceil(4));
            let goes = |rank| (rank, rng.between(MS, self.limit));
            self.goodbyes = Rng::new(self.seed ^ 1).some(n, self.size).into_iter().map(goes).collect();
        }
    }

    /// When all groups are open, to all that come.
    fn opened(&self) -> u64 {
        self.groups.iter().flat_map(|g| g.enter.iter().copied()).filter(|e| *e < NEVER).max().unwrap_or(0)
    }

    /// Choose what goes wrong.
    fn strike(&mut self, rng: &mut Rng, calm: bool) {
        let opened = self.opened();
        if calm {
            return self.strike_once(rng, opened);
        }
        let latest = opened + self.limit / 2;
        // Breaks that a job is to ride through may follow each other only if they stay below the limit in all.
        let mut allowance = self.limit * 8 / 10;
        let mut cut = false;
        for _ in 0..1 + rng.below(3) {
            let at = rng.between(0, latest);
            let rank = rng.below(self.size);
            let short = rng.between(self.limit / 20, self.limit * 8 / 10);
            let fault = match rng.below(16) {
                0..=2 => PlantedFault::Kill { rank, at, sends: None },
                3..=4 => PlantedFault::Kill { rank, at, sends: Some(1 + rng.below(self.size * 2) as u32) },
                5 => PlantedFault::Power { rank, at },
                6 => PlantedFault::Stop { rank, at, to: None, host: false },
                7 => {
                    let to = at + self.limit + SECOND + rng.between(0, self.limit);
                    PlantedFault::Stop { rank, at, to: Some(to), host: rng.chance(30) }
                }
                8 if short <= allowance => {
                    allowance -= short;
                    PlantedFault::Stop { rank, at, to: Some(at + short), host: rng.chance(30) }
                }
                9 if short <= allowance => {
                    allowance -= short;
                    PlantedFault::Cut { side: self.side(rng), both: rng.chance(50), at, to: Some(at + short) }
                }
                10..=11 if !cut => {
                    cut = true;
                    PlantedFault::Cut { side: self.side(rng), both: rng.chance(50), at, to: None }
                }
                12 => {
                    let b = (rank + 1 + rng.below(self.size - 1)) % self.size;
                    PlantedFault::Reset { a: rank, b, at }
                }
                13 if self.limit * 3 / 10 <= allowance => {
                    allowance -= self.limit * 3 / 10;
                    let lag = rng.between(1, self.limit * 3 / 10);
                    PlantedFault::Slow { rank, at, to: at + rng.between(lag, self.limit), lag }
                }
                // Several at once, too: each has seen something.
                _ => {
                    for _ in 0..rng.below(4) {
                        let abort = self.abort(rng, at);
                        self.faults.push(abort);
                    }
                    self.abort(rng, at)
                }
            };
            self.faults.push(fault);
        }
    }

    /// Plant one fault at most, when all groups are open.
    fn strike_once(&mut self, rng: &mut Rng, opened: u64) {
        let at = opened + 20 * MS + self.slack() + rng.between(0, self.limit / 5);
        let fault = match rng.below(10) {
            0..=3 => PlantedFault::Kill { rank: rng.below(self.size), at, sends: None },
            4..=8 => self.abort(rng, at),
            // Nothing, and so nothing may be found.
            _ => return,
        };
        self.faults.push(fault);
    }

    fn abort(&self, rng: &mut Rng, at: u64) -> PlantedFault {
        let group = rng.below(self.groups.len());
        let n = self.groups[group].members.len();
        PlantedFault::Abort { group, by: rng.below(n), culprit: rng.below(n), at }
    }

    fn side(&self, rng: &mut Rng) -> Vec<bool> {
        let one = rng.below(self.size);
        let part = [None, Some(50), Some(15)][rng.below(3)];
        let mut side: Vec<bool> =
            (0..self.size).map(|r| r == one || part.is_some_and(|p| rng.chance(p))).collect();
        if side.iter().all(|s| *s) {
            side[one] = false;
        }
        side
    }

    /// Ranks to which a rank has control connections at first.
    pub(super) fn neighbours(&self, rank: usize) -> Vec<usize> {
        if self.sparse {
            overlay_neighbours(rank, self.size)
        } else {
            (0..self.size).filter(|r| *r != rank).collect()
        }
    }

    /// Time from the sending of a note until it is acted on, at most, where nothing is wrong.
    pub(super) fn slack(&self) -> u64 {
        self.delay.1 + self.lag.1
    }

    /// Find the cut that keeps a message from one rank to another back at a time, and until when; for ever, if one does.
    pub(super) fn cut(&self, from: usize, to: usize, sent: u64) -> Option<(u64, Option<u64>)> {
        let cuts = self.faults.iter().filter_map(|f| match f {
            PlantedFault::Cut { side, both, at, to: end }
                if (*at..end.unwrap_or(u64::MAX)).contains(&sent)
                    && side[from] != side[to]
                    && (*both || side[from]) =>
            {
                Some((*at, *end))
            }
            _ => None,
        });
        cuts.max_by_key(|(_, end)| end.unwrap_or(u64::MAX))
    }

    /// Return whether nothing happens but one fault, the cut in question. What was held up is sent again late then; besides other faults, or
    /// a goodbye that comes so late, one that can be blamed would be hard to tell from one that cannot.
    pub(super) fn is_only_cut(&self) -> bool {
        self.faults.len() == 1 && self.goodbyes.is_empty()
    }

    /// The cut that passes what is sent but not, until it is mended, what acknowledges it: soon nothing new is sent there either.
    pub(super) fn unacknowledged(&self, from: usize, to: usize, sent: u64) -> Option<(u64, Option<u64>)> {
        self.faults.iter().find_map(|f| match f {
            PlantedFault::Cut { side, both: false, at, to: Some(end) }
                if self.is_only_cut()
                    && (at + self.limit / 10..*end).contains(&sent)
                    && side[to]
                    && !side[from] =>
            {
                Some((*at, Some(*end)))
            }
            _ => None,
        })
    }

    /// When the host of a rank runs, from a time on, if it ever does.
    pub(super) fn runs(&self, rank: usize, from: u64) -> Option<u64> {
        let mut at = from;
        for fault in &self.faults {
            match fault {
                PlantedFault::Power { rank: r, at: since } if *r == rank && *since <= from => return None,
                PlantedFault::Stop { rank: r, at: since, to, host: true } if *r == rank && *since <= from => {
                    at = at.max((*to)?);
                }
                _ => {}
            }
        }
        Some(at)
    }

    /// When the last of the cuts that began before `at` and do not last was mended, and all that it held up was sent again.
    pub(super) fn mended(&self, at: u64) -> u64 {
        let cuts = self.faults.iter().filter_map(|f| match f {
            PlantedFault::Cut { at: since, to: Some(to), .. } if *since <= at => {
                Some(if self.is_only_cut() { to + (to - since) } else { *to })
            }
            _ => None,
        });
        cuts.max().unwrap_or(0)
    }

    /// A large job of which three in four ranks leave and end, and then one that is left is killed.
    pub(super) fn thinned(seed: u64) -> Self {
        let mut s = Self::new(seed, Some(65..=80));
        let n = s.size;
        let mut rng = Rng::new(seed ^ 3);
        s.limit = SECOND;
        s.sparse = true;
        s.linger = None;
        let order = rng.some(n, n);
        let (stay, go) = order.split_at(n / 4);
        let mut members = stay.to_vec();
        members.sort_unstable();
        let size = members.len();
        s.groups =
            vec![SimulatedGroup { group_id: 1, members, enter: vec![MS; size], leave: vec![None; size] }];
        s.goodbyes = go.iter().map(|r| (*r, 200 * MS + rng.between(0, 2 * SECOND))).collect();
        s.faults = vec![PlantedFault::Kill { rank: stay[0], at: 4 * SECOND, sends: None }];
        s.end = 4 * SECOND + s.limit + SECOND + 2 * s.slack();
        s
    }

    /// Further delay because of slow control threads.
    pub(super) fn slowness(&self) -> u64 {
        self.faults.iter().map(|f| if let PlantedFault::Slow { lag, .. } = f { *lag } else { 0 }).sum()
    }

    /// Part of the time in which `rank` has no turns that counts as nobody's silence, at most. In a sparse group others judge on its behalf,
    /// and the time of all ranks counts.
    pub(super) fn lateness(&self, rank: usize) -> u64 {
        self.late(|r| self.sparse || r == rank)
    }

    /// Largest lateness of any rank.
    pub(super) fn most_lateness(&self) -> u64 {
        self.late(|_| true)
    }

    fn late(&self, counts: impl Fn(usize) -> bool) -> u64 {
        let late = self.faults.iter().map(|f| match f {
            PlantedFault::Slow { rank, at, to, lag } if counts(*rank) => to - at + lag,
            // For longer it sleeps, which counts as a tenth of the limit.
            PlantedFault::Stop { rank, at, to: Some(to), .. }
                if counts(*rank) && to - at <= self.limit / 2 + self.slack() =>
            {
                to - at
            }
            _ => 0,
        });
        let beat = (self.limit / 10).min(500 * MS);
        // As late as this, each beat counts as late: of the time between two, so much.
        let all = if self.lag.1 > beat / 5 { self.limit * self.lag.1 / beat + self.lag.1 } else { 0 };
        (late.sum::<u64>() + all).min(3 * self.limit)
    }
}

impl PlantedFault {
    /// When it began or, if it changes something, ended.
    fn last(&self) -> u64 {
        match self {
            Self::Kill { at, .. }
            | Self::Power { at, .. }
            | Self::Reset { at, .. }
            | Self::Abort { at, .. } => *at,
            Self::Stop { at, to, .. } | Self::Cut { at, to, .. } => to.unwrap_or(*at),
            Self::Slow { to, .. } => *to,
        }
    }
}

fn size(rng: &mut Rng, sizes: Option<RangeInclusive<usize>>) -> usize {
    let (low, high) = match (sizes, rng.between(0, 9999)) {
        (Some(sizes), _) => (*sizes.start(), *sizes.end()),
        (_, 0..6000) => (2, 8),
        (_, 6000..9000) => (9, 24),
        _ => (25, 64),
    };
    rng.between(low as u64, high as u64) as usize
}
