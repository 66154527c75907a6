//! Places of the ranks, and what moving between them costs, on a kind of link and as measured between each two: what all ranks of a group
//! know alike. May import `lanes`.

use crate::lanes::{Lanes, most};

/// The link over which ranks of one host move their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLink {
    /// Shared memory.
    Shm,
    /// TCP over loopback.
    Tcp,
}

/// Hosts of the ranks, and the cost of moving between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Host of each rank, any numbers; empty when all share one.
    pub host: Vec<usize>,
    /// Cores of each host.
    pub cores: usize,
    /// Into how many lanes a rank may cut a call within its host; one where it owns one core.
    pub lanes: Lanes,
    /// Within a host.
    pub local: LinkClass,
    /// The kind of link within a host, where `local` has the usual numbers of it.
    pub usual: Option<HostLink>,
    /// Between hosts.
    pub remote: LinkClass,
    /// Seconds per byte added.
    pub gamma: f64,
    /// Seconds to hand a core from one rank to the next.
    pub switch: f64,
    /// Costs that were measured between the ranks, if that was asked for.
    pub pairs: Option<PairCosts>,
}

impl Topology {
    /// Shared memory within hosts, TCP between them.
    pub fn new(host: Vec<usize>, cores: usize) -> Self {
        let lanes = Lanes::UpTo(most(&host, cores));
        Self {
            host,
            cores: cores.max(1),
            lanes,
            local: LinkClass::SHM,
            usual: Some(HostLink::Shm),
            remote: LinkClass::TCP,
            gamma: 1.0 / 20e9,
            switch: 1.5e-6,
            pairs: None,
        }
    }

    /// The same with other costs: `change` is made to those of every link.
    pub(crate) fn with(&self, change: fn(&mut Cost), gamma: f64, switch: f64) -> Self {
        let mut other = Self { gamma, switch, ..self.clone() };
        change(&mut other.local.cost);
        change(&mut other.remote.cost);
        other.pairs = self.pairs.as_ref().map(|p| p.with(change));
        other
    }

    /// With what was measured between its ranks.
    pub fn measured(mut self, costs: PairCosts) -> Self {
        self.local.cost = costs.median(&self.host, true).unwrap_or(self.local.cost);
        self.remote.cost = costs.median(&self.host, false).unwrap_or(self.remote.cost);
        self.pairs = Some(costs);
        self
    }
}

/// Cost of messages on a kind of link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Seconds per message.
    pub alpha: f64,
    /// Seconds per byte.
    pub beta: f64,
}

/// Cost parameters of a kind of link. The numbers are fitted to 1,744 measured medians, of every algorithm of all_reduce, broadcast and
/// reduce, 8 B to 16 MiB, 2 to 16 ranks on 2 and 16 cores (bench/record/2026-11-23-algorithms.md).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkClass {
    /// Cost of a message alone.
    pub cost: Cost,
    /// The part of a message's time for which it keeps each of its ends busy: more messages of a round overlap but for that.
    pub busy: f64,
    /// Factor for the time of bytes that come to a rank from several others at once.
    pub crowd: f64,
    /// Factor for the busy time of a rank that sends the same to all and takes from all, over that of one message.
    pub same: f64,
}

impl LinkClass {
    /// Shared memory.
    pub const SHM: Self =
        Self { cost: Cost { alpha: 0.9e-6, beta: 1.0 / 12e9 }, busy: 0.2, crowd: 1.0, same: 2.8 };
    /// TCP on a fast network or loopback.
    pub const TCP: Self =
        Self { cost: Cost { alpha: 11e-6, beta: 1.0 / 3e9 }, busy: 0.3, crowd: 1.1, same: 1.75 };
}

/// Cost of messages between each two ranks of a group, the same numbers on all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct PairCosts {
    size: usize,
    /// By sender, then receiver.
    pairs: Vec<Cost>,
}

impl PairCosts {
    /// By sender, then receiver; `None` unless there is a sound number for every pair.
    pub fn new(size: usize, pairs: Vec<Cost>) -> Option<Self> {
        let sound = |c: &Cost| [c.alpha, c.beta].iter().all(|x| x.is_finite() && *x >= 0.0);
        (size > 0 && size.checked_mul(size) == Some(pairs.len()) && pairs.iter().all(sound))
            .then_some(Self { size, pairs })
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Seconds that a small message takes.
    ///
    /// # Panics
    /// For a rank that is not there.
    pub fn latency(&self, from: usize, to: usize) -> f64 {
        self.pair(from, to).alpha
    }

    /// Bytes per second, of large messages.
    ///
    /// # Panics
    /// For a rank that is not there.
    pub fn bandwidth(&self, from: usize, to: usize) -> f64 {
        1.0 / self.pair(from, to).beta
    }

    /// Returns the cost of a direction of a pair.
    ///
    /// # Panics
    /// For a rank that is not there.
    pub fn pair(&self, from: usize, to: usize) -> Cost {
        assert!(from < self.size && to < self.size, "ranks {from} and {to} of {}", self.size);
        self.pairs[from * self.size + to]
    }

    /// Returns the costs of some ranks, in this order.
    pub fn of(&self, members: &[usize]) -> Option<Self> {
        if members.iter().any(|&m| m >= self.size) {
            return None;
        }
        let pairs = members.iter().flat_map(|&a| members.iter().map(move |&b| (a, b)));
        Self::new(members.len(), pairs.map(|(a, b)| self.pair(a, b)).collect())
    }

    /// The median of each number over pairs that share a host, or that do not.
    pub(crate) fn median(&self, host: &[usize], shared: bool) -> Option<Cost> {
        let at = |r: usize| host.get(r);
        let ends = (0..self.size).flat_map(|a| (0..self.size).map(move |b| (a, b)));
        let all: Vec<Cost> = ends
            .filter(|&(a, b)| a != b && (at(a) == at(b)) == shared)
            .map(|(a, b)| self.pair(a, b))
            .collect();
        let middle = |mut x: Vec<f64>| {
            x.sort_by(f64::total_cmp);
            x.get(x.len() / 2).copied()
        };
        let alpha = middle(all.iter().map(|c| c.alpha).collect())?;
        Some(Cost { alpha, beta: middle(all.iter().map(|c| c.beta).collect())? })
    }

    /// The same with a change to each.
    pub(crate) fn with(&self, change: fn(&mut Cost)) -> Self {
        let mut other = self.clone();
        other.pairs.iter_mut().for_each(change);
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_ranks_keeps_its_numbers() {
        let far = Cost { alpha: 5e-3, beta: 1e-6 };
        let near = LinkClass::SHM.cost;
        let cost = |a: usize, b: usize| if a.abs_diff(b) == 3 { far } else { near };
        let pairs = (0..4).flat_map(|a| (0..4).map(move |b| cost(a, b))).collect();
        let some = PairCosts::new(4, pairs).unwrap().of(&[3, 1, 0]).unwrap();
        assert_eq!((some.size(), some.latency(0, 2), some.latency(0, 1)), (3, 5e-3, near.alpha));
        assert!(some.of(&[4]).is_none());
        assert!(PairCosts::new(2, vec![Cost { alpha: f64::NAN, beta: 0.0 }; 4]).is_none());
        assert!(PairCosts::new(2, vec![near; 3]).is_none());
    }
}
