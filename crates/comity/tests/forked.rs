//! A forked child has neither its parent's groups nor its place in a job.
#![allow(unsafe_code, reason = "a test's fork")]

mod common;

use comity::{ErrorKind, Group, LinkKind, ReduceOp, Result, tools};
use common::{config, each, job, store};

/// Returns the result of `good` in a forked child. It may do no more than a child of several threads can.
fn in_child(good: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls `good`, which reads and writes atomic numbers, and `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let bad = i32::from(!good());
        // SAFETY: ends the child, and nothing else.
        unsafe { libc::_exit(bad) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status == 0
}

#[test]
fn groups_are_refused_in_a_child_which_does_not_join_either() {
    let store = store(2);
    let mut groups = each(0..2, |rank| config(rank, 2, &store).connect().unwrap());
    let barrier = |groups: &[Group]| drop(each(groups, |g| g.barrier().unwrap()));
    barrier(&groups);
    let forked = |out: Result<()>| out.is_err_and(|e| matches!(e.kind(), ErrorKind::Forked { .. }));
    assert!(in_child(|| {
        let refused = groups.iter().all(|g| {
            forked(g.barrier()) && forked(g.split(None, 0).map(drop)) && forked(g.spawn(|_| Ok(())).wait())
        });
        let does_not_join = forked(config(1, 2, &store).connect().map(drop));
        // Neither this nor their end says goodbye in the parent's name.
        let refused = refused && groups.iter().all(|g| forked(g.close()));
        groups.clear();
        refused && does_not_join
    }));
    barrier(&groups);
}

#[test]
fn a_child_has_no_threads_of_lanes_and_waits_for_none() {
    let mut groups = job(2, |c| c.links([LinkKind::Shm]).lanes(3));
    let call = |groups: &[Group]| {
        let before = tools::bytes_in_lanes();
        each(groups, |g| g.all_reduce(&mut vec![1f32; 1 << 18], ReduceOp::Sum).unwrap());
        assert!(tools::bytes_in_lanes() > before, "not by lanes");
    };
    call(&groups);
    assert!(in_child(|| {
        // SAFETY: sets a timer that ends this child should it wait for a thread that it does not have.
        unsafe { libc::alarm(20) };
        groups.clear();
        true
    }));
    call(&groups);
}
