//! Jobs whose ranks have control connections to neighbours in a graph only, as those of more than 64 ranks.

use super::*;
use crate::Detection;
use comity_membership::overlay_neighbours;

fn sparse(n: usize) -> Vec<Arc<Endpoint>> {
    world(n, |mut c| {
        c.settings.sparse_above = 3;
        c.detection(Detection::After(Duration::from_secs(2)))
    })
}

/// The ranks to which an endpoint has control connections.
fn connected(e: &Endpoint, n: usize) -> Vec<usize> {
    (0..n).filter(|r| e.is_connected_for_test(*r)).collect()
}

#[test]
fn all_pairs_can_be_linked_though_few_are_connected() {
    let n = 12;
    let all = sparse(n);
    for (r, e) in all.iter().enumerate() {
        let mut near = overlay_neighbours(r, n);
        near.sort_unstable();
        assert_eq!(connected(e, n), near);
        assert!(near.len() < n - 3, "{near:?}");
    }
    let everyone: Vec<usize> = (0..n).collect();
    each(0..n, |r| talk(r, &mut open(&all[r], 0, &everyone).1));
}

/// Eight of twelve ranks end in good order. The four that are left had no connections with each other, and watch each other then.
#[test]
fn ranks_that_are_left_watch_each_other() {
    let n = 12;
    let left = [0, 3, 6, 9];
    let mut all: Vec<Option<Arc<Endpoint>>> = sparse(n).into_iter().map(Some).collect();
    let of = |e: &Option<Arc<Endpoint>>| Arc::clone(e.as_ref().unwrap());
    let left_ones: Vec<Arc<Endpoint>> = left.iter().map(|r| of(&all[*r])).collect();
    let statuses: Vec<_> = left_ones.iter().map(|e| e.enter_for_test(5, &left)).collect();
    for (r, e) in all.iter().enumerate().filter(|(r, _)| !left.contains(r)) {
        // They begin, or nobody would be judged.
        drop(e.as_ref().unwrap().enter_for_test(6, &[r, left[0]]));
    }
    for (r, e) in left_ones.iter().enumerate() {
        assert!(left.iter().all(|o| !connected(e, n).contains(o)), "{r}");
    }
    each(0..n, |r| {
        if !left.contains(&r) {
            all[r].as_ref().unwrap().leave(6);
        }
    });
    (0..n).filter(|r| !left.contains(r)).for_each(|r| drop(all[r].take()));
    for (i, e) in left_ones.iter().enumerate() {
        let want: Vec<usize> = left.iter().copied().filter(|r| *r != left[i]).collect();
        await_that("they find each other", || connected(e, n) == want);
    }
    assert!(statuses.iter().all(|s| s.failure().is_none()));
    left_ones[2].die();
    for (i, status) in statuses.iter().enumerate().filter(|(i, _)| *i != 2) {
        let failure = await_failure(status);
        assert_eq!((failure.culprit, failure.cause.contains("died")), (2, true), "{i}: {failure:?}");
    }
}
