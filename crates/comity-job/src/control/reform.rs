//! Agreement on the group that follows one: the control thread hears and answers, the thread that asks makes its parts of new groups.

use super::{connection_table::ConnectionTable, running::ControlPlane};
use crate::{
    Error, Result,
    rendezvous::{StoreClient, StoreTeller, Summons, can_be_told},
    status::{Failure, Outcome, Parts},
    sync::lock,
    sys::{Waker, poll_joining},
};
use comity_membership::{Message, Plan, Presence, Reform, ReformAction, Terms};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Agreements kept after their end, for members that learn late.
const MAX_KEPT: usize = 64;
/// Time beyond its limit for which a thread waits for the control thread's word.
const GRACE: Duration = Duration::from_secs(2);

/// Number that names a plan's group: it comes first in what the library adds to the plan.
fn group_id_of(plan: &Plan) -> Option<u64> {
    plan.extra.first_chunk().map(|b| u64::from_be_bytes(*b))
}

/// Agreements of a process.
#[derive(Debug, Default)]
pub(super) struct Reforms {
    by_group: BTreeMap<u64, ReformAgreement>,
    /// In the order in which they began.
    order: VecDeque<u64>,
    /// Groups that are not to be made.
    abandoned: VecDeque<u64>,
    /// Meetings of this rank's plans with joiners.
    meetings: Vec<Meeting>,
    /// The group of the plan that this rank makes its part of.
    agreed: Option<u64>,
    /// A launcher's store was there once: it has a vote in all of them.
    pub(super) has_store: bool,
}

/// Meeting of the ranks that are left with joiners, at a store of this rank.
#[derive(Debug)]
struct Meeting {
    group_id: u64,
    store: StoreTeller,
    /// Joiners that were called, with the ranks that they are to have.
    called: Vec<(u64, usize)>,
    /// For a reason that is not the joiners'.
    has_ended: bool,
}

/// Agreement on the group that follows one.
#[derive(Debug)]
struct ReformAgreement {
    reform: Reform,
    /// World ranks.
    members: Vec<usize>,
    steps: Arc<Steps>,
}

/// Steps for the thread that asks for a group.
#[derive(Debug)]
struct Steps {
    queue: Mutex<VecDeque<ReformAction>>,
    waker: Waker,
}

impl Reforms {
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_group.values().filter_map(|r| r.reform.next()).min()
    }

    /// Note that a group is not to be made.
    pub(super) fn abandon(&mut self, group_id: u64, mine: usize) -> Failure {
        self.abandoned.push_back(group_id);
        if self.abandoned.len() > MAX_KEPT {
            self.abandoned.pop_front();
        }
        Failure::reported(mine, "another attempt to form the group came first")
    }

    /// Returns the failure of a group that is not to be made.
    pub(super) fn abandoned(&mut self, group_id: u64, mine: usize) -> Option<Failure> {
        self.abandoned.contains(&group_id).then(|| self.abandon(group_id, mine))
    }

    /// A plan's ranks do not come together.
    fn end_meeting(&mut self, group_id: u64) {
        for meeting in self.meetings.iter_mut().filter(|m| m.group_id == group_id) {
            meeting.has_ended = true;
            meeting.store.refuse("a rank of the group that forms again has ended meanwhile, or another rank proposes another group");
        }
    }

    /// Joiners that were called may have ended.
    pub(super) fn miss_joiners(&self, store: &StoreClient) {
        for meeting in &self.meetings {
            for (_, rank) in meeting.called.iter().filter(|(joiner, _)| !store.has(*joiner)) {
                meeting.store.lost(*rank, "ended");
            }
        }
    }

    fn forget_old(&mut self) {
        while self.order.len() > MAX_KEPT {
            if let Some(group_id) = self.order.pop_front() {
                self.by_group.remove(&group_id);
            }
        }
    }
}

impl ConnectionTable {
    /// Ask for the group that follows one.
    fn begin_reform(
        &mut self,
        group_id: u64,
        members: &[usize],
        terms: Terms,
        until: Instant,
    ) -> Result<Arc<Steps>> {
        let internal = || Error::config("this rank is no member of its group; this is a bug in Comity");
        let mine = members.iter().position(|m| *m == self.rank()).ok_or_else(internal)?;
        let waker = Waker::new().map_err(|e| Error::os("forming a group again", e))?;
        let steps = Arc::new(Steps { queue: Mutex::default(), waker });
        let has_store = self.reforms.has_store;
        let reforms = &mut self.reforms;
        let entry = reforms.by_group.entry(group_id).or_insert_with(|| {
            reforms.order.push_back(group_id);
            let reform = Reform::new(mine, members.len(), has_store);
            ReformAgreement { reform, members: members.to_vec(), steps: Arc::clone(&steps) }
        });
        entry.steps = Arc::clone(&steps);
        reforms.forget_old();
        self.lose_in_reforms();
        if has_store && self.store.is_none() {
            self.lose_store_in_reforms();
        }
        self.in_reform(group_id, |reform| reform.begin(terms, until, Instant::now()));
        self.carry_out();
        Ok(steps)
    }

    /// Change an agreement, and do what follows.
    fn in_reform(&mut self, group_id: u64, change: impl FnOnce(&mut Reform)) {
        let Some(one) = self.reforms.by_group.get_mut(&group_id) else { return };
        change(&mut one.reform);
        let actions = one.reform.actions();
        let members = one.members.clone();
        let steps = Arc::clone(&one.steps);
        for action in actions {
            match action {
                ReformAction::Send { to, message } => match members.get(to) {
                    Some(rank) => self.tell_of_reform(*rank, group_id, message),
                    None => self.ask_store_to_vote(group_id, &message),
                },
                ReformAction::Abandon { plan } => {
                    let mine = plan.members.iter().position(|m| members.get(*m) == Some(&self.rank()));
                    if let (Some(id), Some(mine)) = (group_id_of(&plan), mine) {
                        self.abandon(id, mine);
                        self.reforms.end_meeting(id);
                    }
                }
                step => {
                    lock(&steps.queue).push_back(step);
                    steps.waker.wake();
                }
            }
        }
    }

    fn ask_store_to_vote(&mut self, group_id: u64, message: &Message) {
        if let Some(store) = &mut self.store {
            store.ask_to_vote(self.world, group_id, message);
        }
    }

    /// A message has come from a rank.
    pub(super) fn hear_reform(&mut self, from: usize, group_id: u64, message: Message) {
        let known = self.reforms.by_group.get(&group_id);
        let Some(one) = known else {
            // Whoever has left the group and asked for no other never will.
            if self.membership().is_closed(group_id)
                && matches!(message, Message::Call { .. } | Message::Ready { .. })
            {
                self.tell_of_reform(from, group_id, Message::Left);
            }
            return;
        };
        if let Some(member) = one.members.iter().position(|m| *m == from) {
            self.in_reform(group_id, |reform| reform.hear(member, message, Instant::now()));
        }
    }

    /// The store has answered.
    pub(super) fn hear_vote(&mut self, group_id: u64, message: Message) {
        let Some(one) = self.reforms.by_group.get(&group_id) else { return };
        let store = one.members.len();
        self.in_reform(group_id, |reform| reform.hear(store, message, Instant::now()));
    }

    /// Some ranks may have ended.
    pub(super) fn lose_in_reforms(&mut self) {
        let mut lost = Vec::new();
        for (group_id, one) in &self.reforms.by_group {
            if one.reform.decided().is_some() {
                continue;
            }
            for (member, rank) in one.members.iter().enumerate() {
                let why = match self.membership().presence(*rank) {
                    Some(Presence::Dead(cause)) => cause.clone(),
                    Some(Presence::Gone(words, _)) if words.is_empty() => "ended in good order".into(),
                    Some(Presence::Gone(words, _)) => format!("gave up: {words}"),
                    Some(Presence::Shut(silence)) => {
                        format!("gave this rank up after {silence:.1} s of silence")
                    }
                    _ => continue,
                };
                lost.push((*group_id, member, why));
            }
        }
        for (group_id, member, why) in lost {
            self.in_reform(group_id, |reform| reform.gone(member, &why, Instant::now()));
        }
    }

    pub(super) fn lose_store_in_reforms(&mut self) {
        let all: Vec<u64> = self.reforms.by_group.keys().copied().collect();
        for group_id in all {
            self.in_reform(group_id, |reform| reform.store_gone(Instant::now()));
        }
    }

    pub(super) fn tick_reforms(&mut self, now: Instant) {
        let due = |r: &ReformAgreement| r.reform.next().is_some_and(|next| next <= now);
        let due: Vec<u64> = self.reforms.by_group.iter().filter(|(_, r)| due(r)).map(|(id, _)| *id).collect();
        if due.is_empty() {
            return;
        }
        for group_id in due {
            self.in_reform(group_id, |reform| reform.tick(now));
        }
        self.carry_out();
    }
}

impl ControlPlane {
    /// Returns the numbers of the processes that wait to be taken in.
    pub fn joiners(&self) -> Vec<u64> {
        self.lock().store.as_ref().map_or_else(Vec::new, |store| store.joiners().to_vec())
    }

    /// Call joiners to a meeting at this store.
    pub fn summon(&self, joiners: Vec<u64>, to: Summons, meeting: StoreTeller) {
        let called = joiners.iter().copied().zip(to.rank as usize..).collect();
        let new = Meeting { group_id: to.group_id, store: meeting, called, has_ended: false };
        self.change(|table| {
            table.reforms.meetings.push(new);
            if let Some(store) = &mut table.store {
                store.summon(joiners, to);
            }
        });
    }

    /// Returns the joiners to call; those that were called in vain too often are sent away.
    pub fn invited(&self) -> Vec<u64> {
        self.lock().store.as_mut().map_or_else(Vec::new, StoreClient::invited)
    }

    /// Returns true if the members of this group tell the one that proposes it that they have opened it, and nobody uses it before all have.
    pub(crate) fn is_agreed_on(&self, group_id: u64) -> bool {
        self.lock().reforms.agreed == Some(group_id)
    }

    /// This rank cannot make its part of a plan. If it has called joiners for it, they may be the reason.
    fn blame_meeting(&self, plan: &Plan, words: &str) {
        let mut state = self.lock();
        let state = &mut *state;
        let is_meant = |m: &Meeting| Some(m.group_id) == group_id_of(plan) && !m.has_ended;
        if let Some(store) = state.store.as_mut().filter(|_| state.reforms.meetings.iter().any(is_meant)) {
            store.blame(words);
        }
    }

    /// No group came of the last meeting with joiners.
    pub fn blame_joiners(&self, words: &str) {
        if let Some(store) = &mut self.lock().store {
            store.blame(words);
        }
    }

    pub(crate) fn end_meetings(&self) {
        self.lock().reforms.meetings.clear();
    }

    /// This process's address on the way to the job's store.
    pub fn toward_store(&self) -> Option<IpAddr> {
        self.lock().store.as_ref().map(StoreClient::local)
    }

    /// Give up the connection to the store, and return it.
    pub fn take_store(&self) -> Option<StoreClient> {
        self.change(|table| {
            table.reforms.has_store = false;
            table.store.take()
        })
    }

    /// From now on this is the store that outlives the ranks, if there is one.
    pub fn have_store(&self, store: Option<StoreClient>) {
        self.change(|table| {
            table.reforms.has_store = store.is_some();
            table.store = store;
        });
    }

    /// Change an agreement, and do what follows.
    fn change_reform(&self, group_id: u64, change: impl FnOnce(&mut Reform)) {
        self.change(|table| {
            table.in_reform(group_id, change);
            table.carry_out();
        });
    }

    /// Agree with the members of a group on the one that follows it; see [`World::reform`](crate::status::World::reform).
    pub fn reform(
        &self,
        group_id: u64,
        members: &[usize],
        terms: Terms,
        until: Instant,
        parts: &mut dyn Parts,
    ) -> Result<Outcome> {
        let steps = self.lock().begin_reform(group_id, members, terms, until)?;
        self.waker.wake();
        let mut asking = ReformQuestion { control: self, group_id, done: false };
        loop {
            let step = lock(&steps.queue).pop_front();
            match step {
                Some(ReformAction::Draft { members }) => {
                    if !can_be_told(&members) {
                        return Err(Error::join(
                            "too many ranks have left at once, here and there among the others, for the rest to go on; start the job again",
                        ));
                    }
                    let extra = parts.draft(&members)?;
                    self.change_reform(group_id, |reform| reform.draft(&members, extra, Instant::now()));
                }
                Some(ReformAction::Form { plan }) => {
                    self.lock().reforms.agreed = group_id_of(&plan);
                    let fault = parts.form(&plan).err().map(|e| e.to_string());
                    if let Some(words) = &fault {
                        self.blame_meeting(&plan, words);
                    }
                    self.change_reform(group_id, |reform| reform.formed(&plan, fault, Instant::now()));
                }
                Some(ReformAction::Done { plan }) => {
                    asking.done = true;
                    return Ok(Outcome::Follows(plan));
                }
                Some(ReformAction::Refused { why }) => {
                    asking.done = true;
                    return Ok(Outcome::Refused(why));
                }
                Some(ReformAction::Send { .. } | ReformAction::Abandon { .. }) => {}
                None => {
                    let mut fds = [PollFd::from_borrowed_fd(steps.waker.fd(), PollFlags::IN)];
                    // WAIT(until): the next step: past the limit by a moment at most
                    if poll_joining(&mut fds, Some(until + GRACE))? == 0 {
                        return Err(Error::join(
                            "the control thread of this rank did not get a turn within the limit; is the host overloaded?",
                        ));
                    }
                    steps.waker.drain();
                }
            }
        }
    }
}

/// Withdraws when dropped before the end.
struct ReformQuestion<'a> {
    control: &'a ControlPlane,
    group_id: u64,
    done: bool,
}

impl Drop for ReformQuestion<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.control.change_reform(self.group_id, Reform::withdraw);
        }
    }
}
