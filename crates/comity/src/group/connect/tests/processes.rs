//! Tests that need processes of their own: deaths by SIGKILL, limits on descriptors, and counting what is left.

use super::*;
use crate::{
    Detection,
    channel::is_own,
    rendezvous::{Facts, facts_of},
    sys,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use scope::{Actor, await_word, role, say};
use std::os::unix::net::UnixStream;

fn actor(test: &str, role: &str) -> Actor {
    Actor::start(module_path!(), test, role)
}

/// Come as far as `phase`, then say so and wait to be killed.
fn act(phase: &str, rank: usize, n: usize, at: SocketAddr) {
    let config = config(rank, n, at);
    let mut held = None;
    let mut met = None;
    match phase {
        "joining" | "connecting" => {
            let (meeting, _) = met.insert(find_store(&config).unwrap());
            let mut facts = Facts { silence: 5000, ..facts_of("h", std::process::id(), Vec::new()) };
            facts.card.host_id = 1;
            if phase == "joining" {
                thread::scope(|s| {
                    s.spawn(|| meeting.join(facts));
                    // Time enough to be known to the store.
                    thread::sleep(Duration::from_millis(2000));
                    say("here");
                });
                return;
            }
            meeting.join(facts).unwrap();
        }
        _ => {
            let e = join_job(&config).unwrap();
            let members: Vec<usize> = (0..n).collect();
            let opened = (phase == "idle").then(|| open(&e, 0, &members));
            held = Some((e, opened));
        }
    }
    say("here");
    await_word();
    drop((held, met));
}

#[test]
fn a_killed_rank_is_named_by_all_whatever_it_did() {
    if let Some(role) = role() {
        let mut words = role.split(' ');
        let mut next = || words.next().unwrap();
        let phase = next();
        let rank = next().parse().unwrap();
        let n = next().parse().unwrap();
        return act(phase, rank, n, next().parse().unwrap());
    }
    for (phase, part) in [
        ("joining", "ended before all ranks had joined"),
        ("connecting", "ended while the ranks were connecting"),
        ("joined", "died: its control connection closed"),
        ("idle", "died: its control connection closed"),
    ] {
        // While ranks join, one more is awaited.
        let n = if phase == "joining" { 5 } else { 4 };
        let store = store(n, LONG);
        let at = store.addr();
        let role = format!("{phase} 3 {n} {at}");
        let mut actor = actor("a_killed_rank_is_named_by_all_whatever_it_did", &role);
        let pid = actor.child.id();
        let (killed, know) = thread::scope(|s| {
            let ranks: Vec<_> = (0..3)
                .map(|r| {
                    s.spawn(move || {
                        let words = match join_job(&config(r, n, at).detection(Detection::After(LONG))) {
                            Err(e) => {
                                assert!(e.ranks() == [3], "{e} is about {:?}", e.ranks());
                                e.to_string()
                            }
                            Ok(e) => {
                                let status = status(4);
                                match e.open(0, &[0, 1, 2, 3], &status, until()) {
                                    Err(e) => e.to_string(),
                                    Ok(_links) => {
                                        let f = await_failure(&status);
                                        format!("rank {} (pid {pid}) {}", f.culprit, f.cause)
                                    }
                                }
                            }
                        };
                        (Instant::now(), words)
                    })
                })
                .collect();
            assert_eq!(actor.hear(), "here");
            thread::sleep(Duration::from_millis(50));
            let killed = Instant::now();
            actor.kill();
            (killed, ranks.into_iter().map(|r| r.join().unwrap()).collect::<Vec<_>>())
        });
        for (when, words) in know {
            assert!(words.contains("rank 3") && words.contains(&format!("pid {pid}")), "{phase}: {words}");
            assert!(words.contains(part), "{phase}: {words}");
            let took = when.duration_since(killed);
            // Nobody is silent before that.
            assert!(took < LONG / 2, "{phase}: {took:?}");
        }
    }
}

fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn limit_descriptors(n: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(n), maximum }).unwrap();
}

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count()
}

#[test]
fn running_out_of_descriptors_passes() {
    if role().is_some() {
        let store = store(2, LONG);
        say(store.addr());
        limit_descriptors(count("fd") as u64 + 4);
        let begun = cpu_time();
        await_word();
        let spent = cpu_time() - begun;
        limit_descriptors(1024);
        let all = each(0..2, |r| join_job(&config(r, 2, store.addr())).unwrap());
        each(0..2, |r| talk(r, &mut open(&all[r], 0, &[0, 1]).1));
        return say(spent.as_millis());
    }
    let mut actor = actor("running_out_of_descriptors_passes", "store");
    let crowd = strangers(actor.hear().parse().unwrap(), 400);
    thread::sleep(Duration::from_millis(1000));
    actor.tell();
    let spent: u64 = actor.hear().parse().unwrap();
    assert!(spent < 500, "{spent} ms of processor time in one second of nothing to do");
    drop(crowd);
}

#[test]
fn a_rank_without_descriptors_says_so_and_is_named() {
    const TEST: &str = "a_rank_without_descriptors_says_so_and_is_named";
    if let Some(role) = role() {
        let (left, at) = role.split_once(' ').unwrap();
        limit_descriptors(count("fd") as u64 - 1 + left.parse::<u64>().unwrap());
        let joined = join_job(&config(0, 3, at.parse().unwrap()));
        limit_descriptors(1024);
        return say(joined.map_or_else(|e| e.to_string(), |_| "joined".into()));
    }
    let mut told = 0;
    for left in [0, 3, 4, 5, 7, 9, 11, 13] {
        let store = store(3, LONG);
        let at = store.addr();
        let begun = Instant::now();
        thread::scope(|s| {
            let others: Vec<_> = (1..3).map(|r| s.spawn(move || join_job(&config(r, 3, at)))).collect();
            let mut actor = actor(TEST, &format!("{left} {at}"));
            let own = actor.hear();
            if own == "joined" {
                return others.into_iter().for_each(|o| drop(o.join().unwrap()));
            }
            for part in ["Too many open files", "may have ", "ulimit -n"] {
                assert!(own.contains(part), "{left}: {own}");
            }
            // One that cannot even reach the store is missed by whoever started it.
            thread::sleep(Duration::from_millis(200));
            store.lost(0, "ended");
            for other in others {
                // One that had met everyone before is told by its first group.
                let e = match other.join().unwrap() {
                    Ok(e) => e.open(0, &[0, 1, 2], &status(3), until()).unwrap_err().to_string(),
                    Err(e) => e.to_string(),
                };
                assert!(e.contains("rank 0"), "{left}: {e}");
                told += usize::from(e.contains("Too many open files") && e.contains("ulimit -n"));
            }
        });
        assert!(begun.elapsed() < LONG, "{left}: {:?}", begun.elapsed());
    }
    assert!(told >= 4, "{told}");
}

/// Shared memory comes as a descriptor. Whoever has no room for it must not say that its peer sent none.
#[test]
fn a_descriptor_without_room_is_a_lack_of_ones_own() {
    if role().is_some() {
        let (a, b) = UnixStream::pair().unwrap();
        for most in [0, 1024] {
            sys::send_fd(&a, &a).unwrap();
            limit_descriptors(most);
            let got = sys::recv_fd(&b);
            limit_descriptors(1024);
            let own = got.as_ref().is_err_and(is_own);
            say(format!("{own} {}", got.map_or_else(|e| e.kind().to_string(), |_| "received".into())));
        }
        return;
    }
    let mut actor = actor("a_descriptor_without_room_is_a_lack_of_ones_own", "receiver");
    assert!(actor.hear().starts_with("true "));
    assert_eq!(actor.hear(), "false received");
}

#[test]
fn few_descriptors_are_enough_in_a_crowd() {
    if role().is_some() {
        limit_descriptors(160);
        let store = store(2, LONG);
        say(store.addr());
        await_word();
        let all = each(0..2, |r| join_job(&config(r, 2, store.addr())).unwrap());
        each(0..2, |r| talk(r, &mut open(&all[r], 0, &[0, 1]).1));
        return say("met");
    }
    let mut actor = actor("few_descriptors_are_enough_in_a_crowd", "store");
    let at = actor.hear().parse().unwrap();
    let crowd = strangers(at, 300);
    actor.tell();
    let more = strangers(at, 300);
    assert_eq!(actor.hear(), "met");
    drop((crowd, more));
}

#[test]
fn worlds_leave_nothing_behind() {
    if role().is_none() {
        let mut actor = actor("worlds_leave_nothing_behind", "alone");
        let left = actor.hear();
        assert_eq!(left, "fd +0 task +0");
        return;
    }
    let cycle = || {
        let all = world(2, |c| c);
        each(0..2, |r| {
            let (_w, mut links) = open(&all[r], 0, &[0, 1]);
            talk(r, &mut links);
            all[r].leave(0);
        });
    };
    // A thread that was joined is listed a little longer: what is left is what stays.
    let held = || (count("fd") as i64, count("task") as i64);
    let settled = || {
        let mut last = held();
        let mut since = Instant::now();
        let end = until();
        while since.elapsed() < Duration::from_millis(500) && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
            let now = held();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        last
    };
    cycle();
    let before = settled();
    (0..100).for_each(|_| cycle());
    let after = settled();
    say(format!("fd {:+} task {:+}", after.0 - before.0, after.1 - before.1));
}
