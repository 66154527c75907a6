//! Groups whose members leave as soon as they have made their own links, while others still make theirs.

use super::*;
use crate::{Detection, Group, ReduceOp};

/// Its word that it leaves has come, its bytes and the end of its connection never do: as where its host lost power meanwhile.
#[test]
fn a_member_that_left_and_owes_bytes_is_named() {
    const LIMIT: Duration = Duration::from_millis(300);
    let all = world(2, |c| c.links([LinkKind::Tcp]).detection(Detection::After(LIMIT)));
    let over = Barrier::new(2);
    each(0..2, |r| {
        let world: Arc<dyn World> = Arc::clone(&all[r]) as _;
        let group = Group::open(world, Arc::default(), LONG, LONG).unwrap();
        if r == 1 {
            all[1].leave(0);
            over.wait();
            return;
        }
        let begun = Instant::now();
        let error = group.all_reduce(&mut [1.0f32; 4], ReduceOp::Sum).unwrap_err();
        let took = begun.elapsed();
        over.wait();
        let lost = matches!(&error, Error::PeerLost { peer, cause, .. } if peer.rank == 1 && cause == "left the group");
        assert!(lost && took > LIMIT * 2 && took < LONG / 2, "{took:?}: {error}");
    });
}

fn open_and_leave(link: LinkKind, rounds: u64) {
    let all = world(3, |c| c.links([link]));
    let members: Vec<usize> = (0..3).collect();
    each(0..3, |r| {
        for round in 0..rounds {
            // Each is the last one in turn.
            if round % 4 == r as u64 {
                thread::sleep(Duration::from_micros(300 * (round % 3)));
            }
            let watch = watch(3);
            let opened = all[r].open(1 + round, &members, &watch, until());
            assert!(opened.is_ok(), "rank {r}, round {round}: {:?}", opened.err());
            drop(opened);
            all[r].leave(1 + round);
            assert!(watch.failure().is_none(), "rank {r}, round {round}: {:?}", watch.failure());
        }
    });
}

#[test]
fn members_may_leave_at_once_over_shared_memory() {
    open_and_leave(LinkKind::Shm, 200);
}

#[test]
fn members_may_leave_at_once_over_tcp() {
    open_and_leave(LinkKind::Tcp, 200);
}
