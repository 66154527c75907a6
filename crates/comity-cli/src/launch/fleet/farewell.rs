//! The end of a job on several hosts: the hosts clear up, and the launcher says what happened.
use super::connection::{HostConnection, HostPhase};
use super::supervise::Fleet;
use crate::launch::shutdown::StopReason;
use crate::launch::verdict::{Findings, summary};
use crate::launch::wire::SILENCE;
use std::time::{Duration, Instant};

/// Time that hosts have to end the processes that ranks left, and that `ssh` has to end after that.
const FAREWELL: Duration = SILENCE.saturating_add(Duration::from_secs(1));

impl Fleet {
    /// Waits for the hosts to end what ranks left running, then for `ssh` to end.
    pub(super) fn farewell(&mut self) {
        let until = Instant::now() + FAREWELL;
        if !self.running {
            self.connections.iter_mut().for_each(HostConnection::close);
        }
        let soon = || Some(Instant::now() + Duration::from_millis(20));
        while self.connections.iter().any(|c| c.phase == HostPhase::Running) && Instant::now() < until {
            self.turn(soon());
        }
        self.connections.iter_mut().for_each(HostConnection::close);
        let until = Instant::now() + FAREWELL / 2;
        while Instant::now() < until && self.connections.iter_mut().any(|c| c.ended().is_none()) {
            self.turn(soon());
        }
        for connection in &mut self.connections {
            if connection.ended().is_none() {
                connection.kill();
            }
        }
        self.ranks.iter_mut().for_each(|rank| rank.finish(&self.output));
    }

    /// Ends of all ranks, for a job that failed.
    pub(super) fn summary(&self) -> Option<String> {
        let endings: Vec<_> = self.ranks.iter().map(|r| r.ending).collect();
        let ran = self.running && self.unstarted.is_none();
        let logs = self.plan.log_dir.as_deref();
        ran.then(|| summary(self.shutdown.cause(), &endings, logs)).flatten()
    }

    /// The last line and the exit code.
    pub(super) fn verdict(&mut self) -> (Option<String>, u8) {
        let ranks = &self.ranks;
        let store = &self.store;
        let told = |rank: usize| ranks.get(rank).and_then(|r| r.root_cause);
        self.shutdown.find_root_cause(|by| told(by).or_else(|| store.culprit().filter(|r| *r != by)));
        let lost = |rank: usize| {
            self.losses.iter().find(|(h, _)| self.ranks.get(rank).is_some_and(|r| r.host == *h))
        };
        let cause = match self.shutdown.cause() {
            // Those who missed it were right, and the host is why.
            Some(StopReason::Missed { rank, .. }) if lost(*rank).is_some() => {
                lost(*rank).map(|(host, _)| StopReason::HostLost { host: *host })
            }
            cause => cause.cloned(),
        };
        let failed = match &cause {
            Some(StopReason::Failed { rank, .. }) => self.ranks.get(*rank).map(|r| r.memory.as_str()),
            _ => None,
        };
        Findings {
            cause: cause.as_ref(),
            name: &|rank| self.name(rank),
            was_stopped: &|rank| self.ranks.get(rank).is_some_and(|r| r.stopped),
            memory: failed.filter(|m| !m.is_empty()),
            timeout: self.plan.timeout,
            unstarted: self.unstarted.as_ref(),
            unread: self.unread,
            lost_host: &|host| {
                let why = self.losses.iter().find(|(h, _)| *h == host).map(|(_, why)| why.clone());
                why.unwrap_or_default()
            },
        }
        .verdict()
    }
}
