//! Carrying out what was decided: notes are sent, connections closed, statuses set.

use super::ConnectionTable;
use crate::{
    channel::Stream,
    control::{
        CONTROL_THREAD,
        note::{ControlNote, Encoding},
    },
    status::{Failure, GroupStatus, Reached},
    sys::wants_core,
};
use comity_membership::{Action, Message, Word};
use std::{net::SocketAddr, time::Instant};

/// Question to a rank whether it lives.
#[derive(Clone, Copy, Debug)]
pub(in crate::control) struct Question {
    pub(in crate::control) rank: usize,
    /// Address at which it listens.
    pub(in crate::control) at: SocketAddr,
}

/// Actions that remain to be done outside the lock.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// Whoever waits for the processes to meet should look again.
    pub news: bool,
    /// Messages for the log, whose writer may take its time.
    pub words: Vec<Word>,
    /// Ranks to ask whether they live.
    pub(in crate::control) asks: Vec<Question>,
    /// Ranks that need not be asked any more.
    pub ended: Vec<usize>,
    /// Groups that others want links in, or have made connections for.
    pub links: Vec<u64>,
    /// To whom control connections are to be made.
    pub dials: Vec<usize>,
}

impl Rest {
    pub(crate) fn add(&mut self, other: Self) {
        self.news |= other.news;
        self.words.extend(other.words);
        self.asks.extend(other.asks);
        self.ended.extend(other.ended);
        self.links.extend(other.links);
        self.dials.extend(other.dials);
    }
}

impl ConnectionTable {
    /// Do what was decided, and what follows from it.
    pub(in crate::control) fn carry_out(&mut self) -> Rest {
        let mut rest = Rest::default();
        loop {
            let actions = self.membership.actions();
            if actions.is_empty() {
                // A neighbour's notes of one turn go together: news of many ranks come at once.
                for (rank, notes) in std::mem::take(&mut self.outgoing) {
                    self.send_to(rank, &notes);
                }
                return rest;
            }
            actions.into_iter().for_each(|action| self.perform(action, &mut rest));
        }
    }

    fn send_to(&mut self, rank: usize, notes: &[Vec<u8>]) {
        if let Some(Some(conn)) = self.conns.get_mut(rank) {
            // One that cannot be reached is found when it is next read.
            let _ = conn.send_all(notes);
        }
    }

    /// To a group of this process, if it is still open.
    fn with_status<T>(&self, group_id: u64, tell: impl FnOnce(&GroupStatus) -> T) {
        if let Some(status) = self.statuses.get(&group_id) {
            tell(status);
        }
    }

    fn forget(&mut self, rank: usize) {
        if let Some(place) = self.conns.get_mut(rank) {
            *place = None;
        }
        if let Some(place) = self.processes.get_mut(rank) {
            *place = None;
        }
    }

    /// Tell a rank about the group that follows one.
    pub(in crate::control) fn tell_of_reform(&mut self, rank: usize, group_id: u64, message: Message) {
        self.membership.tell_of_reform(rank, group_id, message);
    }

    fn perform(&mut self, action: Action<Failure>, rest: &mut Rest) {
        match action {
            Action::Tell { to, note } => {
                let note = note.encode();
                for rank in to {
                    if self.is_sparse() {
                        self.outgoing.entry(rank).or_default().push(note.clone());
                    } else {
                        self.send_to(rank, std::slice::from_ref(&note));
                    }
                }
            }
            Action::Beat { progress } => {
                let note = ControlNote::Heartbeat { progress }.encode();
                for conn in self.conns.iter_mut().flatten().filter(|c| !c.is_pending()) {
                    let _ = conn.send(&note);
                }
            }
            Action::Dial { rank } => rest.dials.push(rank),
            Action::Close { rank } => {
                if let Some(notes) = self.outgoing.remove(&rank) {
                    self.send_to(rank, &notes);
                }
                rest.ended.push(rank);
                self.forget(rank);
            }
            Action::Fail { group_id, failure } => self.with_status(group_id, |w| w.fail(failure)),
            Action::Said { mine, member, note } => self.hear_member(mine, member, note, rest),
            Action::Suspect { group_id } => self.with_status(group_id, |w| w.suspect()),
            Action::Silence { group_id, silence } => self.with_status(group_id, |w| w.silent(silence)),
            Action::Ask { rank } => self.ask_anew(rank, rest),
            Action::News => {
                rest.news = true;
                self.lose_in_reforms();
            }
            Action::Reform { from, group_id, message } => self.hear_reform(from, group_id, message),
            Action::Log(word) => rest.words.push(word),
        }
    }

    /// A member says something of a group that is open here.
    fn hear_member(&mut self, mine: usize, member: usize, note: ControlNote, rest: &mut Rest) {
        match note {
            ControlNote::Leave { group_id } => self.with_status(group_id, |w| w.leave(member)),
            ControlNote::Entered { group_id } => self.with_status(group_id, |w| w.enter(member)),
            ControlNote::Connect { group_id } => {
                self.wanted.push((group_id, member));
                rest.links.push(group_id);
            }
            ControlNote::Reached { group_id, reached } => {
                self.with_status(group_id, |w| w.answered(member, reached));
            }
            ControlNote::Census { group_id, at, digest } => {
                if let Some(status) = self.statuses.get(&group_id) {
                    status.asked(member, at, digest);
                    let reached = self.with_other_groups(group_id, status.reached(at, member));
                    self.membership.say(&[member], ControlNote::Reached { group_id, reached });
                }
            }
            ControlNote::Waits { group_id, call } => {
                let heard = self.statuses.get(&group_id).and_then(|status| status.hear(mine, member, &call));
                if let Some(failure) = heard {
                    self.membership.abort(group_id, failure);
                }
            }
            // The membership acts on all others itself.
            _ => {}
        }
    }

    /// Answer of this rank in a group, with what it waits for in others.
    fn with_other_groups(&self, group_id: u64, reached: Reached) -> Reached {
        let Some(members) = self.membership.members(group_id) else { return reached };
        let Some(mine) = members.iter().position(|m| *m == self.me) else { return reached };
        let others = self.statuses.iter().filter(|(id, _)| **id != group_id);
        let others = others.filter_map(|(id, status)| Some((self.membership.members(*id)?, &**status)));
        reached.or_elsewhere(mine, members, others)
    }

    /// Ask a silent process over a new connection. Bytes that stay within the host are not lost, and there the system is asked; and the end that
    /// made the connection asks, for it knows where the other one listens.
    fn ask_anew(&mut self, rank: usize, rest: &mut Rest) {
        let Some(Some(conn)) = self.conns.get(rank) else { return };
        if let Stream::Unix(stream) = &**conn.stream() {
            if wants_core(stream, CONTROL_THREAD) {
                self.membership.has_no_turn(rank, Instant::now());
            }
        } else if conn.is_ours()
            && let Stream::Tcp(stream) = &**conn.stream()
            && let Ok(at) = stream.peer_addr()
        {
            rest.asks.push(Question { rank, at });
        }
    }
}
