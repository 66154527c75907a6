//! Ranks that an error holds to blame, by its fields for programs.

use super::processes::Said;

/// The ranks that an error holds to blame.
pub(super) fn blamed(out: &Said) -> Vec<usize> {
    out.field(1).split(',').filter_map(|rank| rank.parse().ok()).collect()
}

/// Return whether this rank is among them.
pub(super) fn names(out: &Said, rank: usize) -> bool {
    blamed(out).contains(&rank)
}

/// Return whether an error says that this rank was never seen.
pub(super) fn never_came(out: &Said, rank: usize) -> bool {
    is_missing(out) && names(out, rank)
}

/// Return whether an error says that ranks were never seen.
pub(super) fn is_missing(out: &Said) -> bool {
    joins(out, "missing")
}

/// Return whether an error says that the store of rank 0 ended before all had met.
pub(super) fn lost_store(out: &Said) -> bool {
    joins(out, "ended") && names(out, 0) && out.field(4) != "-"
}

fn joins(out: &Said, cause: &str) -> bool {
    out.field(0) == "join" && out.field(3) == cause
}

/// Rank that saw another go, if not the one that reports it.
pub(super) fn seen_by(out: &Said) -> Option<usize> {
    out.field(5).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(fields: [&str; 6]) -> Said {
        Said { by: 0, event: "out".into(), rank: 0, at: 0, fields: fields.map(str::to_owned).into() }
    }

    #[test]
    fn whom_an_error_names() {
        let lost = out(["lost", "12", "rank 1 (host m, pid 7) gave up: rank 12 died", "-", "-", "3"]);
        assert!(names(&lost, 12) && !names(&lost, 1) && !names(&lost, 2) && seen_by(&lost) == Some(3));
        let nobody = out(["os", "-", "no memory", "-", "-", "-"]);
        assert!(blamed(&nobody).is_empty() && seen_by(&nobody).is_none() && !is_missing(&nobody));
    }

    #[test]
    fn who_never_came() {
        let late = out(["join", "1,3", "only 2 of 4 ranks joined", "missing", "-", "-"]);
        assert!(never_came(&late, 1) && never_came(&late, 3) && !never_came(&late, 0));
        let ended = out(["join", "1", "rank 1 ended before all ranks had joined", "ended", "-", "-"]);
        assert!(names(&ended, 1) && !never_came(&ended, 1) && !lost_store(&ended));
        let store = out(["join", "0", "rank 2 lost rank 0's store", "ended", "127.0.0.1:9", "-"]);
        assert!(lost_store(&store) && !never_came(&store, 0));
    }
}
