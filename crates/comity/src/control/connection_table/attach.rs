//! Control connections come, and go on over others.

use super::{ConnectionTable, Rest};
use crate::{
    channel::{Sealing, Stream},
    control::kept_conn::{KeptConn, keep_alive, process_of},
};
use std::{sync::Arc, time::Instant};

impl ConnectionTable {
    pub(in crate::control) fn attach(
        &mut self,
        rank: usize,
        (stream, seals): (Stream, Sealing),
        is_passed_on: bool,
        now: Instant,
    ) -> Rest {
        if !self.membership.attach(rank, now) {
            return Rest::default();
        }
        if let Err(e) = keep_alive(&stream, self.membership.limit()) {
            // The beats find what this would have found.
            tracing::debug!(rank, %e, "no keepalive on a control connection");
        }
        // A descriptor each would be as many as there are connections. Who hears of an end tells the others.
        if let Some(place) = self.processes.get_mut(rank).filter(|_| self.watched.contains(&rank)) {
            *place = process_of(&stream).map(Arc::new);
        }
        if let Some(place) = self.conns.get_mut(rank) {
            *place = Some(KeptConn::new(stream, seals, is_passed_on));
        }
        self.carry_out()
    }

    /// Whether new connection `number` may take the place of the one with `rank`.
    pub(in crate::control) fn may_resume(&self, rank: usize, number: u64) -> bool {
        matches!(self.conns.get(rank), Some(Some(conn)) if conn.number() < number)
    }

    /// The connection with `rank` goes on over another one.
    pub(in crate::control) fn resume(&mut self, rank: usize, number: u64, stream: Stream, seals: Sealing) {
        if let Some(Some(conn)) = self.conns.get_mut(rank)
            && conn.number() < number
        {
            if let Err(e) = keep_alive(&stream, self.membership.limit()) {
                tracing::debug!(rank, %e, "no keepalive on a control connection");
            }
            tracing::info!(rank, "the control connection with a rank goes on over another path");
            conn.renew(number, stream, seals);
        }
    }
}
