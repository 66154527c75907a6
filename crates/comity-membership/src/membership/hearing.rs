//! Notes, ends and silences, what follows from them for the groups, and who is told, so that all
//! members hear of it, and each once.

use super::{Group, KeepLast, MAX_EARLY, Membership};
use crate::{Action, Heard, Note, Presence, Reason, Verdict, Word, flood};
use std::time::{Duration, Instant};

/// Addition to the cause by a rank that hears nobody.
const ALONE: &str = ", and nothing of any other rank either; perhaps it is this host that is cut off";

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
            Note::Leave { group_id }
            | Note::Entered { group_id }
            | Note::Connect { group_id }
            | Note::Waits { group_id, .. }
            | Note::Census { group_id, .. }
            | Note::Reached { group_id, .. } => {
                let Some((group, member)) = self.member(group_id, from) else { return };
                let mine = group.mine;
                if matches!(note, Note::Leave { .. })
                    && let Some(left) = group.left.get_mut(member)
                {
                    *left = true;
                }
                self.actions.push(Action::Said { mine, member, note });
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

    /// Give up whoever has been silent for too long, and beat when it is time.
    ///
    /// Everything that had come by `heard_until` must have been heard. `progress` says how far this process's engines have come.
    pub fn tick(&mut self, heard_until: Instant, now: Instant, progress: u64) {
        if self.leaving {
            return;
        }
        for verdict in self.liveness.tick(heard_until, now) {
            match verdict {
                Verdict::Suspect { rank, .. } => {
                    for group_id in self.contexts_with(rank) {
                        self.actions.push(Action::Suspect { group_id });
                    }
                }
                Verdict::Dead { rank, silence } => {
                    self.measure(rank, Some(silence));
                    // It stays in the connection after its end, and is read when that rank runs again.
                    self.tell(vec![rank], Note::GivenUp { silence: silence.as_millis() as u64 });
                    let alone = if self.hears_nobody(rank, heard_until) { ALONE } else { "" };
                    let seconds = silence.as_secs_f64();
                    self.is_silent_for(silence);
                    let path = self.paths.get(&rank).map_or("", String::as_str);
                    self.lose(rank, &format!("fell silent: nothing heard for {seconds:.1} s{path}{alone}"));
                }
                Verdict::Stuck { rank, silence } => {
                    let cause = format!(
                        "answers on new connections, but its control connection has carried nothing for {:.1} s; look at what lies between the hosts",
                        silence.as_secs_f64()
                    );
                    self.tell(vec![rank], Note::GivenUp { silence: silence.as_millis() as u64 });
                    self.is_silent_for(silence);
                    self.lose(rank, &cause);
                }
            }
            self.actions.push(Action::Log(Word::Silent(verdict)));
        }
        let asks = self.liveness.asks(now);
        self.actions.extend(asks.into_iter().map(|rank| Action::Ask { rank }));
        self.look_around(now);
        self.rewire(now);
        self.beat(now, progress);
    }

    /// Beat when it is time. [`tick`](Self::tick) does so too.
    pub fn beat(&mut self, now: Instant, progress: u64) {
        if !self.leaving && self.liveness.beats(now) {
            self.make_sure();
            self.actions.push(Action::Beat { progress });
        }
    }

    /// A silence of `rank` is over, if it was one.
    pub(super) fn measure(&mut self, rank: usize, silence: Option<Duration>) {
        let Some(silence) = silence else { return };
        let longer = |g: &Group<R>| silence > g.silence && g.members.contains(&rank);
        for (group_id, group) in self.groups.iter_mut().filter(|(_, g)| longer(g)) {
            group.silence = silence;
            self.actions.push(Action::Silence { group_id: *group_id, silence });
        }
    }

    /// Return whether nothing is heard of any other rank either, `rank` being given up.
    fn hears_nobody(&self, rank: usize, now: Instant) -> bool {
        let others = self.presences.iter().enumerate();
        let others = others.filter(|(r, p)| *r != rank && **p == Presence::Live && self.is_connected(*r));
        // Of those that are heard through it nothing can be heard.
        let others = others.filter(|(r, _)| !self.liveness.is_through(*r, rank));
        // Those given up a moment before were silent, too.
        let gone =
            self.presences.iter().filter(|p| matches!(p, Presence::Dead(c) if c.ends_with(ALONE))).count();
        let silent: Vec<bool> = others.map(|(r, _)| self.liveness.is_quiet(r, now)).collect();
        silent.len() + gone > 0 && silent.iter().all(|s| *s)
    }

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
