//! Closing compares: calls that differ and that no message showed are told when the group is left.

mod common;

use comity::{ErrorKind, Group, LinkKind, Op, ReduceOp, Result};
use common::{each, job};
use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Groups of `n` over each kind of link that needs no device.
fn kinds(n: usize) -> Vec<Vec<Group>> {
    let here = |kind: &LinkKind| match kind {
        LinkKind::Shm => cfg!(target_os = "linux"),
        kind => *kind != LinkKind::Rdma,
    };
    let jobs = LinkKind::choices().filter(here).map(|kind| job(n, |c| c.links([kind])));
    [Group::local(n).unwrap()].into_iter().chain(jobs).collect()
}

/// Some right calls, then `last`.
fn after_some(g: &Group, last: impl Fn(&Group) -> Result<()>) -> Result<()> {
    let mut x = [1f32; 8];
    for _ in 0..3 {
        g.all_reduce(&mut x, ReduceOp::Sum)?;
    }
    last(g)
}

#[test]
fn a_wrong_call_that_is_the_last_is_told_on_every_rank() {
    for n in [2, 3] {
        for groups in kinds(n) {
            let all_have_called = Barrier::new(n);
            let errors = each(groups, |g| {
                // Each from itself: the data leave at once, and nobody waits for any.
                after_some(&g, |g| g.broadcast(&mut [1f32; 8], g.rank())).unwrap();
                // Nobody leaves before that, as one does that has waited for two seconds.
                all_have_called.wait();
                g.close().unwrap_err()
            });
            for e in errors {
                let ErrorKind::Mismatch { ours, theirs, differs: "root", .. } = e.root().kind() else {
                    panic!("{e}")
                };
                assert!(ours.op == Op::Broadcast && ours.seq == 4 && ours.root != theirs.root, "{e}");
            }
        }
    }
}

#[test]
fn a_rank_that_closes_later_is_told_what_an_earlier_one_found() {
    for groups in kinds(2) {
        let all_have_called = Barrier::new(2);
        let errors = each(groups, |g| {
            after_some(&g, |g| g.broadcast(&mut [1f32; 8], g.rank())).unwrap();
            all_have_called.wait();
            // Meanwhile rank 0 compares, and the group fails on this rank between its last call and its close.
            thread::sleep(Duration::from_millis(400 * g.rank() as u64));
            g.close().unwrap_err()
        });
        for e in errors {
            assert!(matches!(e.root().kind(), ErrorKind::Mismatch { differs: "root", .. }), "{e}");
        }
    }
}

#[test]
fn the_same_calls_close_without_an_error() {
    for groups in kinds(3) {
        let out = each(groups, |g| {
            after_some(&g, |g| g.broadcast(&mut [1f32; 8], 0)).unwrap();
            // More calls than are kept.
            (0..300).for_each(|_| g.barrier().unwrap());
            let pair = g.split(Some(i32::from(g.rank() == 2)), 0).unwrap().unwrap();
            pair.barrier().unwrap();
            (pair.close(), g.close(), g.close())
        });
        for out in out {
            assert!(matches!(out, (Ok(()), Ok(()), Ok(()))), "{out:?}");
        }
    }
}

#[test]
fn messages_between_two_ranks_are_nobody_elses_affair() {
    for groups in kinds(3) {
        let out = each(groups, |g| {
            match g.rank() {
                0 => g.send(&[1f32; 8], 1, 3).unwrap(),
                1 => g.recv(&mut [0f32; 8], 0, 3).unwrap(),
                _ => {}
            }
            g.close()
        });
        assert!(out.iter().all(Result::is_ok), "{out:?}");
    }
}

#[test]
fn a_rank_that_is_behind_is_waited_for_but_not_for_ever() {
    for groups in kinds(2) {
        let calls = AtomicBool::new(false);
        let waited = each(groups, |g| {
            if g.rank() == 1 {
                thread::sleep(Duration::from_millis(400));
                calls.store(true, Ordering::SeqCst);
            }
            g.broadcast(&mut [1f32; 8], 0).unwrap();
            let start = Instant::now();
            g.close().unwrap();
            (calls.load(Ordering::SeqCst), start.elapsed())
        });
        let (others_call, took) = waited[0];
        assert!(others_call || took >= Duration::from_secs(2), "{took:?}");
    }
    // It never makes the call, and says so when it leaves.
    for groups in kinds(2) {
        let other_has_left = Barrier::new(2);
        let out = each(groups, |g| {
            g.barrier().unwrap();
            if g.rank() == 0 {
                g.broadcast(&mut [1f32; 8], 0).unwrap();
                let out = g.close();
                other_has_left.wait();
                return out;
            }
            other_has_left.wait();
            g.close()
        });
        assert!(out[0].is_ok(), "{out:?}");
        // Word that it has left may come later than this.
        let e = out[1].as_ref().unwrap_err().to_string();
        assert!(e.contains("it made 1 of the 2 calls of rank 0"), "{e}");
    }
}

#[test]
fn a_rank_that_leaves_too_early_is_named_with_its_last_call() {
    for groups in kinds(2) {
        let out = each(groups, |g| {
            g.barrier()?;
            if g.rank() == 0 { g.barrier() } else { g.close() }
        });
        let e = out[0].as_ref().unwrap_err().to_string();
        assert!(e.contains("left the group after its call #1, during barrier #2"), "{e}");
    }
}

#[test]
fn a_call_that_one_rank_makes_once_more_is_told() {
    for n in [2, 3] {
        for (i, groups) in kinds(n).into_iter().enumerate() {
            let out = each(groups, |g| {
                // On some links after calls of all, on others in a group without any.
                (0..3 * (i % 2)).for_each(|_| g.barrier().unwrap());
                // The data leave at once.
                let more = if g.rank() == 0 { g.broadcast(&mut [1f32; 8], 0) } else { Ok(()) };
                more.and_then(|()| g.close()).map_err(|e| e.to_string())
            });
            let e = out[0].as_ref().unwrap_err();
            // Or another rank had left before there was a link.
            let is_told = e.contains("ranks disagree: ") && e.contains("calls of rank 0");
            let is_gone = (1..n).any(|rank| e.contains(&format!("rank {rank} (")));
            assert!(is_told || is_gone && e.contains("left the group"), "{out:?}");
        }
    }
}
