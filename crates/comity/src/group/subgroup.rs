//! Groups that only their members make.

use super::{Core, Group, Recorder, misuse, split};
use crate::{
    Error, Misuse, Op, Peer, Result,
    backend::{Backend, Single},
};
use std::sync::Arc;

impl Group {
    /// The group of `members`, ranks of this group in their new order; only they call this, with the same list and `label`.
    ///
    /// It takes no turn: it can be made on one thread while calls of this group run on others. `label` tells apart groups of the
    /// same members, and may come again when the earlier one is closed on all of them. Members may come up to this handle's
    /// [`timeout`](Self::timeout) apart.
    ///
    /// ```
    /// # use comity::Group;
    /// # let g = Group::single();
    /// let alone = g.subgroup(&[g.rank()], 0)?;
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Misuse::Members`] for a list with ranks outside the group, with one twice, or without this one;
    /// [`Error::Join`] when a member does not come, over MPI [`Error::Timeout`]; [`Error::PeerLost`] when one has died;
    /// [`Error::Unavailable`] over an MPI that takes one thread at a time. None of them ends this group.
    ///
    /// With NCCL a communicator of the members is made: work of this group that is on a device, and that a member has not
    /// called yet, may hold that up.
    pub fn subgroup(&self, members: &[usize], label: u64) -> Result<Self> {
        let me = self.rank();
        let mut seen = vec![false; self.size()];
        let once = members.iter().all(|&m| seen.get_mut(m).is_some_and(|s| !std::mem::replace(s, true)));
        let rank = members.iter().position(|&m| m == me).filter(|_| once);
        let rank = rank.ok_or_else(|| misuse(Op::Split, Misuse::Members { rank: me, size: self.size() }))?;
        let Core { peers, subgroup_factory, counters, .. } = &*self.core;
        let counters = Arc::new(counters.sibling());
        let group_id = subgroup_factory.as_ref().map_or(1, |d| split::name_of(d.group_id, label, members));
        let backend: Box<dyn Backend> = match subgroup_factory {
            _ if members.len() == 1 => Box::new(Single),
            Some(subgroup_factory) => {
                let world = subgroup_factory.world.upgrade().ok_or(Error::Closed)?;
                subgroup_factory.open(world, members, group_id, counters.clone(), self.limit)?
            }
            None => {
                let reason = "this group's backend makes groups with all ranks only; use split";
                return Err(Error::Unavailable { backend: "subgroup", reason: reason.into() });
            }
        };
        let peers: Vec<Peer> =
            members.iter().enumerate().map(|(rank, &m)| Peer { rank, ..peers[m].clone() }).collect();
        Ok(Self::with(rank, peers, backend, (group_id, Recorder::new()), counters, self.limit))
    }
}
