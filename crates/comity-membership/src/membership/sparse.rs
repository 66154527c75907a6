//! A large job, where not all processes are connected: which edges of the graph are gone, who is lost with them, which are made anew, and how news
//! reach those that this process has no connection to. See [`crate::overlay`].

use super::Membership;
use crate::{
    Action, NoConnection, Note, Presence, Reason,
    overlay::{Loss, MOST_HOPS, MOST_TARGETS, NOT_THERE},
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Between two looks for neighbours, where nothing limits silence.
const LOOK_AROUND: Duration = Duration::from_millis(500);
/// Cause of the loss of a rank that nobody on this side watched.
const OUT_OF_REACH: &str = "cannot be heard of any more: nothing is heard from any rank that watches it";

impl<R: Reason> Membership<R> {
    /// Between two looks for neighbours.
    fn every(&self) -> Duration {
        self.limit().map_or(LOOK_AROUND, |limit| (limit / 10).min(LOOK_AROUND))
    }

    /// Return whether a process is there, as far as this one knows: connected or, in a large job, not heard to have ended.
    pub(super) fn is_known(&self, rank: usize) -> bool {
        match self.presences.get(rank) {
            Some(Presence::Live) => true,
            Some(Presence::Absent) => self.overlay.is_some(),
            _ => false,
        }
    }

    /// Close the connection to a process, if there is one; whether there was.
    pub(super) fn close(&mut self, rank: usize) -> bool {
        let connected = self.overlay.as_mut().is_none_or(|overlay| {
            overlay.stirred = true;
            overlay.dialing.remove(&rank);
            overlay.connected.remove(&rank)
        });
        if connected {
            self.actions.push(Action::Close { rank });
        }
        connected
    }

    /// Give up a process that was silent for so long. It is told: that stays in the connection after its end, and is read when it runs again.
    pub(super) fn give_up(&mut self, rank: usize, silence: Duration, cause: &str) {
        let millis = silence.as_millis() as u64;
        self.tell(vec![rank], Note::GivenUp { silence: millis });
        if let Some(overlay) = &mut self.overlay {
            overlay.silence = Some(millis);
        }
        self.lose(rank, cause);
    }

    /// A process has ended for this one. Where the connection between the two is gone, tell all.
    pub(super) fn say_lost(&mut self, rank: usize, connected: bool) {
        let Some(overlay) = self.overlay.as_mut() else { return };
        if let Some(Presence::Gone(..)) = self.presences.get(rank) {
            return overlay.close_over(rank);
        }
        let me = overlay.me;
        let (by, lost, loss) = match self.presences.get(rank) {
            Some(Presence::Dead(cause)) if connected || overlay.is_in(rank) => {
                (me, rank, Loss { cause: cause.clone(), silence: overlay.silence.take() })
            }
            // No edge led there from here, and all hear what this process heard.
            Some(Presence::Dead(_)) => {
                overlay.hearsay.insert(rank);
                return;
            }
            Some(Presence::Shut(silence)) if connected || overlay.is_in(rank) => {
                let cause = format!("fell silent: nothing heard for {silence:.1} s");
                (rank, me, Loss { cause, silence: Some((silence * 1e3) as u64) })
            }
            _ => return,
        };
        let Loss { cause, silence } = loss.clone();
        overlay.lost.insert((by, lost), loss);
        self.spread(Note::Lost { by, rank: lost, cause, silence });
    }

    /// Note that somebody says that an edge of the graph is gone.
    pub(super) fn edge_is_gone(&mut self, by: usize, rank: usize, cause: String, silence: Option<u64>) {
        let Some(overlay) = &mut self.overlay else { return };
        if by >= overlay.size || rank >= overlay.size {
            return;
        }
        let gave_up_this = rank == overlay.me && overlay.connected.contains(&by);
        overlay.lost.insert((by, rank), Loss { cause, silence });
        overlay.stirred = true;
        if let Some(silence) = silence.filter(|_| gave_up_this) {
            self.ended(by, Presence::Shut(Duration::from_millis(silence).as_secs_f64()));
        }
    }

    /// Find who is lost, now that edges are gone or somebody is.
    pub(super) fn look_around(&mut self, now: Instant) {
        let every = self.every();
        let Some(overlay) = &mut self.overlay else { return };
        if !overlay.stirred {
            return;
        }
        overlay.rewire.get_or_insert(now + every);
        while let Some(lost) = self.out_of_reach() {
            for (rank, how) in lost {
                if let Some(overlay) = &mut self.overlay {
                    overlay.close_over(rank);
                }
                self.ended(rank, how);
            }
        }
        self.say_hearsay();
    }

    /// Tell all which ranks are lost by hearsay, where others may take this process for a neighbour of such a rank.
    fn say_hearsay(&mut self) {
        let Some(overlay) = &mut self.overlay else { return };
        let me = overlay.me;
        let ranks = overlay.take_near_hearsay();
        ranks.iter().for_each(|rank| drop(overlay.lost.insert((me, *rank), Loss::by_hearsay())));
        for part in ranks.chunks(MOST_TARGETS) {
            self.spread(Note::NoWay { ranks: part.to_vec() });
        }
    }

    /// No edge leads from `by` to `ranks`, as others told it.
    pub(super) fn no_way(&mut self, by: usize, ranks: Vec<usize>) {
        let Some(overlay) = &mut self.overlay else { return };
        let size = overlay.size;
        for rank in ranks.into_iter().filter(|rank| *rank < size) {
            overlay.lost.entry((by, rank)).or_insert_with(Loss::by_hearsay);
            overlay.stirred = true;
        }
    }

    /// The processes to which no edge leads any more, and what is to be said of each.
    fn out_of_reach(&mut self) -> Option<Vec<(usize, Presence)>> {
        let overlay = self.overlay.as_mut()?;
        let (lost, here) = overlay.unreachable()?;
        let on_this_side = |r: usize| here.get(r) == Some(&true);
        // Those that the graph has closed over say nothing of what lies between the two sides.
        let is_one = |(a, b): &(usize, usize)| {
            on_this_side(*a) != on_this_side(*b) && overlay.is_in(*a) && overlay.is_in(*b)
        };
        let across = || overlay.lost.iter().filter(|(edge, _)| is_one(edge));
        // What this side says of the other, and the other of this one.
        let ours = across().any(|((by, _), loss)| on_this_side(*by) && loss.is_seen());
        let theirs = across().filter_map(|((by, _), l)| l.silence.filter(|_| !on_this_side(*by))).max();
        let how = |rank: usize| {
            let mut said = overlay.lost.iter().filter(|((_, of), _)| *of == rank).map(|(_, loss)| loss);
            let first = said.clone().find(|l| l.is_seen());
            match (first, theirs) {
                (Some(loss), _) => Presence::Dead(loss.cause.clone()),
                (None, _) if said.any(|l| l.cause == NOT_THERE) => Presence::Gone(String::new(), Vec::new()),
                (None, Some(silence)) if !ours => {
                    Presence::Shut(Duration::from_millis(silence).as_secs_f64())
                }
                (None, _) => Presence::Dead(OUT_OF_REACH.into()),
            }
        };
        Some(lost.into_iter().map(|rank| (rank, how(rank))).collect())
    }

    /// Connect to neighbours that this process lacks since others have ended.
    pub(super) fn rewire(&mut self, now: Instant) {
        let every = self.every();
        let presences = &self.presences;
        let Some(overlay) = &mut self.overlay else { return };
        if overlay.rewire.is_none_or(|at| at > now) {
            return;
        }
        overlay.rewire = None;
        let mut lacking = overlay.around(overlay.me);
        // One that has not connected yet, while the ranks meet, does so of itself.
        lacking.retain(|r| presences.get(*r) == Some(&Presence::Live));
        lacking.retain(|r| {
            let gone = [(overlay.me, *r), (*r, overlay.me)].iter().any(|e| overlay.lost.contains_key(e));
            !gone && !overlay.connected.contains(r) && !overlay.dialing.contains_key(r)
        });
        let before = std::mem::take(&mut overlay.waiting);
        for rank in lacking {
            if overlay.me > rank || before.contains(&rank) {
                overlay.dialing.insert(rank, now);
                self.actions.push(Action::Dial { rank });
            } else {
                overlay.waiting.insert(rank);
                overlay.rewire = Some(now + every);
            }
        }
    }

    /// A neighbour is connected that was not one before: it has sent its first beat to others already.
    pub(super) fn attach_later(&mut self, rank: usize, now: Instant) -> bool {
        let Some(overlay) = &mut self.overlay else { return false };
        if self.leaving || !overlay.connected.insert(rank) {
            return false;
        }
        overlay.dialing.remove(&rank);
        overlay.fresh.insert(rank);
        self.liveness.meet(rank, now);
        self.liveness.begin(rank, now);
        self.actions.push(Action::News);
        true
    }

    /// A note has come from a neighbour.
    pub(super) fn is_heard(&mut self, rank: usize) {
        if let Some(overlay) = &mut self.overlay
            && overlay.fresh.remove(&rank)
        {
            overlay.tried.remove(&rank);
        }
    }

    /// A connection has ended before anything came over it: the other took it, and was about to end. True if so.
    pub(super) fn never_stood(&mut self, rank: usize, now: Instant) -> bool {
        let every = self.every();
        let Some(overlay) = self.overlay.as_mut().filter(|o| o.fresh.contains(&rank)) else { return false };
        overlay.fresh.remove(&rank);
        overlay.connected.remove(&rank);
        overlay.tried.entry(rank).or_insert(now);
        overlay.rewire.get_or_insert(now + every);
        self.liveness.forget(rank);
        self.actions.push(Action::Close { rank });
        true
    }

    /// A connection that was to be [made](Action::Dial) was not.
    pub fn missed(&mut self, rank: usize, why: NoConnection, now: Instant) {
        let limit = self.limit();
        let every = self.every();
        let Some(overlay) = &mut self.overlay else { return };
        let me = overlay.me;
        let since = overlay.dialing.remove(&rank);
        if self.leaving || overlay.connected.contains(&rank) || since.is_none() {
            return;
        }
        let since = *overlay.tried.entry(rank).or_insert_with(|| since.unwrap_or(now));
        let tried = now.saturating_duration_since(since);
        let given_up = limit.is_some_and(|limit| tried >= limit);
        let (cause, silence) = match why {
            NoConnection::NobodyListens => (NOT_THERE.to_owned(), None),
            NoConnection::GivenUp => {
                let silence = limit.unwrap_or_default();
                return self.apply(rank, Note::GivenUp { silence: silence.as_millis() as u64 });
            }
            NoConnection::NoAnswer if given_up => {
                let cause = format!("cannot be reached: nothing answers for {:.1} s", tried.as_secs_f64());
                (cause, Some(tried.as_millis() as u64))
            }
            NoConnection::NoAnswer => {
                overlay.rewire = Some(now + every);
                return;
            }
        };
        overlay.lost.insert((me, rank), Loss { cause: cause.clone(), silence });
        overlay.stirred = true;
        self.spread(Note::Lost { by: me, rank, cause, silence });
        self.look_around(now);
    }

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
        self.send_news(to, news);
    }

    /// Send news to those neighbours that are connected, and keep them for those that are missing.
    fn send_news(&mut self, to: Vec<usize>, news: Note<R>) {
        if self.overlay.as_ref().is_some_and(|overlay| overlay.missing > 0) {
            self.news.push(news.clone());
        }
        self.hand(to, news);
    }

    /// A neighbour has connected for the first time, or never will.
    pub(super) fn meets(&mut self) {
        let Some(overlay) = &mut self.overlay else { return };
        overlay.missing = overlay.missing.saturating_sub(1);
        if overlay.missing == 0 {
            self.news.clear();
        }
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
        self.send_news(to, news);
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
        let mut ways = BTreeMap::<usize, Vec<usize>>::new();
        let mut near = Vec::new();
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
