//! From when on each rank judges others for their silence, as is promised.

use super::scenario::{PlantedFault, SECOND, Scenario};
use std::collections::BTreeSet;

/// Time without a first beat after which silence counts none the less.
pub(super) const UNBORN: u64 = 300 * SECOND;

/// Ranks that each rank has not heard yet.
#[derive(Debug)]
pub(super) struct Beginnings {
    size: usize,
    /// By hearer * size + speaker.
    heard: Vec<bool>,
    /// Number of those that each has not heard.
    missing: Vec<usize>,
    /// Ranks that each hears at all, if not everyone.
    neighbours: Option<Vec<BTreeSet<usize>>>,
    /// When each heard one for the first time, last.
    last: Vec<u64>,
    /// For how long each is stopped.
    stops: Vec<u64>,
    /// Ranks that run, so that what they have not heard counts.
    pub(super) running: Vec<bool>,
}

impl Beginnings {
    pub(super) fn new(s: &Scenario) -> Self {
        let mut stops = vec![0; s.size];
        for fault in &s.faults {
            if let PlantedFault::Stop { rank, at, to: Some(to), .. } = fault {
                stops[*rank] += to - at;
            }
        }
        Self {
            size: s.size,
            heard: vec![false; s.size * s.size],
            missing: (0..s.size).map(|r| s.neighbours(r).len()).collect(),
            neighbours: s
                .sparse
                .then(|| (0..s.size).map(|r| s.neighbours(r).into_iter().collect()).collect()),
            last: vec![0; s.size],
            stops,
            running: vec![true; s.size],
        }
    }

    /// `rank` hears that `from` lives, or that it has ended.
    pub(super) fn hears(&mut self, rank: usize, from: usize, at: u64) {
        if self.neighbours.as_ref().is_some_and(|all| !all[rank].contains(&from)) {
            return;
        }
        if !std::mem::replace(&mut self.heard[rank * self.size + from], true) {
            self.missing[rank] -= 1;
            self.last[rank] = at;
        }
    }

    /// From when on silence counts for `rank`: all have been heard, or nobody anew for long while it ran.
    pub(super) fn counts(&self, rank: usize) -> u64 {
        if self.neighbours.is_some() {
            // Others judge for it.
            return (0..self.size)
                .filter(|r| self.running[*r])
                .map(|r| self.counts_for(r))
                .max()
                .unwrap_or(0);
        }
        self.counts_for(rank)
    }

    fn counts_for(&self, rank: usize) -> u64 {
        let missing = self.missing[rank] > 0;
        self.last[rank] + if missing { UNBORN + self.stops[rank] } else { 0 }
    }
}
