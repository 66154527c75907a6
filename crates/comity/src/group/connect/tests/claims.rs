//! Processes that cannot both be right: two for a rank, other sizes, other keys; and jobs that were started alike.

use super::*;
use crate::{
    rendezvous::{StoreBind, StoreClient, Table, facts_of},
    settings::Insecure,
};

/// The words with which `rank` of another process, on host `host`, is refused.
fn claim(config: &Config, host: &str, pid: u32) -> Result<(StoreClient, Table)> {
    let (mut meeting, _) = find_store(config)?;
    let table = meeting.join(facts_of(host, pid, vec![(LOOPBACK, 1).into()]))?;
    Ok((meeting, table))
}

/// Rank `rank` of two on host `host`, which listens at `reach`, connects with nobody, and stays until the other has given up.
fn stays(rank: usize, at: SocketAddr, host: &str, pid: u32, reach: SocketAddr) {
    let (mut meeting, _) = find_store(&config(rank, 2, at)).unwrap();
    let _ = meeting.join(facts_of(host, pid, vec![reach]));
    while meeting.hear().is_ok_and(|open| open) {
        thread::sleep(Duration::from_millis(5));
    }
}

fn words<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

#[test]
fn two_for_a_rank_end_the_job_on_every_rank() {
    let store = store(3, LONG);
    let at = store.addr();
    let begun = Instant::now();
    thread::scope(|s| {
        let waiting = [(0, "a", 10), (1, "b", 11)].map(|(rank, host, pid)| {
            let claimant = s.spawn(move || words(claim(&config(rank, 3, at), host, pid)));
            thread::sleep(Duration::from_millis(300));
            claimant
        });
        let second = words(claim(&config(1, 3, at), "c", 12));
        for e in waiting.into_iter().map(|w| w.join().unwrap()).chain([second]) {
            assert!(e.contains("two processes claim rank 1"), "{e}");
            // On a busy machine the second may come first.
            let b = "host b, pid 11, from 127.0.0.1";
            let c = "host c, pid 12, from 127.0.0.1";
            let is_told = |one: &str, other: &str| {
                e.contains(&format!("one is {one}")) && e.contains(&format!("the other {other}"))
            };
            assert!(is_told(b, c) || is_told(c, b), "{e}");
        }
    });
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    let late = words(claim(&config(2, 3, at), "d", 13));
    assert!(late.contains("rank 2 came too late: two processes claim rank 1"), "{late}");
}

#[test]
fn another_size_ends_the_job_on_every_rank() {
    for (rank, size) in [(1, 3), (2, 3), (0, 2)] {
        let store = store(4, LONG);
        let at = store.addr();
        let begun = Instant::now();
        thread::scope(|s| {
            let waits = s.spawn(move || words(claim(&config(3, 4, at), "a", 10)));
            thread::sleep(Duration::from_millis(300));
            let other = words(claim(&config(rank, size, at), "b", 11));
            for e in [waits.join().unwrap(), other] {
                let who = format!(
                    "rank {rank} (host b, pid 11, from 127.0.0.1) was started for a job of {size} ranks"
                );
                assert!(e.contains(&who) && e.contains("has 4") && e.contains("COMITY_SIZE"), "{e}");
            }
        });
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    }
}

#[test]
fn another_key_is_told_of_and_harms_nobody() {
    let limit = Duration::from_millis(2500);
    let store = store(3, limit);
    let at = store.addr();
    let (send, said) = std::sync::mpsc::channel();
    store.on_waiting(move |words| send.send(words.to_owned()).unwrap());
    let errors = thread::scope(|s| {
        // First, as the limit counts from the last one that came.
        let e = words(join_job(&config(2, 3, at).key(Key::from([8; 32]))));
        assert!(e.contains("another job or holds another key"), "{e}");
        let waiting: Vec<_> = (0..2).map(|r| s.spawn(move || words(join_job(&config(r, 3, at))))).collect();
        waiting.into_iter().map(|w| w.join().unwrap()).collect::<Vec<_>>()
    });
    for e in errors {
        assert!(e.contains("missing rank 2 (never let in); 1 process was refused for another key or job name, the last from 127.0.0.1:"), "{e}");
    }
    assert!(said.try_recv().is_err(), "said before its time");
}

#[test]
fn who_is_missing_is_said_now_and_then_and_each_arrival_restarts_the_limit() {
    let limit = Duration::from_millis(6500);
    let store = store(3, limit);
    let at = store.addr();
    let (send, said) = std::sync::mpsc::channel();
    store.on_waiting(move |words| send.send(words.to_owned()).unwrap());
    let begun = Instant::now();
    let join = |r| words(join_job(&config(r, 3, at).join_timeout(limit)));
    thread::scope(|s| {
        let first = s.spawn(move || (join(0), begun.elapsed()));
        let heard = said.recv_timeout(LONG).unwrap();
        assert_eq!(heard, format!("1 of 3 ranks are here, at {at}, after 5 s; waiting for ranks 1, 2"));
        let came = begun.elapsed();
        let second = join(2);
        let (first, ended) = first.join().unwrap();
        assert!(ended >= came + limit && ended < came + limit + Duration::from_secs(5), "{came:?} {ended:?}");
        for e in [first, second] {
            let words = "only 2 of 3 ranks joined within 6.5 s: missing rank 1 (never connected)";
            assert_eq!(
                e,
                format!("{words}; the ranks meet at {at}; start rank 1, or look at its own output")
            );
        }
        let words = said.try_recv().unwrap();
        assert_eq!(words, format!("2 of 3 ranks are here, at {at}, after 10 s; waiting for rank 1"));
    });
}

#[test]
fn two_containers_with_one_process_id_are_two() {
    let store = store(2, LONG);
    let at = store.addr();
    let as_process = |process| {
        let (mut meeting, _) = find_store(&config(1, 2, at))?;
        let facts = crate::rendezvous::Facts { process, ..facts_of("a", 1, vec![(LOOPBACK, 1).into()]) };
        meeting.join(facts).map(|table| (meeting, table))
    };
    thread::scope(|s| {
        let first = s.spawn(|| as_process(5));
        let _zero = claim(&config(0, 2, at), "b", 12).unwrap();
        let _first = first.join().unwrap().unwrap();
        // It comes while the ranks still connect.
        let e = words(as_process(6));
        let both = "one is host a, pid 1, from 127.0.0.1, the other host a, pid 1, from 127.0.0.1 in another container;";
        assert!(e.contains(both), "{e}");
    });
}

/// A job of two whose rank 0 keeps the store, at an address where others come.
fn running(limit: Duration) -> (Vec<Arc<Endpoint>>, SocketAddr, Option<Socket>) {
    let (held, at) = reserved();
    let c = |r| hosted(r, at).join_timeout(limit);
    (each(0..2, |r| join_job(&c(r)).unwrap()), at, held)
}

fn hosted(rank: usize, at: SocketAddr) -> Config {
    Config::new(rank, 2).rendezvous(&at.to_string()).unwrap().key(Key::from(KEY)).join_timeout(LONG)
}

#[test]
fn two_jobs_that_nothing_tells_apart_and_that_start_together_make_no_call() {
    // The first group opens half a second after the last rank came: on a busy machine the third may be later.
    let ends = (0..5).any(|_| {
        let (_held, at) = reserved();
        let begun = Instant::now();
        let ended = thread::scope(|s| {
            // Rank 0 of one and rank 1 of the other come first: each would take the other for its own.
            let come = |rank, host, pid| {
                let one = s.spawn(move || claim(&hosted(rank, at), host, pid).err());
                thread::sleep(Duration::from_millis(100));
                one
            };
            [come(0, "a", 10), come(1, "b", 21), come(1, "a", 11)].map(|one| one.join().unwrap())
        });
        let told = |e: &Option<Error>| {
            e.as_ref().is_some_and(|e| e.to_string().contains("two processes claim rank 1"))
        };
        ended.iter().all(told) && begun.elapsed() < LONG / 2
    });
    assert!(ends, "not once in five trials");
}

#[test]
fn where_processes_wait_long_for_a_processor_a_second_claimant_is_waited_for_as_long() {
    let waited = LONG * 3 / 4;
    let bind = StoreBind { named: vec![(LOOPBACK, 0).into()], also: Vec::new() };
    let key = Key::from(KEY);
    let no = Insecure::No;
    let store = Store::start_with(bind, 2, &key, "job", LONG, no, Some(waited)).unwrap();
    let at = store.addr();
    let begun = Instant::now();
    let errors = thread::scope(|s| {
        let come = |rank, host, pid| s.spawn(move || words(claim(&config(rank, 2, at), host, pid)));
        let first = [come(0, "a", 10), come(1, "b", 21)];
        // Later than any group of an idle machine opens.
        thread::sleep(Duration::from_millis(700));
        let late = come(1, "a", 11);
        first.into_iter().chain([late]).map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(errors.iter().all(|e| e.contains("two processes claim rank 1")), "{errors:?}");
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_second_job_with_the_same_key_and_address_ends_both() {
    // Its rank 1 comes while the first job's ranks run; its rank 0 cannot listen and claims its place.
    for rank in [1, 0] {
        let (all, at, _held) = running(LONG);
        let opened = each(0..2, |r| open(&all[r], 0, &[0, 1]));
        let begun = Instant::now();
        let e = words(claim(&hosted(rank, at), "b", 11));
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        let both = |e: &str| {
            assert!(e.contains(&format!("two processes claim rank {rank}")), "{e}");
            assert!(
                e.contains(&format!("pid {}", std::process::id())) && e.contains("host b, pid 11"),
                "{e}"
            );
        };
        both(&e);
        assert_eq!(e.contains("cannot listen") && e.contains("in use"), rank == 0, "{e}");
        for (status, _links) in &opened {
            let failure = await_failure(status);
            assert_eq!(failure.culprit, rank);
            both(&failure.cause);
        }
    }
}

#[test]
fn a_job_that_runs_for_long_is_not_ended_by_a_second_one() {
    let limit = Duration::from_secs(3);
    let (all, at, _held) = running(limit);
    let opened = each(0..2, |r| open(&all[r], 0, &[0, 1]));
    thread::sleep(limit + Duration::from_millis(100));
    for rank in 0..2 {
        let e = words(claim(&hosted(rank, at), "b", 11));
        assert!(e.contains(&format!("two processes claim rank {rank}")), "{e}");
    }
    thread::sleep(Duration::from_millis(300));
    assert!(opened.iter().all(|(status, _)| status.failure().is_none()));
}

#[test]
fn what_holds_the_port_may_be_something_else() {
    let other = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let begun = Instant::now();
    let e = words(join_job(&hosted(0, other.local_addr().unwrap())));
    assert!(e.contains("cannot listen") && e.contains("another process listens there"), "{e}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn a_rank_to_which_there_is_no_way_is_told_of_at_once_and_without_a_time() {
    let store = store(2, LONG);
    let at = store.addr();
    let begun = Instant::now();
    let e = thread::scope(|s| {
        // No connection goes to all hosts of a network.
        s.spawn(move || stays(0, at, "a", 10, ([255, 255, 255, 255], 1).into()));
        words(join_job(&config(1, 2, at)))
    });
    assert!(e.contains("could not be reached at 255.255.255.255:1 from rank 1 on host "), "{e}");
    assert!(begun.elapsed() < LONG / 2 && !e.contains(" within "), "{e}");
    assert_ports_are_named(&e);
}

/// Checks that a pair that cannot connect names a firewall, which often stands between two hosts, and what chooses the ports.
fn assert_ports_are_named(words: &str) {
    assert!(words.contains("does a firewall drop these ports (COMITY_PORTS chooses them)?"), "{words}");
}

#[test]
fn a_rank_that_joined_and_does_not_connect_is_named_with_the_address_that_it_may_not_reach() {
    let store = store(2, LONG);
    let at = store.addr();
    let limit = Duration::from_secs(3);
    let e = thread::scope(|s| {
        let far = s.spawn(move || stays(1, at, "b", 11, (LOOPBACK, 1).into()));
        let e = words(join_job(&config(0, 2, at).join_timeout(limit)));
        far.join().unwrap();
        e
    });
    assert!(e.contains("rank 1 (host b, pid 11) joined but did not connect to rank 0 at 127.0.0.1:"), "{e}");
    assert_ports_are_named(&e);
}
