//! What members ask each other: who waits in which call, and how far each has come; and whether anybody is heard at all.

use super::{Membership, Presence};
use crate::{
    boot::wire::Note,
    engine::{Header, Reached},
};
use std::time::Instant;

/// What a rank says that hears nobody.
pub(super) const ALONE: &str =
    ", and nothing of any other rank either; perhaps it is this host that is cut off";

impl Membership {
    /// Tell some members that this rank has waited for them for long in a call.
    pub(in crate::boot) fn ask(&mut self, context: u64, members: &[usize], call: &Header) {
        let Some(group) = self.groups.get(&context) else { return };
        let others = members.iter().copied().filter(|m| *m != group.mine);
        let to = self.reachable(group, others);
        self.tell(to, Note::Waits { context, call: *call });
    }

    /// Ask all other members how far they have come, and what their calls up to number `at` come to, this rank's coming to `digest`.
    pub(in crate::boot) fn census(&mut self, context: u64, at: u64, digest: u64) {
        let Some(group) = self.groups.get(&context) else { return };
        let to = self.reachable(group, (0..group.members.len()).filter(|m| *m != group.mine));
        self.tell(to, Note::Census { context, at, digest });
    }

    /// How far this rank has come, for a member that asked.
    pub(in crate::boot) fn answer(&mut self, context: u64, member: usize, reached: Reached) {
        let Some(group) = self.groups.get(&context) else { return };
        let to = self.reachable(group, std::iter::once(member));
        self.tell(to, Note::Reached { context, reached });
    }

    /// Whether nothing is heard of any other rank either, `rank` being given up.
    pub(super) fn hears_nobody(&self, rank: usize, now: Instant) -> bool {
        let others = self.presences.iter().enumerate().filter(|(r, p)| *r != rank && **p == Presence::Live);
        // Those given up a moment before were silent, too.
        let gone =
            self.presences.iter().filter(|p| matches!(p, Presence::Dead(c) if c.ends_with(ALONE))).count();
        let silent: Vec<bool> = others.map(|(r, _)| self.liveness.is_quiet(r, now)).collect();
        silent.len() + gone > 0 && silent.iter().all(|s| *s)
    }
}
