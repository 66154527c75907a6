//! [`Membership`]: who is there, who belongs to which group, and what follows from what is heard.

mod hearing;
mod sparse;
#[cfg(test)]
mod tests;

use crate::{
    Action, DIED, Fault, Message, Note, Pace, Presence, Reason,
    liveness::Liveness,
    overlay::{Overlay, overlay_neighbours},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// Notes kept for groups that this rank has not opened yet.
const MAX_EARLY: usize = 4096;
/// Groups remembered as closed, so that late words about them are not kept.
const MAX_CLOSED: usize = 4096;

/// A group that this rank has opened and not left.
#[derive(Debug)]
struct Group<R> {
    /// The processes, in the order of the group.
    members: Vec<usize>,
    /// This rank in the group.
    mine: usize,
    left: Vec<bool>,
    /// The first reason; it stays.
    failed: Option<R>,
    /// Members that were told of it, or told this rank.
    knows: Vec<bool>,
    /// This rank saw the reason itself, and has not yet made sure that everyone knows.
    unsure: bool,
    /// For how long a member was silent at the most, before it was heard again or given up.
    silence: Duration,
}

impl<R> Group<R> {
    /// Return whether a member has, as far as this rank knows, neither left nor ended.
    fn has(&self, presences: &[Presence], member: usize) -> bool {
        let presence = self.members.get(member).and_then(|rank| presences.get(*rank));
        presence == Some(&Presence::Live) && self.left.get(member) == Some(&false)
    }
}

/// State of the other processes of a job, as one process knows it, and its decisions about them.
///
/// Processes have numbers from 0, their ranks. A group is a list of processes; its members are numbered in that order.
/// Methods that change something push [`Action`]s, which [`actions`](Self::actions) hands out. Times may not run
/// backwards from one call to the next.
#[derive(Debug)]
pub struct Membership<R: Reason> {
    presences: Vec<Presence>,
    /// In order of their names, so that a run can be repeated.
    groups: BTreeMap<u64, Group<R>>,
    closed: VecDeque<u64>,
    early: VecDeque<(usize, Note<R>)>,
    /// Ranks that have opened groups which this rank has not opened yet.
    entered: BTreeMap<u64, BTreeSet<usize>>,
    liveness: Liveness,
    /// The path of the connection to a process, in words, where it is known.
    paths: BTreeMap<usize, String>,
    /// Graph of a job whose processes are not all connected to each other.
    overlay: Option<Overlay<R>>,
    /// This process has said goodbye.
    leaving: bool,
    actions: Vec<Action<R>>,
}

impl<R: Reason> Membership<R> {
    /// Start as process `me` of `size`. A process that is silent for longer than the limit is given up.
    pub fn new(me: usize, size: usize, silence: impl Into<Pace>) -> Self {
        Self {
            presences: (0..size)
                .map(|r| if r == me { Presence::Oneself } else { Presence::Absent })
                .collect(),
            groups: BTreeMap::new(),
            closed: VecDeque::new(),
            early: VecDeque::new(),
            entered: BTreeMap::new(),
            liveness: Liveness::new(size, silence),
            paths: BTreeMap::new(),
            overlay: None,
            leaving: false,
            actions: Vec::new(),
        }
    }

    /// Start in a large job, where each process is connected to its [neighbours](overlay_neighbours) only.
    pub fn sparse(me: usize, size: usize, silence: impl Into<Pace>) -> Self {
        let mut one = Self::new(me, size, silence);
        let near = overlay_neighbours(me, size);
        for (rank, presence) in one.presences.iter_mut().enumerate() {
            // All have met; whoever is no neighbour is there until somebody says otherwise.
            if rank != me && !near.contains(&rank) {
                *presence = Presence::Live;
            }
        }
        one.overlay = Some(Overlay::new(me, size));
        one
    }

    /// Return whether the processes are not all connected to each other.
    pub fn is_sparse(&self) -> bool {
        self.overlay.is_some()
    }

    /// Return whether this process is to [make](Action::Dial) a connection to `rank`, and has not reported the result.
    pub fn is_dialing(&self, rank: usize) -> bool {
        self.overlay.as_ref().is_some_and(|o| o.dialing.contains_key(&rank))
    }

    /// Return whether this process has a control connection to `rank`.
    pub fn is_connected(&self, rank: usize) -> bool {
        match &self.overlay {
            Some(overlay) => overlay.connected.contains(&rank),
            None => self.presences.get(rank) == Some(&Presence::Live),
        }
    }

    /// Take what is to be done since the last time. Do it before the next change.
    pub fn actions(&mut self) -> Vec<Action<R>> {
        std::mem::take(&mut self.actions)
    }

    /// Presence of `rank`; `None` if there is no such process.
    pub fn presence(&self, rank: usize) -> Option<&Presence> {
        self.presences.get(rank)
    }

    /// Limit on a process's silence.
    pub fn limit(&self) -> Option<Duration> {
        self.liveness.limit()
    }

    /// When to call [`tick`](Self::tick) at the latest.
    pub fn next(&self) -> Option<Instant> {
        let rewire = self.overlay.as_ref().and_then(|o| o.rewire);
        if self.leaving { None } else { self.liveness.next().into_iter().chain(rewire).min() }
    }

    /// The processes of a group in its order, if it is open here.
    pub fn members(&self, group_id: u64) -> Option<&[usize]> {
        Some(&self.groups.get(&group_id)?.members)
    }

    /// Return whether this process has left a group.
    pub fn is_closed(&self, group_id: u64) -> bool {
        self.closed.contains(&group_id)
    }

    /// A process has connected. False if it had before.
    pub fn attach(&mut self, rank: usize, now: Instant) -> bool {
        if self.overlay.is_some() && self.presence(rank) == Some(&Presence::Live) {
            return self.attach_later(rank, now);
        }
        let Some(place @ Presence::Absent) = self.presences.get_mut(rank) else { return false };
        *place = Presence::Live;
        let mut news = Vec::new();
        if let Some(overlay) = &mut self.overlay {
            overlay.connected.insert(rank);
            news = overlay.meets();
        }
        self.liveness.meet(rank, now);
        self.actions.push(Action::News);
        news.into_iter().for_each(|note| self.hand(vec![rank], note));
        true
    }

    /// Note that `rank` is heard through one of `relays`, each a process on the host between: where that one falls silent, it is blamed first. Call
    /// this for each connection that was [attached](Self::attach), with none for one that leads there directly.
    pub fn pass_through(&mut self, rank: usize, relays: Vec<usize>) {
        self.liveness.pass_through(rank, relays);
    }

    /// Note on which other host each process lives, by numbers from 0: hosts that are so crowded that a process is heard after half the limit only give
    /// their other processes time too. `None` for processes of this host, of which the system [knows](Self::has_no_turn).
    pub fn live_on(&mut self, hosts: Vec<Option<usize>>) {
        self.liveness.live_on(hosts);
    }

    /// Remember the path of the connection that was [attached](Self::attach), as the rest of "nothing heard for 5 s": " over TCP from ... to ...".
    pub fn leads_over(&mut self, rank: usize, path: String) {
        self.paths.insert(rank, path);
    }

    /// The processes that have not connected yet.
    ///
    /// # Errors
    /// The [`Fault`] of a process that never will.
    pub fn absent(&self) -> Result<Vec<usize>, Fault> {
        let mut absent = Vec::new();
        let fault = |rank, words| Err(Fault { rank, words, because_of: Vec::new() });
        for (rank, presence) in self.presences.iter().enumerate() {
            match presence {
                Presence::Absent => absent.push(rank),
                Presence::Dead(cause) if cause == DIED => {
                    return fault(rank, "ended while the ranks were connecting".into());
                }
                Presence::Dead(cause) => {
                    return fault(rank, format!("{cause}, while the ranks were connecting"));
                }
                Presence::Gone(words, because_of) if !words.is_empty() => {
                    return Err(gave_up(rank, words, because_of));
                }
                Presence::Shut(silence) => {
                    let words = format!(
                        "gave this process up after {silence:.1} s of silence, while the ranks were connecting"
                    );
                    return fault(rank, words);
                }
                // One that met everyone and left was there.
                Presence::Oneself | Presence::Live | Presence::Gone(..) => {}
            }
        }
        Ok(absent)
    }

    /// Process at fault, and why, if others say that a group has failed that this process has not opened yet.
    pub fn early_abort(&self) -> Option<Fault> {
        self.early.iter().find_map(|(_, note)| match note {
            Note::Abort { failure, .. } => Some(Fault {
                rank: failure.culprit(),
                words: failure.cause().to_owned(),
                because_of: failure.because_of().to_vec(),
            }),
            _ => None,
        })
    }

    /// A process that said why it could not join, and its words.
    pub fn gave_up(&self) -> Option<Fault> {
        self.presences.iter().enumerate().find_map(|(rank, presence)| match presence {
            Presence::Gone(words, because_of) if !words.is_empty() => Some(gave_up(rank, words, because_of)),
            _ => None,
        })
    }

    /// Begin to watch the members of a group in which this process has the rank `mine`. False if it is open already.
    pub fn enter(&mut self, group_id: u64, members: &[usize], mine: usize) -> bool {
        if self.groups.contains_key(&group_id) {
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
        self.groups.insert(group_id, group);
        let (ours, others) =
            std::mem::take(&mut self.early).into_iter().partition(|(_, n)| n.group_id() == Some(group_id));
        self.early = others;
        for from in self.entered.remove(&group_id).unwrap_or_default() {
            self.apply(from, Note::Entered { group_id });
        }
        let ours: VecDeque<(usize, Note<R>)> = ours;
        for (from, note) in ours {
            self.apply(from, note);
        }
        // Who is lost first: one that left because of it is not to look as if it left in good order.
        let in_good_order = |rank: &usize| matches!(self.presences.get(*rank), Some(Presence::Gone(words, _)) if words.is_empty());
        let (left, others): (Vec<usize>, Vec<usize>) = members.iter().partition(|rank| in_good_order(rank));
        for rank in others.into_iter().chain(left) {
            self.member_is_gone(group_id, rank);
        }
        true
    }

    /// Forget a group, and tell its members unless it never came to be. False if it is not open.
    ///
    /// Members that still wait for this rank must not take it for the culprit: when the group has failed they are told why.
    pub fn leave(&mut self, group_id: u64, tell: bool) -> bool {
        let Some(group) = self.groups.get(&group_id) else { return false };
        if tell && group.failed.is_some() {
            self.tell_all(group_id);
        } else if tell {
            let others = (0..group.members.len()).filter(|m| !group.left.get(*m).is_some_and(|l| *l));
            let to = self.reachable(group, others);
            self.tell(to, Note::Leave { group_id });
        }
        self.groups.remove(&group_id);
        self.closed.keep_last(MAX_CLOSED - 1);
        self.closed.push_back(group_id);
        self.early.retain(|(_, note)| note.group_id() != Some(group_id));
        true
    }

    /// This process has found a group to have failed: tell its members.
    pub fn abort(&mut self, group_id: u64, failure: R) {
        self.fail(group_id, None, failure);
    }

    /// Say goodbye to everyone; with words if this process could not join, and the processes at fault by them, if other ones are.
    /// Nothing is judged afterwards, for the others may well close first.
    pub fn end(&mut self, words: &str, because_of: &[usize]) {
        // The goodbye counts as leaving every group in good order, which these are not in.
        let failed: Vec<u64> =
            self.groups.iter().filter(|(_, g)| g.failed.is_some()).map(|(group_id, _)| *group_id).collect();
        for group_id in failed {
            self.tell_all(group_id);
        }
        let to = (0..self.presences.len()).filter(|rank| self.is_known(*rank)).collect();
        self.tell(to, Note::Goodbye { words: words.into(), because_of: because_of.into() });
        self.leaving = true;
    }

    /// Tell members of an open group something about it.
    pub fn say(&mut self, members: &[usize], note: Note<R>) {
        let Some(group) = note.group_id().and_then(|group_id| self.groups.get(&group_id)) else { return };
        let to = self.reachable(group, members.iter().copied().filter(|m| *m != group.mine));
        self.tell(to, note);
    }

    /// Tell a process about the group that follows one.
    pub fn tell_of_reform(&mut self, rank: usize, group_id: u64, message: Message) {
        if self.is_known(rank) {
            self.tell(vec![rank], Note::Reform { group_id, message: Box::new(message) });
        }
    }

    /// A group, and the rank in it of a process.
    fn member(&mut self, group_id: u64, rank: usize) -> Option<(&mut Group<R>, usize)> {
        let group = self.groups.get_mut(&group_id)?;
        let member = group.members.iter().position(|m| *m == rank)?;
        Some((group, member))
    }

    fn contexts_with(&self, rank: usize) -> Vec<u64> {
        self.groups.iter().filter(|(_, g)| g.members.contains(&rank)).map(|(group_id, _)| *group_id).collect()
    }

    /// The processes of those members that are connected.
    fn reachable(&self, group: &Group<R>, members: impl Iterator<Item = usize>) -> Vec<usize> {
        let ranks = members.filter_map(|m| group.members.get(m).copied());
        ranks.filter(|rank| self.is_known(*rank)).collect()
    }

    fn tell(&mut self, to: Vec<usize>, note: Note<R>) {
        if to.is_empty() {
        } else if self.overlay.is_some() {
            self.tell_over(to, note);
        } else {
            self.actions.push(Action::Tell { to, note });
        }
    }
}

/// Keeps a queue short.
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

fn gave_up(rank: usize, words: &str, because_of: &[usize]) -> Fault {
    Fault { rank, words: format!("gave up: {words}"), because_of: because_of.to_vec() }
}
