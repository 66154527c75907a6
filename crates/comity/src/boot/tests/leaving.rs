//! Groups whose members leave as soon as they have made their own links, while others still make theirs.

use super::*;

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
