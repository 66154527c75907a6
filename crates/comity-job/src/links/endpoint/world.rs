//! Implementation of [`World`] by a process's endpoint.

use super::Endpoint;
use crate::{
    Error, ErrorKind, LinkCosts, LinkKind, Peer, Result,
    control::{ControlNote, pace},
    links::mesh::likely,
    status::{Failure, GroupStatus, Header, Links, Outcome, Parts, World},
};
use comity_membership::Terms;
use comity_plan::{Algorithm, Lanes};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

impl World for Endpoint {
    fn rank(&self) -> usize {
        self.ways.me
    }

    fn peers(&self) -> &[Peer] {
        &self.ways.peers
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn cores(&self) -> usize {
        self.cores
    }

    fn shares_memory(&self) -> bool {
        self.ways.cards.iter().all(|c| c.links.shares_memory())
    }

    fn silence(&self) -> Option<Duration> {
        pace::of(&self.facts, self.sparse).limit
    }

    fn prefers(&self) -> Option<Algorithm> {
        let ring = self.facts.iter().any(|f| f.ring).then_some(Algorithm::Ring);
        self.algorithm.or(ring)
    }

    fn lanes(&self) -> Lanes {
        self.lanes
    }

    fn open(
        &self,
        group_id: u64,
        members: &[usize],
        status: &Arc<GroupStatus>,
        until: Instant,
    ) -> Result<Links> {
        let Some(running) = &self.running else { return Ok(members.iter().map(|_| None).collect()) };
        self.group(running, group_id, members, status)?.open(until, &self.makers)
    }

    fn want(&self, group_id: u64, ranks: &[usize]) {
        self.makers.want(group_id, ranks);
    }

    fn likely_link(&self, rank: usize) -> Option<LinkKind> {
        self.running.as_ref()?;
        likely(&self.ways, &self.transports, self.first, rank)
    }

    fn costs(&self) -> Option<&LinkCosts> {
        self.costs.get()
    }

    fn own_cores(&self) -> usize {
        self.ways.cards.get(self.ways.me).map_or(1, |card| usize::from(card.cores).max(1))
    }

    fn learn(&self, costs: LinkCosts) {
        // The first stays: groups may be open by it.
        let _ = self.costs.set(costs);
    }

    fn attend(&self, group_id: u64, members: &[usize], status: &Arc<GroupStatus>) -> Result<()> {
        let mine = members.iter().position(|&m| m == self.ways.me).unwrap_or_default();
        let Some(running) = &self.running else { return Ok(()) };
        if !running.control().enter(group_id, members, mine, status) {
            return Err(Error::config(format!(
                "group {group_id:x} is open already; this is a bug in Comity"
            )));
        }
        // It has its links.
        running.control().begin();
        Ok(())
    }

    fn leave(&self, group_id: u64) {
        self.makers.forget(group_id);
        if let Some(running) = &self.running {
            running.control().leave(group_id, true);
        }
    }

    fn ask(&self, group_id: u64, ranks: &[usize], call: &Header) {
        if let Some(running) = &self.running {
            running.control().say(ranks, ControlNote::Waits { group_id, call: *call });
        }
    }

    fn census(&self, group_id: u64, at: u64, ranks: &[usize]) {
        if let Some(running) = &self.running {
            running.control().census(group_id, at, ranks);
        }
    }

    fn waits(&self, group_id: u64, rank: usize) -> Option<(Header, bool)> {
        self.running.as_ref()?.control().waits(group_id, rank)
    }

    fn joiners(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.control().joiners().len())
    }

    fn draft(&self, members: usize, epoch: u32) -> Result<Vec<u8>> {
        self.invite(members, epoch)
    }

    fn blame_joiners(&self, words: &str) {
        if let Some(running) = &self.running {
            running.control().blame_joiners(words);
        }
    }

    fn meet_joiners(&self, rank: usize, extra: &[u8], until: Instant) -> Result<Option<Arc<dyn World>>> {
        self.meet_anew(rank, extra, until)
    }

    fn succeed(&self) {
        self.take_over();
    }

    fn reform(
        &self,
        group_id: u64,
        members: &[usize],
        terms: Terms,
        until: Instant,
        parts: &mut dyn Parts,
    ) -> Result<Outcome> {
        let Some(running) = &self.running else { return Err(ErrorKind::Closed.into()) };
        let out = running.control().reform(group_id, members, terms, until, parts);
        self.elastic.end_meetings(running.control());
        out
    }

    fn abort(&self, group_id: u64, failure: &Failure) {
        if let Some(running) = &self.running {
            running.control().abort(group_id, failure);
        }
    }
}
