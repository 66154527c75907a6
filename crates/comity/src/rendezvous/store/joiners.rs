//! Processes that wait for the job's ranks to take them in, and those that were taken in.

use super::server::Server;
use crate::{
    JoinError,
    channel::Conn,
    rendezvous::wire::{FromStore, Summons, ToStore},
};
use comity_membership::{Message, Voter};
use std::collections::BTreeMap;

/// The most that wait at once.
const MAX_WAITING: usize = crate::rendezvous::wire::MAX_JOINERS;

/// Process that came while the job ran.
#[derive(Debug)]
pub(super) struct Joiner {
    number: u64,
    pub(super) conn: Conn,
    /// It is in a group, and speaks as a rank.
    is_in: bool,
    /// It was called to a meeting, and has not said how that went: it is not called again before.
    is_called: bool,
}

impl Joiner {
    fn waits(&self) -> bool {
        !self.is_in && !self.is_called
    }
}

/// Votes of the store on groups that follow others, by world and group.
pub(super) type Voters = BTreeMap<(u64, u64), Voter>;

/// Request of a rank that runs.
pub(super) enum Request {
    Vote { world: u64, group_id: u64, message: Message },
    Summon { joiners: Vec<u64>, to: Summons },
}

/// Hear a rank that runs: false if it has ended, or says what none does.
pub(super) fn hear_rank(conn: &mut Conn, requests: &mut Vec<Request>) -> bool {
    let open = conn.fill();
    loop {
        let request = match conn.next_message().map(|m| m.map(|m| ToStore::decode(&m))) {
            Ok(None) => return open,
            Ok(Some(Ok(ToStore::Vote { world, group_id, message }))) => {
                Request::Vote { world, group_id, message }
            }
            Ok(Some(Ok(ToStore::Summon { joiners, to }))) => Request::Summon { joiners, to },
            _ => return false,
        };
        requests.push(request);
    }
}

impl Server {
    /// Answer a rank's requests.
    pub(super) fn answer(&mut self, requests: Vec<Request>, reply: &mut dyn FnMut(&[u8])) {
        for request in requests {
            match request {
                Request::Vote { world, group_id, message } => {
                    let answer = self.voters.entry((world, group_id)).or_default().answer(message);
                    if let Some(message) = answer {
                        reply(&FromStore::Vote { group_id, message }.encode());
                    }
                }
                Request::Summon { joiners, to } => self.summon(&joiners, &to),
            }
        }
    }

    fn summon(&mut self, joiners: &[u64], to: &Summons) {
        for (i, number) in joiners.iter().enumerate() {
            let to = Summons { rank: to.rank.saturating_add(i as u32), ..to.clone() };
            let waiting = self.joiners.iter_mut().find(|j| j.number == *number && j.waits());
            if let Some(joiner) = waiting.filter(|_| to.rank < to.size) {
                // One that is gone is found so when it is next read.
                let _ = joiner.conn.send(&FromStore::Summoned { to }.encode());
                joiner.is_called = true;
            }
        }
        self.tell_joiners();
    }

    /// A process waits to be taken in.
    pub(super) fn admit(&mut self, conn: Conn, host: &str, pid: u32) {
        let refusal = if self.shared.job().is_some() {
            "this job takes in nobody while it runs: rank 0 runs its store, which ends with it; start the job with `comity launch`, or at a store of its own (comity::tools::Store)"
        } else if self.joiners.len() >= MAX_WAITING {
            "too many processes wait to be taken in"
        } else {
            self.last_joiner += 1;
            tracing::info!(host, pid, number = self.last_joiner, "a process waits to be taken in");
            self.joiners.push(Joiner { number: self.last_joiner, conn, is_in: false, is_called: false });
            return self.tell_joiners();
        };
        let words = format!("host {host}, pid {pid}, cannot join: {refusal}");
        self.refuse(conn, &JoinError::new(words));
    }

    /// The numbers of those that wait, as ranks are told.
    pub(super) fn waiting_joiners(&self) -> Option<Vec<u8>> {
        let all: Vec<u64> = self.joiners.iter().filter(|j| j.waits()).map(|j| j.number).collect();
        (self.last_joiner > 0).then(|| FromStore::Joiners { all }.encode())
    }

    fn tell_joiners(&mut self) {
        let Some(told) = self.waiting_joiners() else { return };
        let attached = self.met.iter_mut().flat_map(|m| m.attached.values_mut()).map(|m| &mut m.conn);
        let taken_in = self.joiners.iter_mut().filter(|j| j.is_in).map(|j| &mut j.conn);
        for conn in attached.chain(taken_in) {
            // One that is gone is found so when it is next read.
            let _ = conn.send(&told);
        }
    }

    /// Hear those that wait, and those that were taken in.
    pub(super) fn hear_joiners(&mut self) {
        let mut changed = false;
        let mut asked = Vec::new();
        for mut joiner in std::mem::take(&mut self.joiners) {
            if joiner.is_in {
                let mut requests = Vec::new();
                if hear_rank(&mut joiner.conn, &mut requests) {
                    asked.push((joiner.number, requests));
                    self.joiners.push(joiner);
                }
                continue;
            }
            let open = joiner.conn.fill();
            loop {
                match joiner.conn.next_message().map(|m| m.map(|m| ToStore::decode(&m))) {
                    Ok(None) if open => self.joiners.push(joiner),
                    Ok(Some(Ok(ToStore::Ready))) => {
                        joiner.is_in = true;
                        changed = true;
                        self.joiners.push(joiner);
                    }
                    Ok(Some(Ok(ToStore::Wait { .. }))) => {
                        joiner.is_called = false;
                        changed = true;
                        continue;
                    }
                    _ => changed = true,
                }
                break;
            }
        }
        for (number, requests) in asked {
            let mut replies: Vec<Vec<u8>> = Vec::new();
            self.answer(requests, &mut |message| replies.push(message.to_vec()));
            if let Some(joiner) = self.joiners.iter_mut().find(|j| j.number == number) {
                replies.iter().for_each(|reply| drop(joiner.conn.send(reply)));
            }
        }
        if changed {
            self.tell_joiners();
        }
    }
}
