//! Members that come into their new group apart, and what the others see of it.

use super::*;
use crate::{
    Config, Key, LinkKind, ReduceOp,
    engine::tests::{
        each,
        hooked::{HookedWorld, Opening},
    },
    rendezvous::Store,
    status::World,
};
use std::{
    net::Ipv4Addr,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

/// Enough for anything that is to succeed, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(60);

/// The groups of `n` threads that do `before` when they begin to join a group that is split off.
fn held(n: usize, before: impl Fn(usize) -> Result<()> + Send + Sync + 'static) -> Vec<Group> {
    let opening: Arc<Opening> = Arc::new(move |world, group_id, _, open| {
        if group_id != 0 {
            before(world.rank())?;
        }
        open()
    });
    let worlds = HookedWorld::all(n, &opening).into_iter();
    worlds.map(|w| Group::open(0, Arc::new(w), Arc::default(), LONG, LONG).unwrap()).collect()
}

fn aborted(e: &Error, rank: usize, words: &str) -> bool {
    matches!(e.root().kind(), ErrorKind::Aborted { by, reason, .. } if by.rank == rank && reason == words)
}

#[test]
fn nobody_leaves_a_split_before_all_have_joined() {
    let joined = Arc::new(AtomicBool::new(false));
    let late = joined.clone();
    let groups = held(4, move |rank| {
        if rank == 1 {
            // Whoever does not wait is gone by now.
            thread::sleep(Duration::from_millis(100));
            late.store(true, Ordering::Release);
        }
        Ok(())
    });
    each(&groups, |g| {
        // 0 and 1; 2 alone; 3 in none.
        let made = g.split([Some(0), Some(0), Some(1), None][g.rank()], 0).unwrap();
        assert!(joined.load(Ordering::Acquire), "rank {} was first", g.rank());
        assert_eq!(made.as_ref().map(Group::size), [Some(2), Some(2), Some(1), None][g.rank()]);
        match (g.rank(), &made) {
            (0, Some(pair)) => pair.abort("enough of it"),
            (1, Some(pair)) => {
                let e = pair.barrier().unwrap_err();
                assert!(aborted(&e, 0, "enough of it"), "{e}");
            }
            _ => {}
        }
        // The group above goes on, and has made one split and one barrier.
        g.barrier().unwrap();
        assert_eq!((g.stats().calls, g.stats().errors), (2, 0));
    });
}

#[test]
fn who_cannot_join_is_named_by_all() {
    let groups = held(4, |rank| match rank {
        1 => Err(Error::os("making a link", std::io::Error::other("no memory is left"))),
        _ => Ok(()),
    });
    each(&groups, |g| {
        let e = g.split([Some(0), Some(0), Some(1), None][g.rank()], 0).unwrap_err();
        assert!(e.to_string().contains("no memory is left"), "{e}");
        match e.kind() {
            ErrorKind::Os { .. } if g.rank() == 1 => {}
            ErrorKind::PeerLost { peer, cause, call: Some(call), .. } if g.rank() != 1 => {
                assert_eq!((peer.rank, call.op), (1, Op::Split), "{e}");
                assert!(cause.starts_with("could not split the group: "), "{e}");
            }
            _ => panic!("rank {}: {e}", g.rank()),
        }
        assert!(matches!(g.barrier().unwrap_err().kind(), ErrorKind::Broken(_)));
        assert_eq!((g.stats().calls, g.stats().errors), (0, 1));
    });
}

#[test]
fn who_never_joins_is_named_at_the_limit() {
    let (over, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let groups = held(2, move |rank| {
        if rank == 1 {
            let _ = lock(&wait).recv_timeout(LONG);
        }
        Ok(())
    });
    let over = Mutex::new(over);
    each(&groups, |g| {
        if g.rank() == 1 {
            // It finds what has become of the group when it comes to it.
            assert!(g.split(Some(0), 0).is_err());
            return;
        }
        let e = g.with_timeout(Duration::from_millis(300)).split(Some(0), 0).unwrap_err();
        lock(&over).send(()).unwrap();
        let ErrorKind::Timeout { call, waiting_for, .. } = e.kind() else { panic!("{e}") };
        assert_eq!((call.op, waiting_for[0].rank), (Op::Split, 1), "{e}");
    });
}

/// A rank that gives a new group up as soon as it has it fails nobody's split.
fn give_up_at_once(kind: LinkKind) {
    let n = 3;
    let key = || Key::from([7; 32]);
    let store = Store::start((Ipv4Addr::LOCALHOST, 0).into(), n, &key(), "split", LONG).unwrap();
    let groups = each(0..n, |r| {
        let config = Config::new(r, n).store(&store.addr().to_string()).unwrap().job("split").key(key());
        config.links([kind]).join_timeout(LONG).connect().unwrap()
    });
    each(&groups, |g| {
        for i in 0..30 {
            let some = i % 2 == 1;
            let members = if some { n - 1 } else { n };
            let made = g.split((g.rank() < members).then_some(i as i32), 0).unwrap();
            if let Some(made) = &made {
                if made.rank() == i % members {
                    made.abort("enough of it");
                }
                let e = made.barrier().unwrap_err();
                assert!(aborted(&e, i % members, "enough of it"), "{kind}, {i}: {e}");
            }
            // All have heard before the first leaves.
            let mut x = [1];
            g.all_reduce(&mut x, ReduceOp::Sum).unwrap();
            assert_eq!(x, [n as i32]);
        }
    });
}

#[test]
fn a_group_that_ends_at_once_fails_no_split() {
    for kind in [LinkKind::Tcp, LinkKind::Unix, LinkKind::Shm] {
        if kind != LinkKind::Shm || cfg!(target_os = "linux") {
            give_up_at_once(kind);
        }
    }
}
