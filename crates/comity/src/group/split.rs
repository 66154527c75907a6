//! Smaller groups out of a group.

use super::{CallState, Core, Group, Recorder, lock, misuse};
use crate::{
    Error, ErrorKind, Misuse, Op, Peer, Result,
    backend::{Backend, Bufs, Call, Single},
    status::Failure,
};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// Number that stands for "no color" between ranks.
const STAY_OUT: i32 = -1;

impl Group {
    /// Split into groups of equal `color` (MPI's rules): every rank calls this, ranks of one color form a group, ordered by
    /// `key` and, where keys are equal, by rank in this group. A rank whose color is `None` takes part in the call and gets
    /// `None`; every other rank gets its group. A group can be split as often as wanted, also a split one.
    ///
    /// No rank returns before every rank of this group is in its new one: what a new group does, or how it ends, is no matter of
    /// the split.
    ///
    /// ```
    /// # use comity::Group;
    /// # let g = Group::single();
    /// // Rows of four ranks: every rank is in one.
    /// let row = g.split(Some((g.rank() / 4) as i32), 0)?.expect("whoever names a color is in a group");
    /// // The first rank of each row; the others are in no group.
    /// let first = (row.rank() == 0).then_some(0);
    /// if let Some(leaders) = g.split(first, 0)? {
    ///     leaders.barrier()?;
    /// }
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Group`]; [`Misuse::Color`] for a negative color.
    pub fn split(&self, color: Option<i32>, key: i32) -> Result<Option<Self>> {
        if let Some(c) = color
            && c < 0
        {
            return Err(misuse(Op::Split, Misuse::Color(c)));
        }
        self.core.home.check()?;
        self.in_turn(|| self.split_now(color.unwrap_or(STAY_OUT), key))
    }

    fn split_now(&self, color: i32, key: i32) -> Result<Option<Self>> {
        let until = Instant::now() + self.limit;
        let left = || until.saturating_duration_since(Instant::now());
        let counters = &self.core.counters;
        let mut state = lock(&self.core.state);
        state.threads.come(self.core.caller());
        let mine = [color, key];
        let mut all = vec![0i32; 2 * self.size()];
        let mut colors = Call::new(Op::Split, Bufs::Both((&mine).into(), (&mut all).into()));
        state.run_part(&mut colors, self.limit, counters)?;
        // Agreed by all ranks, since all make the same calls.
        state.splits += 1;
        let made = match color {
            STAY_OUT => None,
            _ => Some(self.join(&mut state, color, &all, left())?),
        };
        // A member that leaves while another still makes its links could fail the new group, and that one's split with it.
        state.run(&mut Call::new(Op::Split, Bufs::None), left(), counters)?;
        Ok(made)
    }

    /// Make the new group of `color`, with the others whose color it is; `all` has every rank's color and key.
    fn join(&self, state: &mut CallState, color: i32, all: &[i32], limit: Duration) -> Result<Self> {
        let mut members: Vec<usize> = (0..self.size()).filter(|&r| all[2 * r] == color).collect();
        members.sort_by_key(|&r| (all[2 * r + 1], r));
        let rank = members.iter().position(|&r| r == self.rank()).unwrap_or_default();
        let group_id = name(state.group_id, state.splits, color);
        let counters = Arc::new(self.core.counters.sibling());
        let make = |backend: &mut Box<dyn Backend>| match members.len() {
            1 => Ok(backend.alone()),
            _ => backend.split(&members, group_id, counters.clone(), limit),
        };
        let backend = state.backend.as_mut().map(make).transpose();
        let Some(backend) = backend.inspect_err(|e| {
            // The others stand in this group still, and would wait for this rank there.
            if let Some(abort_handle) = &self.core.abort_handle {
                abort_handle.raise(root_cause(e, self.rank(), &members));
            }
            state.note(Op::Split, e, &self.core.counters);
        })?
        else {
            return Err(ErrorKind::Closed.into());
        };
        let recorder = state.recorder.split(&members, rank);
        let peers = members
            .iter()
            .enumerate()
            .map(|(rank, &m)| Peer { rank, ..self.core.peers[m].clone() })
            .collect();
        Ok(Self::with(rank, peers, backend, (group_id, recorder), counters, self.limit))
    }
}

/// Returns the rank at fault and its failure, in the group that `me` could not split because of `e`: another of the new group's `members`
/// may have found it first, and told.
fn root_cause(e: &Error, me: usize, members: &[usize]) -> Failure {
    let unable = |words: &dyn fmt::Display| format!("could not split the group: {words}");
    match e.kind() {
        ErrorKind::PeerLost { peer, cause, because_of, .. } if peer.rank < members.len() => {
            let because_of = because_of.iter().filter_map(|r| members.get(*r).copied()).collect();
            Failure::lost(members[peer.rank], me, cause.clone()).on_account_of(because_of)
        }
        ErrorKind::Aborted { by, reason, .. } if by.rank < members.len() => {
            Failure::lost(members[by.rank], me, unable(reason))
        }
        _ => Failure::lost(me, me, unable(e)),
    }
}

/// The name of a new group among all of its world's: the same on all its members, and no other group's (a 64-bit mix of where it
/// comes from).
fn name(parent: u64, split: u64, color: i32) -> u64 {
    mix(mix(mix(parent.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_add(split)).wrapping_add(color as u64))
        .max(1)
}

/// Returns the name as [`name`] does, for a group that only its members make.
pub(super) fn name_of(parent: u64, label: u64, members: &[usize]) -> u64 {
    let start = mix(mix(parent.wrapping_add(0xd1b5_4a32_d192_ed03)).wrapping_add(label));
    members.iter().fold(start, |x, &m| mix(x.wrapping_add(m as u64 + 1))).max(1)
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

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
    /// [`ErrorKind::Join`] when a member does not come, over MPI [`ErrorKind::Timeout`]; [`ErrorKind::PeerLost`] when one has died;
    /// [`ErrorKind::Unavailable`] over an MPI that takes one thread at a time. None of them ends this group.
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
        let group_id = subgroup_factory.as_ref().map_or(1, |d| name_of(d.group_id, label, members));
        let backend: Box<dyn Backend> = match subgroup_factory {
            _ if members.len() == 1 => Box::new(Single),
            Some(subgroup_factory) => {
                let world = subgroup_factory.world.upgrade().ok_or(ErrorKind::Closed)?;
                subgroup_factory.open(world, members, group_id, counters.clone(), self.limit)?
            }
            None => {
                let reason = "this group's backend makes groups with all ranks only; use split";
                return Err(ErrorKind::Unavailable { backend: "subgroup", reason: reason.into() }.into());
            }
        };
        let peers: Vec<Peer> =
            members.iter().enumerate().map(|(rank, &m)| Peer { rank, ..peers[m].clone() }).collect();
        Ok(Self::with(rank, peers, backend, (group_id, Recorder::new()), counters, self.limit))
    }
}

#[cfg(test)]
mod tests;
