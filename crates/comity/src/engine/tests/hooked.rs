//! For tests: a world of threads in which something happens when a group opens.

use crate::{
    Peer, Result,
    links::LocalWorld,
    status::{Failure, GroupStatus, Header, Links, World},
};
use std::{fmt, sync::Arc, time::Instant};

/// Opening of a group by a rank, given its id and members; the last argument opens it as [`LocalWorld`] does.
pub(crate) type Opening =
    dyn Fn(&LocalWorld, u64, &[usize], &dyn Fn() -> Result<Links>) -> Result<Links> + Send + Sync;

/// A thread's view of it.
pub(crate) struct HookedWorld {
    inner: LocalWorld,
    opening: Arc<Opening>,
}

impl HookedWorld {
    /// The views of `size` threads.
    pub(crate) fn all(size: usize, opening: &Arc<Opening>) -> Vec<Self> {
        LocalWorld::all(size).into_iter().map(|inner| Self { inner, opening: opening.clone() }).collect()
    }
}

impl fmt::Debug for HookedWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl World for HookedWorld {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn peers(&self) -> &[Peer] {
        self.inner.peers()
    }

    fn hosts(&self) -> &[usize] {
        self.inner.hosts()
    }

    fn cores(&self) -> usize {
        self.inner.cores()
    }

    fn lanes(&self) -> comity_plan::Lanes {
        self.inner.lanes()
    }

    fn open(
        &self,
        group_id: u64,
        members: &[usize],
        status: &Arc<GroupStatus>,
        until: Instant,
    ) -> Result<Links> {
        (self.opening)(&self.inner, group_id, members, &|| self.inner.open(group_id, members, status, until))
    }

    fn attend(&self, group_id: u64, members: &[usize], status: &Arc<GroupStatus>) -> Result<()> {
        self.inner.attend(group_id, members, status)
    }

    fn leave(&self, group_id: u64) {
        self.inner.leave(group_id);
    }

    fn ask(&self, group_id: u64, ranks: &[usize], call: &Header) {
        self.inner.ask(group_id, ranks, call);
    }

    fn census(&self, group_id: u64, at: u64, ranks: &[usize]) {
        self.inner.census(group_id, at, ranks);
    }

    fn waits(&self, group_id: u64, rank: usize) -> Option<(Header, bool)> {
        self.inner.waits(group_id, rank)
    }

    fn abort(&self, group_id: u64, failure: &Failure) {
        self.inner.abort(group_id, failure);
    }
}
