//! A forked child has neither its parent's groups nor its place in a job.
#![allow(unsafe_code, reason = "a test's fork")]

use comity::{Config, ErrorKind, Group, Key, LinkKind, ReduceOp, Result, tools, tools::Store};
use std::{net::SocketAddr, thread, time::Duration};

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
    let long = Duration::from_secs(20);
    let key = Key::from([7; 32]);
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let store = Store::start(at, 2, &key, "forked", long).unwrap();
    let at = store.addr().to_string();
    let config = |rank| Config::new(rank, 2).store(&at).unwrap().job("forked").key(key.clone());
    let mut groups: Vec<_> = thread::scope(|s| {
        let ranks = [0, 1].map(|rank| s.spawn(move || config(rank).join_timeout(long).connect()));
        ranks.into_iter().map(|r| r.join().unwrap().unwrap()).collect()
    });
    let barrier = |groups: &[Group]| {
        thread::scope(|s| {
            let calls: Vec<_> = groups.iter().map(|g| s.spawn(|| g.barrier())).collect();
            calls.into_iter().for_each(|call| call.join().unwrap().unwrap());
        });
    };
    barrier(&groups);
    let forked = |out: Result<()>| out.is_err_and(|e| matches!(e.kind(), ErrorKind::Forked { .. }));
    assert!(in_child(|| {
        let refused = groups.iter().all(|g| {
            forked(g.barrier()) && forked(g.split(None, 0).map(drop)) && forked(g.spawn(|_| Ok(())).wait())
        });
        let does_not_join = forked(config(1).connect().map(drop));
        // Neither this nor their end says goodbye in the parent's name.
        let refused = refused && groups.iter().all(|g| forked(g.close()));
        groups.clear();
        refused && does_not_join
    }));
    barrier(&groups);
}

#[test]
fn a_child_has_no_threads_of_lanes_and_waits_for_none() {
    let long = Duration::from_secs(20);
    let key = Key::from([7; 32]);
    let store = Store::start(SocketAddr::from(([127, 0, 0, 1], 0)), 2, &key, "lanes", long).unwrap();
    let at = store.addr().to_string();
    let join = |rank| {
        let config = Config::new(rank, 2).store(&at).unwrap().job("lanes").key(key.clone());
        config.links([LinkKind::Shm]).lanes(3).join_timeout(long).connect().unwrap()
    };
    let mut groups: Vec<Group> = thread::scope(|s| {
        let ranks = [0, 1].map(|rank| s.spawn(move || join(rank)));
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    });
    let call = |groups: &[Group]| {
        let before = tools::bytes_in_lanes();
        thread::scope(|s| {
            for g in groups {
                s.spawn(|| g.all_reduce(&mut vec![1f32; 1 << 18], ReduceOp::Sum).unwrap());
            }
        });
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
