//! Places of the ranks, and what moving between them costs: what all ranks of a group know alike. May import `pairs`.

use crate::{
    lanes::{Lanes, most},
    pairs::{Cost, LinkClass, PairCosts},
};

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
