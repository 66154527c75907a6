//! In a large job: how news reach those that this process has no connection to. See [`crate::overlay`].

use super::Membership;
use crate::{
    Action, Note, Reason,
    overlay::{MOST_HOPS, MOST_TARGETS},
};
use std::collections::BTreeMap;

impl<R: Reason> Membership<R> {
    /// Tell processes of a large job.
    pub(super) fn tell_over(&mut self, to: Vec<usize>, note: Note<R>) {
        let Some(overlay) = &self.overlay else { return };
        let me = overlay.me;
        if note.is_for_all() {
            self.spread(note);
        } else if note.is_for_one() {
            self.pass_on(me, None, to, 0, note);
        } else {
            let to = to.into_iter().filter(|rank| overlay.connected.contains(rank)).collect();
            self.hand(to, note);
        }
    }

    /// Tell everybody.
    pub(super) fn spread(&mut self, note: Note<R>) {
        let Some(overlay) = &mut self.overlay else { return };
        if let Note::Abort { group_id, .. } = &note
            && !overlay.tells(*group_id)
        {
            return;
        }
        overlay.number += 1;
        let origin = overlay.me;
        let number = overlay.number;
        let to = overlay.connected.iter().copied().collect();
        let news = Note::Spread { origin, number, note: Box::new(note) };
        overlay.keep(&news);
        self.hand(to, news);
    }

    /// Take what came from a neighbour: what it says to this process, and from whom. News are passed on.
    pub(super) fn take_over(&mut self, rank: usize, note: Note<R>) -> Option<(usize, Note<R>)> {
        let (from, note) = match note {
            Note::Spread { origin, number, note } => (origin, self.take_news(rank, origin, number, note)?),
            Note::Passed { from, to, hops, note } => (from, self.take_passed(rank, from, to, hops, *note)?),
            note => return Some((rank, note)),
        };
        // What comes late of one that has ended changes nothing.
        self.is_known(from).then_some((from, note))
    }

    fn take_news(&mut self, rank: usize, origin: usize, number: u64, note: Box<Note<R>>) -> Option<Note<R>> {
        let overlay = self.overlay.as_mut()?;
        if !note.is_for_all() || !overlay.is_new(origin, number) {
            return None;
        }
        if let Note::Abort { group_id, .. } = &*note
            && !overlay.tells(*group_id)
        {
            return None;
        }
        let others = overlay.connected.iter().copied().filter(|r| *r != rank && *r != origin);
        let to = others.collect();
        let news = Note::Spread { origin, number, note: note.clone() };
        overlay.keep(&news);
        self.hand(to, news);
        Some(*note)
    }

    fn take_passed(
        &mut self,
        rank: usize,
        from: usize,
        mut to: Vec<usize>,
        hops: u8,
        note: Note<R>,
    ) -> Option<Note<R>> {
        let me = self.overlay.as_ref()?.me;
        if !note.is_for_one() || from == me {
            return None;
        }
        let all = to.len();
        to.retain(|target| *target != me);
        let mine = (to.len() < all).then(|| note.clone());
        self.pass_on(from, Some(rank), to, hops, note);
        mine
    }

    /// Have neighbours pass on a note of `from`, which came from neighbour `back`, to some.
    fn pass_on(&mut self, from: usize, back: Option<usize>, to: Vec<usize>, hops: u8, note: Note<R>) {
        let Some(overlay) = &self.overlay else { return };
        if hops >= MOST_HOPS {
            return;
        }
        let own = from == overlay.me;
        let (mut ways, mut near) = (BTreeMap::<usize, Vec<usize>>::new(), Vec::new());
        for target in to {
            if !self.is_known(target) {
                continue;
            }
            match overlay.next_to(target, back) {
                Some(next) if next == target && own => near.push(target),
                Some(next) => ways.entry(next).or_default().push(target),
                // It waits for its neighbours to come back, and whoever asks asks again.
                None => {}
            }
        }
        if !near.is_empty() {
            self.hand(near, note.clone());
        }
        for (next, targets) in ways {
            for part in targets.chunks(MOST_TARGETS) {
                let note = Box::new(note.clone());
                let passed = Note::Passed { from, to: part.to_vec(), hops: hops + 1, note };
                self.hand(vec![next], passed);
            }
        }
    }

    /// Send to neighbours.
    pub(super) fn hand(&mut self, to: Vec<usize>, note: Note<R>) {
        if !to.is_empty() {
            self.actions.push(Action::Tell { to, note });
        }
    }
}
