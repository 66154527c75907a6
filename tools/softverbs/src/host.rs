//! State that all queue pairs of a process share: configuration, registered memory, completion queues, chance.

use crate::{
    config::Config,
    memory::Regions,
    queue::{Entry, Queue},
};
use std::collections::HashMap;

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) config: Config,
    pub(crate) regions: Regions,
    pub(crate) queues: HashMap<u32, Queue>,
    /// Protection domains, and how many objects are in each.
    pub(crate) domains: HashMap<u32, u32>,
    pub(crate) receives: u64,
    chance: u64,
    last: u32,
}

impl Host {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            chance: config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            config,
            regions: Regions::default(),
            queues: HashMap::new(),
            domains: HashMap::new(),
            receives: 0,
            last: 0,
        }
    }

    /// A number that no other object of this process has.
    pub(crate) fn fresh(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// From 0 up to 1, the same row for the same seed.
    pub(crate) fn random(&mut self) -> f64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Return whether something happens that has this share. Without any, the row of random numbers stays where it is.
    pub(crate) fn strikes(&mut self, share: f64) -> bool {
        share > 0.0 && self.random() < share
    }

    pub(crate) fn complete(&mut self, queue: u32, entry: Entry) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.push(entry);
        }
    }
}
