//! Services that a group asks of the world it lives in.

use super::{Failure, GroupStatus, Header};
use crate::{Error, ErrorKind, LinkCosts, LinkKind, Peer, Result, transport::Link};
use comity_membership::{Plan, Refusal, Terms};
use comity_plan::{Algorithm, Lanes};
use std::{
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Links by rank of the group; `None` for oneself, and for those that are not made yet.
pub type Links = Vec<Option<Box<dyn Link>>>;

/// Services that a group asks of the world it lives in: the processes that met, or the threads of `Group::local`.
///
/// `members` are world ranks in group order.
pub trait World: Send + Sync + fmt::Debug {
    /// This process's world rank.
    fn rank(&self) -> usize;

    /// Everyone, by world rank.
    fn peers(&self) -> &[Peer];

    /// The host of each world rank, numbered from 0 in order of first appearance.
    fn hosts(&self) -> &[usize];

    /// Cores of the host that has fewest: a number that all ranks know alike.
    fn cores(&self) -> usize;

    /// Returns true if the ranks of each host share memory: all know alike.
    fn shares_memory(&self) -> bool {
        true
    }

    /// Returns the cost of messages between its ranks, if they have agreed on it.
    fn costs(&self) -> Option<&LinkCosts> {
        None
    }

    /// Cores that this process shares with the ranks of its host.
    fn own_cores(&self) -> usize {
        thread::available_parallelism().map_or(1, |n| n.get())
    }

    /// Plan by these costs from now on. All ranks have agreed on them, and every rank calls this before it opens a group.
    fn learn(&self, _costs: LinkCosts) {}

    /// Returns the detection limit: the longest silence of a rank. `None` is no limit.
    fn silence(&self) -> Option<Duration> {
        None
    }

    /// Returns the algorithm that is preferred to the cheapest where it can carry out an operation. Ranks that differ in it learn so in their
    /// first call.
    fn prefers(&self) -> Option<Algorithm> {
        None
    }

    /// Number of threads of each rank that may carry a part of a call each: all know alike. Where users say different things, ranks are told in
    /// their first call that is cut.
    fn lanes(&self) -> Lanes;

    /// Begin to watch the members of a group on behalf of `status`, and wait until all have come. Every member calls this with the same
    /// `group_id` (which names the group among all of this world's) and the same `members`. Links that are not among those returned are
    /// made when they are [wanted](Self::want), or when a member wants them.
    fn open(
        &self,
        group_id: u64,
        members: &[usize],
        status: &Arc<GroupStatus>,
        until: Instant,
    ) -> Result<Links>;

    /// Make links to these ranks of a group that is open; they go to its status, which fails if one cannot be made. Does not block.
    fn want(&self, _group_id: u64, _ranks: &[usize]) {}

    /// The kind of link that this rank would make with another of the world, as far as is known.
    fn likely_link(&self, _rank: usize) -> Option<LinkKind> {
        None
    }

    /// Begin to watch the members of a group that has links of its own. As [`open`](Self::open) otherwise.
    fn attend(&self, group_id: u64, members: &[usize], status: &Arc<GroupStatus>) -> Result<()>;

    /// Tell the members that this rank leaves the group in good order, and forget it. Does not block.
    fn leave(&self, group_id: u64);

    /// Tell `ranks` of the group that this one has waited for them for long in `call`. Does not block.
    fn ask(&self, group_id: u64, ranks: &[usize], call: &Header);

    /// Ask `ranks` of the group how far they have come, and what their calls up to number `at` come to; the answers go to its status.
    /// Does not block.
    fn census(&self, group_id: u64, at: u64, ranks: &[usize]);

    /// The call in which `rank` of the group waits for this rank, as far as it has told, and whether that is in another group.
    fn waits(&self, group_id: u64, rank: usize) -> Option<(Header, bool)>;

    /// Number of processes that wait to be taken into the job.
    fn joiners(&self) -> usize {
        0
    }

    /// Returns what the plan of a group of so many of these ranks, with those that wait to be taken in, says beside their names; first the
    /// group's number. `epoch`: number of times that the job's group was formed again then.
    fn draft(&self, _members: usize, _epoch: u32) -> Result<Vec<u8>> {
        Ok(new_group_id()?.to_be_bytes().into())
    }

    /// The first call of a group with joiners has failed, as in `words`.
    fn blame_joiners(&self, _words: &str) {}

    /// Meet the joiners of a plan as rank `rank`, if the plan has some: the world of all of them.
    fn meet_joiners(&self, _rank: usize, _extra: &[u8], _until: Instant) -> Result<Option<Arc<dyn World>>> {
        Ok(None)
    }

    /// This world follows another, which is over.
    fn succeed(&self) {}

    /// Agree with the members of a group on the one that follows it, until a time. `parts` makes this rank's parts of the groups that may follow.
    fn reform(
        &self,
        _group_id: u64,
        _members: &[usize],
        _terms: Terms,
        _until: Instant,
        _parts: &mut dyn Parts,
    ) -> Result<Outcome> {
        let reason = "its ranks are threads of one process, which end together".into();
        Err(ErrorKind::Unavailable { backend: "reform", reason }.into())
    }

    /// Tell the members that the group has failed. Does not block.
    fn abort(&self, group_id: u64, failure: &Failure);
}

/// Returns a number that no other group has, with all but no doubt.
pub fn new_group_id() -> Result<u64> {
    let mut number = [0; 8];
    getrandom::fill(&mut number).map_err(|e| Error::os("forming a group again", e))?;
    // 0 is the first group of a world.
    Ok(u64::from_be_bytes(number).max(1))
}

/// Makes a rank's parts of the groups that may follow its group.
pub trait Parts {
    /// Returns what a plan of these members says beside their names, first the number of the group.
    fn draft(&mut self, members: &[usize]) -> Result<Vec<u8>>;

    /// Make this rank's part of a plan's group.
    fn form(&mut self, plan: &Plan) -> Result<()>;
}

/// End of an agreement on the group that follows one.
#[derive(Debug)]
pub enum Outcome {
    /// This plan's group follows. The rank may not be in it.
    Follows(Plan),
    /// None follows for now.
    Refused(Refusal),
}
