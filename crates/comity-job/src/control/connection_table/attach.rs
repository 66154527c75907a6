//! Control connections come.

use super::{ConnectionTable, Rest};
use crate::{
    channel::{Sealing, Stream},
    control::{
        connection::{ControlConnection, Origin, Process, keep_alive, process_of},
        note::ControlNote,
    },
};
use std::{sync::Arc, time::Instant};

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
        let me = self.me;
        let size = self.processes.len();
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
        if let Stream::Tcp(tcp) = &stream
            && let (Ok(there), Ok(here)) = (tcp.peer_addr(), tcp.local_addr())
        {
            self.membership.leads_over(rank, format!(" over TCP from {there} to rank {} at {here}", self.me));
        }
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
            *place = Some(ControlConnection::new(stream, seals, origin));
        }
        self.carry_out()
    }
}
