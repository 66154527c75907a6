//! Questions of members to each other: who waits in which call, and how far each has come.

use super::Membership;
use crate::{Message, Note, Reason};

impl<R: Reason> Membership<R> {
    /// Tell some members that this rank has waited for them for long in a call.
    pub fn ask(&mut self, group_id: u64, members: &[usize], call: &R::Call) {
        let Some(group) = self.groups.get(&group_id) else { return };
        let others = members.iter().copied().filter(|m| *m != group.mine);
        let to = self.reachable(group, others);
        self.tell(to, Note::Waits { group_id, call: *call });
    }

    /// Tell the other members that this rank has opened the group: they wait for that.
    pub fn announce(&mut self, group_id: u64) {
        let Some(group) = self.groups.get(&group_id) else { return };
        let to = self.reachable(group, (0..group.members.len()).filter(|m| *m != group.mine));
        self.tell(to, Note::Entered { group_id });
    }

    /// Tell a member that it is to connect to this one.
    pub fn ask_to_connect(&mut self, group_id: u64, member: usize) {
        let Some(group) = self.groups.get(&group_id) else { return };
        let to = self.reachable(group, std::iter::once(member));
        self.tell(to, Note::Connect { group_id });
    }

    /// Ask members how far they have come, and what their calls up to number `at` come to. This rank's come to `digest`.
    pub fn census(&mut self, group_id: u64, members: &[usize], at: u64, digest: u64) {
        let Some(group) = self.groups.get(&group_id) else { return };
        let to = self.reachable(group, members.iter().copied().filter(|m| *m != group.mine));
        self.tell(to, Note::Census { group_id, at, digest });
    }

    /// Tell a member that asked how far this rank has come.
    pub fn answer(&mut self, group_id: u64, member: usize, reached: R::Reached) {
        let Some(group) = self.groups.get(&group_id) else { return };
        let to = self.reachable(group, std::iter::once(member));
        self.tell(to, Note::Reached { group_id, reached });
    }

    /// Tell a process about the group that follows one.
    pub fn tell_of_reform(&mut self, rank: usize, group_id: u64, message: Message) {
        if self.is_known(rank) {
            self.tell(vec![rank], Note::Reform { group_id, message: Box::new(message) });
        }
    }
}
