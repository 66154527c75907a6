//! Links that are made while calls run: asked for by the first call that names a peer, taken over when they stand.

use super::Engine;
use comity_plan::Schedule;

impl Engine {
    /// Ask for links that `schedule` needs and that are not there; whether some are not.
    #[inline]
    pub(super) fn want_links(&mut self, schedule: &Schedule) -> bool {
        if self.unlinked == 0 {
            return false;
        }
        self.take_links();
        let senders = (0..schedule.send_queues()).map(|q| schedule.send_peer(q));
        let peers = senders.chain((0..schedule.recv_queues()).map(|q| schedule.recv_peer(q)));
        let mut lacking = peers.filter(|&p| self.links[p].is_none());
        let Some(first) = lacking.next() else { return false };
        let mut wanted: Vec<usize> = std::iter::once(first).chain(lacking).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let members = &self.members;
        members.world.want(members.group_id, &wanted);
        true
    }

    /// Let the bytes over the link to `rank` be seen from outside, where somebody can look.
    pub(super) fn watch(&mut self, rank: usize) {
        let Some(kind) = self.links[rank].as_ref().and_then(|l| l.properties().kind.wire()) else { return };
        let live = self.members.counters.link(self.members.ranks[rank], kind);
        self.tx[rank].live.clone_from(&live);
        self.rx[rank].live = live;
    }

    /// Take over what was made; whether there was something.
    #[inline]
    pub(super) fn take_links(&mut self) -> bool {
        let made = self.members.status.links().take();
        let any = !made.is_empty();
        for (rank, link) in made {
            if let Some(place @ None) = self.links.get_mut(rank) {
                *place = Some(link);
                self.unlinked -= 1;
                self.watch(rank);
            }
        }
        any
    }
}
