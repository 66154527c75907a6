//! [`Membership`]: who is there, who belongs to which group, and what follows from what is heard.

mod sparse;

use crate::{
    Action, DIED, Fault, Heard, Message, Note, Pace, Presence, Reason, Verdict, Word,
    liveness::Liveness,
    overlay::{Overlay, overlay_neighbours},
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

/// Notes kept for groups that this rank has not opened yet.
const MAX_EARLY: usize = 4096;
/// Groups remembered as closed, so that late words about them are not kept.
const MAX_CLOSED: usize = 4096;

/// Addition to the cause by a rank that hears nobody.
const ALONE: &str = ", and nothing of any other rank either; perhaps it is this host that is cut off";

/// A group that this rank has opened and not left.
#[derive(Debug)]
struct Group<R> {
    /// The processes, in the order of the group.
    members: Vec<usize>,
    /// This rank in the group.
    mine: usize,
    left: Vec<bool>,
    /// The first reason; it stays.
    failed: Option<R>,
    /// Members that were told of it, or told this rank.
    knows: Vec<bool>,
    /// For how long a member was silent at the most, before it was heard again or given up.
    silence: Duration,
}

impl<R> Group<R> {
    /// Return whether a member has, as far as this rank knows, neither left nor ended.
    fn has(&self, presences: &[Presence], member: usize) -> bool {
        let presence = self.members.get(member).and_then(|rank| presences.get(*rank));
        presence == Some(&Presence::Live) && self.left.get(member) == Some(&false)
    }
}

/// State of the other processes of a job, as one process knows it, and its decisions about them.
///
/// Processes have numbers from 0, their ranks. A group is a list of processes; its members are numbered in that order.
/// Methods that change something push [`Action`]s, which [`actions`](Self::actions) hands out. Times may not run
/// backwards from one call to the next.
#[derive(Debug)]
pub struct Membership<R: Reason> {
    presences: Vec<Presence>,
    /// In order of their names, so that a run can be repeated.
    groups: BTreeMap<u64, Group<R>>,
    closed: VecDeque<u64>,
    early: VecDeque<(usize, Note<R>)>,
    /// Ranks that have opened groups which this rank has not opened yet.
    entered: BTreeMap<u64, BTreeSet<usize>>,
    liveness: Liveness,
    /// The path of the connection to a process, in words, where it is known.
    paths: BTreeMap<usize, String>,
    /// Graph of a job whose processes are not all connected to each other.
    overlay: Option<Overlay>,
    /// All news of a large job while neighbours of this process are missing: those that connect later are told them.
    news: Vec<Note<R>>,
    /// This process has said goodbye.
    leaving: bool,
    actions: Vec<Action<R>>,
}

impl<R: Reason> Membership<R> {
    /// Start as process `me` of `size`. A process that is silent for longer than the limit is given up.
    pub fn new(me: usize, size: usize, silence: impl Into<Pace>) -> Self {
        Self {
            presences: (0..size)
                .map(|r| if r == me { Presence::Oneself } else { Presence::Absent })
                .collect(),
            groups: BTreeMap::new(),
            closed: VecDeque::new(),
            early: VecDeque::new(),
            entered: BTreeMap::new(),
            liveness: Liveness::new(size, silence),
            paths: BTreeMap::new(),
            overlay: None,
            news: Vec::new(),
            leaving: false,
            actions: Vec::new(),
        }
    }

    /// Start in a large job, where each process is connected to its [neighbours](overlay_neighbours) only.
    pub fn sparse(me: usize, size: usize, silence: impl Into<Pace>) -> Self {
        let mut one = Self::new(me, size, silence);
        let near = overlay_neighbours(me, size);
        for (rank, presence) in one.presences.iter_mut().enumerate() {
            // All have met; whoever is no neighbour is there until somebody says otherwise.
            if rank != me && !near.contains(&rank) {
                *presence = Presence::Live;
            }
        }
        one.overlay = Some(Overlay::new(me, size));
        one
    }

    /// Return whether the processes are not all connected to each other.
    pub fn is_sparse(&self) -> bool {
        self.overlay.is_some()
    }

    /// Return whether this process is to [make](Action::Dial) a connection to `rank`, and has not reported the result.
    pub fn is_dialing(&self, rank: usize) -> bool {
        self.overlay.as_ref().is_some_and(|o| o.dialing.contains_key(&rank))
    }

    /// Return whether this process has a control connection to `rank`.
    pub fn is_connected(&self, rank: usize) -> bool {
        match &self.overlay {
            Some(overlay) => overlay.connected.contains(&rank),
            None => self.presences.get(rank) == Some(&Presence::Live),
        }
    }

    /// Take what is to be done since the last time. Do it before the next change.
    pub fn actions(&mut self) -> Vec<Action<R>> {
        std::mem::take(&mut self.actions)
    }

    /// Presence of `rank`; `None` if there is no such process.
    pub fn presence(&self, rank: usize) -> Option<&Presence> {
        self.presences.get(rank)
    }

    /// Limit on a process's silence.
    pub fn limit(&self) -> Option<Duration> {
        self.liveness.limit()
    }

    /// When to call [`tick`](Self::tick) at the latest.
    pub fn next(&self) -> Option<Instant> {
        let rewire = self.overlay.as_ref().and_then(|o| o.rewire);
        if self.leaving { None } else { self.liveness.next().into_iter().chain(rewire).min() }
    }

    /// The processes of a group in its order, if it is open here.
    pub fn members(&self, group_id: u64) -> Option<&[usize]> {
        Some(&self.groups.get(&group_id)?.members)
    }

    /// Return whether this process has left a group.
    pub fn is_closed(&self, group_id: u64) -> bool {
        self.closed.contains(&group_id)
    }

    /// A process has connected. False if it had before.
    pub fn attach(&mut self, rank: usize, now: Instant) -> bool {
        if self.overlay.is_some() && self.presence(rank) == Some(&Presence::Live) {
            return self.attach_later(rank, now);
        }
        let Some(place @ Presence::Absent) = self.presences.get_mut(rank) else { return false };
        *place = Presence::Live;
        self.liveness.meet(rank, now);
        self.actions.push(Action::News);
        if let Some(overlay) = &mut self.overlay {
            overlay.connected.insert(rank);
            self.news.clone().into_iter().for_each(|note| self.hand(vec![rank], note));
            self.meets();
        }
        true
    }

    /// Note that `rank` is heard through one of `relays`, each a process on the host between: where that one falls silent, it is blamed first. Call
    /// this for each connection that was [attached](Self::attach), with none for one that leads there directly.
    pub fn pass_through(&mut self, rank: usize, relays: Vec<usize>) {
        self.liveness.pass_through(rank, relays);
    }

    /// Note on which other host each process lives, by numbers from 0: hosts that are so crowded that a process is heard after half the limit only give
    /// their other processes time too. `None` for processes of this host, of which the system [knows](Self::has_no_turn).
    pub fn live_on(&mut self, hosts: Vec<Option<usize>>) {
        self.liveness.live_on(hosts);
    }

    /// Remember the path of the connection that was [attached](Self::attach), as the rest of "nothing heard for 5 s": " over TCP from ... to ...".
    pub fn leads_over(&mut self, rank: usize, path: String) {
        self.paths.insert(rank, path);
    }

    /// The processes that have not connected yet.
    ///
    /// # Errors
    /// The [`Fault`] of a process that never will.
    pub fn absent(&self) -> Result<Vec<usize>, Fault> {
        let mut absent = Vec::new();
        let fault = |rank, words| Err(Fault { rank, words, because_of: Vec::new() });
        for (rank, presence) in self.presences.iter().enumerate() {
            match presence {
                Presence::Absent => absent.push(rank),
                Presence::Dead(cause) if cause == DIED => {
                    return fault(rank, "ended while the ranks were connecting".into());
                }
                Presence::Dead(cause) => {
                    return fault(rank, format!("{cause}, while the ranks were connecting"));
                }
                Presence::Gone(words, because_of) if !words.is_empty() => {
                    return Err(gave_up(rank, words, because_of));
                }
                Presence::Shut(silence) => {
                    let words = format!(
                        "gave this process up after {silence:.1} s of silence, while the ranks were connecting"
                    );
                    return fault(rank, words);
                }
                // One that met everyone and left was there.
                Presence::Oneself | Presence::Live | Presence::Gone(..) => {}
            }
        }
        Ok(absent)
    }

    /// Process at fault, and why, if others say that a group has failed that this process has not opened yet.
    pub fn early_abort(&self) -> Option<Fault> {
        self.early.iter().find_map(|(_, note)| match note {
            Note::Abort { failure, .. } => Some(Fault {
                rank: failure.culprit(),
                words: failure.cause().to_owned(),
                because_of: failure.because_of().to_vec(),
            }),
            _ => None,
        })
    }

    /// A process that said why it could not join, and its words.
    pub fn gave_up(&self) -> Option<Fault> {
        self.presences.iter().enumerate().find_map(|(rank, presence)| match presence {
            Presence::Gone(words, because_of) if !words.is_empty() => Some(gave_up(rank, words, because_of)),
            _ => None,
        })
    }

    /// Begin to watch the members of a group in which this process has the rank `mine`. False if it is open already.
    pub fn enter(&mut self, group_id: u64, members: &[usize], mine: usize) -> bool {
        if self.groups.contains_key(&group_id) {
            return false;
        }
        let group = Group {
            members: members.to_vec(),
            mine,
            left: vec![false; members.len()],
            failed: None,
            knows: vec![false; members.len()],
            silence: Duration::ZERO,
        };
        self.groups.insert(group_id, group);
        let (ours, others) =
            std::mem::take(&mut self.early).into_iter().partition(|(_, n)| n.group_id() == Some(group_id));
        self.early = others;
        for from in self.entered.remove(&group_id).unwrap_or_default() {
            self.apply(from, Note::Entered { group_id });
        }
        let ours: VecDeque<(usize, Note<R>)> = ours;
        for (from, note) in ours {
            self.apply(from, note);
        }
        // Who is lost first: one that left because of it is not to look as if it left in good order.
        let in_good_order = |rank: &usize| matches!(self.presences.get(*rank), Some(Presence::Gone(words, _)) if words.is_empty());
        let (left, others): (Vec<usize>, Vec<usize>) = members.iter().partition(|rank| in_good_order(rank));
        for rank in others.into_iter().chain(left) {
            self.member_is_gone(group_id, rank);
        }
        true
    }

    /// Forget a group, and tell its members unless it never came to be. False if it is not open.
    ///
    /// Members that still wait for this rank must not take it for the culprit: when the group has failed they are told why.
    pub fn leave(&mut self, group_id: u64, tell: bool) -> bool {
        let Some(group) = self.groups.get(&group_id) else { return false };
        if tell && group.failed.is_some() {
            self.tell_all(group_id);
        } else if tell {
            let others = (0..group.members.len()).filter(|m| !group.left.get(*m).is_some_and(|l| *l));
            let to = self.reachable(group, others);
            self.tell(to, Note::Leave { group_id });
        }
        self.groups.remove(&group_id);
        self.closed.push_back(group_id);
        self.closed.drain(..self.closed.len().saturating_sub(MAX_CLOSED));
        self.early.retain(|(_, note)| note.group_id() != Some(group_id));
        true
    }

    /// This process has found a group to have failed: tell its members.
    pub fn abort(&mut self, group_id: u64, failure: R) {
        self.fail(group_id, None, failure);
    }

    /// Say goodbye to everyone; with words if this process could not join, and the processes at fault by them, if other ones are.
    /// Nothing is judged afterwards, for the others may well close first.
    pub fn end(&mut self, words: &str, because_of: &[usize]) {
        // The goodbye counts as leaving every group in good order, which these are not in.
        let failed: Vec<u64> =
            self.groups.iter().filter(|(_, g)| g.failed.is_some()).map(|(group_id, _)| *group_id).collect();
        for group_id in failed {
            self.tell_all(group_id);
        }
        let to = (0..self.presences.len()).filter(|rank| self.is_known(*rank)).collect();
        self.tell(to, Note::Goodbye { words: words.into(), because_of: because_of.into() });
        self.leaving = true;
    }

    /// Tell members of an open group something about it.
    pub fn say(&mut self, members: &[usize], note: Note<R>) {
        let Some(group) = note.group_id().and_then(|group_id| self.groups.get(&group_id)) else { return };
        let to = self.reachable(group, members.iter().copied().filter(|m| *m != group.mine));
        self.tell(to, note);
    }

    /// Tell a process about the group that follows one.
    pub fn tell_of_reform(&mut self, rank: usize, group_id: u64, message: Message) {
        if self.is_known(rank) {
            self.tell(vec![rank], Note::Reform { group_id, message: Box::new(message) });
        }
    }

    /// A group, and the rank in it of a process.
    fn member(&mut self, group_id: u64, rank: usize) -> Option<(&mut Group<R>, usize)> {
        let group = self.groups.get_mut(&group_id)?;
        let member = group.members.iter().position(|m| *m == rank)?;
        Some((group, member))
    }

    fn contexts_with(&self, rank: usize) -> Vec<u64> {
        self.groups.iter().filter(|(_, g)| g.members.contains(&rank)).map(|(group_id, _)| *group_id).collect()
    }

    /// The processes of those members that are connected.
    fn reachable(&self, group: &Group<R>, members: impl Iterator<Item = usize>) -> Vec<usize> {
        let ranks = members.filter_map(|m| group.members.get(m).copied());
        ranks.filter(|rank| self.is_known(*rank)).collect()
    }

    fn tell(&mut self, to: Vec<usize>, note: Note<R>) {
        if to.is_empty() {
        } else if self.overlay.is_some() {
            self.tell_over(to, note);
        } else {
            self.actions.push(Action::Tell { to, note });
        }
    }
}

// Notes, ends and silences, what follows from them for the groups, and who is told, so that all members hear of it, and each once.
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
    fn apply(&mut self, from: usize, note: Note<R>) {
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
        self.early.push_back((from, note));
        self.early.drain(..self.early.len().saturating_sub(MAX_EARLY));
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
                    let alone = if self.hears_nobody(rank, heard_until) { ALONE } else { "" };
                    let seconds = silence.as_secs_f64();
                    let path = self.paths.get(&rank).map_or("", String::as_str);
                    let cause = format!("fell silent: nothing heard for {seconds:.1} s{path}{alone}");
                    self.give_up(rank, silence, &cause);
                }
                Verdict::Stuck { rank, silence } => {
                    let cause = format!(
                        "answers on new connections, but its control connection has carried nothing for {:.1} s; look at what lies between the hosts",
                        silence.as_secs_f64()
                    );
                    self.give_up(rank, silence, &cause);
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
            self.actions.push(Action::Beat { progress });
        }
    }

    /// A silence of `rank` is over, if it was one.
    fn measure(&mut self, rank: usize, silence: Option<Duration>) {
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

    /// `rank` has ended without a goodbye.
    fn lose(&mut self, rank: usize, cause: &str) {
        self.ended(rank, Presence::Dead(cause.into()));
    }

    fn ended(&mut self, rank: usize, how: Presence) {
        if !self.is_known(rank) {
            return;
        }
        let Some(place) = self.presences.get_mut(rank) else { return };
        if std::mem::replace(place, how) == Presence::Absent {
            self.meets();
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
    fn member_is_gone(&mut self, group_id: u64, rank: usize) {
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
    fn fail(&mut self, group_id: u64, from: Option<usize>, failure: R) {
        let Some(group) = self.groups.get_mut(&group_id) else { return };
        let size = group.members.len();
        if let Some(knows) = from.and_then(|m| group.knows.get_mut(m)) {
            *knows = true;
        }
        if group.failed.is_some() || failure.culprit() >= size || failure.witness() >= size {
            return;
        }
        group.failed = Some(failure.clone());
        // Told before this process can act on it and exit.
        if self.overlay.is_some() {
            // Whoever hears of it has passed it on already.
            if from.is_none() {
                self.spread(Note::Abort { group_id, failure: failure.clone() });
            }
        } else if from.is_none() {
            self.tell_all(group_id);
        } else {
            // Where only its way to the witness is cut, it lives and cannot be told by the witness.
            self.tell_of(group_id, vec![failure.culprit()]);
        }
        self.actions.push(Action::Fail { group_id, failure });
    }

    /// Tell all members of a failed group that do not know.
    fn tell_all(&mut self, group_id: u64) {
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

#[cfg(test)]
mod tests;

fn gave_up(rank: usize, words: &str, because_of: &[usize]) -> Fault {
    Fault { rank, words: format!("gave up: {words}"), because_of: because_of.to_vec() }
}
