//! Times that are made up, and the verdicts on them.

mod crowded;
mod joining;

use super::*;
use proptest::prelude::*;

const LIMIT: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(500);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Liveness {
    /// Tick where all was heard until now.
    fn tick_at(&mut self, now: Instant) -> Vec<Verdict> {
        self.tick(now, now)
    }

    /// Those that are given up by such a tick.
    fn dead_at(&mut self, now: Instant) -> Vec<usize> {
        let dead = |v| if let Verdict::Dead { rank, .. } = v { Some(rank) } else { None };
        self.tick_at(now).into_iter().filter_map(dead).collect()
    }

    /// It connects, and its first beat comes at once.
    fn watch(&mut self, rank: usize, now: Instant) {
        self.meet(rank, now);
        self.begin(rank, now);
    }
}

/// Virtual time: all is relative to one look at the clock.
fn started(size: usize) -> (Liveness, Instant) {
    let zero = Instant::now();
    (started_at(size, zero), zero)
}

fn started_at(size: usize, zero: Instant) -> Liveness {
    let mut l = Liveness::new(size, Some(LIMIT));
    (1..size).for_each(|r| l.watch(r, zero));
    assert!(l.tick_at(zero).is_empty());
    l
}

#[test]
fn silence_is_suspect_then_dead_and_judged_once() {
    let (mut l, zero) = started(2);
    let mut verdicts = Vec::new();
    for i in 1..=20 {
        verdicts.extend(l.tick_at(zero + TICK * i));
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
fn a_relay_is_judged_before_those_who_are_heard_through_it() {
    // What came through it came before its own last beat.
    let (mut l, zero) = started(3);
    l.pass_through(1, vec![2]);
    l.hear(1, zero + ms(100), None);
    l.hear(2, zero + ms(300), None);
    let dead = |l: &mut Liveness, at| l.dead_at(zero + ms(at));
    let mut all = Vec::new();
    (1..=60).for_each(|i| all.extend(dead(&mut l, i * 100)));
    assert_eq!(all, [2, 1]);
    // A look that comes late finds both, and the relay first.
    let mut l = started_at(3, zero);
    l.pass_through(1, vec![2]);
    (1..=10).for_each(|i| assert!(dead(&mut l, i * 490).is_empty()));
    assert_eq!(dead(&mut l, 5_600), [2, 1]);
    // While the relay is heard, the other one is on its own.
    let mut l = started_at(3, zero);
    l.pass_through(1, vec![2]);
    let mut all = Vec::new();
    for i in 1..=60 {
        l.hear(2, zero + ms(i * 100), None);
        all.extend(dead(&mut l, i * 100));
    }
    assert_eq!(all, [1]);
}

#[test]
fn who_speaks_again_is_no_longer_suspect() {
    let (mut l, zero) = started(2);
    (1..=4).for_each(|i| drop(l.tick_at(zero + TICK * i)));
    assert_eq!(l.hear(1, zero + ms(2100), Some(7)), Some(ms(2100)));
    assert_eq!(l.hear(1, zero + ms(2200), None), None);
    assert!(l.tick_at(zero + ms(2500)).is_empty());
    // Late news does not turn the clock back.
    assert_eq!(l.hear(1, zero, None), None);
    assert!(l.tick_at(zero + ms(3000)).is_empty());
    let again = l.tick_at(zero + ms(3300));
    assert_eq!(again, [Verdict::Suspect { rank: 1, silence: ms(1100), progress: Some(7) }]);
}

#[test]
fn each_of_its_own_sleeps_counts_as_a_tenth_of_the_limit() {
    let (mut l, zero) = started(3);
    // Rank 2 speaks after each sleep, rank 1 never again.
    let mut verdicts = Vec::new();
    for i in 1..=10 {
        verdicts.extend(l.tick_at(zero + ms(i * 60_000)));
        l.hear(2, zero + ms(i * 60_000 + 1), None);
    }
    let suspect = Verdict::Suspect { rank: 1, silence: ms(1000), progress: None };
    assert_eq!(verdicts, [suspect, Verdict::Dead { rank: 1, silence: LIMIT }]);
}

#[test]
fn a_beat_is_not_late_by_a_sleep_that_counts_already() {
    let (mut l, zero) = started(2);
    let mut dead = None;
    // Beats are due each half second; between two of them it sleeps for little more than half the limit.
    for at in [ms(0)].into_iter().chain((0..20).map(|i| ms(2640) + TICK * i)) {
        let verdicts = l.tick_at(zero + at);
        l.beats(zero + at);
        if verdicts.iter().any(|v| matches!(v, Verdict::Dead { .. })) {
            dead = dead.or(Some(at));
        }
    }
    assert_eq!(dead, Some(ms(7140)), "the limit, and the sleep but for a tenth of the limit");
}

#[test]
fn a_moment_awake_between_two_sleeps_costs_nobody_its_time() {
    let (mut l, zero) = started(2);
    // It slept until 3 s, looked at the clock to wait, and slept on until 12 s.
    assert_eq!(l.tick(zero + ms(3000), zero + ms(12_000)), []);
    assert_eq!(l.tick(zero + ms(12_010), zero + ms(12_020)), []);
    let alive = |v: &Verdict| matches!(v, Verdict::Suspect { .. });
    assert!((25..33).all(|i| l.tick_at(zero + TICK * i).iter().all(alive)));
    assert_eq!(l.tick_at(zero + ms(16_500)), [Verdict::Dead { rank: 1, silence: ms(5000) }]);
}

#[test]
fn sleep_before_the_first_look_extends_too() {
    let zero = Instant::now();
    let mut l = Liveness::new(2, Some(LIMIT));
    l.watch(1, zero);
    assert_eq!(l.tick_at(zero + ms(9000)), []);
    assert_eq!(l.tick_at(zero + ms(11_500)).len(), 1);
    assert_eq!(l.tick_at(zero + ms(13_500)), [Verdict::Dead { rank: 1, silence: ms(5000) }]);
}

#[test]
fn the_silent_are_asked_and_live_while_they_answer_but_not_for_ever() {
    let (mut l, zero) = started(2);
    assert!(l.asks(zero + ms(900)).is_empty());
    let mut asked = 0;
    let mut verdicts = Vec::new();
    for i in 1..=32 {
        let now = zero + TICK * i;
        verdicts.extend(l.tick_at(now));
        // Whoever looks more often than that.
        for early in [0, 100, 250, 300] {
            asked += l.asks(now + ms(early)).len();
        }
        l.lives(1, now);
    }
    // From 1 to 14.5 s: at 15 it is judged no more.
    assert_eq!(asked, 2 * 28);
    assert_eq!(verdicts, [Verdict::Stuck { rank: 1, silence: ms(15_000) }]);
    // The time to look for that is known beforehand, once it is suspect.
    let (mut l, zero) = started(2);
    l.beat = None;
    assert_eq!(l.tick_at(zero + ms(1000)).len(), 1);
    l.lives(1, zero + ms(9000));
    assert_eq!(l.next(), Some(zero + ms(1000)));
    assert_eq!(l.asks(zero + ms(13_900)), [1]);
    assert_eq!(l.next(), Some(zero + ms(14_000)));
    l.lives(1, zero + ms(13_000));
    l.settle();
    assert_eq!(l.next(), Some(zero + ms(14_150)));
    assert_eq!(l.asks(zero + ms(14_900)), [1]);
    assert_eq!(l.next(), Some(zero + ms(15_000)));
    // What its own connection carries counts for both.
    l.hear(1, zero + ms(14_000), None);
    assert_eq!((l.asks(zero + ms(14_950)), l.tick_at(zero + ms(14_950))), (vec![], vec![]));
}

#[test]
fn one_that_is_heard_again_is_still_asked_for_it_may_not_hear() {
    let (mut l, zero) = started(2);
    l.beat = None;
    l.hear(1, zero + ms(900), None);
    assert_eq!(l.tick_at(zero + ms(1000)), []);
    assert_eq!(l.next(), Some(zero + ms(1900)));
    (1..10).for_each(|i| drop(l.tick_at(zero + TICK * i)));
    // Beats go on afterwards.
    let mut asked = Vec::new();
    for t in (4900..20_000).step_by(50) {
        l.hear(1, zero + ms(t), None);
        asked.extend(l.asks(zero + ms(t)).into_iter().map(|_| t));
    }
    assert_eq!(asked, [4900, 7350, 9800, 12_250, 14_700, 17_150, 19_600]);
    // One that had no turn itself knows nothing of the other.
    let (mut l, zero) = started(2);
    l.hear(1, zero + ms(1500), None);
    assert!(l.asks(zero + ms(1500)).is_empty());
}

#[test]
fn an_answer_does_not_end_a_suspicion() {
    let (mut l, zero) = started(2);
    assert_eq!(l.tick_at(zero + ms(1000)).len(), 1);
    l.lives(1, zero + ms(1100));
    assert_eq!(l.tick_at(zero + ms(2200)), []);
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
    let verdicts: Vec<_> = (1..=30).flat_map(|i| l.tick_at(zero + TICK * i)).collect();
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
    assert!(l.tick_at(zero).is_empty() && l.tick_at(zero + LIMIT * 100).is_empty());
    assert!(!l.beats(zero + LIMIT) && l.next().is_none());
}

#[test]
fn beats_come_at_their_interval_and_at_once_for_a_newcomer() {
    let (mut l, zero) = started(3);
    assert!(l.beats(zero) && !l.beats(zero + ms(499)) && l.beats(zero + ms(500)));
    assert_eq!(l.next(), Some(zero + ms(1000)));
    l.meet(1, zero + ms(600));
    assert!(l.beats(zero + ms(600)) && !l.beats(zero + ms(601)));
    let mut short = Liveness::new(2, Some(ms(200)));
    short.meet(1, zero);
    assert!(short.beats(zero) && !short.beats(zero + ms(19)) && short.beats(zero + ms(20)));
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
        let mut t = 0;
        let mut at = 0;
        for lag in lag.iter().cycle() {
            t += 100 + lag;
            if t > end { break; }
            while at < came.len() && came[at] <= t {
                l.hear(1, zero + ms(t), Some(at as u64));
                at += 1;
            }
            prop_assert_eq!(l.dead_at(zero + ms(t)), vec![], "at {} ms", t);
        }
    }

    /// Looking at everyone each time comes to the same as looking when it is due.
    #[test]
    fn nothing_is_missed_between_looks(
        steps in prop::collection::vec((0u64..700, 0usize..8, 0u8..8), 1..300), size in 2usize..6,
    ) {
        let ((mut l, zero), mut t) = (started(size), 0);
        let mut always = started_at(size, zero);
        for (wait, who, what) in steps {
            t += wait;
            let now = zero + ms(t);
            let who = who % size;
            for l in [&mut l, &mut always] {
                match what {
                    0..4 => drop(l.hear(who, now, Some(t))),
                    4 => l.lives(who, now),
                    5 => l.forget(who),
                    6 => l.watch(who, now),
                    _ => {}
                }
            }
            let due = always.peers.iter().flatten().map(|p| p.due(LIMIT, always.late)).min();
            prop_assert!(due.is_none() || l.first <= due, "{:?} {:?}", l.first, due);
            always.first = Some(zero);
            let [some, all] = [&mut l, &mut always].map(|l| l.tick_at(now));
            prop_assert_eq!(some, all);
            always.first = Some(zero);
            prop_assert_eq!(l.asks(now), always.asks(now));
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
            for v in l.tick_at(zero + ms(t)) {
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
    /// one that is gone is found within the limit of being awake.
    #[test]
    fn own_sleep_kills_nobody(naps in prop::collection::vec((0u64..100_000, 500u64..4000), 1..20)) {
        let (mut l, zero) = started(3);
        let mut t = 0;
        let mut awake = 0;
        let mut found = None;
        for (nap, work) in naps.into_iter().chain([(0, 11_000)]) {
            t += nap;
            let end = t + work;
            let mut first = true;
            while t < end {
                // What was sent meanwhile may not all be there at once after waking.
                if !first { l.hear(1, zero + ms(t), None); }
                first = false;
                for rank in l.dead_at(zero + ms(t)) {
                    prop_assert_eq!(rank, 2);
                    found = Some(awake);
                }
                t += 250;
                awake += 250;
            }
        }
        prop_assert!(found.is_some_and(|a| a <= 5_000), "{:?}", found);
    }
}
