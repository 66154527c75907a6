//! Lifecycle of groups: smaller groups that are split from a group, and groups that follow one after a failure, or when some are to leave.

use super::{CallState, Core, Group, Recorder, lock, misuse};
use crate::{
    Error, ErrorKind, JoinCause, JoinError, Misuse, Op, Peer, Result,
    backend::{Backend, Bufs, Call, Lone, NewGroup, Single, SubgroupFactory},
    status::{Failure, Outcome, Parts, World},
};
use comity_membership::{Plan, Refusal, Rule, Terms};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// Number that stands for "no color" between ranks.
const STAY_OUT: i32 = -1;

/// Conditions for a group that follows another. Every rank has to give the same.
///
/// ```
/// use comity::ReformOptions;
/// use std::time::Duration;
///
/// let options = ReformOptions::new().fewest(2).limit(Duration::from_secs(30));
/// assert_eq!(options, ReformOptions::new().limit(Duration::from_secs(30)).fewest(2));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReformOptions {
    terms: Terms,
    limit: Option<Duration>,
}

impl ReformOptions {
    /// The group goes on with one rank or more, on the side that has more than half of the former ranks.
    pub fn new() -> Self {
        Self { terms: Terms { fewest: 1, rule: Rule::Majority }, limit: None }
    }

    /// Form no group with fewer ranks of the former one; processes that join do not count.
    #[must_use]
    pub fn fewest(mut self, ranks: usize) -> Self {
        self.terms.fewest = ranks;
        self
    }

    /// Wait so long for the other ranks; else as long as the handle's [`timeout`](Group::timeout).
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Go on wherever the store can be asked, with however few ranks. Where rank 0 runs the store, that is wherever rank 0 is.
    ///
    /// By default the side goes on that has more than half of the former ranks; of two halves the one that the store gives its vote. That
    /// holds where the store is lost, but ends a job that loses more than half of its ranks at once. Give this on every rank or on none:
    /// two sides with different rules could both go on.
    #[must_use]
    pub fn store_decides(mut self) -> Self {
        self.terms.rule = Rule::Store;
        self
    }
}

/// A group that follows another, and what became of the other's ranks.
#[derive(Debug)]
pub struct ReformOutcome {
    /// The group. Ranks stand in their former order.
    pub group: Group,
    /// Ranks of the former group that are not in it, by their former numbers.
    pub left: Vec<Departure>,
    /// Ranks that were taken in, by their numbers in the new group: the last ones.
    pub joined: Vec<Peer>,
}

/// Rank of a former group that is not in the one that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The rank, by its former number.
    pub peer: Peer,
    /// Reason, as the rest of the sentence "rank 3 ...".
    pub why: String,
}

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
            _ => {
                let counters = counters.clone();
                backend.split(NewGroup { members: &members, group_id, counters, limit })
            }
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
                let counters = counters.clone();
                subgroup_factory.open(world, NewGroup { members, group_id, counters, limit: self.limit })?
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

    /// Form the group again of the ranks that are left: after a failure, or where all ranks of a healthy group call this.
    ///
    /// The others that live call it too, each when a call of it has failed. They get new numbers without gaps, in the former order.
    /// All of them get the same group, or an error. This group stays failed, and one that had not failed is closed. Groups that were
    /// split from it are not formed again: split the new one.
    ///
    /// There is one group that follows, at most, whoever dies or is cut off meanwhile. Where the ranks of a job lose each other, the side
    /// goes on that has more than half of them, or half and the store's vote ([`ReformOptions::store_decides`] says another rule). A rank
    /// that the others have given up is not in the group that follows, and is told.
    ///
    /// ```no_run
    /// use comity::{ReduceOp, ReformOptions};
    ///
    /// let mut group = comity::init()?;
    /// let (mut weights, mut step) = (vec![0f32; 1000], [0u64]);
    /// while step[0] < 100 {
    ///     let mut gradients = weights.clone();
    ///     if let Err(e) = group.all_reduce(&mut gradients, ReduceOp::Avg) {
    ///         eprintln!("{e}");
    ///         let next = group.reform(&ReformOptions::new())?;
    ///         next.left.iter().for_each(|l| eprintln!("{} {}", l.peer, l.why));
    ///         group = next.group;
    ///         // Some ranks may have finished the step that failed here: all go on from the furthest.
    ///         let mut furthest = step;
    ///         group.all_reduce(&mut furthest, ReduceOp::Max)?;
    ///         let holds = step == furthest;
    ///         group.sync(&mut [(&mut weights).into(), (&mut step).into()], holds)?;
    ///         continue;
    ///     }
    ///     weights.iter_mut().zip(&gradients).for_each(|(w, g)| *w -= g);
    ///     step[0] += 1;
    /// }
    /// # Ok::<(), comity::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Join`] where no group follows: too few ranks are left or on this side, a rank that lives does not call this within the limit, ranks
    /// give different options, or the others went on without this rank. Except for the last a rank may call this again.
    /// [`ErrorKind::Mismatch`] where a rank of a healthy group makes another call. [`ErrorKind::Unavailable`] for
    /// [`Group::local`], and for groups of the backends MPI and NCCL; [`ErrorKind::Closed`] for a group that was closed or formed again.
    pub fn reform(&self, options: &ReformOptions) -> Result<ReformOutcome> {
        self.core.home.check()?;
        let fewest = options.terms.fewest;
        if fewest == 0 || fewest > self.size() {
            let size = self.size();
            return Err(Error::config(format!(
                "fewest is {fewest}: a group that follows one of {size} ranks has 1 to {size}"
            )));
        }
        let until = Instant::now() + options.limit.unwrap_or(self.limit);
        self.in_turn(|| self.follow(options.terms, until))
    }

    /// Number of processes that wait to be taken in: [`Config::joiner`](crate::Config::joiner). The next [`reform`](Self::reform) takes them in.
    ///
    /// This asks nobody: the store tells each rank when the number changes. Ranks may learn of that at different moments. Have one of them
    /// ask, and tell the others.
    ///
    /// ```
    /// assert_eq!(comity::Group::single().joiners(), 0);
    /// ```
    pub fn joiners(&self) -> usize {
        self.world().map_or(0, |world| world.joiners())
    }

    fn world(&self) -> Option<Arc<dyn World>> {
        self.core.subgroup_factory.as_ref()?.world.upgrade()
    }

    fn follow(&self, terms: Terms, until: Instant) -> Result<ReformOutcome> {
        let unable =
            |reason: &str| Err(ErrorKind::Unavailable { backend: "reform", reason: reason.into() }.into());
        let factory = match &self.core.subgroup_factory {
            _ if self.core.device.is_some() => return unable("NCCL's communicators are not formed again"),
            Some(factory) => factory,
            None if self.size() > 1 => return unable("MPI makes no group without all ranks"),
            None => {
                self.meet(until)?;
                let group = self.successor_alone();
                return Ok(ReformOutcome { group, left: Vec::new(), joined: Vec::new() });
            }
        };
        self.meet(until)?;
        let world = factory.world.upgrade().ok_or(ErrorKind::Closed)?;
        let mut making =
            NextGroupMaker { group: self, factory, world: Arc::clone(&world), until, made: Vec::new() };
        let outcome = world.reform(factory.group_id, &factory.ranks, terms, until, &mut making)?;
        let plan = match outcome {
            Outcome::Follows(plan) => plan,
            Outcome::Refused(why) => return Err(self.refused(&why).into()),
        };
        if !plan.members.contains(&self.rank()) {
            return Err(self.left_out(&plan).into());
        }
        let made = making.made.into_iter().find(|(p, _)| *p == plan);
        let Some((_, group)) = made else { return Err(ErrorKind::Closed.into()) };
        if let Some(world) = group.world() {
            world.succeed();
        }
        self.end();
        let joined = group.members().get(plan.members.len()..).unwrap_or_default().to_vec();
        // Those that join learn so that the others have agreed on it.
        let met = if joined.is_empty() { Ok(()) } else { group.meet(until) };
        let left: Vec<Departure> = plan.left.iter().map(|(m, why)| self.departed(*m, why.clone())).collect();
        if !group.has_lost() {
            // Where ranks make different calls in it, each of them is told by its next call.
            return match met {
                Err(e) if !matches!(e.kind(), ErrorKind::Mismatch { .. }) => Err(e),
                _ => Ok(ReformOutcome { group, left, joined }),
            };
        }
        // A rank died just before or after the vote, or one that joined cannot be reached.
        if let Some(world) = group.world().filter(|_| !joined.is_empty()) {
            let broken = lock(&group.core.state).broken.as_ref().map(ToString::to_string);
            world.blame_joiners(&broken.unwrap_or_default());
        }
        let next = group.follow(terms, until)?;
        let former = |d: Departure| Some(self.departed(*plan.members.get(d.peer.rank)?, d.why));
        let later: Vec<Departure> = next.left.into_iter().filter_map(former).collect();
        // Whoever joined, now or before, stands last.
        let stayed = plan.members.len() - later.len();
        let joined = next.group.members().get(stayed..).unwrap_or_default().to_vec();
        Ok(ReformOutcome { group: next.group, left: left.into_iter().chain(later).collect(), joined })
    }

    /// Come to the first call of a group that takes this process in: then the others have agreed on it.
    pub(super) fn meet_others(&self, until: Instant) -> Result<()> {
        self.meet(until)?;
        match &lock(&self.core.state).broken {
            Some(e) => Err(e.clone()),
            None => Ok(()),
        }
    }

    /// In a healthy group have all ranks come to this call; a difference is told like that of any call.
    fn meet(&self, until: Instant) -> Result<()> {
        let mut state = lock(&self.core.state);
        match state.broken.as_ref().map(Error::kind) {
            Some(ErrorKind::Closed) => return Err(ErrorKind::Closed.into()),
            Some(_) => return Ok(()),
            None => {}
        }
        let left = until.saturating_duration_since(Instant::now());
        match state.run(&mut Call::new(Op::Reform, Bufs::None), left, &self.core.counters) {
            Err(e) if matches!(e.kind(), ErrorKind::Mismatch { .. }) || !e.is_fatal() => Err(e),
            // The others learn of a failure here, too.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Leave this group, which another one follows.
    fn end(&self) {
        let mut state = lock(&self.core.state);
        state.broken.get_or_insert_with(|| ErrorKind::Closed.into());
        // What it found by then is told already.
        let _ = state.leave();
    }

    /// Returns true if a failure of this group is known that is no difference between calls.
    fn has_lost(&self) -> bool {
        let failure = self.core.abort_handle.as_ref().and_then(|a| a.status.failure());
        failure.is_some_and(|f| !f.is_disagreement())
    }

    fn successor_alone(&self) -> Self {
        let counters = Arc::new(self.core.counters.sibling());
        let peers = self.core.peers.clone();
        self.end();
        Self::with(0, peers, Box::new(Single), (0, Recorder::new()), counters, self.limit)
    }

    fn departed(&self, rank: usize, why: String) -> Departure {
        let peer = self.core.peers.get(rank).cloned();
        Departure { peer: peer.unwrap_or(Peer { rank, host: None, pid: None }), why }
    }

    fn name(&self, rank: usize) -> String {
        self.departed(rank, String::new()).peer.to_string()
    }

    fn refused(&self, why: &Refusal) -> JoinError {
        let size = self.size();
        let ranks = |all: &[usize]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let others = |here: &[usize]| (0..size).filter(|r| !here.contains(r)).collect::<Vec<_>>();
        match why {
            Refusal::Few { here, fewest } => JoinError::new(format!(
                "the group cannot form again: {} of its {size} ranks are left ({}), and at least {fewest} are asked for (fewest); start the job again, or ask for fewer",
                here.len(),
                ranks(here)
            ))
            .of(others(here))
            .because(JoinCause::Missing),
            Refusal::Minority { here } => JoinError::new(format!(
                "the group cannot form again here: only {} of its {size} ranks are on this side ({}), and another side could go on with the others; start these ranks again, or let the store decide (store_decides)",
                here.len(),
                ranks(here)
            ))
            .of(others(here))
            .because(JoinCause::Missing),
            Refusal::Terms { member } => JoinError::new(format!(
                "the group cannot form again: {} gives other options than the others; give the same on every rank",
                self.name(*member)
            ))
            .of([*member])
            .because(JoinCause::Other),
            Refusal::Late { by, missing } => {
                let (store, missing): (Vec<_>, Vec<_>) = missing.iter().partition(|m| **m >= size);
                let missing: Vec<usize> = missing.into_iter().copied().collect();
                let whom = match (missing.as_slice(), store.is_empty()) {
                    ([], true) => "the others".into(),
                    ([], false) => "the store".into(),
                    ([one], _) => format!("{}, which lives and has not called reform", self.name(*one)),
                    (all, _) => format!("ranks {}, which live and have not called reform", ranks(all)),
                };
                JoinError::new(format!(
                    "the group did not form again: rank {by} gave up waiting for {whom}; call reform on every rank whose call failed, or give reform a longer limit"
                ))
                .of(missing)
                .because(JoinCause::Absent)
            }
            Refusal::Fault { member, words } => JoinError::new(format!(
                "the group cannot form again: {} cannot make its part: {words}",
                self.name(*member)
            ))
            .of([*member])
            .because(JoinCause::GaveUp),
        }
    }

    fn left_out(&self, plan: &Plan) -> JoinError {
        let me = self.rank();
        let why = plan.left.iter().find(|(m, _)| *m == me).map_or("", |(_, why)| why);
        let words = format!(
            "the group went on without rank {me}, which {why} by what its {} ranks know; end this process",
            plan.members.len()
        );
        JoinError::new(words).of([me]).because(JoinCause::Ended)
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

/// Makes this rank's parts of the groups that may follow.
struct NextGroupMaker<'a> {
    group: &'a Group,
    factory: &'a SubgroupFactory,
    world: Arc<dyn World>,
    until: Instant,
    made: Vec<(Plan, Group)>,
}

impl Parts for NextGroupMaker<'_> {
    fn draft(&mut self, members: &[usize]) -> Result<Vec<u8>> {
        let epoch = self.group.core.counters.epoch().saturating_add(1);
        self.world.draft(members.len(), epoch)
    }

    fn form(&mut self, plan: &Plan) -> Result<()> {
        let malformed = || Error::config("a plan without a number; this is a bug in Comity");
        let number = plan.extra.first_chunk().ok_or_else(malformed)?;
        let group_id = u64::from_be_bytes(*number);
        let core = &self.group.core;
        let rank = plan.members.iter().position(|m| *m == self.group.rank()).ok_or_else(malformed)?;
        let counters = Arc::new(core.counters.sibling());
        let stay = plan.members.len();
        let left = self.until.saturating_duration_since(Instant::now());
        if let Some(world) = self.world.meet_joiners(rank, &plan.extra, self.until)? {
            let joined = world.peers().len().saturating_sub(stay);
            counters.follows(&core.counters, plan.left.len(), joined, world.rank());
            let group = Group::open(group_id, world, counters, self.group.limit, left)?;
            self.made.push((plan.clone(), group));
            return Ok(());
        }
        counters.follows(&core.counters, plan.left.len(), 0, self.world.rank());
        let world = Arc::clone(&self.world);
        let backend: Box<dyn Backend> = match stay {
            1 => Box::new(Lone::new(world, group_id)),
            _ => {
                let counters = Arc::clone(&counters);
                let new = NewGroup { members: &plan.members, group_id, counters, limit: left };
                self.factory.open(world, new)?
            }
        };
        let recorder = lock(&core.state).recorder.split(&plan.members, rank);
        let peer = |(rank, m): (usize, &usize)| Some(Peer { rank, ..core.peers.get(*m)?.clone() });
        let peers = plan.members.iter().enumerate().filter_map(peer).collect();
        let group = Group::with(rank, peers, backend, (group_id, recorder), counters, self.group.limit);
        self.made.push((plan.clone(), group));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
