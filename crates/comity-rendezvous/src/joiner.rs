//! Joiners: processes that come while the job runs, and wait at the launcher's store until a group forms again with them.
//!
//! ```text
//!   joiner:  Wait  ------>  store  ------>  Joiners{all} to every rank that runs
//!   the rank that proposes the next group starts a store for its meeting, and has the launcher's call the joiners:
//!            Summon{joiners, rank, size, addresses}  ------>  store  ------>  Summoned, to each
//!   all meet at that store as at a job's start; in a group that then does not come about the joiner waits again
//!   where that happens twice the rank has the joiners sent away (Decline), for they may be the reason
//! ```

use super::{
    meet::StoreClient,
    wire::{Summons, ToStore},
};
use crate::{Error, JoinCause, JoinError, Result, sys::poll_joining};
use rustix::event::{PollFd, PollFlags};
use std::{net::IpAddr, sync::Arc};

/// Meetings to which a joiner is called.
const MOST_CALLS: u32 = 2;

impl StoreClient {
    /// Number of processes that wait to be taken in, as far as the store has told.
    pub fn joiners(&self) -> &[u64] {
        &self.joiners
    }

    /// Returns true if a joiner waits, or has been called and has not said how that went: it has not ended.
    pub fn has(&self, joiner: u64) -> bool {
        self.joiners.contains(&joiner) || self.called.contains(&joiner)
    }

    /// This process's address on the way to the store.
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// Have the store call joiners.
    pub fn summon(&mut self, joiners: Vec<u64>, to: Summons) {
        // The store says so, too, a moment later.
        self.joiners.retain(|number| !joiners.contains(number));
        self.called.extend(&joiners);
        self.last_called.clone_from(&joiners);
        // A store that is gone is found when it is next heard.
        let _ = self.conn.send(&ToStore::Summon { joiners, to }.encode());
    }

    /// No group came of the last meeting to which joiners were called, and they may be the reason.
    pub fn blame(&mut self, words: &str) {
        self.fault = words.into();
        for joiner in std::mem::take(&mut self.last_called) {
            *self.in_vain.entry(joiner).or_default() += 1;
        }
    }

    /// Returns the joiners to call; those that were called in vain too often are sent away.
    pub fn invited(&mut self) -> Vec<u64> {
        let is_hopeless = |joiner: &u64| self.in_vain.get(joiner).is_some_and(|n| *n >= MOST_CALLS);
        let (hopeless, others): (Vec<u64>, Vec<u64>) = self.joiners.iter().partition(|j| is_hopeless(j));
        if !hopeless.is_empty() {
            let words = format!(
                "the job's ranks form no group with this process, and go on without it: {}; start it as they were started, on a host that reaches theirs",
                self.fault
            );
            tracing::warn!(words, "processes that wait to be taken in are sent away");
            let why = JoinError::new(words).because(JoinCause::Unreachable);
            let _ = self.conn.send(&ToStore::Decline { joiners: hopeless, why }.encode());
            self.joiners.clone_from(&others);
        }
        others
    }

    /// Say that this process waits to be taken in.
    pub fn enlist(&mut self, host: String, place: Option<u32>) -> Result<()> {
        self.summons = None;
        let wait = ToStore::Wait { host, pid: std::process::id(), place };
        self.conn.send(&wait.encode()).map_err(|e| self.gone(&e.to_string()))
    }

    /// Say that this process has been taken in.
    pub fn is_in(&mut self) {
        let _ = self.conn.send(&ToStore::Ready.encode());
    }

    /// Wait until this process is called to a meeting.
    pub fn summoned(&mut self) -> Result<Summons> {
        loop {
            let open = self.hear()?;
            if let Some(to) = self.summons.take() {
                return Ok(to);
            }
            if !open {
                return Err(self.gone("it ended"));
            }
            let stream = Arc::clone(self.conn.stream());
            let write = if self.conn.is_pending() { PollFlags::OUT } else { PollFlags::empty() };
            // WAIT(poll_joining): a job that runs, for as long as it does not form again; the store's end is seen
            poll_joining(&mut [PollFd::new(&stream, PollFlags::IN | write)], None)?;
            self.conn.flush().map_err(|e| self.gone(&e.to_string()))?;
        }
    }

    fn gone(&self, how: &str) -> Error {
        Error::join(format!("the joiner lost the job's store ({how}); has the job ended?"))
    }
}
