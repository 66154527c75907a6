//! A forked child has neither its parent's groups nor its place in a job.

use comity::{Config, ErrorKind, Group, Key, Result, tools::Store};
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
