//! Ends and failures: what they mean for the groups of a process, and who is told, so that all members hear of it, and each once.

use super::Membership;
use crate::{Action, Note, Presence, Reason, flood};

impl<R: Reason> Membership<R> {
    /// A flood passes by those who have not opened the group yet, and ends where no other partner has. Whoever began it tells
    /// the rest itself, when a note to each is due in any case.
    pub(super) fn make_sure(&mut self) {
        let unsure: Vec<u64> =
            self.groups.iter().filter(|(_, g)| g.unsure).map(|(group_id, _)| *group_id).collect();
        for group_id in unsure {
            self.tell_all(group_id);
            if let Some(group) = self.groups.get_mut(&group_id) {
                group.unsure = false;
            }
        }
    }

    /// `rank` has ended without a goodbye.
    pub(super) fn lose(&mut self, rank: usize, cause: &str) {
        self.ended(rank, Presence::Dead(cause.into()));
    }

    pub(super) fn ended(&mut self, rank: usize, how: Presence) {
        if !self.is_known(rank) {
            return;
        }
        let Some(place) = self.presences.get_mut(rank) else { return };
        if let (Presence::Absent, Some(overlay)) = (std::mem::replace(place, how), &mut self.overlay) {
            overlay.meets();
        }
        self.liveness.forget(rank);
        let connected = self.close(rank);
        for group_id in self.contexts_with(rank) {
            self.member_is_gone(group_id, rank);
        }
        // After the failures of the groups that both are in: their witness is known by name then.
        self.say_lost(rank, connected);
        self.actions.push(Action::News);
    }

    /// Tell a group what became of a member whose process has ended.
    ///
    /// If it ended in good order, it has left. Else the group has failed and the others are told, unless the member had left before.
    pub(super) fn member_is_gone(&mut self, group_id: u64, rank: usize) {
        let Some(presence) = self.presences.get(rank).cloned() else { return };
        let Some((group, member)) = self.member(group_id, rank) else { return };
        let mine = group.mine;
        let left = group.left.get(member) == Some(&true);
        let failure = |cause: String| R::lost(member, mine, cause);
        let failure = match presence {
            Presence::Gone(words, _) if words.is_empty() => {
                return self.apply(rank, Note::Leave { group_id });
            }
            Presence::Gone(words, because_of) => {
                let members = |r: &usize| group.members.iter().position(|m| m == r);
                let because_of = because_of.iter().filter_map(members).collect();
                failure(format!("gave up: {words}")).on_account_of(because_of)
            }
            Presence::Dead(cause) => failure(cause),
            Presence::Shut(silence) => {
                let cause = format!("was given up: nothing was heard from it for {silence:.1} s");
                R::lost(mine, member, cause)
            }
            Presence::Oneself | Presence::Absent | Presence::Live => return,
        };
        if !left {
            self.fail(group_id, None, failure);
        }
    }

    /// A group has failed, as `from`, a member, has told or this rank has seen: unless it had before, tell others, and those who
    /// wait here.
    pub(super) fn fail(&mut self, group_id: u64, from: Option<usize>, failure: R) {
        let beats = self.limit().is_some();
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let size = group.members.len();
        if let Some(knows) = from.and_then(|m| group.knows.get_mut(m)) {
            *knows = true;
        }
        if group.failed.is_some() || failure.culprit() >= size || failure.witness() >= size {
            return;
        }
        group.failed = Some(failure.clone());
        group.unsure = from.is_none() && self.overlay.is_none();
        // Told before this process can act on it and exit. Without beats nobody would make sure, so there is no flood.
        if self.overlay.is_some() {
            // Whoever hears of it has passed it on already.
            if from.is_none() {
                self.spread(Note::Abort { group_id, failure: failure.clone() });
            }
        } else if size > flood::DIRECT && beats {
            let presences = &self.presences;
            let partners = flood::partners(group.mine, size, |m| group.has(presences, m));
            self.tell_of(group_id, partners);
        } else if from.is_none() {
            self.tell_all(group_id);
        } else {
            // Where only its way to the witness is cut, it lives and cannot be told by the witness.
            self.tell_of(group_id, vec![failure.culprit()]);
        }
        self.actions.push(Action::Fail { group_id, failure });
    }

    /// Tell all members of a failed group that do not know.
    pub(super) fn tell_all(&mut self, group_id: u64) {
        let size = self.groups.get(&group_id).map_or(0, |g| g.members.len());
        self.tell_of(group_id, (0..size).collect());
    }

    /// Tell these members of a failed group, if they do not know.
    fn tell_of(&mut self, group_id: u64, members: Vec<usize>) {
        // In a large job all were told when it failed.
        if self.overlay.is_some() {
            return;
        }
        let Some(group) = self.groups.get(&group_id) else { return };
        let Some(failure) = &group.failed else { return };
        let note = Note::Abort { group_id, failure: failure.clone() };
        let news = |m: &usize| group.knows.get(*m) == Some(&false) && group.has(&self.presences, *m);
        let members: Vec<usize> = members.into_iter().filter(news).collect();
        let to = self.reachable(group, members.iter().copied());
        if let Some(group) = self.groups.get_mut(&group_id) {
            for m in members {
                if let Some(knows) = group.knows.get_mut(m) {
                    *knows = true;
                }
            }
        }
        self.tell(to, note);
    }
}
