//! Sleep of a rank: on the descriptors of the links that lack something, and the group's waker.

use super::{Engine, Members};
use crate::{recorder::NOBODY, transport::Interest};
use comity_plan::Schedule;
use rustix::event::{PollFd, PollFlags};
use std::{sync::atomic::Ordering, time::Duration};

impl Engine {
    /// Returns true if `peer` left and this rank lacks something of it that cannot be under way. Bytes that it sent over a network may arrive
    /// after its goodbye; there the end of the connection tells.
    pub(super) fn has_left(&self, peer: usize) -> bool {
        let lacks = self.rx[peer].starved || self.tx[peer].blocked;
        let status = &self.members.status;
        let is_all_here = match &self.links[peer] {
            Some(link) => !link.properties().may_lag,
            // What it made may still come.
            None => status.links().is_ruled_out(peer),
        };
        lacks && is_all_here && status.has_left(peer)
    }

    /// Lists each peer's missing bytes or room.
    pub(super) fn lacks(&self) -> impl Iterator<Item = (usize, Interest)> {
        self.tx.iter().zip(&self.rx).enumerate().filter_map(|(p, (tx, rx))| {
            let i = Interest { recv: rx.starved, send: tx.blocked };
            (i.recv || i.send).then_some((p, i))
        })
    }

    /// Returns true if a link through memory lacks something.
    pub(super) fn lacks_memory(&self) -> bool {
        self.lacks().any(|(p, _)| self.links[p].as_ref().is_some_and(|l| l.properties().is_memory))
    }

    pub(super) fn arm(&mut self, schedule: &Schedule) {
        // Flags of peers whose queues ended in an earlier look are stale.
        let open_send: Vec<_> = (0..schedule.send_queues())
            .filter(|&q| schedule.send_is_open(q))
            .map(|q| schedule.send_peer(q))
            .collect();
        let open_recv: Vec<_> = (0..schedule.recv_queues())
            .filter(|&q| schedule.next_recv(q).is_some())
            .map(|q| schedule.recv_peer(q))
            .collect();
        for p in 0..self.tx.len() {
            self.tx[p].blocked &= open_send.contains(&p);
            self.rx[p].starved &= open_recv.contains(&p);
        }
        let lacks: Vec<_> = self.lacks().collect();
        for (p, i) in lacks {
            if let Some(link) = &mut self.links[p] {
                link.arm(i);
            }
        }
    }

    pub(super) fn disarm(&mut self) {
        for link in self.links.iter_mut().flatten() {
            // A link that ended says so again when it is used.
            let _ = link.disarm();
        }
        self.members.status.drain();
    }

    pub(super) fn sleep(&self, limit: Duration, idle: Duration) {
        let mut fds = Vec::with_capacity(self.links.len() + 1);
        for (p, i) in self.lacks() {
            if let Some(link) = &self.links[p] {
                link.fds(i, &mut fds);
            }
        }
        let polls = fds.iter().map(|(fd, i)| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, i.recv);
            flags.set(PollFlags::OUT, i.send);
            PollFd::from_borrowed_fd(*fd, flags)
        });
        let Members { status, counters, .. } = &self.members;
        if let Some((p, _)) = self.lacks().min_by_key(|(_, i)| !i.recv) {
            if counters.parked_on.load(Ordering::Relaxed) == NOBODY {
                counters.parked_on.store(p as u32, Ordering::Relaxed);
            }
            counters.sleeps_for(self.members.ranks[p]);
            status.sleeps_for(p, idle);
        }
        // WAIT(limit): what a link lacks, to the limit of who calls; the waker wakes for a failure
        self.members.sleep(polls.collect(), limit);
    }
}
