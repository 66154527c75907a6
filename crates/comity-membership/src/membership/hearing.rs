//! Notes from the other processes, and their consequences.

use super::{KeepLast, MAX_EARLY, Membership};
use crate::{Action, Heard, Note, Presence, Reason, Word};
use std::time::{Duration, Instant};

impl<R: Reason> Membership<R> {
    /// Take in what has come by `now`, from whom, in the order of each connection.
    pub fn hear(&mut self, heard: Vec<(usize, Heard<R>)>, now: Instant) {
        if self.leaving {
            return;
        }
        let mut notes = Vec::new();
        let mut ends = Vec::new();
        for (rank, heard) in heard {
            if self.presence(rank) != Some(&Presence::Live) || !self.is_connected(rank) {
                continue;
            }
            if !matches!(heard, Heard::End(_)) {
                self.is_heard(rank);
            }
            let progress = match heard {
                Heard::End(cause) => {
                    ends.push((rank, cause));
                    continue;
                }
                Heard::Note(Note::Heartbeat { progress }) => {
                    self.liveness.begin(rank, now);
                    Some(progress)
                }
                Heard::Note(note) => {
                    notes.extend(self.take_over(rank, note));
                    None
                }
            };
            self.measure(rank, self.liveness.silence(rank, now));
            if let Some(silence) = self.liveness.hear(rank, now, progress) {
                self.actions.push(Action::Log(Word::Back { rank, silence }));
            }
        }
        // A process that wakes finds at once what all others said while it slept. That it was given up explains the rest.
        notes.sort_by_key(|(_, note)| !matches!(note, Note::GivenUp { .. }));
        for (from, note) in notes {
            self.apply(from, note);
        }
        for (rank, cause) in ends {
            if !self.never_stood(rank, now) {
                self.lose(rank, cause);
            }
        }
        self.look_around(now);
    }

    /// A process has shown on a new connection that it lives.
    pub fn lives(&mut self, rank: usize, now: Instant) {
        if self.leaving || self.presence(rank) != Some(&Presence::Live) {
            return;
        }
        self.measure(rank, self.liveness.silence(rank, now));
        self.liveness.lives(rank, now);
    }

    /// The system says that a process lives and has had no turn: its silence so far does not count.
    pub fn has_no_turn(&mut self, rank: usize, now: Instant) {
        if self.leaving || self.presence(rank) != Some(&Presence::Live) {
            return;
        }
        let silence = self.liveness.hear(rank, now, None);
        self.measure(rank, silence);
    }

    /// Act on a note.
    pub(super) fn apply(&mut self, from: usize, note: Note<R>) {
        if let Some(group_id) = note.group_id()
            && !self.groups.contains_key(&group_id)
        {
            return self.apply_unopened(group_id, from, note);
        }
        match note {
            Note::Leave { group_id } => {
                if let Some((group, member)) = self.member(group_id, from) {
                    if let Some(left) = group.left.get_mut(member) {
                        *left = true;
                    }
                    self.actions.push(Action::Left { group_id, member });
                }
            }
            Note::Entered { group_id } => {
                if let Some((_, member)) = self.member(group_id, from) {
                    self.actions.push(Action::Entered { group_id, member });
                }
            }
            Note::Connect { group_id } => {
                if let Some((_, member)) = self.member(group_id, from) {
                    self.actions.push(Action::Connect { group_id, member });
                }
            }
            Note::Waits { group_id, call } => {
                if let Some((group, member)) = self.member(group_id, from) {
                    let mine = group.mine;
                    self.actions.push(Action::Waits { group_id, mine, member, call });
                }
            }
            Note::Census { group_id, at, digest } => {
                if let Some((_, member)) = self.member(group_id, from) {
                    self.actions.push(Action::Census { group_id, member, at, digest });
                }
            }
            Note::Reached { group_id, reached } => {
                if let Some((_, member)) = self.member(group_id, from) {
                    self.actions.push(Action::Reached { group_id, member, reached });
                }
            }
            Note::Abort { group_id, failure } => {
                if let Some((_, member)) = self.member(group_id, from) {
                    self.fail(group_id, Some(member), failure);
                }
            }
            Note::Reform { group_id, message } => {
                self.actions.push(Action::Reform { from, group_id, message: *message });
            }
            // Heard already.
            Note::Heartbeat { .. } => {}
            Note::Goodbye { words, because_of } => self.ended(from, Presence::Gone(words, because_of)),
            Note::GivenUp { silence } => {
                self.ended(from, Presence::Shut(Duration::from_millis(silence).as_secs_f64()));
            }
            Note::Lost { by, rank, cause, silence } => self.edge_is_gone(by, rank, cause, silence),
            Note::NoWay { ranks } => self.no_way(from, ranks),
            // Taken apart when they came.
            Note::Spread { .. } | Note::Passed { .. } => {}
        }
    }

    /// A note has come about a group that is not open here: not yet, or not any more.
    fn apply_unopened(&mut self, group_id: u64, from: usize, note: Note<R>) {
        // Whoever has closed the group said so.
        if self.is_closed(group_id) {
            return;
        }
        match note {
            // This rank has made no call in it.
            Note::Census { .. } => {
                self.tell(vec![from], Note::Reached { group_id, reached: R::Reached::default() });
                return;
            }
            // The group that asked is over.
            Note::Reached { .. } => return,
            // Of its own, so that other notes do not push it out: whoever opens the group waits for it.
            Note::Entered { .. } => {
                self.entered_early(group_id, from);
                return;
            }
            Note::Waits { .. } => {
                // Only its last word counts.
                let old = |(f, n): &(usize, Note<R>)| matches!(n, Note::Waits { group_id: c, .. } if *c == group_id && *f == from);
                self.early.retain(|e| !old(e));
            }
            Note::Leave { .. }
            | Note::Connect { .. }
            | Note::Abort { .. }
            | Note::Heartbeat { .. }
            | Note::Goodbye { .. }
            | Note::GivenUp { .. }
            | Note::Reform { .. }
            | Note::Lost { .. }
            | Note::NoWay { .. }
            | Note::Spread { .. }
            | Note::Passed { .. } => {}
        }
        self.early.keep_last(MAX_EARLY - 1);
        self.early.push_back((from, note));
    }

    /// A member has opened a group that this process has not. In a large job all hear of all groups, so the oldest make room.
    fn entered_early(&mut self, group_id: u64, from: usize) {
        if self.entered.len() >= MAX_EARLY && !self.entered.contains_key(&group_id) {
            let Some(overlay) = &mut self.overlay else { return };
            if let Some(oldest) = overlay.opened.pop_front() {
                self.entered.remove(&oldest);
            }
        }
        if let Some(overlay) = &mut self.overlay
            && !self.entered.contains_key(&group_id)
        {
            overlay.opened.push_back(group_id);
        }
        self.entered.entry(group_id).or_default().insert(from);
    }
}
