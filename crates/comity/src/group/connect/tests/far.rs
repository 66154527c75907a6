//! Pairs whose round trip is long: they have more connections by themselves.

use super::*;
use crate::Protection;

/// Numbers of connections of the links of two ranks for which every round trip takes `trip`.
fn connections(trip: Duration, adapt: impl Fn(Config) -> Config + Sync) -> Vec<usize> {
    let all = world(2, |c| adapt(c.links([LinkKind::Tcp])));
    all.iter().for_each(|e| e.set_round_trip_for_test(trip));
    each(0..2, |r| {
        let (status, mut links) = open(&all[r], 0, &[0, 1]);
        talk(r, &mut links);
        assert!(status.failure().is_none());
        links[1 - r].as_ref().unwrap().connections()
    })
}

#[test]
fn a_pair_has_more_connections_by_itself_from_ten_milliseconds_on() {
    let far = Duration::from_millis(11);
    assert_eq!(connections(far, |c| c), [15, 15]);
    assert_eq!(connections(far, |c| c.secure(Protection::Data)), [15, 15]);
    assert_eq!(connections(Duration::from_millis(9), |c| c.send_threads(0)), [1, 1]);
    // Who has chosen has what they chose.
    let chosen = |c: Config| {
        let n = if c.rank() == 0 { 4 } else { 1 };
        c.connections(n)
    };
    assert_eq!(connections(far, chosen), [4, 4]);
}
