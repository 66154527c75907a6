//! Groups whose members leave as soon as they have made their own links, while others still make theirs.

use super::*;
use crate::{Detection, ReduceOp};
use comity_membership::RESENT;

const LIMIT: Duration = Duration::from_secs(1);

/// `rank` of `n` over TCP, which gives up who is silent for [`LIMIT`], and its group of all.
fn limited(n: usize) -> (Vec<Arc<Endpoint>>, Vec<Group>) {
    let all = world(n, |c| c.links([LinkKind::Tcp]).detection(Detection::After(LIMIT)));
    let groups = each(0..n, |r| group(&all[r]));
    (all, groups)
}

/// Its word that it leaves has come, its bytes and the end of its connection never do: as where its host lost power meanwhile.
#[test]
fn a_member_that_left_and_owes_bytes_is_named() {
    let (all, groups) = limited(2);
    all[1].leave(0);
    let begun = Instant::now();
    let error = groups[0].all_reduce(&mut [1.0f32; 4], ReduceOp::Sum).unwrap_err();
    let took = begun.elapsed();
    let lost = |c: &str| matches!(error.kind(), ErrorKind::PeerLost { peer, cause, .. } if peer.rank == 1 && cause == c);
    assert!(lost("left the group") && took > LIMIT * RESENT && took < LONG / 2, "{took:?}: {error}");
}

/// Word that it left comes before its bytes, to one that has waited for long already.
#[test]
fn a_member_that_left_may_be_heard_of_before_its_bytes_are() {
    let (all, groups) = limited(2);
    thread::scope(|s| {
        s.spawn(|| {
            let mut data = [0u8; 4];
            groups[0].broadcast(&mut data, 1).unwrap();
            assert_eq!(data, [7; 4]);
        });
        thread::sleep(LIMIT * 7 / 2);
        all[1].leave(0);
        thread::sleep(LIMIT / 2);
        groups[1].broadcast(&mut [7u8; 4], 1).unwrap();
    });
}

/// A member that gave all it had and left owes nothing, however long another one takes.
#[test]
fn a_member_that_left_and_owes_nothing_is_not_named() {
    let (_all, mut groups) = limited(3);
    let last = groups.pop().unwrap();
    let leaver = groups.pop().unwrap();
    thread::scope(|s| {
        s.spawn(|| {
            let mut out = [0u32; 3];
            groups[0].gather(&[1u32], &mut out, 0).unwrap();
            assert_eq!(out, [1, 2, 3]);
        });
        s.spawn(move || {
            leaver.gather(&[2u32], &mut [0u32; 0], 0).unwrap();
            drop(leaver);
        });
        thread::sleep(LIMIT * 7 / 2);
        last.gather(&[3u32], &mut [0u32; 0], 0).unwrap();
    });
}

#[test]
fn members_may_leave_at_once() {
    kinds_without_device().for_each(leave_at_once);
}

fn leave_at_once(link: LinkKind) {
    let all = world(3, |c| c.links([link]));
    let members: Vec<usize> = (0..3).collect();
    each(0..3, |r| {
        for round in 0..200 {
            // Each is the last one in turn.
            if round % 4 == r as u64 {
                thread::sleep(Duration::from_micros(300 * (round % 3)));
            }
            let status = status(3);
            let opened = all[r].open(1 + round, &members, &status, until());
            assert!(opened.is_ok(), "{link}, rank {r}, round {round}: {:?}", opened.err());
            drop(opened);
            all[r].leave(1 + round);
            assert!(status.failure().is_none(), "{link}, rank {r}, round {round}: {:?}", status.failure());
        }
    });
}
