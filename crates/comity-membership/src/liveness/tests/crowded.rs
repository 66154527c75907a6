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
        for v in l.tick_at(now) {
            if let Verdict::Dead { rank, .. } = v {
                assert_eq!(found.replace((rank, i * 2400)), None, "one, once");
            }
        }
    }
    assert_eq!(found, Some((1, 21_600)), "at the first look after 20 s");
}
