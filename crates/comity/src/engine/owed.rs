//! Debts of a peer to this rank when nothing has moved for long: a stalled peer, a cut path, and the limit of one that left.

use super::{Engine, Stop};
use crate::transport::LinkError;
use comity_membership::RESENT;
use comity_plan::Schedule;
use std::time::{Duration, Instant};

impl Engine {
    /// A peer that owes this rank the rest of a frame, after nothing has moved for `idle` and no byte of it has come: it had all of
    /// it at hand, and beats come from it, so bytes were lost on the way. A link that was down for less than the limit on silence may take
    /// [`RESENT`] times as long to send again.
    pub(super) fn stalled(&mut self, schedule: &Schedule, idle: Duration) -> Option<Stop> {
        let limit = self.silence?.saturating_mul(RESENT);
        let now = Instant::now();
        for (rx, link) in self.rx.iter_mut().zip(&self.links) {
            let arrived = link.as_ref().map_or(0, |l| l.progress().arrived);
            if rx.arrived.0 != arrived {
                rx.arrived = (arrived, Some(now));
            }
        }
        // Not one whose bytes lie here and are only not wanted yet.
        let owes = |p: &usize| {
            let rx = &self.rx[*p];
            rx.starved
                && rx.is_quiet(now, limit)
                && self.links[*p].as_ref().is_some_and(|l| l.progress().is_inside)
        };
        let peer = (idle > limit).then(|| schedule.waiting_for().into_iter().find(owes))??;
        let cause = format!("stopped in the middle of a frame: its rest did not come within {limit:?}");
        Some(self.broken(peer, LinkError(cause)))
    }

    /// A peer whose system has not acknowledged for long what this rank's system sends again, while beats come from it: its control
    /// connection takes another path, and that of the link is cut. As late as in [`stalled`](Self::stalled).
    pub(super) fn cut_off(&self, idle: Duration) -> Option<Stop> {
        let limit = self.silence?;
        if idle <= limit.saturating_mul(RESENT) {
            return None;
        }
        let silence =
            |peer: usize| self.links[peer].as_ref()?.progress().unanswered.filter(|silence| *silence > limit);
        let (peer, silence) = (0..self.links.len()).find_map(|peer| Some((peer, silence(peer)?)))?;
        let cause = format!(
            "is cut off: its system has acknowledged nothing for {silence:.1?}, though it beats over its control connection"
        );
        Some(self.broken(peer, LinkError(cause)))
    }

    /// A peer that this rank lacks something of and that left the group, so long ago that what it sent would have come. The end of
    /// its connection says so sooner, unless that is lost too, with its host or on the way. As late as in
    /// [`stalled`](Self::stalled), from when this rank saw that it had left.
    pub(super) fn left_long_ago(&mut self, schedule: &Schedule, idle: Duration) -> Option<Stop> {
        let limit = self.silence?.saturating_mul(RESENT);
        if !self.members.status.anyone_left() {
            return None;
        }
        let now = Instant::now();
        for (p, rx) in self.rx.iter_mut().enumerate() {
            if self.members.status.has_left(p) {
                rx.left.get_or_insert(now);
            }
        }
        // Not one whose bytes lie here and are only not wanted yet. A long frame over a slow link still comes.
        let owes = |p: &usize| {
            let tx = &self.tx[*p];
            let rx = &self.rx[*p];
            let long_ago = rx.left.is_some_and(|since| now - since > limit);
            long_ago && (rx.starved || tx.blocked) && rx.is_quiet(now, limit)
        };
        (idle > limit).then(|| schedule.waiting_for().into_iter().find(owes))?.map(Stop::Left)
    }
}
