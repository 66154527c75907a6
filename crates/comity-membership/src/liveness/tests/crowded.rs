//! A host on which nobody has a turn for long.

use super::*;

#[test]
fn time_in_which_this_process_had_no_turn_is_nobodys_silence() {
    // Each beat goes out 400 ms late, for 9 s: of each 900 ms it could have heard 500.
    let (mut l, zero) = started(2);
    assert!(l.beats(zero));
    let mut verdicts = Vec::new();
    for i in 1..=10 {
        let now = zero + ms(i * 900);
        assert!(l.beats(now));
        verdicts.extend(l.tick_at(now));
        l.asks(now);
        assert!(i == 10 || l.next().is_some_and(|at| at > now), "no look in vain at once");
    }
    let (noted, dead) = verdicts.split_at(1);
    assert!(matches!(noted, [Verdict::Suspect { .. }]), "{noted:?}");
    assert_eq!(dead, [Verdict::Dead { rank: 1, silence: ms(5000) }], "at 9 s, of which 4 do not count");
    // However crowded, four times the limit is the most; and who is heard begins anew.
    let mut l = started_at(3, zero);
    assert!(l.beats(zero));
    let mut found = None;
    for i in 1..=20 {
        let now = zero + ms(i * 2400);
        l.hear(2, now, None);
        l.beats(now);
        for rank in l.dead_at(now) {
            assert_eq!(found.replace((rank, i * 2400)), None, "one, once");
        }
    }
    assert_eq!(found, Some((1, 21_600)), "at the first look after 20 s");
}

/// Ranks 1 to 3 are of another host, 4 of a third. Returns the time at which each is given up, if `beats` come at these milliseconds.
fn given_up(beats: &[(usize, u64)], until: u64) -> Vec<(usize, u64)> {
    let (mut l, zero) = started(5);
    l.live_on(vec![None, Some(0), Some(0), Some(0), Some(1)]);
    let mut dead = Vec::new();
    for at in (100..=until).step_by(100) {
        for (rank, _) in beats.iter().filter(|(_, beat)| *beat == at) {
            l.hear(*rank, zero + ms(at), Some(0));
        }
        dead.extend(l.dead_at(zero + ms(at)).into_iter().map(|rank| (rank, at)));
    }
    dead
}

#[test]
fn another_host_on_which_nobody_has_a_turn_is_given_time() {
    // Rank 2 is heard each 4 s, rank 3 each 4 s in between: their silences overlap, and count once. Rank 1 gets that time too, up to three limits, and no
    // rank of a host that is not crowded.
    let late = |rank, first| (0..10u64).map(move |i| (rank, first + i * 4000));
    let beats: Vec<_> = late(2, 4000).chain(late(3, 4500)).collect();
    assert_eq!(given_up(&beats, 30_000), [(4, 5000), (1, 20_000)]);
    // It is heard in time.
    let beats: Vec<_> = beats.into_iter().chain([(1, 9000)]).collect();
    assert_eq!(given_up(&beats, 20_000), [(4, 5000)]);
    // Where the others of its host are heard in time it is found as ever, also if they stood still for a moment.
    let usual: Vec<_> = (1..20u64).flat_map(|i| [(2, i * 1000), (3, i * 2400), (4, i * 500)]).collect();
    assert_eq!(given_up(&usual, 5000), [(1, 5000)]);
}
