//! Processes that wait for the job's ranks to take them in, and those that were taken in.

use super::{Hook, server::Server};
use crate::{
    Field, JoinCause, JoinError,
    channel::Conn,
    sync::lock,
    wire::{FromStore, Summons, ToStore},
};
use comity_membership::Voter;
use std::{collections::BTreeMap, sync::atomic::Ordering};

/// The most that wait at once.
const MAX_WAITING: usize = 1024;

/// Process that came while the job ran.
#[derive(Debug)]
pub(super) struct Joiner {
    number: u64,
    host: String,
    pid: u32,
    /// The rank in whose place a launcher started it.
    place: Option<u32>,
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

/// Hear a rank that runs: false if it has ended, or says what none does.
pub(super) fn hear_rank(conn: &mut Conn, requests: &mut Vec<ToStore>) -> bool {
    let open = conn.fill();
    loop {
        match conn.next_message().map(|m| m.map(|m| ToStore::decode(&m))) {
            Ok(None) => return open,
            Ok(Some(Ok(
                request @ (ToStore::Vote { .. } | ToStore::Summon { .. } | ToStore::Decline { .. }),
            ))) => requests.push(request),
            _ => return false,
        }
    }
}

impl Server {
    /// Answer a rank's requests.
    pub(super) fn answer(&mut self, requests: Vec<ToStore>, reply: &mut dyn FnMut(&[u8])) {
        for request in requests {
            match request {
                ToStore::Vote { world, group_id, message } => {
                    let answer = self.voters.entry((world, group_id)).or_default().answer(message);
                    if let Some(message) = answer {
                        reply(&FromStore::Vote { group_id, message }.encode());
                    }
                }
                ToStore::Summon { joiners, to } => self.summon(&joiners, &to),
                ToStore::Decline { joiners, why } => self.decline(&joiners, &why),
                // Requests are no others.
                _ => {}
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
        self.untold = true;
    }

    fn decline(&mut self, joiners: &[u64], why: &JoinError) {
        let is_meant = |j: &mut Joiner| !j.is_in && joiners.contains(&j.number);
        for joiner in self.joiners.extract_if(.., is_meant).collect::<Vec<_>>() {
            self.refuse(joiner.conn, why);
        }
        self.untold = true;
    }

    /// A process waits to be taken in.
    pub(super) fn admit(&mut self, conn: Conn, host: String, pid: u32, place: Option<u32>) {
        if let Some(why) = self.objection(place) {
            let words = format!("host {host}, pid {pid}, cannot join: {why}");
            let why = JoinError::new(words);
            let why = if place.is_some() { why.because(JoinCause::Claimed) } else { why };
            return self.refuse(conn, &why);
        }
        self.last_joiner += 1;
        let number = self.last_joiner;
        tracing::info!(host, pid, number, "a process waits to be taken in");
        self.joiners.push(Joiner { number, host, pid, place, conn, is_in: false, is_called: false });
        self.tell_joiners();
    }

    /// Reason against a process that comes in the place of this rank.
    fn objection(&self, place: Option<u32>) -> Option<String> {
        if self.shared.job().is_some() {
            return Some("this job takes in nobody while it runs: rank 0 runs its store, which ends with it; start the job with `comity launch`, or at a store of its own (comity::tools::Store)".into());
        }
        if self.joiners.len() >= MAX_WAITING {
            return Some("too many processes wait to be taken in".into());
        }
        let Some(place) = place else {
            let most = self.shared.guests.load(Ordering::Acquire) as usize;
            let here = self.joiners.iter().filter(|j| j.place.is_none()).count();
            return (here >= most).then(|| {
                format!("the job takes in {most} processes at most beside the {} that its launcher starts, and has them; start it with a greater MAX (--elastic MIN:MAX)", self.size)
            });
        };
        if let Some(other) = self.joiners.iter().find(|j| j.place == Some(place)) {
            return Some(format!(
                "it comes in the place of rank {place}, and so does another process (host {}, pid {}); give every process a place of its own (COMITY_RANK), or none",
                other.host, other.pid
            ));
        }
        let runs = self.met.iter().any(|met| met.attached.contains_key(&place));
        runs.then(|| {
            format!("it comes in the place of rank {place}, which runs; start it without a place (COMITY_RANK), or when that rank has ended")
        })
    }

    /// Forget the connections of ranks that are known to have ended: one whose host was lost says so to nobody.
    pub(super) fn drop_ended(&mut self) {
        let ended = std::mem::take(&mut *lock(&self.shared.ended));
        if ended.is_empty() {
            return;
        }
        for met in &mut self.met {
            met.attached.retain(|rank, _| !ended.contains(rank));
        }
        let before = self.joiners.len();
        self.joiners.retain(|j| j.place.is_none_or(|place| !ended.contains(&place)));
        if self.joiners.len() < before {
            self.tell_joiners();
        }
    }

    /// Tell whoever wants to know it that a process was taken in, or how many came in nobody's place.
    fn tell_taken_in(&self, place: Option<u32>) {
        let guests = self.joiners.iter().filter(|j| j.is_in && j.place.is_none()).count();
        if let Some(Hook(tell)) = &*lock(&self.shared.taken_in) {
            tell(place.map(|p| p as usize), guests);
        }
    }

    /// The numbers of those that wait, as ranks are told.
    pub(super) fn waiting_joiners(&self) -> Option<Vec<u8>> {
        let those =
            |are: fn(&Joiner) -> bool| self.joiners.iter().filter(|j| are(j)).map(|j| j.number).collect();
        let told = || FromStore::Joiners { all: those(Joiner::waits), called: those(|j| j.is_called) };
        (self.last_joiner > 0).then(|| told().encode())
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
        let mut taken_in = Vec::new();
        for mut joiner in std::mem::take(&mut self.joiners) {
            if joiner.is_in {
                let mut requests = Vec::new();
                if hear_rank(&mut joiner.conn, &mut requests) {
                    asked.push((joiner.number, requests));
                    self.joiners.push(joiner);
                } else if joiner.place.is_none() {
                    taken_in.push(None);
                }
                continue;
            }
            let open = joiner.conn.fill();
            loop {
                match joiner.conn.next_message().map(|m| m.map(|m| ToStore::decode(&m))) {
                    Ok(None) if open => self.joiners.push(joiner),
                    Ok(Some(Ok(ToStore::Ready))) => {
                        joiner.is_in = true;
                        joiner.is_called = false;
                        changed = true;
                        taken_in.push(joiner.place);
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
        taken_in.into_iter().for_each(|place| self.tell_taken_in(place));
        for (number, requests) in asked {
            let mut replies: Vec<Vec<u8>> = Vec::new();
            self.answer(requests, &mut |message| replies.push(message.to_vec()));
            if let Some(joiner) = self.joiners.iter_mut().find(|j| j.number == number) {
                replies.iter().for_each(|reply| drop(joiner.conn.send(reply)));
            }
        }
        if changed || std::mem::take(&mut self.untold) {
            self.tell_joiners();
        }
    }
}
