//! Fuzzes the reading of flight records.

use super::{Flight, KEPT};

/// Every rank and count of a record lies within the group and the bounds, and every text can be shown on a terminal.
pub fn flight(bytes: &[u8]) {
    let Ok(f) = Flight::parse("rank-0.group-0.flight.json", bytes) else { return };
    let size = f.members.len();
    assert!(f.members.get(f.rank) == Some(&0) && f.culprit.is_none_or(|c| c < size));
    assert!(f.calls.len() <= KEPT && f.made >= f.calls.len() as u64);
    let shown = [Some(&f.error), f.host.as_ref()];
    assert!(shown.into_iter().flatten().all(|t| !t.contains(char::is_control)));
    for call in f.calls {
        assert!(call.begin <= call.end && call.info.root.is_none_or(|r| r < size));
        assert!(call.peer.is_none_or(|p| p < size) && !call.info.to_string().is_empty());
    }
}
