//! Worlds of threads: each has its own `Config` and `Endpoint`, as processes have.

mod damage;
mod jobs;
mod leaving;
#[cfg(target_os = "linux")]
mod processes;

use super::*;
use crate::{CallInfo, Config, Error, Key, LinkKind, Op};
use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    sync::Barrier,
    thread,
    time::Duration,
};

const KEY: [u8; 32] = [7; 32];
const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// Enough for anything that is to succeed, on a machine that does other things too.
const LONG: Duration = Duration::from_secs(20);

fn store(size: usize, join: Duration) -> Store {
    Store::start((LOOPBACK, 0).into(), size, &Key::from(KEY), "job", join).unwrap()
}

fn config(rank: usize, size: usize, at: SocketAddr) -> Config {
    Config::new(rank, size).store(&at.to_string()).unwrap().job("job").key(Key::from(KEY)).join_timeout(LONG)
}

/// Run `f` as each of `ranks`, at the same time.
fn each<T: Send>(ranks: impl IntoIterator<Item = usize>, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|s| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|r| {
                s.spawn({
                    let f = &f;
                    move || f(r)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn world(n: usize, adapt: impl Fn(Config) -> Config + Sync) -> Vec<Arc<Endpoint>> {
    let store = store(n, LONG);
    each(0..n, |r| Endpoint::join(&adapt(config(r, n, store.addr()))).unwrap())
}

fn until() -> Instant {
    Instant::now() + LONG
}

fn watch(n: usize) -> Arc<Watch> {
    Arc::new(Watch::new(n, Arc::default()).unwrap())
}

fn open(e: &Endpoint, context: u64, members: &[usize]) -> (Arc<Watch>, Links) {
    let watch = watch(members.len());
    let links = e.open(context, members, &watch, until()).unwrap();
    (watch, links)
}

fn await_failure(watch: &Watch) -> Failure {
    let end = until();
    while watch.failure().is_none() && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
    watch.failure().expect("no failure").clone()
}

fn await_that(what: &str, mut f: impl FnMut() -> bool) {
    let end = until();
    while !f() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Every rank says who it is to every other over its link.
fn talk(me: usize, links: &mut Links) {
    let mut sent = vec![0; links.len()];
    let mut got: Vec<Vec<u8>> = vec![Vec::new(); links.len()];
    let end = until();
    let text = |r: usize| format!("this is rank {r}").into_bytes();
    loop {
        let mut done = true;
        for (r, link) in links.iter_mut().enumerate() {
            let Some(link) = link else {
                assert_eq!(r, me);
                continue;
            };
            // One that has all it wants may have left.
            let rest = &text(me)[sent[r]..];
            if !rest.is_empty() {
                sent[r] += link.put(rest, &[]).unwrap();
            }
            let mut buf = [0; 64];
            let want = text(r).len() - got[r].len();
            if want > 0 {
                let n = link.take(&mut buf[..want]).unwrap();
                got[r].extend(&buf[..n]);
            }
            done &= got[r].len() == text(r).len() && sent[r] == text(me).len();
        }
        if done {
            break;
        }
        assert!(Instant::now() < end, "rank {me} heard only {got:?}");
    }
    for (r, got) in got.into_iter().enumerate().filter(|(r, _)| *r != me) {
        assert_eq!(got, text(r));
    }
}

fn kinds(links: &Links) -> Vec<Option<LinkKind>> {
    links.iter().map(|l| l.as_ref().map(|l| l.kind())).collect()
}

#[test]
fn ranks_meet_open_and_talk() {
    for n in [1, 2, 4, 8] {
        let all = world(n, |c| c);
        each(0..n, |r| {
            let e = &all[r];
            assert_eq!((e.rank(), e.peers().len(), e.hosts().len()), (r, n, n));
            assert!(e.hosts().iter().all(|h| *h == 0) && e.cores() > 0);
            assert!(e.peers().iter().all(|p| p.pid == Some(std::process::id()) && p.host.is_some()));
            let members: Vec<usize> = (0..n).collect();
            let (watch, mut links) = open(e, 0, &members);
            let expected = if cfg!(target_os = "linux") { LinkKind::Shm } else { LinkKind::Tcp };
            assert!(kinds(&links).iter().enumerate().all(|(i, k)| *k == (i != r).then_some(expected)));
            talk(r, &mut links);
            e.leave(0);
            assert!(watch.failure().is_none());
        });
    }
}

#[test]
fn tcp_over_several_connections_and_addresses() {
    let two = [SocketAddr::from(([127, 0, 0, 1], 0)), SocketAddr::from(([127, 0, 0, 2], 0))];
    let all = world(3, |c| {
        let c = c.links([LinkKind::Tcp]).connections(2);
        if cfg!(target_os = "linux") { c.addrs(two) } else { c }
    });
    each(0..3, |r| {
        let (_watch, mut links) = open(&all[r], 5, &[2, 0, 1]);
        let me = [1, 2, 0][r];
        assert!(kinds(&links).iter().enumerate().all(|(i, k)| *k == (i != me).then_some(LinkKind::Tcp)));
        talk(me, &mut links);
    });
}

#[test]
fn ipv6() {
    let store = Store::start((Ipv6Addr::LOCALHOST, 0).into(), 2, &Key::from(KEY), "job", LONG).unwrap();
    let all = each(0..2, |r| Endpoint::join(&config(r, 2, store.addr()).links([LinkKind::Tcp])).unwrap());
    each(0..2, |r| talk(r, &mut open(&all[r], 0, &[0, 1]).1));
}

#[test]
fn hosts_that_differ_use_tcp() {
    let store = store(4, LONG);
    let all =
        each(0..4, |r| Endpoint::join(&config(r, 4, store.addr()).host_name(["b", "a"][r / 2])).unwrap());
    assert!(all.iter().all(|e| e.hosts() == [0, 0, 1, 1]));
    each(0..4, |r| {
        let (_w, mut links) = open(&all[r], 0, &[0, 1, 2, 3]);
        let tcp = kinds(&links).iter().filter(|k| **k == Some(LinkKind::Tcp)).count();
        assert_eq!(tcp, if cfg!(target_os = "linux") { 2 } else { 3 });
        talk(r, &mut links);
    });
}

#[test]
fn links_that_no_two_allow_are_an_error() {
    let store = store(2, LONG);
    let kind = [LinkKind::Tcp, LinkKind::Shm];
    let all = each(0..2, |r| Endpoint::join(&config(r, 2, store.addr()).links([kind[r]])).unwrap());
    let errors = each(0..2, |r| all[r].open(0, &[0, 1], &watch(2), until()).unwrap_err().to_string());
    assert!(errors[1].contains("rank 0") && errors[1].contains("COMITY_LINKS"), "{errors:?}");
    assert!(errors[0].contains("COMITY_LINKS"), "{errors:?}");
}

#[test]
fn rank_0_runs_the_store_and_may_come_late() {
    let free = TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap();
    let all = each(0..3, |r| {
        if r == 0 {
            thread::sleep(Duration::from_millis(150));
        }
        let c = Config::new(r, 3).host(&free.to_string()).unwrap().key(Key::from(KEY)).join_timeout(LONG);
        Endpoint::join(&c).unwrap()
    });
    each(0..3, |r| talk(r, &mut open(&all[r], 0, &[0, 1, 2]).1));
    // Rank 0 may leave first; the others still have each other.
    let mut all = all;
    drop(all.remove(0));
    each(0..2, |i| talk(i, &mut open(&all[i], 1, &[1, 2]).1));
}

#[test]
fn without_a_key() {
    let zeros = Key::from([0; 32]);
    let store = Store::start((LOOPBACK, 0).into(), 2, &zeros, "job", LONG).unwrap();
    let c = |r| {
        Config::new(r, 2).store(&store.addr().to_string()).unwrap().job("job").insecure().join_timeout(LONG)
    };
    each(0..2, |r| Endpoint::join(&c(r)).map(drop).unwrap());
}

#[test]
fn everyone_hears_who_is_missing() {
    let limit = Duration::from_millis(1500);
    let begun = Instant::now();
    let store = store(4, limit);
    let errors = each([0, 2], |r| Endpoint::join(&config(r, 4, store.addr())).unwrap_err().to_string());
    assert!(begun.elapsed() >= limit && begun.elapsed() < limit + Duration::from_secs(5));
    for e in errors {
        assert_eq!(e, "only 2 of 4 ranks joined within 1.5 s: missing ranks 1, 3 (never connected)");
    }
    let late = Endpoint::join(&config(3, 4, store.addr())).unwrap_err().to_string();
    assert!(late.contains("rank 3 came too late") && late.contains("missing ranks 1, 3"), "{late}");
}

#[test]
fn the_least_patient_rank_decides() {
    let store = store(3, LONG);
    let patience = [1500, 20_000];
    let errors = each(0..2, |r| {
        let c = config(r, 3, store.addr()).join_timeout(Duration::from_millis(patience[r]));
        Endpoint::join(&c).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|e| e.contains("missing rank 2 (never connected)")), "{errors:?}");
}

#[test]
fn a_second_claimant_is_refused_and_harms_nobody() {
    let store = store(2, LONG);
    let at = store.addr();
    thread::scope(|s| {
        // Whichever of two comes first is taken.
        let (send, ends) = std::sync::mpsc::channel();
        for send in [send.clone(), send] {
            s.spawn(move || send.send(Endpoint::join(&config(1, 2, at))).unwrap());
        }
        let e = ends.recv().unwrap().unwrap_err().to_string();
        assert!(e.contains("rank 1 has joined already") && e.contains("COMITY_RANK"), "{e}");
        let e = Endpoint::join(&config(2, 3, at)).unwrap_err().to_string();
        assert!(e.contains("rank 2 is not in this job of 2 ranks"), "{e}");
        let e = Endpoint::join(&config(0, 3, at)).unwrap_err().to_string();
        assert!(e.contains("expects 3 ranks, the store expects 2"), "{e}");
        let zero = Endpoint::join(&config(0, 2, at)).unwrap();
        drop((zero, ends.recv().unwrap().unwrap()));
    });
}

#[test]
fn another_key_or_job_is_refused_and_harms_nobody() {
    let store = store(2, LONG);
    let begun = Instant::now();
    for c in [config(0, 2, store.addr()).key(Key::from([8; 32])), config(0, 2, store.addr()).job("other")] {
        let e = Endpoint::join(&c).unwrap_err().to_string();
        assert!(
            e.contains("rank 0: the store at 127.0.0.1") && e.contains("another job or holds another key"),
            "{e}"
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    each(0..2, |r| Endpoint::join(&config(r, 2, store.addr())).map(drop).unwrap());
}

#[test]
fn one_store_serves_group_after_group() {
    let store = store(2, LONG);
    for _ in 0..3 {
        let all = each(0..2, |r| Endpoint::join(&config(r, 2, store.addr())).unwrap());
        each(0..2, |r| talk(r, &mut open(&all[r], 0, &[0, 1]).1));
    }
}

#[test]
fn nobody_answers() {
    let free = TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap();
    let c = config(1, 2, free).join_timeout(Duration::from_millis(200));
    let e = Endpoint::join(&c).unwrap_err().to_string();
    assert!(e.contains(&free.to_string()) && e.contains("0.2 s") && e.contains("launcher"), "{e}");
}

#[test]
fn what_answers_is_something_else() {
    let other = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let at = other.local_addr().unwrap();
    thread::scope(|s| {
        s.spawn(move || {
            let (mut c, _) = other.accept().unwrap();
            c.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            let _ = c.read(&mut [0; 1024]);
        });
        let e = Endpoint::join(&config(1, 2, at)).unwrap_err().to_string();
        assert!(e.contains("is not Comity"), "{e}");
    });
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let at = taken.local_addr().unwrap();
    let e = Store::start(at, 2, &Key::from(KEY), "job", LONG).unwrap_err().to_string();
    assert!(e.contains(&at.to_string()) && e.contains("another process listens there"), "{e}");

    let store = store(2, LONG);
    let errors = each(0..2, |r| {
        let c = config(r, 2, store.addr());
        Endpoint::join(&if r == 1 { c.addrs([at]) } else { c }).unwrap_err().to_string()
    });
    assert!(errors[1].contains(&format!("rank 1 cannot listen at {at}")), "{errors:?}");
    assert!(errors[0].contains("rank 1 cannot join") && errors[0].contains(&at.to_string()), "{errors:?}");

    let e = Store::start(([0, 0, 0, 0], 0).into(), 2, &Key::from(KEY), "job", LONG).unwrap_err();
    assert!(matches!(e, Error::Config(_)), "{e}");
}

/// Idle, slow and talkative strangers, connected to `at`.
fn strangers(at: SocketAddr, n: usize) -> Vec<TcpStream> {
    (0..n)
        .filter_map(|i| {
            let mut c = TcpStream::connect(at).ok()?;
            let words: &[u8] = match i % 5 {
                0 => b"",
                1 => b"GET / HTTP/1.1\r\n\r\n",
                2 => b"cm\x11\x00\x40half a hello",
                3 => b"cm\x11\xff\xffmuch too long",
                _ => &[0xff; 2000],
            };
            // It may have been cut off already.
            let _ = c.write_all(words);
            Some(c)
        })
        .collect()
}

#[test]
fn strangers_are_borne_while_ranks_meet() {
    let store = store(4, LONG);
    let crowd = strangers(store.addr(), 300);
    let all = each(0..4, |r| Endpoint::join(&config(r, 4, store.addr()).links([LinkKind::Tcp])).unwrap());
    let more: Vec<_> = all.iter().flat_map(|e| strangers(e.facts_of(e.rank()).addrs[0], 100)).collect();
    each(0..4, |r| {
        let (watch, mut links) = open(&all[r], 0, &[0, 1, 2, 3]);
        talk(r, &mut links);
        assert!(watch.failure().is_none());
    });
    drop((crowd, more));
}

#[test]
fn strangers_are_sent_away_in_time() {
    let store = store(2, LONG);
    let mut idle = TcpStream::connect(store.addr()).unwrap();
    idle.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let begun = Instant::now();
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
    assert!(begun.elapsed() > Duration::from_secs(1) && begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_death_is_known_to_all_by_name() {
    let mut all = world(4, |c| c);
    let members = [3, 1, 0, 2];
    let mut opened = each(0..4, |r| open(&all[r], 0, &members));
    all[2].die();
    for r in [0, 1, 3] {
        let f = await_failure(&opened[r].0);
        assert_eq!(
            (f.culprit, f.cause.as_str(), f.reported),
            (3, "died: its control connection closed", false)
        );
        // A group with the dead cannot be made, one without can.
        let e = all[r].open(1, &[0, 1, 2, 3], &watch(4), until()).unwrap_err();
        assert!(matches!(&e, Error::PeerLost { peer, .. } if peer.rank == 2 && peer.pid.is_some()), "{e}");
    }
    all.remove(2);
    opened.clear();
    each(0..3, |i| {
        let (watch, mut links) = open(&all[i], 2, &[0, 1, 3]);
        talk(i, &mut links);
        assert!(watch.failure().is_none());
    });
}

#[test]
fn who_waits_tells_in_what_and_differences_are_found() {
    let all = world(3, |c| c);
    let call = |seq, root| {
        let info = CallInfo { seq, count: 3, root: Some(root), ..CallInfo::new(Op::Broadcast) };
        Header { info, shape: 0, epoch: 0, context: 9 }
    };
    // Rank 2 has not opened the group yet; only the last word counts.
    let mut opened = each(0..2, |r| (r < 2).then(|| all[r].enter_for_test(9, &[2, 1, 0])));
    all[0].ask(9, &[0, 1], &call(1, 0));
    all[0].ask(9, &[0], &call(2, 1));
    let late = all[2].enter_for_test(9, &[2, 1, 0]);
    await_that("no word", || late.ledger().told(2) == Some(call(2, 1)));
    assert_eq!(all[2].waits(9, 2), Some((call(2, 1), false)));
    // The same rank, asked about in another group.
    let other = all[2].enter_for_test(10, &[0, 2]);
    assert_eq!(all[2].waits(10, 0), Some((call(2, 1), true)));
    assert!(all[2].waits(9, 1).is_none() && other.failure().is_none());
    late.ledger().record(&call(1, 0));
    assert!(late.ledger().settle().is_none());
    late.ledger().record(&call(2, 0));
    let (from, calls) = late.ledger().settle().unwrap();
    assert_eq!((from, calls.what, calls.theirs, calls.ours), (2, "root", call(2, 1).info, call(2, 0).info));
    // One that is past that call sees it on its control thread, and tells all.
    let past = opened[1].take().unwrap();
    (1..=5).for_each(|seq| past.ledger().record(&call(seq, 0)));
    all[0].ask(9, &[1], &call(4, 1));
    let failure = await_failure(&past);
    assert_eq!((failure.culprit, failure.by), (2, 1));
    assert_eq!(await_failure(&late), failure);
    assert_eq!(await_failure(&opened[0].take().unwrap()), failure);
    assert!(failure.cause.contains("root 1 while rank 1 called") && failure.calls.is_some(), "{failure:?}");
}

#[test]
fn an_abort_reaches_all_with_its_words() {
    let all = world(3, |c| c);
    let opened = each(0..3, |r| open(&all[r], 9, &[0, 1, 2]));
    let failure =
        Failure { culprit: 1, by: 1, cause: "the disk is full".into(), reported: true, calls: None };
    all[1].abort(9, &failure);
    for r in [0, 2] {
        assert_eq!(await_failure(&opened[r].0), failure);
    }
    // The first reason stays.
    all[2].abort(9, &Failure { culprit: 2, by: 2, cause: "other".into(), reported: true, calls: None });
    all[2]
        .abort(9, &Failure { culprit: 7, by: 2, cause: "no such rank".into(), reported: true, calls: None });
    thread::sleep(Duration::from_millis(20));
    assert_eq!(opened[0].0.failure(), Some(&failure));
}

#[test]
fn leaving_is_no_failure() {
    let mut all = world(3, |c| c);
    let opened = each(0..3, |r| open(&all[r], 9, &[2, 1, 0]));
    all[1].leave(9);
    for r in [0, 2] {
        await_that("rank 1's leave", || opened[r].0.has_left(1));
    }
    // Whoever ends in good order leaves what it was still in.
    drop(all.remove(2));
    await_that("rank 2's goodbye", || opened[0].0.has_left(0));
    assert!(opened.iter().all(|(w, _)| w.failure().is_none()));
    let e = all[0].open(10, &[0, 1, 2], &watch(3), until());
    drop(all.remove(1));
    assert!(e.unwrap_err().to_string().contains("rank 2"));
}

#[test]
fn groups_open_in_any_order() {
    let all = world(4, |c| c);
    each(0..4, |r| {
        let pair: Vec<usize> = if r < 2 { vec![0, 1] } else { vec![3, 2] };
        let me = pair.iter().position(|m| *m == r).unwrap();
        let mut pairs = Vec::new();
        // A faster rank goes on to the next group before a slower one has come to this.
        for context in 1..6 {
            if r % 2 == 1 {
                thread::sleep(Duration::from_millis(5));
            }
            pairs.push(open(&all[r], context << 1 | (r as u64 / 2), &pair));
        }
        let (_w, mut links) = open(&all[r], 100, &[0, 1, 2, 3]);
        talk(r, &mut links);
        pairs.iter_mut().for_each(|(_, links)| talk(me, links));
    });
}

#[test]
fn what_a_fast_rank_says_before_a_slow_one_opens_is_kept() {
    for kind in [LinkKind::Tcp, LinkKind::Shm] {
        let mut all = world(2, |c| c.links([kind]));
        let slow = all.remove(0);
        let fast = all.remove(0);
        thread::scope(|s| {
            s.spawn(move || {
                let (_w, mut links) = open(&fast, 3, &[0, 1]);
                assert_eq!(links[0].as_mut().unwrap().put(b"early", &[]), Ok(5));
                fast.leave(3);
            });
            thread::sleep(Duration::from_millis(100));
            let (watch, mut links) = open(&slow, 3, &[0, 1]);
            let mut got = [0; 5];
            await_that("the early bytes", || links[1].as_mut().unwrap().take(&mut got).unwrap() == 5);
            assert_eq!(&got, b"early");
            await_that("the early leave", || watch.has_left(1));
            assert!(watch.failure().is_none());
        });
    }
}

#[test]
fn a_rank_that_does_not_come_to_a_group_is_named() {
    let all = world(3, |c| c);
    let soon = Instant::now() + Duration::from_millis(1500);
    let errors = each([0, 2], |r| all[r].open(1, &[0, 1, 2], &watch(3), soon).unwrap_err().to_string());
    assert!(errors.iter().all(|e| e.contains("rank 1")), "{errors:?}");
}

#[test]
fn a_death_ends_an_open_at_once() {
    let all = world(3, |c| c);
    let begun = Instant::now();
    let barrier = Barrier::new(3);
    each(0..3, |r| {
        barrier.wait();
        if r == 1 {
            thread::sleep(Duration::from_millis(100));
            all[1].die();
            return;
        }
        let e = all[r].open(1, &[0, 1, 2], &watch(3), until()).unwrap_err();
        assert!(matches!(&e, Error::PeerLost { peer, .. } if peer.rank == 1), "{e}");
    });
    assert!(begun.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_socket_that_does_not_work_gives_way_to_tcp() {
    let mut all = world(2, |c| c);
    Arc::get_mut(&mut all[1]).unwrap().spoil_unix_of(0);
    each(0..2, |r| {
        let (_w, mut links) = open(&all[r], 0, &[0, 1]);
        assert_eq!(links[1 - r].as_ref().unwrap().kind(), LinkKind::Tcp);
        talk(r, &mut links);
    });
}

#[test]
fn a_store_that_ends_is_named() {
    let store = store(3, LONG);
    let at = store.addr();
    thread::scope(|s| {
        let ranks: Vec<_> = (0..2).map(|r| s.spawn(move || Endpoint::join(&config(r, 3, at)))).collect();
        // Time enough to come to it.
        thread::sleep(Duration::from_millis(1500));
        drop(store);
        for r in ranks {
            let e = r.join().unwrap().unwrap_err().to_string();
            assert!(e.contains(&format!("lost the store at {at}")), "{e}");
        }
    });
}

#[test]
fn four_ranks_are_up_quickly() {
    let up = |_| {
        let store = store(4, LONG);
        let begun = Instant::now();
        let all = each(0..4, |r| {
            let e = Endpoint::join(&config(r, 4, store.addr())).unwrap();
            let opened = open(&e, 0, &[0, 1, 2, 3]);
            (begun.elapsed(), e, opened)
        });
        all.iter().map(|a| a.0).max().unwrap()
    };
    // The best of some, because the machine may be busy.
    let mut times = (0..50).map(up).inspect(|took| println!("4 ranks joined and opened in {took:?}"));
    assert!(times.any(|took| took < Duration::from_millis(150)), "never within 150 ms");
}

/// The group fails when one member is connecting for a part of it and the other will never come.
#[test]
fn a_split_hears_that_its_group_has_failed() {
    let all = world(2, |c| c);
    let heard = each(0..2, |r| {
        let world: Arc<dyn World> = all[r].clone();
        let until = Instant::now() + LONG;
        let mut fabric =
            crate::backend::Fabric::open(world.clone(), vec![0, 1], 0, Arc::default(), until).unwrap();
        if r == 1 {
            thread::sleep(Duration::from_millis(100));
            let cause = "no memory is left".to_owned();
            world.abort(0, &Failure { culprit: 1, by: 1, cause, reported: true, calls: None });
            // It leaves only when the other has had time to hear the reason.
            thread::sleep(Duration::from_millis(500));
            return None;
        }
        let begun = Instant::now();
        let e = fabric.part(&[0, 1], 7, Arc::default(), LONG).unwrap_err();
        Some((e, begun.elapsed()))
    });
    let (e, after) = heard[0].clone().unwrap();
    assert!(
        matches!(&e, Error::Aborted { by, reason, .. } if by.rank == 1 && reason == "no memory is left"),
        "{e}"
    );
    assert!(after < Duration::from_secs(2), "{after:?}");
}
