//! Ranks that have fallen silent: a decision about times that others measured. No clock is read and nothing is sent here.
//!
//! A rank beats from when its first group stands. Before that silence means nothing: ranks that make their links take the processor from
//! those that have. So nobody is judged before every rank's first beat has come, or before five minutes have passed in which no rank has
//! connected or beaten for the first time. Time in which this process slept does not count.
//!
//! Every control thread sends a beat each tenth of the limit.
//!
//! | a rank | is |
//! |---|---|
//! | is not heard for a fifth of the limit | suspect: counted, and asked over new connections whether it lives |
//! | is heard again | asked for some time more, so that it knows that this one lives |
//! | is not heard for the whole limit | dead |
//! | answers over new connections, and is not heard on its own for [`RESENT`] times the limit | dead: what its connection was to carry is lost |
//!
//! A rank that is heard through a third one falls silent with that one. So where the third rank is silent itself, the other gets a tenth of
//! the limit longer, and the third is judged first.
//!
//! On a crowded host this process's own beats go out late, for it has no turn, and nobody there has. What its beats were late by since a rank
//! was last heard does not count as that rank's silence, up to three times the limit; a beat that is late by less than a fifth of the time
//! between two counts as in time. So a rank that is gone is found within four times the limit at the latest, however crowded the host is.
//!
//! From another host a process knows only the notes that it hears. Where a rank of that host is heard again after half the limit, the others had no turn
//! either, as far as anybody can tell: that time does not count as their silence, within the same three limits.
//!
//! A rank asks the system about a process of its own host. A process whose control thread is ready to run and has no core is starved, not silent, for however
//! long: it counts as heard ([`has_no_turn`](crate::Membership::has_no_turn)).
//!
//! A process may not have run itself for half the limit: a closed laptop, a paused virtual machine, Ctrl-Z. It cannot say who was silent
//! meanwhile. Of such a time a tenth of the limit counts as silence, however long it was: a rank that truly is gone is found none the less, also
//! where this process never runs for longer.

use crate::pace::Pace;
use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};

/// Multiple of the limit on silence within which a connection carries something again that was cut for less than that limit. TCP sends again
/// after a time that grows with each round trip it has seen, also with one that a cut of before made long, and doubles at each try: the first
/// after `r`, the next after `3 r`. If the first comes just before the cable is back, the next comes at thrice that time.
pub const RESENT: u32 = 3;

/// Longest interval at which a silent rank is asked.
const FASTEST_ASK: Duration = Duration::from_millis(250);

/// Most limits of this process's lateness that are not counted as another's silence.
const MOST_LATE: u32 = 3;

/// A rank as it was heard.
#[derive(Debug)]
struct Pulse {
    heard: Instant,
    /// By how much all beats of this process had been late then.
    late: Duration,
    /// On its own connection.
    carried: Instant,
    /// When it was last to be asked.
    asked: Option<Instant>,
    /// When its own connection spoke again after a suspicion: what goes there may still wait to be sent again.
    doubt: Option<Instant>,
    /// Progress of its engines by its last beat.
    progress: Option<u64>,
    suspect: bool,
}

impl Pulse {
    fn new(now: Instant, late: Duration) -> Self {
        Self { heard: now, late, carried: now, asked: None, doubt: None, progress: None, suspect: false }
    }

    /// It was heard now, this process's beats having been late by `late` in all.
    fn is_heard(&mut self, now: Instant, late: Duration) {
        self.heard = self.heard.max(now);
        self.late = late;
    }

    /// For how long it has been silent, as far as this process had turns to hear it.
    fn silence(&self, limit: Duration, late: Duration, heard_until: Instant) -> Duration {
        heard_until.saturating_duration_since(self.heard).saturating_sub(self.missed(limit, late))
    }

    /// For how long its own connection has carried nothing, as far as this process had turns to hear it.
    fn stands(&self, limit: Duration, late: Duration, heard_until: Instant) -> Duration {
        heard_until.saturating_duration_since(self.carried).saturating_sub(self.missed(limit, late))
    }

    /// When to look at it at the latest: it may be suspect then, or over, or is to be asked. A question that went out somewhat early puts off no
    /// suspicion.
    fn due(&self, limit: Duration, late: Duration) -> Instant {
        let silent = if self.suspect { limit } else { suspicion(limit) };
        let judged = (self.heard + silent).min(self.carried + limit * RESENT);
        (judged + self.missed(limit, late)).min(self.asks(limit))
    }

    /// For how long since it was heard this process had no turn, its beats being late by `late` in all.
    fn missed(&self, limit: Duration, late: Duration) -> Duration {
        late.saturating_sub(self.late).min(limit * MOST_LATE)
    }

    /// When to ask it next whether it lives. It is asked while it is silent, and some times afterwards, so that it knows that this process lives.
    fn asks(&self, limit: Duration) -> Instant {
        let silent = self.carried + suspicion(limit);
        let silent = self.asked.map_or(silent, |at| silent.max(at + spacing(limit)));
        let doubt = self.doubt.map(|since| {
            let before = self.asked.filter(|at| *at >= since);
            (since, before.map_or(since, |at| at + limit / 2))
        });
        doubt.filter(|(since, at)| *at < *since + limit * RESENT).map_or(silent, |(_, at)| at.min(silent))
    }
}

/// Interval at which a silent rank is asked: half of that at which it should have been heard, for each question is answered at once or never.
fn spacing(limit: Duration) -> Duration {
    (limit / 20).min(FASTEST_ASK)
}

/// After what silence a peer is suspect.
fn suspicion(limit: Duration) -> Duration {
    limit / 5
}

/// Hosts of the ranks, and for how long the ranks of each had no turn: as far as one can hear.
///
/// ```text
///   rank 4 of host b:  beat . . . . . . . beat        5 of the limit's 8 parts
///   rank 5 of host b:       beat . . . . . . . .      so long it may have had no turn either
///   host b was late:        |-------------|
/// ```
/// Times that overlap count once.
#[derive(Debug, Default)]
struct Hosts {
    of: Vec<Option<usize>>,
    /// For how long in all, and until when that is counted.
    late: Vec<(Duration, Option<Instant>)>,
}

impl Hosts {
    fn new(of: Vec<Option<usize>>) -> Self {
        let most = of.iter().flatten().max().map_or(0, |host| host + 1);
        Self { of, late: vec![(Duration::ZERO, None); most] }
    }

    /// For how long in all the ranks of the host of `rank` had no turn.
    fn late(&self, rank: usize) -> Duration {
        let host = self.of.get(rank).copied().flatten();
        host.and_then(|host| self.late.get(host)).map_or(Duration::ZERO, |(late, _)| *late)
    }

    /// `rank` is heard again, after `gap`.
    fn speaks_again(&mut self, rank: usize, gap: Duration, now: Instant) {
        let host = self.of.get(rank).copied().flatten();
        let Some((late, until)) = host.and_then(|host| self.late.get_mut(host)) else { return };
        let counted = until.replace(now).map_or(gap, |until| now.saturating_duration_since(until));
        *late += gap.min(counted);
    }
}

#[cfg(test)]
mod tests;

/// Time to wait for the next rank to connect or to begin to beat. Then ranks that do not beat are judged all the same: they may have been
/// stopped.
const UNBORN: Duration = Duration::from_secs(300);

/// A beat that is late by less than such a part of the time between two is in time.
const PUNCTUAL: u32 = 5;

/// Verdict on a process's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field whose name says it needs no other word")]
pub enum Verdict {
    /// It was silent for long enough to be noted.
    Suspect {
        rank: usize,
        silence: Duration,
        /// Progress of its engines when it was last heard.
        progress: Option<u64>,
    },
    /// It was silent for the whole limit. It is not judged again.
    Dead { rank: usize, silence: Duration },
    /// It lives, but its own connection, which has carried nothing for so long, does not. It is not judged again.
    Stuck { rank: usize, silence: Duration },
}

/// When each process was heard last, and when the next decision about one is due.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    /// None: silence is allowed.
    limit: Option<Duration>,
    /// Between two beats.
    interval: Duration,
    /// Boxed: a rank of a large job judges few of all.
    peers: Vec<Option<Box<Pulse>>>,
    /// Ranks that are heard through a third process, with those which may be that one.
    through: BTreeMap<usize, Vec<usize>>,
    /// Processes that have connected and sent no beat yet.
    met: HashSet<usize>,
    /// When a rank last connected or began to beat; time in which this process slept is not counted.
    stirred: Option<Instant>,
    /// At the last look some rank had sent no beat yet.
    connecting: bool,
    ticked: Option<Instant>,
    /// When to send the next beat.
    beat: Option<Instant>,
    /// A beat was sent.
    beats: bool,
    /// By how much all beats so far were late.
    late: Duration,
    /// The other hosts, and for how long their ranks had no turn.
    hosts: Hosts,
    /// Nobody is to be judged or asked before this.
    ///
    /// Almost all that is heard puts it off. It is computed anew only when it is due: a thousand peers speak two thousand times a second, and
    /// not all can be looked at each time.
    first: Option<Instant>,
}

impl Liveness {
    pub(crate) fn new(size: usize, pace: impl Into<Pace>) -> Self {
        let Pace { limit, beat, .. } = pace.into();
        Self { limit, interval: beat, peers: (0..size).map(|_| None).collect(), ..Self::default() }
    }

    /// Note the host of each rank; `None` for ranks that are not judged by what is heard from others.
    pub(crate) fn live_on(&mut self, hosts: Vec<Option<usize>>) {
        self.hosts = Hosts::new(hosts);
    }

    /// For how long in all no turn was had to hear `rank`, or by it to speak.
    fn late_for(&self, rank: usize) -> Duration {
        self.late + self.hosts.late(rank)
    }

    /// Note that `rank` has connected. It is judged only from its first beat, which it sends when its first group stands. Before that, a host
    /// with many ranks may give one of them no turn for long.
    pub(crate) fn meet(&mut self, rank: usize, now: Instant) {
        self.met.insert(rank);
        self.stirred = Some(now);
        // This process may be stopped before it ever judges, and must know then that it slept.
        self.ticked.get_or_insert(now);
        // A newcomer is to hear soon that this process lives.
        self.beat = Some(now);
    }

    /// Note that `rank` is heard through one of `relays`; directly if there is none.
    pub(crate) fn pass_through(&mut self, rank: usize, relays: Vec<usize>) {
        match relays.is_empty() {
            true => self.through.remove(&rank),
            false => self.through.insert(rank, relays),
        };
    }

    /// Return whether `rank` is heard through `relay`.
    pub(crate) fn is_through(&self, rank: usize, relay: usize) -> bool {
        self.through.get(&rank).is_some_and(|relays| relays.contains(&relay))
    }

    /// Whoever is heard through a silent process is judged after that one.
    fn defer(&mut self, limit: Duration, heard_until: Instant) {
        for (rank, relays) in &self.through {
            let silent = |relay: &usize| {
                let heard = self.peers.get(*relay)?.as_ref()?.heard;
                (heard_until.saturating_duration_since(heard) >= limit / 2).then_some(heard)
            };
            let Some(heard) = relays.iter().filter_map(silent).max() else { continue };
            if let Some(Some(pulse)) = self.peers.get_mut(*rank) {
                pulse.heard = pulse.heard.max(heard + limit / 10);
            }
        }
    }

    /// A beat has come from `rank`: with the first one it begins to be judged.
    pub(crate) fn begin(&mut self, rank: usize, now: Instant) {
        if !self.met.remove(&rank) {
            return;
        }
        self.stirred = Some(now);
        let late = self.late_for(rank);
        if let Some(place) = self.peers.get_mut(rank) {
            *place = Some(Box::new(Pulse::new(now, late)));
            self.bring_forward(rank);
        }
    }

    /// Judge `rank` no longer: it has ended.
    pub(crate) fn forget(&mut self, rank: usize) {
        self.met.remove(&rank);
        if let Some(place) = self.peers.get_mut(rank) {
            *place = None;
        }
    }

    /// Time since `rank` was last heard; `None` if nobody is judged, or if this process did not run itself for half the
    /// limit meanwhile.
    pub(crate) fn silence(&self, rank: usize, now: Instant) -> Option<Duration> {
        let limit = self.limit?;
        let pulse = self.peers.get(rank)?.as_ref()?;
        let slept = self.ticked.is_some_and(|last| sleeps(limit, last, now));
        (!slept).then(|| now.saturating_duration_since(pulse.heard))
    }

    /// Return whether `rank` has not been heard for half the limit, or was given up at this very look.
    pub(crate) fn is_quiet(&self, rank: usize, now: Instant) -> bool {
        let (Some(limit), Some(place)) = (self.limit, self.peers.get(rank)) else { return false };
        place.as_ref().is_none_or(|p| now.saturating_duration_since(p.heard) >= limit / 2)
    }

    /// `rank` said something; a beat tells how far its engines have come. How long it had been silent, if it was suspect.
    pub(crate) fn hear(&mut self, rank: usize, now: Instant, progress: Option<u64>) -> Option<Duration> {
        let limit = self.limit?;
        // Where this process had no turn, what it has not heard says nothing of the other.
        let idle = self.ticked.is_none_or(|last| now.saturating_duration_since(last) < suspicion(limit));
        let pulse = self.peers.get_mut(rank)?.as_mut()?;
        if idle && now.saturating_duration_since(pulse.carried) >= suspicion(limit) {
            pulse.doubt = Some(now);
        }
        let gap = pulse.stands(limit, self.late + self.hosts.late(rank), now);
        if idle && gap >= limit / 2 {
            self.hosts.speaks_again(rank, gap, now);
        }
        pulse.progress = progress.or(pulse.progress);
        let suspect = std::mem::take(&mut pulse.suspect);
        let silence = now.saturating_duration_since(pulse.carried);
        pulse.carried = pulse.carried.max(now);
        self.lives(rank, now);
        self.bring_forward(rank);
        suspect.then_some(silence)
    }

    /// `rank` has answered on a new connection. It stays suspect while its own says nothing.
    pub(crate) fn lives(&mut self, rank: usize, now: Instant) {
        let late = self.late_for(rank);
        if let Some(Some(pulse)) = self.peers.get_mut(rank) {
            pulse.is_heard(now, late);
        }
    }

    /// Ranks to ask at `now` whether they live: processes whose own connections say nothing, or did not until lately.
    pub(crate) fn asks(&mut self, now: Instant) -> Vec<usize> {
        let Some(limit) = self.limit else { return Vec::new() };
        // Nobody is judged then, and questions would take the processor from those that make links.
        if !self.met.is_empty() {
            return Vec::new();
        }
        // One look for those whose times are near.
        let near = now + spacing(limit) / 4;
        if self.first.is_none_or(|first| first > near) {
            return Vec::new();
        }
        let mut asks = Vec::new();
        for (rank, place) in self.peers.iter_mut().enumerate() {
            let Some(pulse) = place else { continue };
            if pulse.asks(limit) <= near {
                pulse.asked = Some(now);
                asks.push(rank);
            }
        }
        self.settle();
        asks
    }

    /// Judge everyone at `heard_until`, by which all that had come must have been heard. Whether this process slept is seen at
    /// `now`: a computer that woke for a moment may have looked at the clock in between.
    pub(crate) fn tick(&mut self, heard_until: Instant, now: Instant) -> Vec<Verdict> {
        let Some(limit) = self.limit else { return Vec::new() };
        let last = self.ticked.replace(now).unwrap_or(now);
        let slept = sleeps(limit, last, now);
        // Times before a sleep move up to it.
        let awake = |at: Instant| if slept { (at + (now - last - limit / 10)).min(at.max(now)) } else { at };
        self.stirred = self.stirred.map(awake);
        if slept {
            // Late by the sleep, which counts as one.
            self.beat = self.beat.map(|at| at.max(now));
        }
        if self.stirred.is_some_and(|at| now.saturating_duration_since(at) >= UNBORN) {
            let late: Vec<usize> = self.met.iter().copied().collect();
            late.into_iter().for_each(|rank| self.begin(rank, now));
        }
        // Ranks that still make links take the processor from those that have: silence counts from when none does.
        let connecting = !self.met.is_empty();
        let over = std::mem::replace(&mut self.connecting, connecting) && !connecting;
        if !slept && !over && self.first.is_none_or(|first| first > heard_until) {
            return Vec::new();
        }
        self.defer(limit, heard_until);
        let suspicion = suspicion(limit);
        let mut verdicts = Vec::new();
        for (rank, place) in self.peers.iter_mut().enumerate() {
            let Some(pulse) = place else { continue };
            let late = self.late + self.hosts.late(rank);
            if connecting || over {
                pulse.is_heard(now, late);
                pulse.carried = pulse.carried.max(now);
                continue;
            }
            pulse.heard = awake(pulse.heard);
            pulse.carried = awake(pulse.carried);
            let silence = pulse.silence(limit, late, heard_until);
            if silence >= limit {
                *place = None;
                verdicts.push(Verdict::Dead { rank, silence });
            } else if pulse.stands(limit, late, heard_until) >= limit * RESENT {
                let silence = pulse.stands(limit, late, heard_until);
                *place = None;
                verdicts.push(Verdict::Stuck { rank, silence });
            } else if silence >= suspicion && !pulse.suspect {
                pulse.suspect = true;
                verdicts.push(Verdict::Suspect { rank, silence, progress: pulse.progress });
            }
        }
        // A look may come so late that both are due.
        let through = &self.through;
        verdicts.sort_by_key(|v| matches!(v, Verdict::Dead { rank, .. } if through.contains_key(rank)));
        self.settle();
        verdicts
    }

    /// Return whether a beat is to be sent now. If so, the next one is due an interval later.
    pub(crate) fn beats(&mut self, now: Instant) -> bool {
        let (Some(_), Some(at)) = (self.limit, self.beat) else { return false };
        let due = at <= now;
        if due {
            let late = now - at;
            // The first one waits for the first group. Somewhat late is every beat.
            if self.beats && late > self.interval / PUNCTUAL {
                self.late += late;
            }
            (self.beat, self.beats) = (Some(now + self.interval), true);
        }
        due
    }

    /// When to call [`tick`](Self::tick), [`asks`](Self::asks) and [`beats`](Self::beats) at the latest; `None` while nobody is
    /// there to be judged or to hear a beat.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.limit?;
        if self.first.is_none() && self.met.is_empty() {
            return None;
        }
        // Beats are due far more often than anybody who has sent none.
        self.first.into_iter().chain(self.beat).min()
    }

    /// Compute anew when to look.
    fn settle(&mut self) {
        let Some(limit) = self.limit else { return };
        let judged = self.peers.iter().enumerate().filter_map(|(rank, p)| Some((rank, p.as_ref()?)));
        self.first = judged.map(|(rank, p)| p.due(limit, self.late_for(rank))).min();
    }

    /// Bring the next look forward where `rank`, of which something was heard, is due before all others.
    fn bring_forward(&mut self, rank: usize) {
        if let (Some(limit), Some(Some(pulse))) = (self.limit, self.peers.get(rank)) {
            let due = pulse.due(limit, self.late_for(rank));
            self.first = Some(self.first.map_or(due, |first| first.min(due)));
        }
    }

    /// Limit on silence.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }
}

/// Return whether a process that last judged at `last` did not run for so long that it cannot judge at `now`.
fn sleeps(limit: Duration, last: Instant, now: Instant) -> bool {
    now.saturating_duration_since(last) > limit / 2
}
