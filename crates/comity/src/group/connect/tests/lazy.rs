//! Links that are made when a call first needs them.

use super::*;
use crate::{Detection, ReduceOp};

/// The groups of `n` ranks of one host, or of the hosts named, which make links as they need them.
fn groups(n: usize, adapt: impl Fn(Config) -> Config + Sync) -> (Vec<Arc<Endpoint>>, Vec<Group>) {
    let all = world(n, |c| adapt(c.connect_when(ConnectTiming::Needed)));
    let groups = each(0..n, |r| group(&all[r]));
    (all, groups)
}

fn made(all: &Endpoint, group_id: u64) -> usize {
    all.links_made_for_test(group_id)
}

#[test]
fn a_call_makes_the_links_that_it_needs_and_no_others() {
    for kind in kinds_without_device() {
        let (all, groups) = groups(6, |c| c.links([kind]));
        assert!(all.iter().all(|e| made(e, 0) == 0), "{kind}");
        each(0..6, |r| {
            if r == 1 {
                groups[1].send(&[7u32], 4, 0).unwrap();
            } else if r == 4 {
                let mut got = [0u32];
                groups[4].recv(&mut got, 1, 0).unwrap();
                assert_eq!(got, [7]);
            }
        });
        let now: Vec<_> = all.iter().map(|e| made(e, 0)).collect();
        assert_eq!(now, [0, 1, 0, 0, 1, 0], "{kind}");
        let kinds = groups[0].link_kinds();
        assert!(kinds.iter().enumerate().all(|(r, k)| *k == (r != 0).then_some(kind)), "{kinds:?}");
        each(0..6, |r| {
            for round in 0..3 {
                let mut sum = [r as u32 + round; 3];
                groups[r].all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [15 + 6 * round; 3]);
                let mut out = [0u32; 6];
                groups[r].all_to_all(&[r as u32; 6], &mut out).unwrap();
                assert_eq!(out, [0, 1, 2, 3, 4, 5]);
            }
            groups[r].close().unwrap();
        });
    }
}

/// Neither end is a call: the receiver computes, and the sender has gone on by the time that it receives.
#[test]
fn a_small_send_ends_while_its_receiver_computes() {
    for (from, to) in [(0, 1), (1, 0)] {
        for kind in kinds_without_device() {
            let (all, mut groups) = groups(2, |c| c.links([kind]));
            let begun = Instant::now();
            groups[from].send(&[5u8; 100], to, 3).unwrap();
            assert!(begun.elapsed() < LONG / 2);
            // It may even have left by then.
            let sender = groups.remove(from);
            drop(sender);
            thread::sleep(Duration::from_millis(50));
            let mut got = [0u8; 100];
            groups[0].recv(&mut got, from, 3).unwrap();
            assert_eq!(got, [5; 100], "{kind} from {from}");
            drop((groups, all));
        }
    }
}

#[test]
fn ranks_that_want_each_other_all_at_once_do_not_lock() {
    let (_all, groups) = groups(8, |c| c);
    each(0..8, |r| {
        // Each sends to the next before it receives from the one before, round after round further away.
        for d in 1..8 {
            let to = (r + d) % 8;
            let from = (r + 8 - d) % 8;
            groups[r].send(&[r as u32], to, 0).unwrap();
            let mut got = [9u32];
            groups[r].recv(&mut got, from, 0).unwrap();
            assert_eq!(got, [from as u32]);
        }
    });
}

#[test]
fn a_rank_that_left_without_a_link_is_named_soon() {
    for (stays, leaves) in [(0, 1), (1, 0)] {
        for hosts in [["a", "a"], ["a", "b"]] {
            let (_all, mut groups) = groups(2, |c| {
                let rank = c.rank();
                c.host_name(hosts[rank])
            });
            let leaver = groups.remove(leaves);
            leaver.close().unwrap();
            let begun = Instant::now();
            let e = groups[0].barrier().unwrap_err();
            assert!(
                matches!(e.kind(), ErrorKind::PeerLost { peer, .. } if peer.rank == leaves),
                "{stays}: {e}"
            );
            assert!(begun.elapsed() < LONG, "{hosts:?}: {:?}", begun.elapsed());
        }
    }
}

#[test]
fn a_death_is_told_to_who_waits_for_a_link() {
    let (all, groups) = groups(3, |c| c.detection(Detection::After(LONG)));
    thread::scope(|s| {
        let waits = s.spawn(|| groups[0].recv(&mut [0u8; 9], 2, 0).unwrap_err());
        thread::sleep(Duration::from_millis(100));
        let begun = Instant::now();
        all[2].die();
        let e = waits.join().unwrap();
        assert!(matches!(e.kind(), ErrorKind::PeerLost { peer, .. } if peer.rank == 2), "{e}");
        assert!(begun.elapsed() < LONG / 2);
    });
}

#[test]
fn a_link_that_cannot_be_made_names_both_hosts_on_both() {
    let store = store(2, LONG);
    let kinds = [LinkKind::Tcp, LinkKind::Shm];
    let begun = Instant::now();
    let errors = each(0..2, |r| {
        let c = config(r, 2, store.addr()).connect_when(ConnectTiming::Needed).host_name(["a", "b"][r]);
        c.links([kinds[r]]).connect().unwrap().barrier().unwrap_err().to_string()
    });
    for e in &errors {
        assert!(e.contains("host a") && e.contains("host b") && e.contains("COMITY_LINKS"), "{errors:?}");
        assert!(e.contains("not over shared memory") && e.contains("not over TCP"), "{errors:?}");
    }
    assert!(begun.elapsed() < LONG / 2);
}

#[test]
fn a_link_to_a_rank_that_listens_nowhere_fails_within_the_join_limit() {
    let limit = Duration::from_secs(4);
    let mut all = world(2, |c| {
        let c = c.connect_when(ConnectTiming::Needed).links([LinkKind::Tcp]).join_timeout(limit);
        c.host_name("a")
    });
    let nobody = TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap();
    Arc::get_mut(&mut all[1]).unwrap().readdress(0, nobody);
    let begun = Instant::now();
    let errors = each(0..2, |r| group(&all[r]).barrier().unwrap_err().to_string());
    let both = |e: &String| e.contains(&nobody.to_string()) && e.contains("rank 0") && e.contains("rank 1");
    assert!(errors.iter().all(both), "{errors:?}");
    assert!(begun.elapsed() < limit * 3, "{:?}", begun.elapsed());
}

#[test]
fn different_calls_are_told_before_there_are_links() {
    let (_all, groups) = groups(4, |c| c);
    each(0..4, |r| {
        let made = if r == 3 { groups[3].barrier() } else { groups[r].broadcast(&mut [0u8; 4], 1) };
        // A rank that has what the root sent, and owes nobody, has made its call before it hears: its next one says it.
        let e = made.and_then(|()| groups[r].barrier()).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Mismatch { .. }), "rank {r}: {e}");
    });
}

#[test]
fn one_that_wants_all_at_once_meets_those_that_do_not() {
    let (all, groups) = groups(4, |c| match c.rank() {
        2 => c.connect_when(ConnectTiming::All),
        _ => c,
    });
    assert_eq!(made(&all[2], 0), 3);
    each(0..4, |r| groups[r].barrier().unwrap());
}
