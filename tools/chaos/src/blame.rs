//! Whom an error holds to blame, by the words that the library uses.

use super::processes::Said;

/// Whether an error holds this rank to blame, by what it says to programs or, where no group came to be, in words.
pub(super) fn names(out: &Said, rank: usize) -> bool {
    let words = out.field(2);
    // One that gave up tells on whose account.
    let account = words.split_once(GAVE_UP).map(|(_, why)| blamed(why)).filter(|ranks| !ranks.is_empty());
    match (account, out.field(1)) {
        (Some(ranks), _) => ranks.contains(&rank),
        (None, "-") => blamed(words).contains(&rank),
        (None, culprit) => culprit == rank.to_string(),
    }
}

const GAVE_UP: &str = " gave up: ";

/// Whom the words of a join that failed hold to blame: those that are missing, or the one of whom the sentence is.
fn blamed(words: &str) -> Vec<usize> {
    if let Some((who, why)) = words.split_once(GAVE_UP) {
        let account = blamed(why);
        return if account.is_empty() { blamed(who) } else { account };
    }
    if let Some((_, why)) = words.split_once(" came too late: ") {
        return blamed(why);
    }
    // "rank 2 lost rank 0's store at ...", "rank 2: rank 0's store at ... did not answer ..."
    if words.contains("rank 0's store at ") {
        return vec![0];
    }
    let awaited = || {
        let (_, list) = words.strip_suffix(AWAITED)?.split_once(" waited ")?.1.split_once(" for ")?;
        Some(list.split(", ").filter_map(number).collect())
    };
    let missing = missing(words);
    if missing.is_empty() {
        awaited().unwrap_or_else(|| number(words).into_iter().collect())
    } else {
        missing
    }
}

const AWAITED: &str = " to come to the group; do all of its ranks make this call?";

/// The number in "rank 12 ...".
fn number(words: &str) -> Option<usize> {
    words.strip_prefix("rank ")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The ranks in "missing rank 3 (never connected)" and "missing ranks 1, 3 (never connected)".
fn missing(words: &str) -> Vec<usize> {
    let list = words.split_once(": missing rank").and_then(|(_, list)| list.split_once(" (never "));
    let list = list.map_or("", |(list, _)| list.trim_start_matches('s'));
    list.split(',').filter_map(|rank| rank.trim().parse().ok()).collect()
}

/// Whether an error says that this rank was never seen.
pub(super) fn never_came(out: &Said, rank: usize) -> bool {
    let words = out.field(2);
    let store =
        rank == 0 && words.contains("rank 0's store at ") && words.contains(" did not answer within ");
    out.field(0) == "join" && (store || missing(words).contains(&rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(kind: &str, culprit: &str, words: &str) -> Said {
        let fields = [kind, culprit, words].map(str::to_owned).into();
        Said { by: 0, event: "out".into(), rank: 0, at: 0, fields }
    }

    #[test]
    fn whom_an_error_names() {
        assert!(names(&out("lost", "3", "rank 3 died"), 3));
        assert!(!names(&out("lost", "1", "rank 1 died (seen by rank 3)"), 3));
        let account =
            out("lost", "1", "rank 1 (host m, pid 7) gave up: rank 12 (host m, pid 9) died; look at it");
        assert_eq!([1, 2, 9, 12].map(|r| names(&account, r)), [false, false, false, true]);
        assert!(names(&out("lost", "1", "rank 1 (host m, pid 7) gave up: no memory (seen by rank 3)"), 1));
        let join = |words: &str| (0..14).filter(|r| names(&out("join", "-", words), *r)).collect::<Vec<_>>();
        assert_eq!(
            join("only 2 of 5 ranks joined within 1 s: missing ranks 1, 3, 12 (never connected)"),
            [1, 3, 12]
        );
        assert_eq!(
            join(
                "rank 4 came too late: only 2 of 3 ranks joined within 1 s: missing rank 1 (never connected)"
            ),
            [1]
        );
        assert_eq!(join("rank 12 (host m, pid 2) ended while the ranks were connecting"), [12]);
        assert_eq!(
            join("rank 2 (host m, pid 3) gave up: rank 1 (host m, pid 4) ended before all ranks had joined"),
            [1]
        );
        assert_eq!(join("rank 2 (host m, pid 3) gave up: listening: rank 1 has the port"), [2]);
        assert_eq!(
            join(
                "rank 3 lost rank 0's store at 127.0.0.1:9 before all ranks had met (it ended); was rank 0 killed?"
            ),
            [0]
        );
        assert_eq!(
            join(
                "rank 2 waited 1 s for rank 3 (host m, pid 4), rank 5 to come to the group; do all of its ranks make this call?"
            ),
            [3, 5]
        );
        assert_eq!(
            join(
                "rank 1 (host m, pid 2) joined but did not connect to rank 3 within 1 s; can its host reach this one?"
            ),
            [1]
        );
        assert!(join("rank 0 of another job").contains(&0) && join("the ranks differ").is_empty());
    }

    #[test]
    fn who_never_came() {
        let store = "rank 2: rank 0's store at 127.0.0.1:9 did not answer within 1 s (refused); is rank 0 running, and is the address right?";
        assert!(never_came(&out("join", "-", store), 0) && !never_came(&out("join", "-", store), 2));
        let late = "only 2 of 3 ranks joined within 1 s: missing rank 1 (never connected)";
        assert!(never_came(&out("join", "-", late), 1) && !never_came(&out("join", "-", late), 0));
        let known = "rank 1 (host m, pid 2) ended before all ranks had joined";
        assert!(!never_came(&out("join", "-", known), 1));
    }
}
