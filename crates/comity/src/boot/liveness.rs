//! Who has fallen silent: a decision about times that others measured. No clock is read and nothing is sent here.
//!
//! Every control thread sends a beat each tenth of the limit. Whoever is not heard for a fifth of the limit is suspect, which
//! is counted, and from then on asked over new connections whether it lives, for some time after it was heard again, too, so that it
//! knows that this one does; whoever is not heard for the whole limit is dead. So is
//! one that answers there but is not heard on its own connection for twice the limit, for what that was to carry is lost. A process that did not run itself for half the limit
//! (a closed laptop, a paused virtual machine, Ctrl-Z) cannot say who was silent meanwhile: everyone gets the whole limit
//! anew, once, so that one who truly is gone is found none the less.

use std::time::{Duration, Instant};

/// The longest time between two beats.
const SLOWEST_BEAT: Duration = Duration::from_millis(500);

/// What became of a peer's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Silent for long enough to be noted; what its engines had done when it was last heard.
    Suspect { rank: usize, silence: Duration, progress: Option<u64> },
    /// Silent for the whole limit. It is not judged again.
    Dead { rank: usize, silence: Duration },
    /// It lives, but its own connection carries nothing. It is not judged again.
    Stuck { rank: usize, silence: Duration },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Liveness {
    /// None: silence is allowed.
    limit: Option<Duration>,
    peers: Vec<Option<Pulse>>,
    ticked: Option<Instant>,
    /// When to send the next beat.
    beat: Option<Instant>,
}

#[derive(Debug)]
struct Pulse {
    heard: Instant,
    /// On its own connection.
    carried: Instant,
    /// When it was last to be asked.
    asked: Option<Instant>,
    /// When its own connection spoke again after a suspicion: what goes there may still wait to be sent again.
    doubt: Option<Instant>,
    /// What its engines had done by its last beat.
    progress: Option<u64>,
    suspect: bool,
    /// Its time was extended because this process slept.
    extended: bool,
}

impl Liveness {
    pub(super) fn new(size: usize, limit: Option<Duration>) -> Self {
        Self { limit, peers: (0..size).map(|_| None).collect(), ticked: None, beat: None }
    }

    /// Begin to judge `rank`.
    pub(super) fn watch(&mut self, rank: usize, now: Instant) {
        if let Some(place) = self.peers.get_mut(rank) {
            *place = Some(Pulse {
                heard: now,
                carried: now,
                asked: None,
                doubt: None,
                progress: None,
                suspect: false,
                extended: false,
            });
        }
        // This process may be stopped before it ever judges, and must know then that it slept.
        self.ticked.get_or_insert(now);
        // A newcomer is to hear soon that this process lives.
        self.beat = Some(now);
    }

    /// Judge `rank` no longer: it has ended.
    pub(super) fn forget(&mut self, rank: usize) {
        if let Some(place) = self.peers.get_mut(rank) {
            *place = None;
        }
    }

    /// How long nothing has been heard from `rank`; `None` if nobody is judged, or if this process did not run itself for half the
    /// limit meanwhile.
    pub(super) fn silence(&self, rank: usize, now: Instant) -> Option<Duration> {
        let (limit, pulse) = (self.limit?, self.peers.get(rank)?.as_ref()?);
        let slept = self.ticked.is_some_and(|last| sleeps(limit, last, now));
        (!slept).then(|| now.saturating_duration_since(pulse.heard))
    }

    /// `rank` said something; a beat tells how far its engines have come. How long it had been silent, if it was suspect.
    pub(super) fn hear(&mut self, rank: usize, now: Instant, progress: Option<u64>) -> Option<Duration> {
        let limit = self.limit?;
        // Where this process had no turn, what it has not heard says nothing of the other.
        let idle = self.ticked.is_none_or(|last| now.saturating_duration_since(last) < suspicion(limit));
        let pulse = self.peers.get_mut(rank)?.as_mut()?;
        if idle && now.saturating_duration_since(pulse.carried) >= suspicion(limit) {
            pulse.doubt = Some(now);
        }
        pulse.progress = progress.or(pulse.progress);
        let suspect = std::mem::take(&mut pulse.suspect);
        let silence = now.saturating_duration_since(pulse.carried);
        pulse.carried = pulse.carried.max(now);
        self.lives(rank, now);
        suspect.then_some(silence)
    }

    /// `rank` has answered on a new connection. It stays suspect while its own says nothing.
    pub(super) fn lives(&mut self, rank: usize, now: Instant) {
        if let Some(Some(pulse)) = self.peers.get_mut(rank) {
            pulse.heard = pulse.heard.max(now);
            pulse.extended = false;
        }
    }

    /// Who is to be asked at `now` whether it lives: those whose own connections say nothing, or did not until lately.
    pub(super) fn asks(&mut self, now: Instant) -> Vec<usize> {
        let Some(limit) = self.limit else { return Vec::new() };
        let mut asks = Vec::new();
        for (rank, place) in self.peers.iter_mut().enumerate() {
            let Some(pulse) = place else { continue };
            // One look for those whose times are near.
            if pulse.asks(limit) <= now + spacing(limit) / 4 {
                pulse.asked = Some(now);
                asks.push(rank);
            }
        }
        asks
    }

    /// Judge everyone at `now`, which must be a time at which all that had come by then has been heard.
    pub(super) fn tick(&mut self, now: Instant) -> Vec<Verdict> {
        let Some(limit) = self.limit else { return Vec::new() };
        let last = self.ticked.replace(now).unwrap_or(now);
        let slept = sleeps(limit, last, now);
        let suspicion = suspicion(limit);
        let mut verdicts = Vec::new();
        for (rank, place) in self.peers.iter_mut().enumerate() {
            let Some(pulse) = place else { continue };
            if slept && !std::mem::replace(&mut pulse.extended, true) {
                pulse.heard = pulse.heard.max(now);
                pulse.carried = pulse.carried.max(now);
            }
            let silence = now.saturating_duration_since(pulse.heard);
            if silence >= limit {
                *place = None;
                verdicts.push(Verdict::Dead { rank, silence });
            } else if now.saturating_duration_since(pulse.carried) >= limit * 2 {
                let silence = now.saturating_duration_since(pulse.carried);
                *place = None;
                verdicts.push(Verdict::Stuck { rank, silence });
            } else if silence >= suspicion && !pulse.suspect {
                pulse.suspect = true;
                verdicts.push(Verdict::Suspect { rank, silence, progress: pulse.progress });
            }
        }
        verdicts
    }

    /// Whether a beat is to be sent now. If so, the next one is due an interval later.
    pub(super) fn beats(&mut self, now: Instant) -> bool {
        let (Some(limit), Some(at)) = (self.limit, self.beat) else { return false };
        let due = at <= now;
        if due {
            self.beat = Some(now + interval(limit));
        }
        due
    }

    /// When to call [`tick`](Self::tick), [`asks`](Self::asks) and [`beats`](Self::beats) at the latest; `None` while nobody is judged.
    pub(super) fn next(&self) -> Option<Instant> {
        let limit = self.limit?;
        let due = |p: &Pulse| (p.heard + limit).min(p.carried + limit * 2).min(p.asks(limit));
        let first = self.peers.iter().flatten().map(due).min()?;
        Some(self.beat.map_or(first, |beat| beat.min(first)))
    }

    /// How long one may be silent.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.limit
    }
}

impl Pulse {
    /// When it is to be asked next whether it lives: while it is silent, and, so that it knows this process to live, for some time
    /// afterwards, first as often.
    fn asks(&self, limit: Duration) -> Instant {
        let silent = self.carried + suspicion(limit);
        let silent = self.asked.map_or(silent, |at| silent.max(at + spacing(limit)));
        let doubt = self.doubt.map(|since| {
            let soon = self.asked.is_none_or(|at| at < since + suspicion(limit));
            let every = if soon { spacing(limit) } else { suspicion(limit) };
            (since, self.asked.map_or(since, |at| at + every))
        });
        doubt.filter(|(since, at)| *at < *since + limit * 2).map_or(silent, |(_, at)| at.min(silent))
    }
}

/// How often to say that one lives: often enough that several beats may be lost or late.
fn interval(limit: Duration) -> Duration {
    (limit / 10).min(SLOWEST_BEAT)
}

/// Whether a process that last judged at `last` did not run for so long that it cannot judge at `now`.
fn sleeps(limit: Duration, last: Instant, now: Instant) -> bool {
    now.saturating_duration_since(last) > limit / 2
}

/// How often to ask one that is silent: twice as often as it should have been heard, for each question is answered at once or never.
fn spacing(limit: Duration) -> Duration {
    interval(limit) / 2
}

/// After what silence a peer is suspect.
fn suspicion(limit: Duration) -> Duration {
    limit / 5
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Duration = Duration::from_secs(5);
    const TICK: Duration = Duration::from_millis(500);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Virtual time: all is relative to one look at the clock.
    fn started(size: usize) -> (Liveness, Instant) {
        let zero = Instant::now();
        let mut l = Liveness::new(size, Some(LIMIT));
        (1..size).for_each(|r| l.watch(r, zero));
        assert!(l.tick(zero).is_empty());
        (l, zero)
    }

    #[test]
    fn silence_is_suspect_then_dead_and_judged_once() {
        let (mut l, zero) = started(2);
        let mut verdicts = Vec::new();
        for i in 1..=20 {
            verdicts.extend(l.tick(zero + TICK * i));
        }
        let seconds = Duration::from_secs;
        assert_eq!(
            verdicts,
            [
                Verdict::Suspect { rank: 1, silence: seconds(1), progress: None },
                Verdict::Dead { rank: 1, silence: seconds(5) }
            ]
        );
    }

    #[test]
    fn who_speaks_again_is_no_longer_suspect() {
        let (mut l, zero) = started(2);
        (1..=4).for_each(|i| drop(l.tick(zero + TICK * i)));
        assert_eq!(l.hear(1, zero + ms(2100), Some(7)), Some(ms(2100)));
        assert_eq!(l.hear(1, zero + ms(2200), None), None);
        assert!(l.tick(zero + ms(2500)).is_empty());
        // Late news does not turn the clock back.
        assert_eq!(l.hear(1, zero, None), None);
        assert!(l.tick(zero + ms(3000)).is_empty());
        let again = l.tick(zero + ms(3300));
        assert_eq!(again, [Verdict::Suspect { rank: 1, silence: ms(1100), progress: Some(7) }]);
    }

    #[test]
    fn own_sleep_extends_once() {
        let (mut l, zero) = started(3);
        // Rank 2 speaks after the first sleep, rank 1 never again.
        assert!(l.tick(zero + ms(4000)).is_empty());
        l.hear(2, zero + ms(4100), None);
        assert_eq!(
            l.tick(zero + ms(7000)),
            [Verdict::Suspect { rank: 1, silence: ms(3000), progress: None }]
        );
        l.hear(2, zero + ms(7100), None);
        assert_eq!(l.tick(zero + ms(10_000)), [Verdict::Dead { rank: 1, silence: ms(6000) }]);
    }

    #[test]
    fn sleep_before_the_first_look_extends_too() {
        let zero = Instant::now();
        let mut l = Liveness::new(2, Some(LIMIT));
        l.watch(1, zero);
        assert_eq!(l.tick(zero + ms(9000)), []);
        assert_eq!(l.tick(zero + ms(14_000)), [Verdict::Dead { rank: 1, silence: ms(5000) }]);
    }

    #[test]
    fn the_silent_are_asked_and_live_while_they_answer_but_not_for_ever() {
        let (mut l, zero) = started(2);
        assert!(l.asks(zero + ms(900)).is_empty());
        let (mut asked, mut verdicts) = (0, Vec::new());
        for i in 1..=22 {
            let now = zero + TICK * i;
            verdicts.extend(l.tick(now));
            // Whoever looks more often than that.
            for early in [0, 100, 250, 300] {
                asked += l.asks(now + ms(early)).len();
            }
            l.lives(1, now);
        }
        // From 1 to 9.5 s: at 10 it is judged no more.
        assert_eq!(asked, 2 * 18);
        assert_eq!(verdicts, [Verdict::Stuck { rank: 1, silence: ms(10_000) }]);
        // The time to look for that is known beforehand.
        let (mut l, zero) = started(2);
        l.beat = None;
        l.lives(1, zero + ms(4000));
        assert_eq!(l.next(), Some(zero + ms(1000)));
        assert_eq!(l.asks(zero + ms(8900)), [1]);
        assert_eq!(l.next(), Some(zero + ms(9000)));
        l.lives(1, zero + ms(8000));
        assert_eq!(l.next(), Some(zero + ms(9150)));
        assert_eq!(l.asks(zero + ms(9900)), [1]);
        assert_eq!(l.next(), Some(zero + ms(10_000)));
        // What its own connection carries counts for both.
        l.hear(1, zero + ms(9000), None);
        assert_eq!((l.asks(zero + ms(9950)), l.tick(zero + ms(9950))), (vec![], vec![]));
    }

    #[test]
    fn one_that_is_heard_again_is_still_asked_for_it_may_not_hear() {
        let (mut l, zero) = started(2);
        l.beat = None;
        l.hear(1, zero + ms(900), None);
        assert_eq!(l.next(), Some(zero + ms(1900)));
        (1..10).for_each(|i| drop(l.tick(zero + TICK * i)));
        // Beats go on afterwards.
        let mut asked = Vec::new();
        for t in (4900..20_000).step_by(50) {
            l.hear(1, zero + ms(t), None);
            asked.extend(l.asks(zero + ms(t)).into_iter().map(|_| t));
        }
        assert_eq!(asked[..7], [4900, 5100, 5300, 5500, 5700, 5900, 6850]);
        assert!(asked.len() == 15 && asked.last().is_some_and(|t| *t < 14_900), "{asked:?}");
        // One that had no turn itself knows nothing of the other.
        let (mut l, zero) = started(2);
        l.hear(1, zero + ms(1500), None);
        assert!(l.asks(zero + ms(1500)).is_empty());
    }

    #[test]
    fn an_answer_does_not_end_a_suspicion() {
        let (mut l, zero) = started(2);
        assert_eq!(l.tick(zero + ms(1000)).len(), 1);
        l.lives(1, zero + ms(1100));
        assert_eq!(l.tick(zero + ms(2200)), []);
        assert_eq!(l.hear(1, zero + ms(2300), None), Some(ms(2300)));
    }

    #[test]
    fn a_silence_is_measured_unless_this_process_slept() {
        let (mut l, zero) = started(2);
        assert_eq!(l.silence(1, zero + ms(400)), Some(ms(400)));
        l.hear(1, zero + ms(400), None);
        assert_eq!(l.silence(1, zero + ms(400)), Some(ms(0)));
        assert_eq!((l.silence(0, zero), l.silence(9, zero)), (None, None));
        // The last look was at the start.
        assert_eq!(l.silence(1, zero + ms(2501)), None);
        l.forget(1);
        assert_eq!(l.silence(1, zero + ms(500)), None);
        let mut allowed = Liveness::new(2, None);
        allowed.watch(1, zero);
        assert_eq!(allowed.silence(1, zero + ms(500)), None);
    }

    #[test]
    fn the_forgotten_and_the_absent_are_not_judged() {
        let (mut l, zero) = started(3);
        l.forget(1);
        l.hear(0, zero, None);
        l.hear(9, zero, None);
        let verdicts: Vec<_> = (1..=30).flat_map(|i| l.tick(zero + TICK * i)).collect();
        assert!(
            verdicts
                .iter()
                .all(|v| matches!(v, Verdict::Suspect { rank: 2, .. } | Verdict::Dead { rank: 2, .. }))
        );
        assert_eq!(l.next(), None);
    }

    #[test]
    fn nobody_is_judged_where_silence_is_allowed() {
        let zero = Instant::now();
        let mut l = Liveness::new(2, None);
        l.watch(1, zero);
        assert!(l.tick(zero).is_empty() && l.tick(zero + LIMIT * 100).is_empty());
        assert!(!l.beats(zero + LIMIT) && l.next().is_none());
    }

    #[test]
    fn beats_come_at_their_interval_and_at_once_for_a_newcomer() {
        let (mut l, zero) = started(3);
        assert!(l.beats(zero) && !l.beats(zero + ms(499)) && l.beats(zero + ms(500)));
        assert_eq!(l.next(), Some(zero + ms(1000)));
        l.watch(1, zero + ms(600));
        assert!(l.beats(zero + ms(600)) && !l.beats(zero + ms(601)));
        let short = Liveness { limit: Some(ms(200)), ..started(2).0 };
        assert_eq!(interval(short.limit().unwrap()), ms(20));
    }

    proptest! {
        /// Beats that come each interval, each late by less than what is left of the limit, raise no false alarm, whatever
        /// the ticks' own delays below half the limit.
        #[test]
        fn no_false_alarm(
            late in prop::collection::vec(0u64..4499, 1..40),
            lag in prop::collection::vec(0u64..2000, 40),
        ) {
            let (mut l, zero) = started(2);
            // Beats overtake each other's delays no more than a stream lets them.
            let mut came: Vec<u64> = late.iter().enumerate().map(|(i, d)| i as u64 * 500 + d).collect();
            for i in (0..came.len() - 1).rev() {
                came[i] = came[i].min(came[i + 1]);
            }
            let end = *came.last().unwrap();
            let (mut t, mut at) = (0, 0);
            for lag in lag.iter().cycle() {
                t += 100 + lag;
                if t > end { break; }
                while at < came.len() && came[at] <= t {
                    l.hear(1, zero + ms(t), Some(at as u64));
                    at += 1;
                }
                for v in l.tick(zero + ms(t)) {
                    let false_alarm = matches!(v, Verdict::Dead { .. });
                    prop_assert!(!false_alarm, "{:?} at {} ms", v, t);
                }
            }
        }

        /// Whoever falls silent, at whatever time, is dead at the first tick after the limit, and nobody else is.
        #[test]
        fn every_silence_is_found(
            last in 0u64..20_000, limit in 200u64..30_000, size in 2usize..9, who in 1usize..9, step in 1u64..20,
        ) {
            let who = 1 + who % (size - 1);
            let zero = Instant::now();
            let mut l = Liveness::new(size, Some(ms(limit)));
            (1..size).for_each(|r| l.watch(r, zero));
            let step = (limit * step / 200).max(1);
            let mut dead = Vec::new();
            let mut t = 0;
            while t <= last + limit + 2 * step {
                for r in (1..size).filter(|r| *r != who || t <= last) {
                    l.hear(r, zero + ms(t), None);
                }
                for v in l.tick(zero + ms(t)) {
                    if let Verdict::Dead { rank, silence } = v { dead.push((rank, t, silence)); }
                }
                t += step;
            }
            let spoke = last / step * step;
            prop_assert_eq!(dead.len(), 1);
            let (rank, at, silence) = dead[0];
            prop_assert_eq!((rank, silence), (who, ms(at - spoke)));
            prop_assert!(at >= spoke + limit && at < spoke + limit + step, "{} found at {}", spoke, at);
        }

        /// A process that sleeps as often and as long as it likes accuses nobody who speaks to it whenever it is awake;
        /// one that is gone is found within two limits of being awake.
        #[test]
        fn own_sleep_kills_nobody(naps in prop::collection::vec((0u64..100_000, 500u64..4000), 1..20)) {
            let (mut l, zero) = started(3);
            let (mut t, mut awake) = (0, 0);
            let mut found = None;
            for (nap, work) in naps.into_iter().chain([(0, 11_000)]) {
                t += nap;
                let end = t + work;
                let mut first = true;
                while t < end {
                    // What was sent meanwhile may not all be there at once after waking.
                    if !first { l.hear(1, zero + ms(t), None); }
                    first = false;
                    for v in l.tick(zero + ms(t)) {
                        if let Verdict::Dead { rank, .. } = v {
                            prop_assert_eq!(rank, 2);
                            found = Some(awake);
                        }
                    }
                    t += 250;
                    awake += 250;
                }
            }
            prop_assert!(found.is_some_and(|a| a <= 10_250), "{:?}", found);
        }
    }
}
