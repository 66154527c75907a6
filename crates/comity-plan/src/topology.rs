//! Where the ranks are, and what moving between them costs: what all ranks of a group know alike. May import `pairs` and `tuned`.

use crate::{
    lanes::{Lanes, most},
    pairs::{Cost, LinkClass, PairCosts},
    tuned::{HostLink, TunedCosts},
};
use std::sync::Arc;

/// Where the ranks are, and what moving between them costs.
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
    /// The kind of link within a host, where `local` has the usual numbers of it; none where they were fitted.
    pub usual: Option<HostLink>,
    /// Between hosts.
    pub remote: LinkClass,
    /// Seconds per byte added.
    pub gamma: f64,
    /// Seconds to hand a core from one rank to the next.
    pub switch: f64,
    /// What was measured between the ranks, if that was asked for.
    pub pairs: Option<PairCosts>,
    /// What was measured on this machine before, and over which links its ranks move their data.
    pub tuned: Option<(Arc<TunedCosts>, HostLink)>,
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
            tuned: None,
        }
    }

    /// With what was measured on this machine, whose ranks move their data over `link`.
    pub fn tuned(mut self, costs: Arc<TunedCosts>, link: HostLink) -> Self {
        (self.local, self.gamma) = (costs.class(link), costs.gamma());
        (self.tuned, self.usual) = (Some((costs, link)), None);
        self
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
