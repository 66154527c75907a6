//! While ranks join, nobody is judged; for five minutes in which none joins, and no longer.

use super::*;

#[test]
fn who_still_connects_with_others_is_not_judged() {
    let zero = Instant::now();
    let mut l = Liveness::new(3, Some(LIMIT));
    l.meet(1, zero);
    assert!(l.beats(zero));
    let verdicts = |l: &mut Liveness, from| {
        (from..from + 100).flat_map(|i| l.tick_at(zero + TICK * i)).collect::<Vec<_>>()
    };
    assert!(verdicts(&mut l, 1).is_empty() && l.asks(zero + TICK * 101).is_empty());
    l.begin(1, zero + TICK * 101);
    l.begin(2, zero + TICK * 101);
    let said = verdicts(&mut l, 102);
    assert!(
        matches!(said[..], [Verdict::Suspect { rank: 1, .. }, Verdict::Dead { rank: 1, .. }]),
        "{said:?}"
    );
}

/// A rank has connected with all and beats; while another has not, its silence means nothing.
#[test]
fn nobody_is_judged_while_any_rank_connects() {
    let limit = ms(5000);
    let zero = Instant::now();
    let mut l = Liveness::new(3, Some(limit));
    l.watch(1, zero);
    l.meet(2, zero);
    let mut verdicts = Vec::new();
    (0..120).for_each(|i| verdicts.extend(l.tick_at(zero + ms(i * 250))));
    assert!(verdicts.is_empty(), "{verdicts:?}");
    // From then on it is.
    l.begin(2, zero + ms(30_000));
    let dead = (120..200).map(|i| i * 250).find(|t| {
        l.hear(2, zero + ms(*t), None);
        l.dead_at(zero + ms(*t)) == [1]
    });
    assert!(dead.is_some_and(|t| (33_750..=35_250).contains(&t)), "{dead:?}");
}

/// A rank may be stopped between its connection and its first beat: it is waited for, but not for ever.
#[test]
fn whoever_never_beats_is_judged_in_the_end() {
    let zero = Instant::now();
    let mut l = Liveness::new(2, Some(ms(5000)));
    l.meet(1, zero);
    let dead = (0..1300).map(|i| i * 250).find(|t| l.dead_at(zero + ms(*t)) == [1]);
    assert_eq!(dead, Some(305_000));
}

/// Ranks come one after another, a minute short of the five: the first ones wait for an hour, and are not judged. The last two never beat.
#[test]
fn each_rank_that_arrives_renews_the_five_minutes() {
    let zero = Instant::now();
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let mut l = Liveness::new(10, Some(LIMIT));
    let mut dead = Vec::new();
    let mut at = Duration::ZERO;
    while at < minutes(90) {
        let now = zero + at;
        for rank in 1..10u64 {
            // Each connects four minutes after the one before. When all have, they beat for the first time, four minutes apart again.
            if at == minutes(4 * rank) {
                l.meet(rank as usize, now);
            }
            if rank < 8 && at == minutes(36 + 4 * rank) {
                l.begin(rank as usize, now);
            }
        }
        dead.extend(l.dead_at(now).into_iter().map(|rank| (rank, at)));
        assert!(at > minutes(69) || l.asks(now).is_empty(), "asks at {at:?}");
        at += TICK;
    }
    dead.sort_unstable();
    // The last to begin did so after 64 minutes. Those that were heard once are as silent from then on as those that never were.
    let end = minutes(69) + LIMIT;
    assert_eq!(dead, (1..10).map(|rank| (rank, end)).collect::<Vec<_>>());
}

/// A rank that was silent while others joined gets the whole limit, also where nobody was to be looked at in the meantime.
#[test]
fn silence_counts_from_when_the_last_has_begun() {
    let mut l = Liveness::new(3, Some(LIMIT));
    let zero = Instant::now();
    l.watch(1, zero);
    l.meet(2, zero);
    assert_eq!(l.tick_at(zero), []);
    l.begin(2, zero + ms(900));
    let dead = (4..40).map(|i| i * 225).find(|t| {
        l.hear(2, zero + ms(*t), None);
        l.dead_at(zero + ms(*t)) == [1]
    });
    assert_eq!(dead, Some(6075));
    // One that ends while it joins is waited for no longer.
    let mut l = Liveness::new(3, Some(LIMIT));
    l.watch(1, zero);
    l.meet(2, zero);
    assert_eq!(l.tick_at(zero), []);
    l.forget(2);
    assert_eq!(l.tick_at(zero + ms(900)), []);
    assert!(l.tick_at(zero + ms(5800)).iter().all(|v| matches!(v, Verdict::Suspect { rank: 1, .. })));
}

/// A job that is stopped (Ctrl-Z) for an hour while it joins goes on joining: its own sleep is no part of the five minutes.
#[test]
fn own_sleep_is_no_part_of_the_five_minutes() {
    let mut l = Liveness::new(2, Some(LIMIT));
    let zero = Instant::now();
    l.meet(1, zero);
    let dead = |l: &mut Liveness, from: u64, to: u64| {
        (from * 2..to * 2).find(|i| l.dead_at(zero + TICK * *i as u32) == [1])
    };
    assert_eq!(dead(&mut l, 0, 100), None);
    assert_eq!(dead(&mut l, 3700, 3899), None);
    // 99.5 s before, a tenth of the limit for the hour, and 200 s after.
    assert_eq!(dead(&mut l, 3899, 4000), Some(2 * 3905));
}
