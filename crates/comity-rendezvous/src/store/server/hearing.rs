//! Messages of the ranks to the store: that they come, that all their connections stand, that they give up; or that they end.

use super::{Met, Round, SAY, Server, StoreMember, Who};
use crate::{
    Field, JoinCause, JoinError,
    channel::frame,
    sync::lock,
    {
        store::joiners::hear_rank,
        store::server::{claimed, whereabouts},
        wire::{FromStore, ToStore},
    },
};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Shortest interval at which the waiting ranks are told that another one has come.
const TELL: Duration = Duration::from_millis(500);

/// Shortest and longest wait of a group of an unnamed job for a second claimant.
const MOMENT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Most of it on account of ranks that came one after the other: a user may have started them so.
const SPREAD: Duration = Duration::from_secs(2);

/// Wait of a group of an unnamed job for a second claimant, where its ranks came within `spread`, and the process of rank 0 has `waited` for a
/// processor. Of two jobs that were started at the same moment on a busy machine, one starts later than the other by a part of that.
fn moment(spread: Duration, waited: Duration) -> Duration {
    (2 * spread).min(SPREAD).max(waited).clamp(MOMENT.0, MOMENT.1)
}

/// Reason that a rank that had come is there no more.
enum How {
    /// It said why.
    GaveUp(JoinError),
    /// Without a word, as the rest of the sentence "rank 3 ...".
    Ended(&'static str),
}

impl How {
    /// Returns the error for the others.
    fn about(self, rank: u32, who: &Who) -> JoinError {
        let who = format!("rank {rank} ({})", whereabouts(who));
        match self {
            Self::GaveUp(why) => why.said_by(rank as usize, format!("{who} gave up: {why}")),
            Self::Ended(how) => JoinError::new(format!("{who} {how}; look at its own output"))
                .of([rank as usize])
                .because(JoinCause::Ended),
        }
    }
}

impl Server {
    pub(super) fn hear_fresh(&mut self) {
        let now = Instant::now();
        for (mut conn, from, until) in std::mem::take(&mut self.fresh) {
            let open = conn.fill();
            match conn.next_message().map(|m| m.map(|m| ToStore::decode(&m))) {
                Ok(Some(Ok(ToStore::Join { rank, size, patience, facts }))) if rank == from => {
                    let from = conn.stream().peer_addr().map(|a| a.ip());
                    let new = StoreMember { conn, who: Who { facts, from } };
                    self.join(new, rank, size, Duration::from_millis(patience));
                }
                Ok(Some(Ok(ToStore::Wait { host, pid, place }))) => self.admit(conn, host, pid, place),
                // It came to say that it will not come.
                Ok(Some(Ok(ToStore::Failed { why }))) => {
                    let why = why.said_by(from as usize, format!("rank {from} cannot join: {why}"));
                    self.refuse_round(&why, Some(from));
                }
                Ok(None) if open && now < until => self.fresh.push((conn, from, until)),
                _ => {}
            }
        }
    }

    fn join(&mut self, new: StoreMember, rank: u32, size: u32, patience: Duration) {
        if rank >= self.size || size != self.size {
            let words = format!(
                "rank {rank} ({}) was started for a job of {size} ranks, but the one that meets here has {}; start every rank with the same size (COMITY_SIZE), and give each job a key and an address of its own",
                whereabouts(&new.who),
                self.size
            );
            return self.quarrel(new, rank, words);
        }
        // Where others have come since, they try again, and this rank is not late.
        if let Some((why, until)) = self.missed.remove(&rank)
            && Instant::now() < until
            && self.round.is_none()
        {
            return self.refuse(new.conn, &why);
        }
        if let Some(first) = self.round.as_ref().and_then(|r| r.members.get(&rank)) {
            let words = claimed(rank, &first.who, &new.who);
            return self.quarrel(new, rank, words);
        }
        if let Some(holder) = self.holder(rank, &new.who) {
            let words = claimed(rank, holder, &new.who);
            return self.quarrel(new, rank, words);
        }
        let now = Instant::now();
        let limit = patience.min(self.join).min(Duration::from_secs(1 << 30));
        let round = self.round.get_or_insert_with(|| Round {
            members: BTreeMap::new(),
            until: now + limit,
            limit,
            begun: now,
            say: now + SAY,
            tell: None,
            opens: None,
        });
        round.limit = round.limit.min(limit);
        round.until = now + round.limit;
        round.tell.get_or_insert(now + TELL);
        round.members.insert(rank, new);
        if round.members.len() < self.size as usize {
            return;
        }
        match self.unnamed.filter(|_| self.first.is_none()) {
            Some(waited) => round.opens = Some(now + moment(now - round.begun, waited).min(limit / 2)),
            None => self.meet(),
        }
    }

    /// All are there.
    pub(super) fn meet(&mut self) {
        self.missed.clear();
        let Some(mut round) = self.round.take() else { return };
        let members = &mut round.members;
        let mut world = [0; 8];
        if let Err(e) = getrandom::fill(&mut world) {
            self.round = Some(round);
            let why = JoinError::new(format!("the store has no random numbers: {e}"));
            return self.refuse_round(&why, None);
        }
        let world = u64::from_be_bytes(world);
        let mut table = frame(&FromStore::Welcome { world, size: self.size }.encode());
        for (rank, m) in members.iter() {
            table.extend(frame(&FromStore::Entry { rank: *rank, facts: m.who.facts.clone() }.encode()));
        }
        let table: Arc<[u8]> = table.into();
        for m in members.values_mut() {
            // One that is gone is found so when it is next read.
            let _ = m.conn.send_frames(Arc::clone(&table));
        }
        self.first.get_or_insert_with(Instant::now);
        self.met.retain(|m| !m.connecting.is_empty() || !m.attached.is_empty());
        let all = members.values().map(|m| m.who.clone()).collect();
        self.met.push(Met { connecting: round.members, attached: BTreeMap::new(), all });
    }

    /// Ranks that wait for the others say nothing; they can only end.
    pub(super) fn hear_members(&mut self) {
        let mut ended = None;
        for (rank, m) in self.round.iter_mut().flat_map(|r| &mut r.members) {
            let open = m.conn.fill();
            let how = match m.conn.next_message().map(|m| m.map(|m| ToStore::decode(&m))) {
                Ok(None) if open => continue,
                Ok(Some(Ok(ToStore::Failed { why }))) => How::GaveUp(why),
                Ok(None) => How::Ended("ended before all ranks had joined"),
                _ => How::Ended("broke the protocol"),
            };
            if let How::Ended(_) = how {
                self.shared.note_culprit(*rank);
            }
            ended = Some((*rank, how.about(*rank, &m.who)));
            break;
        }
        if let Some((rank, why)) = ended {
            self.refuse_round(&why, Some(rank));
        }
    }

    pub(super) fn hear_connecting(&mut self) {
        for mut met in std::mem::take(&mut self.met) {
            let mut failed = None;
            for (rank, mut m) in std::mem::take(&mut met.connecting) {
                let open = m.conn.fill();
                let how = match m.conn.next_message().map(|m| m.map(|m| ToStore::decode(&m))) {
                    Ok(None) if open => {
                        met.connecting.insert(rank, m);
                        continue;
                    }
                    Ok(Some(Ok(ToStore::Ready))) => {
                        if let Some(joiners) = self.waiting_joiners() {
                            let _ = m.conn.send(&joiners);
                        }
                        met.attached.insert(rank, m);
                        continue;
                    }
                    Ok(Some(Ok(ToStore::Failed { why }))) => How::GaveUp(why),
                    _ => How::Ended("ended while the ranks were connecting"),
                };
                let gave_up = matches!(how, How::GaveUp(_));
                if !gave_up {
                    self.shared.note_culprit(rank);
                }
                // Those that gave up did so on account of one that ended, if there is one.
                if failed.is_none() || !gave_up {
                    failed = Some(how.about(rank, &m.who));
                }
            }
            if let Some(why) = failed {
                for (_, m) in met.connecting {
                    self.refuse(m.conn, &why);
                }
            } else {
                self.met.push(met);
            }
        }
    }

    /// Ranks that run ask for votes, and call joiners; the connection of one that has ended, or that stays with its own store, ends.
    pub(super) fn hear_attached(&mut self) {
        for mut met in std::mem::take(&mut self.met) {
            for (rank, mut m) in std::mem::take(&mut met.attached) {
                let mut requests = Vec::new();
                if !hear_rank(&mut m.conn, &mut requests) {
                    continue;
                }
                // A store that ends with a rank has no vote beside that rank's.
                if self.shared.job().is_none() {
                    self.answer(requests, &mut |message| drop(m.conn.send(message)));
                }
                met.attached.insert(rank, m);
            }
            self.met.push(met);
        }
    }

    /// Nobody need wait for a rank that is known to have ended. A rank that joined before is missed by its connection.
    pub(super) fn miss_the_gone(&mut self) {
        let Some(round) = &self.round else { return };
        let refused = lock(&self.shared.refused).clone();
        if let Some(why) = refused {
            return self.refuse_round(&JoinError::new(why), None);
        }
        let gone = lock(&self.shared.gone).iter().find(|(r, _)| !round.members.contains_key(r)).cloned();
        if let Some((rank, how)) = gone {
            self.shared.note_culprit(rank);
            let why =
                JoinError::new(format!("rank {rank} {how} before it had joined; look at its own output"));
            self.refuse_round(&why.of([rank as usize]).because(JoinCause::Ended), Some(rank));
        }
    }
}

// Processes that cannot both be right: of another size, or for a rank that another one holds.
//
// A process that has the key belongs to the job, or to another job that was started with the same key at the same address. Neither job may
// go on as if nothing were. While the ranks meet, and for one join limit after, the job ends on every rank, with both claimants in words.
// Later the newcomer is refused, and the job goes on.
impl Server {
    /// The process that holds `rank` in a job that meets or runs, unless it is `new` itself: one process may be in several groups.
    pub(in crate::store) fn holder(&self, rank: u32, new: &Who) -> Option<&Who> {
        let is_other = |who: &&Who| who.facts.process != new.facts.process;
        self.met.iter().rev().find_map(|met| {
            let who = met.all.get(rank as usize).filter(is_other)?;
            let runs = met.attached.contains_key(&rank) || self.shared.holds(rank);
            (!met.connecting.is_empty() || runs).then_some(who)
        })
    }

    /// Refuse `new`, and end the job where it is young.
    pub(in crate::store) fn quarrel(&mut self, new: StoreMember, rank: u32, words: String) {
        let why = JoinError::new(words).of([rank as usize]).because(JoinCause::Claimed);
        let words = why.to_string();
        self.refuse(new.conn, &why);
        // A job that met here before, and has ended, has no part in this.
        let runs = self.met.iter().any(|met| met.members().next().is_some()) || self.shared.job().is_some();
        if self.round.is_some() || !runs {
            tracing::error!(words, "the ranks do not meet");
            return self.refuse_round(&why, None);
        }
        if self.first.is_some_and(|at| Instant::now() >= at + self.join) {
            return tracing::warn!(words, "refused a process; the job goes on");
        }
        tracing::error!(words, "the job ends");
        let connecting: Vec<_> =
            self.met.iter_mut().flat_map(|met| std::mem::take(&mut met.connecting)).collect();
        for (_, m) in connecting {
            self.refuse(m.conn, &why);
        }
        let end = FromStore::Refused { why }.encode();
        for m in self.met.iter_mut().flat_map(|met| met.attached.values_mut()) {
            // One that is gone is found so when it is next read.
            let _ = m.conn.send(&end);
        }
        self.condemned = Some((rank.min(self.size - 1), words));
    }

    /// End the groups of a job that runs, as soon as it has some.
    pub(in crate::store) fn condemn(&mut self) {
        if let Some((rank, words)) = self.condemned.take()
            && !self.shared.condemn(rank, &format!("cannot go on: {words}"))
        {
            self.condemned = Some((rank, words));
        }
    }
}
