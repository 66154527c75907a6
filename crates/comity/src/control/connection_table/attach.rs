//! Control connections come, and go on over others.

use super::{ConnectionTable, Rest, perform::Question};
use crate::{
    channel::{Sealing, Stream},
    control::{
        kept_conn::{KeptConn, Origin, Process, keep_alive, process_of},
        note::ControlNote,
    },
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Time limit for the acknowledgement of the last words before another path is tried.
const LAST_ASK: Duration = Duration::from_millis(250);

/// Number of processes of a large job that are watched by a pidfd beside their connection: the nearest of this host.
const NEAREST: usize = 4;

/// Returns the rank that a note declares lost.
pub(super) fn lost(note: &ControlNote) -> Option<usize> {
    match note {
        ControlNote::Spread { note, .. } => match **note {
            ControlNote::Lost { rank, .. } => Some(rank),
            _ => None,
        },
        _ => None,
    }
}

impl ConnectionTable {
    /// Returns true if a rank that has connected is to be watched by a descriptor. In a large job it takes the place of one that is farther away.
    fn is_watched(&mut self, rank: usize, stream: &Stream) -> bool {
        if !self.is_sparse() || !matches!(stream, Stream::Unix(_)) {
            return self.watched.contains(&rank);
        }
        let (me, size) = (self.me, self.processes.len());
        let apart = |r: usize| {
            let forth = (r + size - me) % size;
            forth.min(size - forth)
        };
        let watched = || self.processes.iter().enumerate().filter(|(_, p)| p.is_some()).map(|(r, _)| r);
        if watched().count() < NEAREST {
            return true;
        }
        let farthest = watched().max_by_key(|r| apart(*r)).filter(|r| apart(*r) > apart(rank));
        if let Some(place) = farthest.and_then(|r| self.processes.get_mut(r)) {
            *place = None;
        }
        farthest.is_some()
    }

    /// Returns true if the process of a rank that another rank has lost is no more. Its connection may not have ended: a child that it forked keeps
    /// its sockets open. Where it is there, its end is seen from now on.
    pub(super) fn has_ended(&mut self, rank: usize) -> bool {
        let (Some(place @ None), Some(Some(conn))) = (self.processes.get_mut(rank), self.conns.get(rank))
        else {
            return false;
        };
        match process_of(conn.stream()) {
            Some(Process::Is(process)) => {
                *place = Some(Arc::new(process));
                false
            }
            Some(Process::HasEnded) => true,
            None => false,
        }
    }

    pub(in crate::control) fn attach(
        &mut self,
        rank: usize,
        (stream, seals): (Stream, Sealing),
        (origin, relays): (Origin, Vec<usize>),
        now: Instant,
    ) -> Rest {
        if !self.membership.attach(rank, now) {
            return Rest::default();
        }
        self.membership.pass_through(rank, relays);
        if let Err(e) = keep_alive(&stream, self.membership.limit()) {
            // The beats find what this would have found.
            tracing::debug!(rank, %e, "no keepalive on a control connection");
        }
        // A descriptor each would be as many as there are connections. Who hears of an end tells the others.
        if self.is_watched(rank, &stream)
            && let Some(place) = self.processes.get_mut(rank)
            // Of one that has ended, what it said before is read first.
            && let Some(Process::Is(process)) = process_of(&stream)
        {
            *place = Some(Arc::new(process));
        }
        if let Some(place) = self.conns.get_mut(rank) {
            *place = Some(KeptConn::new(stream, seals, origin));
        }
        self.carry_out()
    }

    /// Returns true if new connection `number` may take the place of the one with `rank`.
    pub(in crate::control) fn may_resume(&self, rank: usize, number: u64) -> bool {
        matches!(self.conns.get(rank), Some(Some(conn)) if conn.may_renew(number))
    }

    /// The connection with `rank` goes on over another one.
    pub(in crate::control) fn resume(&mut self, rank: usize, number: u64, stream: Stream, seals: Sealing) {
        if let Some(Some(conn)) = self.conns.get_mut(rank)
            && conn.may_renew(number)
        {
            if let Err(e) = keep_alive(&stream, self.membership.limit()) {
                tracing::debug!(rank, %e, "no keepalive on a control connection");
            }
            tracing::info!(rank, "the control connection with a rank goes on over another path");
            conn.renew(number, stream, seals);
        }
    }

    /// Returns the ranks to ask at once for another connection: a connection to them had begun and leads nowhere. While this process leaves,
    /// also ranks that may not have heard its last words.
    pub(in crate::control) fn unresumed(&mut self, now: Instant) -> Vec<Question> {
        let (is_leaving, patience) = (self.stop.is_some(), self.patience());
        let mut all = Vec::new();
        for (rank, conn) in self.conns.iter_mut().enumerate() {
            let Some(conn) = conn.as_mut().filter(|c| c.is_ours() && c.has_second()) else { continue };
            let wants = match (is_leaving, patience) {
                (true, _) => {
                    (conn.is_paused() || !conn.stream().has_arrived()) && conn.wants_other(LAST_ASK, now)
                }
                (false, Some(patience)) => conn.is_paused() && conn.wants_other(patience, now),
                _ => false,
            };
            let wants = wants && conn.asks(now);
            if let Some(at) = conn.stream().peer_addr().filter(|_| wants) {
                all.push(Question { rank, at, has_other: true, resumes: true });
            }
        }
        all
    }

    /// Returns the time for which a connection may carry nothing before another path is tried.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.membership.limit().map(|limit| limit / 5)
    }

    /// Returns true if a rank may not hear the last words of this process before its connection goes on over another path.
    pub(in crate::control) fn is_unsaid(&self) -> bool {
        self.conns.iter().flatten().any(KeptConn::is_unsaid)
    }
}

/// Returns true if a connection may still carry last words. The peers' own messages are no news now: they may well close first.
pub(super) fn goes_on_leaving(conn: &mut KeptConn) -> bool {
    if !conn.has_second() {
        // No blame any more, and no reason to look again at once.
        let _ = conn.take_full();
        return conn.flush().is_ok();
    }
    let open = conn.fill();
    while let Ok(Some(_)) = conn.next() {}
    open && conn.flush().is_ok() && !conn.take_full()
}
