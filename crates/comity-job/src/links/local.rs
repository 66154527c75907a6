//! The world of `Group::local`: threads of one process, whose links are pairs of rings in its memory.

use crate::{
    Error, Peer, Result,
    lanes::{OwnCores, most_lanes},
    status::{Failure, GroupStatus, Header, Links, Reached, World},
    sync::lock,
    transport::{Link, local},
};
use comity_plan::Lanes;
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, Weak},
    thread,
    time::Instant,
};

/// A thread's view of the world.
pub struct LocalWorld {
    rank: usize,
    hub: Arc<Hub>,
    peers: Vec<Peer>,
    /// The host of each rank, as a test wants it.
    pub hosts: Vec<usize>,
    /// Lanes of each rank, where a test wants others than its cores allow.
    pub lanes: Option<usize>,
}

/// Ends of links that wait for their owners' threads, and the members of each group.
#[derive(Default)]
struct Hub {
    /// Ends made by the peer that came first, by group id, owner and peer.
    ends: Mutex<HashMap<End, Box<dyn Link>>>,
    /// Members and statuses of each open group, by group id and world rank.
    groups: Mutex<HashMap<(u64, usize), OpenLink>>,
    /// Calls that waiting ranks announced to members that had not opened the group yet: group id, to, from.
    asked: Mutex<HashMap<(u64, usize, usize), Header>>,
    /// Groups that failed, for members that have not opened them yet.
    failed: Mutex<HashMap<u64, Failure>>,
    /// Number of members that have left a group. A member that opens it when others have failed and left is told why, so a group is forgotten when all
    /// have left.
    left: Mutex<HashMap<u64, usize>>,
}

/// Group id, owner, peer.
type End = (u64, usize, usize);

struct OpenLink {
    members: Vec<usize>,
    status: Weak<GroupStatus>,
}

impl LocalWorld {
    /// The views of `size` threads.
    pub fn all(size: usize) -> Vec<Self> {
        let hub = Arc::<Hub>::default();
        let pid = Some(std::process::id());
        let peers: Vec<_> = (0..size).map(|rank| Peer { rank, host: None, pid }).collect();
        let one =
            |rank| Self { rank, hub: hub.clone(), peers: peers.clone(), hosts: vec![0; size], lanes: None };
        (0..size).map(one).collect()
    }
}

impl World for LocalWorld {
    fn rank(&self) -> usize {
        self.rank
    }

    fn peers(&self) -> &[Peer] {
        &self.peers
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn cores(&self) -> usize {
        thread::available_parallelism().map_or(1, |n| n.get())
    }

    fn lanes(&self) -> Lanes {
        if let Some(lanes) = self.lanes {
            return Lanes::Just(lanes);
        }
        let shared = self.cores();
        let size = self.peers.len();
        Lanes::UpTo(most_lanes(&vec![OwnCores { host: 0, shared, own: shared }; size]))
    }

    fn open(&self, group_id: u64, members: &[usize], status: &Arc<GroupStatus>, _: Instant) -> Result<Links> {
        self.attend(group_id, members, status)?;
        let mut ends = lock(&self.hub.ends);
        let mut link = |&peer: &usize| {
            if peer == self.rank {
                return Ok(None);
            }
            if let Some(end) = ends.remove(&(group_id, self.rank, peer)) {
                return Ok(Some(end));
            }
            let (mine, theirs) =
                local::pair().map_err(|e| Error::os("making a link between two threads", e))?;
            ends.insert((group_id, peer, self.rank), theirs);
            Ok(Some(mine))
        };
        members.iter().map(&mut link).collect()
    }

    fn attend(&self, group_id: u64, members: &[usize], status: &Arc<GroupStatus>) -> Result<()> {
        let open = OpenLink { members: members.to_vec(), status: Arc::downgrade(status) };
        {
            let mut groups = lock(&self.hub.groups);
            groups.insert((group_id, self.rank), open);
            let mine = members.iter().position(|&m| m == self.rank).unwrap_or_default();
            lock(&self.hub.asked).retain(|(c, to, from), call| {
                let here = *c == group_id && *to == self.rank;
                if here {
                    // It has made no call yet, so nothing can differ.
                    status.hear(mine, *from, call);
                }
                !here
            });
        }
        if let Some(failure) = lock(&self.hub.failed).get(&group_id) {
            status.fail(failure.clone());
        }
        Ok(())
    }

    fn leave(&self, group_id: u64) {
        let mut groups = lock(&self.hub.groups);
        let Some(open) = groups.remove(&(group_id, self.rank)) else { return };
        let me = open.members.iter().position(|&m| m == self.rank).unwrap_or_default();
        for &m in &open.members {
            if let Some(status) = groups.get(&(group_id, m)).and_then(|o| o.status.upgrade()) {
                status.leave(me);
            }
        }
        let mut left = lock(&self.hub.left);
        let all = left.entry(group_id).or_default();
        *all += 1;
        if *all == open.members.len() {
            left.remove(&group_id);
            lock(&self.hub.failed).remove(&group_id);
            lock(&self.hub.asked).retain(|(c, ..), _| *c != group_id);
        }
        drop((left, groups));
        lock(&self.hub.ends).retain(|(c, owner, _), _| *c != group_id || *owner != self.rank);
    }

    fn ask(&self, group_id: u64, ranks: &[usize], call: &Header) {
        let mut found = None;
        {
            let groups = lock(&self.hub.groups);
            let Some(open) = groups.get(&(group_id, self.rank)) else { return };
            let me = open.members.iter().position(|&m| m == self.rank).unwrap_or_default();
            for &r in ranks {
                let Some(&member) = open.members.get(r) else { continue };
                match groups.get(&(group_id, member)).and_then(|o| o.status.upgrade()) {
                    Some(status) => found = found.or_else(|| status.hear(r, me, call)),
                    None => drop(lock(&self.hub.asked).insert((group_id, member, me), *call)),
                }
            }
            if let (Some(failure), Some(status)) = (&found, open.status.upgrade()) {
                status.fail(failure.clone());
            }
        }
        if let Some(failure) = found {
            self.abort(group_id, &failure);
        }
    }

    fn census(&self, group_id: u64, at: u64, ranks: &[usize]) {
        let groups = lock(&self.hub.groups);
        let Some(open) = groups.get(&(group_id, self.rank)) else { return };
        let Some(mine) = open.status.upgrade() else { return };
        let me = open.members.iter().position(|&m| m == self.rank).unwrap_or_default();
        for (r, member) in open.members.iter().enumerate().filter(|(r, _)| ranks.contains(r)) {
            let other = groups.get(&(group_id, *member)).and_then(|o| o.status.upgrade());
            if let Some(other) = &other
                && let Some(digest) = mine.ledger().digest(at).1
                && r != me
            {
                other.asked(me, at, digest);
            }
            // One that has not opened the group has made no call in it; one that has closed it said so.
            let reached = other.map_or_else(Reached::default, |w| w.reached(at, me));
            let elsewhere = groups.iter().filter(|((id, m), _)| *id != group_id && m == member);
            let elsewhere: Vec<_> =
                elsewhere.filter_map(|(_, o)| Some((&o.members[..], o.status.upgrade()?))).collect();
            let elsewhere = elsewhere.iter().map(|(all, status)| (*all, &**status));
            mine.answered(r, reached.or_elsewhere(r, &open.members, elsewhere));
        }
    }

    fn waits(&self, group_id: u64, rank: usize) -> Option<(Header, bool)> {
        let groups = lock(&self.hub.groups);
        let who = *groups.get(&(group_id, self.rank))?.members.get(rank)?;
        let told = |open: &OpenLink| {
            let at = open.members.iter().position(|m| *m == who)?;
            open.status.upgrade()?.ledger().told(at)
        };
        let here = groups.get(&(group_id, self.rank)).and_then(told).map(|c| (c, false));
        let mine = groups.iter().filter(|((_, r), _)| *r == self.rank);
        here.or_else(|| mine.map(|(_, open)| open).find_map(told).map(|c| (c, true)))
    }

    fn abort(&self, group_id: u64, failure: &Failure) {
        lock(&self.hub.failed).entry(group_id).or_insert_with(|| failure.clone());
        let groups = lock(&self.hub.groups);
        let others = groups.iter().filter(|((c, m), _)| *c == group_id && *m != self.rank);
        for status in others.filter_map(|(_, o)| o.status.upgrade()) {
            status.fail(failure.clone());
        }
    }
}

impl fmt::Debug for LocalWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalWorld").field("rank", &self.rank).finish_non_exhaustive()
    }
}
