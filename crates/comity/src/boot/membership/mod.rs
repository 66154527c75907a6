//! Who is there, who belongs to which group, and what a death, a silence or an abort means for it: decisions only.
//!
//! What happens comes in with its time, what is to be done goes out as [`Action`]s. No clock is read here, nothing is sent and
//! nothing waits, so that the simulator drives this very code through any faults in virtual time. [`Standing`] carries
//! the actions out, under the lock of the control connections.
//!
//! [`Standing`]: super::standing::Standing

mod asks;
mod events;
mod failing;
mod flood;
#[cfg(test)]
mod simulate;
#[cfg(test)]
mod tests;

use super::{
    liveness::{Liveness, Verdict},
    wire::Note,
};
use crate::engine::{Failure, Reached};
use asks::ALONE;
pub(super) use events::{Action, DIED, Heard, Presence, Word};
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

/// Notes kept for groups that this rank has not opened yet.
const MAX_EARLY: usize = 4096;
/// Groups remembered as closed, so that late words about them are not kept.
const MAX_CLOSED: usize = 4096;

/// A group that this rank has opened and not left.
#[derive(Debug)]
struct Group {
    /// World ranks in group order.
    members: Vec<usize>,
    /// This rank in the group.
    mine: usize,
    left: Vec<bool>,
    /// The first reason; it stays.
    failed: Option<Failure>,
    /// Members that were told of it, or told this rank.
    knows: Vec<bool>,
    /// This rank saw the reason itself, and has not yet made sure that everyone knows.
    unsure: bool,
    /// For how long a member was silent at the most, before it was heard again or given up.
    silence: Duration,
}

impl Group {
    /// Whether a member has, as far as this rank knows, neither left nor ended.
    fn has(&self, presences: &[Presence], member: usize) -> bool {
        let presence = self.members.get(member).and_then(|rank| presences.get(*rank));
        presence == Some(&Presence::Live) && self.left.get(member) == Some(&false)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Membership {
    presences: Vec<Presence>,
    /// In order of their names, so that a run can be repeated.
    groups: BTreeMap<u64, Group>,
    closed: VecDeque<u64>,
    early: VecDeque<(usize, Note)>,
    liveness: Liveness,
    /// This process has said goodbye.
    leaving: bool,
    actions: Vec<Action>,
}

impl Membership {
    /// Of process `me` of `size`, each of which may be silent for so long; `None`: for ever.
    pub(super) fn new(me: usize, size: usize, silence: Option<Duration>) -> Self {
        Self {
            presences: (0..size)
                .map(|r| if r == me { Presence::Oneself } else { Presence::Absent })
                .collect(),
            groups: BTreeMap::new(),
            closed: VecDeque::new(),
            early: VecDeque::new(),
            liveness: Liveness::new(size, silence),
            leaving: false,
            actions: Vec::new(),
        }
    }

    /// What is to be done since this was last asked. To be asked after every change, and done before the next.
    pub(super) fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub(super) fn presence(&self, rank: usize) -> Option<&Presence> {
        self.presences.get(rank)
    }

    /// How long one may be silent.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.liveness.limit()
    }

    /// When to call [`tick`](Self::tick) at the latest.
    pub(super) fn next(&self) -> Option<Instant> {
        if self.leaving { None } else { self.liveness.next() }
    }

    /// The processes of a group that is open here, in its order.
    pub(super) fn members(&self, context: u64) -> Option<&[usize]> {
        Some(&self.groups.get(&context)?.members)
    }

    pub(super) fn is_closed(&self, context: u64) -> bool {
        self.closed.contains(&context)
    }

    /// Who has not connected yet, or what became of one who never will.
    pub(super) fn absent(&self) -> Result<Vec<usize>, (usize, String)> {
        let mut absent = Vec::new();
        for (rank, presence) in self.presences.iter().enumerate() {
            match presence {
                Presence::Absent => absent.push(rank),
                Presence::Dead(cause) if cause == DIED => {
                    return Err((rank, "ended while the ranks were connecting".into()));
                }
                Presence::Dead(cause) => {
                    return Err((rank, format!("{cause}, while the ranks were connecting")));
                }
                Presence::Gone(words) if !words.is_empty() => {
                    return Err((rank, format!("gave up: {words}")));
                }
                Presence::Shut(silence) => {
                    let words = format!(
                        "gave this process up after {silence:.1} s of silence, while the ranks were connecting"
                    );
                    return Err((rank, words));
                }
                // One that met everyone and left was there.
                Presence::Oneself | Presence::Live | Presence::Gone(_) => {}
            }
        }
        Ok(absent)
    }

    /// Who is at fault, and why, in the words of ranks whose first group, that of all, has failed before this one could open it.
    pub(super) fn foretold(&self) -> Option<(usize, String)> {
        self.early.iter().find_map(|(_, note)| match note {
            Note::Abort { failure, .. } => Some((failure.culprit, failure.cause.clone())),
            _ => None,
        })
    }

    /// One that said why it could not join.
    pub(super) fn gave_up(&self) -> Option<(usize, String)> {
        self.presences.iter().enumerate().find_map(|(rank, presence)| match presence {
            Presence::Gone(words) if !words.is_empty() => Some((rank, format!("gave up: {words}"))),
            _ => None,
        })
    }

    /// A process has connected. False if it had before.
    pub(super) fn attach(&mut self, rank: usize, now: Instant) -> bool {
        let Some(place @ Presence::Absent) = self.presences.get_mut(rank) else { return false };
        *place = Presence::Live;
        self.liveness.meet(rank, now);
        self.actions.push(Action::News);
        true
    }

    /// Begin to watch the members of a group, in which this process has the rank `mine`. False if it is open already.
    pub(super) fn enter(&mut self, context: u64, members: &[usize], mine: usize) -> bool {
        if self.groups.contains_key(&context) {
            return false;
        }
        let group = Group {
            members: members.to_vec(),
            mine,
            left: vec![false; members.len()],
            failed: None,
            knows: vec![false; members.len()],
            unsure: false,
            silence: Duration::ZERO,
        };
        self.groups.insert(context, group);
        let (ours, others) =
            std::mem::take(&mut self.early).into_iter().partition(|(_, n)| context_of(n) == Some(context));
        self.early = others;
        let ours: VecDeque<(usize, Note)> = ours;
        for (from, note) in ours {
            self.apply(from, note);
        }
        for rank in members {
            self.member_is_gone(context, *rank);
        }
        true
    }

    /// Forget a group, and tell its members unless it never came to be. False if it is not open.
    ///
    /// Those who still wait for this rank must not take it for the culprit: when the group has failed they are told why.
    pub(super) fn leave(&mut self, context: u64, tell: bool) -> bool {
        let Some(group) = self.groups.get(&context) else { return false };
        if tell && group.failed.is_some() {
            self.tell_all(context);
        } else if tell {
            let others = (0..group.members.len()).filter(|m| !group.left.get(*m).is_some_and(|l| *l));
            let to = self.reachable(group, others);
            self.tell(to, Note::Leave { context });
        }
        self.groups.remove(&context);
        self.closed.keep_last(MAX_CLOSED - 1);
        self.closed.push_back(context);
        self.early.retain(|(_, note)| context_of(note) != Some(context));
        true
    }

    /// This rank has found a group to have failed.
    pub(super) fn abort(&mut self, context: u64, failure: Failure) {
        self.fail(context, None, failure);
    }

    /// This process ends; with words if it could not join. What happens afterwards is no news: the others may well close first.
    pub(super) fn end(&mut self, words: &str) {
        // The goodbye counts as leaving every group in good order, which these are not in.
        let failed: Vec<u64> =
            self.groups.iter().filter(|(_, g)| g.failed.is_some()).map(|(context, _)| *context).collect();
        for context in failed {
            self.tell_all(context);
        }
        let live = |(_, p): &(usize, &Presence)| **p == Presence::Live;
        let to = self.presences.iter().enumerate().filter(live).map(|(rank, _)| rank).collect();
        self.tell(to, Note::Goodbye { words: words.into() });
        self.leaving = true;
    }

    /// Take in what has come by `now`, in the order of each connection.
    pub(super) fn hear(&mut self, heard: Vec<(usize, Heard)>, now: Instant) {
        if self.leaving {
            return;
        }
        let (mut notes, mut ends) = (Vec::new(), Vec::new());
        for (rank, heard) in heard {
            if self.presence(rank) != Some(&Presence::Live) {
                continue;
            }
            let progress = match heard {
                Heard::End(cause) => {
                    ends.push((rank, cause));
                    continue;
                }
                Heard::Note(Note::Heartbeat { progress }) => {
                    self.liveness.begin(rank, now);
                    Some(progress)
                }
                Heard::Note(note) => {
                    notes.push((rank, note));
                    None
                }
            };
            self.measure(rank, self.liveness.silence(rank, now));
            if let Some(silence) = self.liveness.hear(rank, now, progress) {
                self.actions.push(Action::Log(Word::Back { rank, silence }));
            }
        }
        // A process that wakes finds at once what all others said while it slept. That it was given up explains the rest.
        notes.sort_by_key(|(_, note)| !matches!(note, Note::GivenUp { .. }));
        for (from, note) in notes {
            self.apply(from, note);
        }
        for (rank, cause) in ends {
            self.lose(rank, cause);
        }
    }

    /// A process has shown on a new connection that it lives.
    pub(super) fn lives(&mut self, rank: usize, now: Instant) {
        if self.leaving || self.presence(rank) != Some(&Presence::Live) {
            return;
        }
        self.measure(rank, self.liveness.silence(rank, now));
        self.liveness.lives(rank, now);
    }

    /// Give up whoever has been silent for too long at `heard_until`, by which all that had come must have been heard; and beat
    /// when it is time, with how far this process's engines have come.
    pub(super) fn tick(&mut self, heard_until: Instant, now: Instant, progress: u64) {
        if self.leaving {
            return;
        }
        for verdict in self.liveness.tick(heard_until, now) {
            match verdict {
                Verdict::Suspect { rank, .. } => {
                    for context in self.contexts_with(rank) {
                        self.actions.push(Action::Suspect { context });
                    }
                }
                Verdict::Dead { rank, silence } => {
                    self.measure(rank, Some(silence));
                    // It stays in the connection after its end, and is read when that rank runs again.
                    self.tell(vec![rank], Note::GivenUp { silence: silence.as_millis() as u64 });
                    let alone = if self.hears_nobody(rank, heard_until) { ALONE } else { "" };
                    let seconds = silence.as_secs_f64();
                    self.lose(rank, &format!("fell silent: nothing heard for {seconds:.1} s{alone}"));
                }
                Verdict::Stuck { rank, silence } => {
                    let cause = format!(
                        "answers on new connections, but its control connection has carried nothing for {:.1} s; look at what lies between the hosts",
                        silence.as_secs_f64()
                    );
                    self.tell(vec![rank], Note::GivenUp { silence: silence.as_millis() as u64 });
                    self.lose(rank, &cause);
                }
            }
            self.actions.push(Action::Log(Word::Silent(verdict)));
        }
        let asks = self.liveness.asks(now);
        self.actions.extend(asks.into_iter().map(|rank| Action::Ask { rank }));
        self.beat(now, progress);
    }

    /// Beat when it is time.
    pub(super) fn beat(&mut self, now: Instant, progress: u64) {
        if !self.leaving && self.liveness.beats(now) {
            self.make_sure();
            self.actions.push(Action::Beat { progress });
        }
    }

    /// A silence of `rank` is over, if it was one.
    fn measure(&mut self, rank: usize, silence: Option<Duration>) {
        let Some(silence) = silence else { return };
        let longer = |g: &Group| silence > g.silence && g.members.contains(&rank);
        for (context, group) in self.groups.iter_mut().filter(|(_, g)| longer(g)) {
            group.silence = silence;
            self.actions.push(Action::Silence { context: *context, silence });
        }
    }

    fn apply(&mut self, from: usize, note: Note) {
        if let Some(context) = context_of(&note)
            && !self.groups.contains_key(&context)
        {
            if let Note::Census { .. } = note {
                // Whoever has closed the group said so.
                if !self.is_closed(context) {
                    let reached = Reached { made: 0, digest: None, lacks: None };
                    self.tell(vec![from], Note::Reached { context, reached });
                }
            } else if let Note::Reached { .. } = note {
                // The group that asked is over.
            } else if !self.is_closed(context) {
                if let Note::Waits { .. } = note {
                    // Only its last word counts.
                    let old = |(f, n): &(usize, Note)| matches!(n, Note::Waits { context: c, .. } if *c == context && *f == from);
                    self.early.retain(|e| !old(e));
                }
                self.early.keep_last(MAX_EARLY - 1);
                self.early.push_back((from, note));
            }
            return;
        }
        match note {
            Note::Leave { context } => {
                if let Some((group, member)) = self.member(context, from) {
                    if let Some(left) = group.left.get_mut(member) {
                        *left = true;
                    }
                    self.actions.push(Action::Left { context, member });
                }
            }
            Note::Waits { context, call } => {
                if let Some((group, member)) = self.member(context, from) {
                    let mine = group.mine;
                    self.actions.push(Action::Waits { context, mine, member, call });
                }
            }
            Note::Census { context, at, digest } => {
                if let Some((_, member)) = self.member(context, from) {
                    self.actions.push(Action::Census { context, member, at, digest });
                }
            }
            Note::Reached { context, reached } => {
                if let Some((_, member)) = self.member(context, from) {
                    self.actions.push(Action::Reached { context, member, reached });
                }
            }
            Note::Abort { context, failure } => {
                if let Some((_, member)) = self.member(context, from) {
                    self.fail(context, Some(member), failure);
                }
            }
            // Heard already.
            Note::Heartbeat { .. } => {}
            Note::Goodbye { words } => self.ended(from, Presence::Gone(words)),
            Note::GivenUp { silence } => {
                self.ended(from, Presence::Shut(Duration::from_millis(silence).as_secs_f64()));
            }
        }
    }

    /// A group, and the rank in it of a process.
    fn member(&mut self, context: u64, rank: usize) -> Option<(&mut Group, usize)> {
        let group = self.groups.get_mut(&context)?;
        let member = group.members.iter().position(|m| *m == rank)?;
        Some((group, member))
    }

    fn contexts_with(&self, rank: usize) -> Vec<u64> {
        self.groups.iter().filter(|(_, g)| g.members.contains(&rank)).map(|(context, _)| *context).collect()
    }

    /// The processes of those members that are connected.
    fn reachable(&self, group: &Group, members: impl Iterator<Item = usize>) -> Vec<usize> {
        let ranks = members.filter_map(|m| group.members.get(m).copied());
        ranks.filter(|rank| self.presences.get(*rank) == Some(&Presence::Live)).collect()
    }

    fn tell(&mut self, to: Vec<usize>, note: Note) {
        if !to.is_empty() {
            self.actions.push(Action::Tell { to, note });
        }
    }
}

/// The group that a note is about.
fn context_of(note: &Note) -> Option<u64> {
    match note {
        Note::Leave { context }
        | Note::Abort { context, .. }
        | Note::Waits { context, .. }
        | Note::Census { context, .. }
        | Note::Reached { context, .. } => Some(*context),
        Note::Heartbeat { .. } | Note::Goodbye { .. } | Note::GivenUp { .. } => None,
    }
}

trait KeepLast {
    /// Drop the oldest until at most `n` are left.
    fn keep_last(&mut self, n: usize);
}

impl<T> KeepLast for VecDeque<T> {
    fn keep_last(&mut self, n: usize) {
        while self.len() > n {
            self.pop_front();
        }
    }
}
