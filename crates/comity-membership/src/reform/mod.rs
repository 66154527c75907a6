//! Agreement of a group's members on the group that follows it.
//!
//! [`Reform`] is one member's part in it, for one group. Like [`Membership`](crate::Membership) it decides and does nothing else: events come
//! in, actions go out.
//!
//! ```text
//!   each member:       Ready  -------->  the lowest member that it takes for alive: that one calls the roll (Call)
//!   all are here:      Form{plan}  <---  it proposes who stays
//!   each makes its part of the new group, and promises to vote in no earlier attempt
//!                      Formed  ------->
//!                      Accept{plan}  <-
//!   each votes         Accepted  ----->
//!   enough votes:      Decided{plan}  <-
//! ```
//! The last three are Paxos for a single decree: there is one plan at most for each group, whoever dies, is cut off or wakes up late. Votes are
//! counted so that two sides never both have enough: each member has 2, and the store, or the first member where no store outlives the
//! members, has one more.
//!
//! | event | consequence |
//! |---|---|
//! | a member ends before the vote | a new attempt without it |
//! | it ends after a vote | the plan stays; its group fails at once, and forms again |
//! | the member that calls the roll ends | the next one calls it; it hears of votes with the promises |
//! | two members call the roll, since each takes the other for dead | the later attempt holds; what has votes is proposed again |
//! | two others take each other for dead | one of them is left out: they can be in no group together |
//! | a member does not ask, and its limit or another's passes | all are told who is missing |
//! | too few are left | all are told |
//! | a member is not in the plan | it is told, once somebody that knows the plan hears of it |

mod lead;
mod message;
#[cfg(test)]
mod simulate;
#[cfg(test)]
mod tests;

pub use message::{Ballot, Message, Plan, Refusal, Rule, Terms, Voter};

use lead::Lead;
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// Interval at which what has no answer is said again.
const AGAIN: Duration = Duration::from_millis(500);

/// Time beyond its limit for which a member waits for the word of the one that calls the roll.
const GRACE: Duration = Duration::from_millis(200);

/// Action of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field whose name says it needs no other word")]
pub enum ReformAction {
    /// Send a message to a member; to the store, if the number is that of no member.
    Send {
        /// The member, by its rank in the former group.
        to: usize,
        message: Message,
    },
    /// Say what the library adds to a plan of these members: call [`Reform::draft`].
    Draft { members: Vec<usize> },
    /// Make this rank's part of a plan's group: call [`Reform::formed`]. A part that was made is kept until the end.
    Form { plan: Plan },
    /// Give up making this rank's part of a plan's group, which is under way: a member is gone, or another plan came. Then call
    /// [`Reform::formed`] with a fault.
    Abandon { plan: Plan },
    /// This plan's group follows. This rank has made its part if it is a member; else the others go on without it.
    Done { plan: Plan },
    /// No group follows for now; this rank may [ask](Reform::begin) again.
    Refused { why: Refusal },
}

/// Part of this rank in the agreement on the group that follows a group.
#[derive(Debug, Default)]
pub struct Reform {
    me: usize,
    size: usize,
    /// The store outlives the members, and votes.
    store: bool,
    /// Nothing is heard of the store any more.
    store_is_gone: bool,
    /// Members that are gone, as far as this rank knows, and why.
    gone: BTreeMap<usize, String>,
    /// Number of times that this rank has asked.
    asking: u32,
    /// Terms of this rank, while it asks for a new group.
    terms: Option<Terms>,
    voter: Voter,
    /// Plans whose group this rank has made its part of.
    formed: Vec<Plan>,
    /// The attempt and plan that the caller forms.
    forming: Option<(Ballot, Plan)>,
    decided: Option<Plan>,
    lead: Lead,
    /// Members that are missing, by the last call of the roll.
    missing: Vec<usize>,
    /// Time of the next repetition.
    again: Option<Instant>,
    until: Option<Instant>,
    /// Messages of this rank to itself.
    own: VecDeque<Message>,
    actions: Vec<ReformAction>,
}

impl Reform {
    /// Start as member `me` of a group of `size`. `store`: a store outlives the members, and has a vote.
    pub fn new(me: usize, size: usize, store: bool) -> Self {
        Self { me, size, store, ..Self::default() }
    }

    /// Take what is to be done since the last time. Do it in its order.
    pub fn actions(&mut self) -> Vec<ReformAction> {
        std::mem::take(&mut self.actions)
    }

    /// The plan that was decided, as far as this rank knows.
    pub fn decided(&self) -> Option<&Plan> {
        self.decided.as_ref()
    }

    /// When to call [`tick`](Self::tick) at the latest.
    pub fn next(&self) -> Option<Instant> {
        self.terms?;
        self.again.into_iter().chain(self.late_at()).chain(self.lead.pause()).min()
    }

    /// When this rank asks no more. Whoever calls the roll knows best who is missing, and tells the others.
    fn late_at(&self) -> Option<Instant> {
        Some(self.until? + if self.leads() { Duration::ZERO } else { GRACE })
    }

    /// Ask for a new group, until a time.
    pub fn begin(&mut self, terms: Terms, until: Instant, now: Instant) {
        if let Some(plan) = self.decided.clone() {
            return self.actions.push(ReformAction::Done { plan });
        }
        self.terms = Some(terms);
        self.asking += 1;
        self.until = Some(until);
        self.again = Some(now + AGAIN);
        self.missing.clear();
        self.lead = Lead::after(&self.lead);
        self.ask(now);
        self.settle(now);
    }

    /// A member is gone for good, as the rest of the sentence "rank 3 ...".
    pub fn gone(&mut self, member: usize, why: &str, now: Instant) {
        if member >= self.size || member == self.me || self.gone.contains_key(&member) {
            return;
        }
        let before = self.leader();
        self.gone.insert(member, why.into());
        if self.terms.is_none() || self.decided.is_some() {
            return;
        }
        // Whoever makes a part with it would wait for it.
        if let Some((_, plan)) = self.forming.as_ref().filter(|(_, plan)| plan.members.contains(&member)) {
            self.actions.push(ReformAction::Abandon { plan: plan.clone() });
        }
        self.lead.lose(member);
        // A new one calls the roll, or the old one may not know it, and still wants a group with that member.
        if before != self.leader() || !self.leads() {
            self.ask(now);
        }
        self.settle(now);
    }

    /// The store is gone for good.
    pub fn store_gone(&mut self, now: Instant) {
        self.store_is_gone = true;
        if self.terms.is_some() && self.decided.is_none() {
            self.lead.rest();
            self.settle(now);
        }
    }

    /// A message has come from a member, or from the store.
    pub fn hear(&mut self, from: usize, message: Message, now: Instant) {
        if from > self.size || self.gone.contains_key(&from) {
            return;
        }
        self.take(from, message, now);
        self.settle(now);
    }

    /// This rank's part of a plan is made, or why not.
    pub fn formed(&mut self, plan: &Plan, fault: Option<String>, now: Instant) {
        if fault.is_none() && !self.formed.contains(plan) {
            self.formed.push(plan.clone());
        }
        match self.forming.take() {
            Some((ballot, wanted)) if wanted == *plan => self.report(ballot, fault),
            Some((ballot, wanted)) => self.form(ballot, wanted),
            None => {}
        }
        self.settle(now);
    }

    /// Addition to the plan that these members stay.
    pub fn draft(&mut self, members: &[usize], extra: Vec<u8>, now: Instant) {
        if self.terms.is_some() && self.decided.is_none() {
            self.propose(members, extra);
            self.settle(now);
        }
    }

    /// Ask no more: all are told.
    pub fn withdraw(&mut self) {
        if self.terms.is_some() {
            let missing = self.missing.clone();
            self.refuse(Refusal::Late { by: self.me, missing });
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        if self.terms.is_none() {
            return;
        }
        if self.late_at().is_some_and(|at| now >= at) {
            let missing = if self.leads() { self.unanswered() } else { self.missing.clone() };
            return self.refuse(Refusal::Late { by: self.me, missing });
        }
        if self.lead.is_over(now) {
            self.lead.rest();
        }
        if self.again.is_some_and(|again| now >= again) {
            self.again = Some(now + AGAIN);
            self.ask(now);
            self.repeat();
        }
        self.settle(now);
    }

    /// The lowest member that this rank takes for alive.
    fn leader(&self) -> usize {
        (0..self.size).find(|m| !self.gone.contains_key(m)).unwrap_or(self.me)
    }

    fn leads(&self) -> bool {
        self.leader() == self.me
    }

    /// Say to whoever calls the roll that this rank is here; or call it.
    fn ask(&mut self, now: Instant) {
        let Some(terms) = self.terms else { return };
        let leader = self.leader();
        if leader != self.me {
            return self.send(leader, self.ready(terms));
        }
        self.lead.come(self.me, self.asking, terms, &self.voter, Vec::new());
        let missing = self.unanswered();
        for to in self.others() {
            self.send(to, Message::Call { missing: missing.clone() });
        }
        self.again = Some(now + AGAIN);
    }

    fn ready(&self, terms: Terms) -> Message {
        let Voter { promised, accepted } = self.voter.clone();
        let gone = self.gone.keys().copied().collect();
        Message::Ready { asking: self.asking, terms, promised, accepted, gone }
    }

    /// Members other than this one that are not gone.
    fn others(&self) -> Vec<usize> {
        (0..self.size).filter(|m| *m != self.me && !self.gone.contains_key(m)).collect()
    }

    fn send(&mut self, to: usize, message: Message) {
        if to == self.me {
            self.own.push_back(message);
        } else {
            self.actions.push(ReformAction::Send { to, message });
        }
    }

    /// Do what follows, until nothing does.
    fn settle(&mut self, now: Instant) {
        loop {
            while let Some(message) = self.own.pop_front() {
                self.take(self.me, message, now);
            }
            self.go_on(now);
            if self.own.is_empty() {
                return;
            }
        }
    }

    fn take(&mut self, from: usize, message: Message, now: Instant) {
        if let Some(plan) = &self.decided {
            let answered = matches!(
                message,
                Message::Call { .. } | Message::Ready { .. } | Message::Form { .. } | Message::Accept { .. }
            );
            if answered && from < self.size && from != self.me {
                let plan = plan.clone();
                self.send(from, Message::Decided { plan });
            }
            return;
        }
        match message {
            Message::Decided { plan } => self.decide(plan),
            Message::Left => self.gone(from, "has left the group", now),
            // Until this rank asks, it is no voter, and is waited for.
            _ if self.terms.is_none() => {}
            Message::Call { missing } => {
                self.missing = missing;
                self.missing.retain(|m| *m != self.me);
                if let Some(terms) = self.terms {
                    self.send(from, self.ready(terms));
                }
            }
            Message::Form { ballot, plan } => {
                if self.voter.promise(ballot) {
                    self.form(ballot, plan);
                } else {
                    self.send(from, Message::Behind { promised: self.voter.promised });
                }
            }
            Message::Accept { ballot, plan } => {
                let votes = self.voter.accept(ballot, plan);
                let promised = self.voter.promised;
                self.send(
                    from,
                    if votes { Message::Accepted { ballot } } else { Message::Behind { promised } },
                );
            }
            Message::Refused { asking, why } => {
                if asking == self.asking {
                    self.end(why);
                }
            }
            Message::Withdraw => self.lead.lose(from),
            Message::Ready { asking, terms, promised, accepted, gone } => {
                match self.lead.refusal(from, asking) {
                    Some(why) => self.send(from, Message::Refused { asking, why }),
                    None => self.lead.come(from, asking, terms, &Voter { promised, accepted }, gone),
                }
            }
            Message::Formed { ballot, fault, accepted } => self.lead.formed(from, ballot, fault, accepted),
            Message::Accepted { ballot } => self.lead.accepted(from, ballot),
            Message::Behind { promised } => self.lead.behind(self.me, promised, now),
        }
    }

    /// Have this rank's part of a plan made, unless it is.
    fn form(&mut self, ballot: Ballot, plan: Plan) {
        if !plan.members.contains(&self.me) || self.formed.contains(&plan) {
            return self.report(ballot, None);
        }
        match self.forming.replace((ballot, plan.clone())) {
            None => self.actions.push(ReformAction::Form { plan }),
            // Of two attempts under way at once each could wait for the other.
            Some((_, old)) if old != plan => self.actions.push(ReformAction::Abandon { plan: old }),
            Some(_) => {}
        }
    }

    fn report(&mut self, ballot: Ballot, fault: Option<String>) {
        let accepted = self.voter.accepted.clone();
        if self.terms.is_some() && self.voter.promised == ballot {
            self.send(ballot.by as usize, Message::Formed { ballot, fault, accepted });
        }
    }

    fn decide(&mut self, plan: Plan) {
        if self.decided.is_none() {
            self.decided = Some(plan.clone());
            self.terms = None;
            self.actions.push(ReformAction::Done { plan });
        }
    }

    /// No group follows for now: tell those that ask.
    fn refuse(&mut self, why: Refusal) {
        let leader = self.leader();
        if leader != self.me {
            self.send(leader, Message::Withdraw);
        }
        let requests: Vec<_> = self.lead.waiting().into_iter().filter(|(to, _)| *to != self.me).collect();
        self.lead.refuse(&requests, &why);
        for (to, asking) in requests {
            self.send(to, Message::Refused { asking, why: why.clone() });
        }
        self.end(why);
    }

    fn end(&mut self, why: Refusal) {
        if self.terms.take().is_some() {
            self.lead.rest();
            self.actions.push(ReformAction::Refused { why });
        }
    }
}
