//! Ranks that disagree, give up or die while a peer reads their memory.

use super::{
    PLACES, Place,
    common::{LONG, each, store},
    groups, join, lent,
    operations::{Buffer, given, of},
};
use comity::{ErrorKind, ReduceOp};
use scope::{Actor, role, say};
use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

#[test]
fn ranks_that_disagree_are_told_and_nothing_is_written() {
    for place in PLACES {
        each(groups(2, place), |g| {
            let r = g.rank();
            let mut x = lent(place, &g, &given(r, 1 << 20));
            // The first messages go through the ring.
            for _ in 0..3 {
                g.all_reduce(&mut *x, ReduceOp::Sum).unwrap();
            }
            x.copy_from_slice(&given(r, 1 << 20));
            let error = match r {
                0 => g.all_reduce(&mut *x, ReduceOp::Sum).unwrap_err(),
                _ => g.all_reduce(&mut x[1..], ReduceOp::Sum).unwrap_err(),
            };
            assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
            assert!(*x == given(r, 1 << 20), "{place:?}, rank {r}: something was written");
        });
    }
}

/// Bytes that a rank reads of another's buffer after that rank gave up are never a result.
#[test]
fn a_rank_that_gives_up_in_the_middle_spoils_no_result() {
    for (place, after) in PLACES.into_iter().flat_map(|p| [0u64, 1, 3, 10, 30].map(|after| (p, after))) {
        let start = Barrier::new(2);
        each(groups(2, place), |g| {
            let want = |i: usize| of(0, i) + of(1, i);
            let mine = given(g.rank(), COUNT);
            let mut x = lent(place, &g, &mine);
            g.all_reduce(&mut *x, ReduceOp::Sum).unwrap();
            start.wait();
            thread::scope(|s| {
                if g.rank() == 0 {
                    let g = g.clone();
                    s.spawn(move || {
                        thread::sleep(Duration::from_millis(after));
                        g.abort("enough");
                    });
                }
                for _ in 0..1000 {
                    x.copy_from_slice(&mine);
                    if let Err(e) = g.all_reduce(&mut *x, ReduceOp::Sum) {
                        // Between two calls the second is told that the group has failed.
                        assert!(
                            matches!(e.kind(), ErrorKind::Aborted { .. } | ErrorKind::Broken { .. }),
                            "{e}"
                        );
                        // What the other may still read.
                        x.fill(f32::NAN);
                        break;
                    }
                    let wrong = (0..COUNT).find(|&i| x[i].to_bits() != want(i).to_bits());
                    assert_eq!(wrong, None, "rank {}", g.rank());
                }
            });
        });
    }
}

const COUNT: usize = 4 << 20;

/// A rank that calls until it is killed.
fn rank_that_is_killed(at: &str, place: Place) {
    let g = join((1, 2), at, place.pull());
    let mut x = lent(place, &g, &vec![1.0; COUNT]);
    loop {
        x.fill(1.0);
        g.all_reduce(&mut *x, ReduceOp::Sum).unwrap();
        say("called");
    }
}

#[test]
fn a_rank_that_is_killed_in_the_middle_is_named() {
    if let Some(role) = role() {
        let (at, place) = role.split_once(' ').unwrap();
        return rank_that_is_killed(at, if place == "own" { Place::Own } else { Place::Mapped });
    }
    for (place, after) in PLACES.into_iter().flat_map(|p| [0u64, 2, 5, 9].map(|after| (p, after))) {
        let store = store(2);
        let at = store.addr().to_string();
        let role = format!("{at} {}", if place == Place::Own { "own" } else { "mapped" });
        let mut actor = Actor::start(module_path!(), "a_rank_that_is_killed_in_the_middle_is_named", role);
        let pid = actor.child.id();
        let g = join((0, 2), &at, place.pull());
        let mut x = lent(place, &g, &vec![2.0; COUNT]);
        assert!(!matches!(&x, Buffer::Shared(b) if !b.is_shared()));
        let killer = thread::spawn(move || {
            actor.hear();
            thread::sleep(Duration::from_millis(after));
            actor.child.kill().unwrap();
            (Instant::now(), actor)
        });
        let (error, named) = loop {
            x.fill(2.0);
            match g.all_reduce(&mut *x, ReduceOp::Sum) {
                Ok(()) => assert!(x.iter().all(|&v| v == 3.0), "a result that is none"),
                Err(e) => break (e, Instant::now()),
            }
        };
        let (killed, _actor) = killer.join().unwrap();
        assert!(
            matches!(error.kind(), ErrorKind::PeerLost { peer, .. } if peer.rank == 1 && peer.pid == Some(pid)),
            "{error}"
        );
        let took = named.saturating_duration_since(killed);
        println!("named after {took:?}");
        // Silent, it would be named at the detection limit.
        assert!(took < LONG / 2, "{took:?}");
    }
}
