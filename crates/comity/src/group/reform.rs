//! Groups that follow a group: after a failure, or when some are to leave.

use super::{Group, lock};
use crate::{
    Error, JoinCause, JoinError, Op, Peer, Result,
    backend::{Backend, Bufs, Call, Lone, Single, SubgroupFactory},
    recorder::Recorder,
    status::{Outcome, Parts, World},
};
use comity_membership::{Plan, Refusal, Rule, Terms};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

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
pub struct Reformed {
    /// The group. Ranks stand in their former order.
    pub group: Group,
    /// Ranks of the former group that are not in it, by their former numbers.
    pub left: Vec<Departed>,
    /// Ranks that were taken in, by their numbers in the new group: the last ones.
    pub joined: Vec<Peer>,
}

/// Rank of a former group that is not in the one that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departed {
    /// The rank, by its former number.
    pub peer: Peer,
    /// Reason, as the rest of the sentence "rank 3 ...".
    pub why: String,
}

impl Group {
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
    /// [`Error::Join`] where no group follows: too few ranks are left or on this side, a rank that lives does not call this within the limit, ranks
    /// give different options, or the others went on without this rank. Except for the last a rank may call this again.
    /// [`Error::Mismatch`] where a rank of a healthy group makes another call. [`Error::Unavailable`] for
    /// [`Group::local`], and for groups of the backends MPI and NCCL; [`Error::Closed`] for a group that was closed or formed again.
    pub fn reform(&self, options: &ReformOptions) -> Result<Reformed> {
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

    fn follow(&self, terms: Terms, until: Instant) -> Result<Reformed> {
        let unable = |reason: &str| Err(Error::Unavailable { backend: "reform", reason: reason.into() });
        let factory = match &self.core.subgroup_factory {
            _ if self.core.device.is_some() => return unable("NCCL's communicators are not formed again"),
            Some(factory) => factory,
            None if self.size() > 1 => return unable("MPI makes no group without all ranks"),
            None => {
                self.meet(until)?;
                let group = self.successor_alone();
                return Ok(Reformed { group, left: Vec::new(), joined: Vec::new() });
            }
        };
        self.meet(until)?;
        let world = factory.world.upgrade().ok_or(Error::Closed)?;
        let mut making = Making { group: self, factory, world: Arc::clone(&world), until, made: Vec::new() };
        let outcome = world.reform(factory.group_id, &factory.ranks, terms, until, &mut making)?;
        let plan = match outcome {
            Outcome::Follows(plan) => plan,
            Outcome::Refused(why) => return Err(self.refused(&why).into()),
        };
        if !plan.members.contains(&self.rank()) {
            return Err(self.left_out(&plan).into());
        }
        let made = making.made.into_iter().find(|(p, _)| *p == plan);
        let Some((_, group)) = made else { return Err(Error::Closed) };
        if let Some(world) = group.world() {
            world.succeed();
        }
        self.end();
        let joined = group.members().get(plan.members.len()..).unwrap_or_default().to_vec();
        // Those that join learn so that the others have agreed on it.
        if !joined.is_empty() {
            group.meet(until)?;
        }
        let left: Vec<Departed> = plan.left.iter().map(|(m, why)| self.departed(*m, why.clone())).collect();
        if !group.has_failed() {
            return Ok(Reformed { group, left, joined });
        }
        // A rank died just before or after the vote, or one that joined cannot be reached.
        if let Some(world) = group.world().filter(|_| !joined.is_empty()) {
            let broken = lock(&group.core.state).broken.as_deref().map(ToString::to_string);
            world.blame_joiners(&broken.unwrap_or_default());
        }
        let next = group.follow(terms, until)?;
        let former = |d: Departed| Some(self.departed(*plan.members.get(d.peer.rank)?, d.why));
        let later: Vec<Departed> = next.left.into_iter().filter_map(former).collect();
        // Whoever joined, now or before, stands last.
        let stayed = plan.members.len() - later.len();
        let joined = next.group.members().get(stayed..).unwrap_or_default().to_vec();
        Ok(Reformed { group: next.group, left: left.into_iter().chain(later).collect(), joined })
    }

    /// Come to the first call of a group that takes this process in: then the others have agreed on it.
    pub(super) fn meet_others(&self, until: Instant) -> Result<()> {
        self.meet(until)?;
        match lock(&self.core.state).broken.as_deref() {
            Some(e) => Err(e.clone()),
            None => Ok(()),
        }
    }

    /// In a healthy group have all ranks come to this call; a difference is told like that of any call.
    fn meet(&self, until: Instant) -> Result<()> {
        let mut state = lock(&self.core.state);
        match state.broken.as_deref() {
            Some(Error::Closed) => return Err(Error::Closed),
            Some(_) => return Ok(()),
            None => {}
        }
        state.threads.come(self.core.caller());
        let left = until.saturating_duration_since(Instant::now());
        match state.run(&mut Call::new(Op::Reform, Bufs::None), left, &self.core.counters) {
            Err(e) if matches!(*e, Error::Mismatch { .. }) || !e.is_fatal() => Err(*e),
            // The others learn of a failure here, too.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Leave this group, which another one follows.
    fn end(&self) {
        let mut state = lock(&self.core.state);
        state.broken.get_or_insert_with(|| Arc::new(Error::Closed));
        // What it found by then is told already.
        let _ = state.leave();
    }

    /// Returns true if a failure of this group is known.
    fn has_failed(&self) -> bool {
        self.core.abort_handle.as_ref().is_some_and(|a| a.status.failure().is_some())
    }

    fn successor_alone(&self) -> Self {
        let counters = Arc::new(self.core.counters.sibling());
        let peers = self.core.peers.clone();
        self.end();
        Self::with(0, peers, Box::new(Single), (0, Recorder::new()), counters, self.limit)
    }

    fn departed(&self, rank: usize, why: String) -> Departed {
        let peer = self.core.peers.get(rank).cloned();
        Departed { peer: peer.unwrap_or(Peer { rank, host: None, pid: None }), why }
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

/// Makes this rank's parts of the groups that may follow.
struct Making<'a> {
    group: &'a Group,
    factory: &'a SubgroupFactory,
    world: Arc<dyn World>,
    until: Instant,
    made: Vec<(Plan, Group)>,
}

impl Parts for Making<'_> {
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
            counters.follows(&core.counters, (plan.left.len(), joined), world.rank());
            let group = Group::open_as(group_id, world, counters, self.group.limit, left)?;
            self.made.push((plan.clone(), group));
            return Ok(());
        }
        counters.follows(&core.counters, (plan.left.len(), 0), self.world.rank());
        let world = Arc::clone(&self.world);
        let backend: Box<dyn Backend> = match stay {
            1 => Box::new(Lone::new(world, group_id)),
            _ => self.factory.open(world, &plan.members, group_id, Arc::clone(&counters), left)?,
        };
        let recorder = lock(&core.state).recorder.split(&plan.members, rank);
        let peer = |(rank, m): (usize, &usize)| Some(Peer { rank, ..core.peers.get(*m)?.clone() });
        let peers = plan.members.iter().enumerate().filter_map(peer).collect();
        let group = Group::with(rank, peers, backend, (group_id, recorder), counters, self.group.limit);
        self.made.push((plan.clone(), group));
        Ok(())
    }
}
