//! Processes that cannot both be right: of another size, or for a rank that another one holds.
//!
//! A process that has the key belongs to the job, or to another job that was started with the same key at the same address. Neither job may
//! go on as if nothing were. While the ranks meet, and for one join limit after, the job ends on every rank, with both claimants in words.
//! Later the newcomer is refused, and the job goes on.

use super::server::{Server, StoreMember, Who};
use crate::{JoinCause, JoinError, wire::FromStore};
use std::time::Instant;

impl Server {
    /// The process that holds `rank` in a job that meets or runs, unless it is `new` itself: one process may be in several groups.
    pub(super) fn holder(&self, rank: u32, new: &Who) -> Option<&Who> {
        let is_other = |who: &&Who| who.facts.process != new.facts.process;
        self.met.iter().rev().find_map(|met| {
            let who = met.all.get(rank as usize).filter(is_other)?;
            let runs = met.attached.contains_key(&rank) || self.shared.holds(rank);
            (!met.connecting.is_empty() || runs).then_some(who)
        })
    }

    /// Refuse `new`, and end the job where it is young.
    pub(super) fn quarrel(&mut self, new: StoreMember, rank: u32, words: String) {
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
    pub(super) fn condemn(&mut self) {
        if let Some((rank, words)) = self.condemned.take()
            && !self.shared.condemn(rank, &format!("cannot go on: {words}"))
        {
            self.condemned = Some((rank, words));
        }
    }
}
