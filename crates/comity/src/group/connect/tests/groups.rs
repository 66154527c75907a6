//! Groups of ranks that have met: opened in any order, left, aborted, and ended by deaths.

use super::*;
use crate::{Detection, backend::NewGroup, status::FailureKind};

#[test]
fn a_death_is_known_to_all_by_name() {
    let mut all = world(4, |c| c);
    let members = [3, 1, 0, 2];
    let mut opened = each(0..4, |r| open(&all[r], 0, &members));
    all[2].die();
    for r in [0, 1, 3] {
        let f = await_failure(&opened[r].0);
        assert_eq!(
            (f.culprit, f.cause.as_str(), f.why == FailureKind::Reported),
            (3, "died: its control connection closed", false)
        );
        // A group with the dead cannot be made, one without can.
        let e = all[r].open(1, &[0, 1, 2, 3], &status(4), until()).unwrap_err();
        assert!(
            matches!(e.kind(), ErrorKind::PeerLost { peer, .. } if peer.rank == 2 && peer.pid.is_some()),
            "{e}"
        );
    }
    all.remove(2);
    opened.clear();
    each(0..3, |i| {
        let (status, mut links) = open(&all[i], 2, &[0, 1, 3]);
        talk(i, &mut links);
        assert!(status.failure().is_none());
    });
}

#[test]
fn who_waits_tells_in_what_and_differences_are_found() {
    let all = world(3, |c| c);
    let call = |seq, root| {
        let info = CallInfo::new(Op::Broadcast).with(|c| {
            c.seq = seq;
            c.count = 3;
            c.root = Some(root);
        });
        Header { info, shape: 0, group_id: 9, lends: false }
    };
    // Rank 2 has not opened the group yet; only the last word counts.
    let mut opened = each(0..2, |r| (r < 2).then(|| all[r].enter_for_test(9, &[2, 1, 0])));
    all[0].ask(9, &[0, 1], &call(1, 0));
    all[0].ask(9, &[0], &call(2, 1));
    let late = all[2].enter_for_test(9, &[2, 1, 0]);
    await_that("no word", || late.ledger().told(2) == Some(call(2, 1)));
    assert_eq!(all[2].waits(9, 2), Some((call(2, 1), false)));
    // The same rank, asked about in another group.
    let other = all[2].enter_for_test(10, &[0, 2]);
    assert_eq!(all[2].waits(10, 0), Some((call(2, 1), true)));
    assert!(all[2].waits(9, 1).is_none() && other.failure().is_none());
    late.ledger().record(&call(1, 0));
    assert!(late.ledger().settle().is_none());
    late.ledger().record(&call(2, 0));
    let (from, calls) = late.ledger().settle().unwrap();
    assert_eq!((from, calls.what, calls.theirs, calls.ours), (2, "root", call(2, 1).info, call(2, 0).info));
    // One that is past that call sees it on its control thread, and tells all.
    let past = opened[1].take().unwrap();
    (1..=5).for_each(|seq| past.ledger().record(&call(seq, 0)));
    all[0].ask(9, &[1], &call(4, 1));
    let failure = await_failure(&past);
    assert_eq!((failure.culprit, failure.by), (2, 1));
    assert_eq!(await_failure(&late), failure);
    assert_eq!(await_failure(&opened[0].take().unwrap()), failure);
    assert!(failure.cause.contains("root 1 while rank 1 called") && failure.is_disagreement(), "{failure:?}");
}

#[test]
fn an_abort_reaches_all_with_its_words() {
    let all = world(3, |c| c);
    let opened = each(0..3, |r| open(&all[r], 9, &[0, 1, 2]));
    let failure = Failure::reported(1, "the disk is full");
    all[1].abort(9, &failure);
    for r in [0, 2] {
        assert_eq!(await_failure(&opened[r].0), failure);
    }
    // The first reason stays.
    all[2].abort(9, &Failure::reported(2, "other"));
    all[2].abort(9, &Failure { culprit: 7, ..Failure::reported(2, "no such rank") });
    thread::sleep(Duration::from_millis(20));
    assert_eq!(opened[0].0.failure(), Some(&failure));
}

#[test]
fn leaving_is_no_failure() {
    let mut all = world(3, |c| c);
    let opened = each(0..3, |r| open(&all[r], 9, &[2, 1, 0]));
    all[1].leave(9);
    for r in [0, 2] {
        await_that("rank 1's leave", || opened[r].0.has_left(1));
    }
    // Whoever ends in good order leaves what it was still in.
    drop(all.remove(2));
    await_that("rank 2's goodbye", || opened[0].0.has_left(0));
    assert!(opened.iter().all(|(w, _)| w.failure().is_none()));
    let e = all[0].open(10, &[0, 1, 2], &status(3), until());
    drop(all.remove(1));
    assert!(e.unwrap_err().to_string().contains("rank 2"));
}

#[test]
fn groups_open_in_any_order() {
    let all = world(4, |c| c);
    each(0..4, |r| {
        let pair: Vec<usize> = if r < 2 { vec![0, 1] } else { vec![3, 2] };
        let me = pair.iter().position(|m| *m == r).unwrap();
        let mut pairs = Vec::new();
        // A faster rank goes on to the next group before a slower one has come to this.
        for group_id in 1..6 {
            if r % 2 == 1 {
                thread::sleep(Duration::from_millis(5));
            }
            pairs.push(open(&all[r], group_id << 1 | (r as u64 / 2), &pair));
        }
        let (_w, mut links) = open(&all[r], 100, &[0, 1, 2, 3]);
        talk(r, &mut links);
        pairs.iter_mut().for_each(|(_, links)| talk(me, links));
    });
}

#[test]
fn what_a_fast_rank_says_before_a_slow_one_opens_is_kept() {
    for kind in kinds_without_device() {
        let mut all = world(2, |c| c.links([kind]));
        let slow = all.remove(0);
        let fast = all.remove(0);
        thread::scope(|s| {
            s.spawn(move || {
                let (_w, mut links) = open(&fast, 3, &[0, 1]);
                assert_eq!(links[0].as_mut().unwrap().put(b"early", &[]), Ok(5));
                fast.leave(3);
            });
            thread::sleep(Duration::from_millis(100));
            let (status, mut links) = open(&slow, 3, &[0, 1]);
            let mut got = [0; 5];
            await_that("the early bytes", || links[1].as_mut().unwrap().take(&mut got).unwrap() == 5);
            assert_eq!(&got, b"early");
            await_that("the early leave", || status.has_left(1));
            assert!(status.failure().is_none());
        });
    }
}

#[test]
fn a_rank_that_does_not_come_to_a_group_is_named() {
    let all = world(3, |c| c);
    let soon = Instant::now() + Duration::from_millis(1500);
    let errors = each([0, 2], |r| all[r].open(1, &[0, 1, 2], &status(3), soon).unwrap_err().to_string());
    assert!(errors.iter().all(|e| e.contains("rank 1")), "{errors:?}");
}

#[test]
fn a_death_ends_an_open_at_once() {
    let all = world(3, |c| c.detection(Detection::After(LONG)));
    let begun = Instant::now();
    let barrier = Barrier::new(3);
    each(0..3, |r| {
        barrier.wait();
        if r == 1 {
            thread::sleep(Duration::from_millis(100));
            all[1].die();
            return;
        }
        let e = all[r].open(1, &[0, 1, 2], &status(3), until()).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::PeerLost { peer, .. } if peer.rank == 1), "{e}");
    });
    assert!(begun.elapsed() < LONG / 2);
}

#[test]
fn a_socket_that_does_not_work_gives_way_to_tcp() {
    let mut all = world(2, |c| c);
    Arc::get_mut(&mut all[1]).unwrap().spoil_unix_of(0);
    each(0..2, |r| {
        let (_w, mut links) = open(&all[r], 0, &[0, 1]);
        assert_eq!(links[1 - r].as_ref().unwrap().properties().kind, LinkKind::Tcp);
        talk(r, &mut links);
    });
}

/// The group fails when one member is connecting for a part of it and the other will never come.
#[test]
fn a_split_hears_that_its_group_has_failed() {
    let all = world(2, |c| c);
    let heard = each(0..2, |r| {
        let world: Arc<dyn World> = all[r].clone();
        let mut native =
            crate::backend::NativeBackend::open_all(world.clone(), 0, Arc::default(), LONG).unwrap();
        if r == 1 {
            thread::sleep(Duration::from_millis(100));
            let cause = "no memory is left".to_owned();
            world.abort(0, &Failure::reported(1, cause));
            // It leaves only when the other has had time to hear the reason.
            thread::sleep(Duration::from_millis(500));
            return None;
        }
        let begun = Instant::now();
        let new = NewGroup { members: &[0, 1], group_id: 7, counters: Arc::default(), limit: LONG };
        let e = native.part(new).unwrap_err();
        Some((e, begun.elapsed()))
    });
    let (e, after) = heard[0].clone().unwrap();
    assert!(
        matches!(e.kind(), ErrorKind::Aborted { by, reason, .. } if by.rank == 1 && reason == "no memory is left"),
        "{e}"
    );
    assert!(after < LONG / 2, "{after:?}");
}
