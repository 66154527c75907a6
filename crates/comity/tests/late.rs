//! Ranks that live but do not make a call: whoever waits for them names them, all of them, and nobody else.

mod common;

use comity::{Error, ErrorKind, Group, LinkKind, ReduceOp, Result};
use common::{LONG, each, job};
use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// Time limit of calls that are to run out of time.
const LIMIT: Duration = Duration::from_millis(250);

type Call = (&'static str, fn(&Group, &mut [f32]) -> Result<()>);

/// Every call of all ranks; 8 elements each.
const CALLS: [Call; 10] = [
    ("all_reduce", |g, x| g.all_reduce(x, ReduceOp::Sum)),
    ("all_reduce", |g, _| g.all_reduce(&mut vec![1f32; 1 << 18], ReduceOp::Sum)),
    ("reduce", |g, x| g.reduce(x, ReduceOp::Sum, 0)),
    ("broadcast", |g, _| g.broadcast(&mut vec![1f32; 1 << 18], 0)),
    ("all_gather", |g, x| g.all_gather(&x[..8], &mut vec![0f32; 8 * g.size()])),
    ("reduce_scatter", |g, x| g.reduce_scatter(&vec![1f32; 8 * g.size()], &mut x[..8], ReduceOp::Sum)),
    ("gather", |g, x| {
        let mut all = vec![0f32; if g.rank() == 0 { 8 * g.size() } else { 0 }];
        g.gather(&x[..8], &mut all, 0)
    }),
    ("scatter", |g, x| {
        let all = vec![0f32; if g.rank() == 0 { 8 * g.size() } else { 0 }];
        g.scatter(&all, &mut x[..8], 0)
    }),
    ("all_to_all", |g, _| g.all_to_all(&vec![1f32; 8 * g.size()], &mut vec![0f32; 8 * g.size()])),
    ("barrier", |g, _| g.barrier()),
];

fn world(hosts: &[&str], kinds: &[LinkKind]) -> Vec<Group> {
    job(hosts.len(), |c| {
        let host = hosts[c.rank()];
        c.host_name(host).links(kinds.iter().copied())
    })
}

/// Reason for which a trial has not shown what it is to show.
type Verdict = Result<(), String>;

/// Try with this limit of calls, and with longer ones: one of those that wait can be late itself, by a short limit on a busy machine.
fn by_some_limit(shortest: Duration, trial: impl Fn(Duration) -> Verdict) {
    let limits = [1, 10, 100].map(|times| shortest * times);
    let why: Vec<_> = limits.into_iter().map_while(|limit| trial(limit).err()).collect();
    assert!(why.len() < limits.len(), "{why:#?}");
}

/// Returns the ranks that a survivor's error names, and checks that its text has the words that tools look for. None if the error is another.
fn named(e: &Error) -> Option<Vec<usize>> {
    let ErrorKind::Timeout { waiting_for, stalled: None, .. } = e.root().kind() else { return None };
    let has_words = e.to_string().contains(" timed out after ");
    has_words.then(|| waiting_for.iter().map(|p| p.rank).collect())
}

/// `guilty` ranks do not make the call before all others have given up.
fn guilty_are_named(world: &[Group], guilty: &[usize]) {
    for call in CALLS {
        by_some_limit(LIMIT, |limit| guilty_are_named_in(world, guilty, call, limit));
    }
}

fn guilty_are_named_in(world: &[Group], guilty: &[usize], (name, call): Call, limit: Duration) -> Verdict {
    let what = format!("{name}, {} ranks, {guilty:?} elsewhere, {limit:?}", world.len());
    let groups = each(world, |g| g.split(Some(0), 0).unwrap().unwrap());
    let over = Barrier::new(groups.len());
    let failed = AtomicBool::new(false);
    let out = each(&groups, |g| {
        let mut x = [1f32; 8];
        if !guilty.contains(&g.rank()) {
            let out = call(&g.with_timeout(limit), &mut x);
            failed.fetch_or(out.is_err(), Ordering::Relaxed);
            over.wait();
            return out;
        }
        over.wait();
        // What it sends may leave before word of the failure comes; its next call fails.
        let tries = if failed.load(Ordering::Relaxed) { 500 } else { 1 };
        (0..tries).try_for_each(|_| {
            thread::sleep(Duration::from_millis(2));
            call(&g.with_timeout(LONG), &mut x)
        })
    });
    // Who is told must name the guilty; where nobody is told, the call has asked nothing of them.
    let told = out.iter().enumerate().filter(|(r, out)| out.is_err() && !guilty.contains(r)).count();
    for (r, out) in out.iter().enumerate() {
        let is_right = match out {
            Err(e) if guilty.contains(&r) => match e.root().kind() {
                ErrorKind::Aborted { by, reason, .. } => {
                    by.rank != r && reason.contains(" timed out after ") && reason.contains("this rank")
                }
                _ => false,
            },
            Err(e) => named(e).is_some_and(|all| all == guilty),
            // What a rank sends or receives may not depend on the guilty.
            Ok(()) => !guilty.contains(&r) || told == 0,
        };
        if !is_right {
            return Err(format!("{what}: rank {r}: {out:?}"));
        }
    }
    let may_be_silent = matches!(name, "reduce" | "broadcast" | "gather" | "scatter");
    if told > 0 || may_be_silent { Ok(()) } else { Err(format!("{what}: nobody was told")) }
}

fn some_are_elsewhere(world: &[Group]) {
    let n = world.len();
    guilty_are_named(world, &[n - 1]);
    if n > 2 {
        guilty_are_named(world, &[1, n - 1]);
    }
    guilty_are_named(world, &[0]);
}

#[test]
fn between_threads() {
    for n in [2, 4] {
        some_are_elsewhere(&Group::local(n).unwrap());
    }
}

#[test]
fn over_unix_sockets() {
    some_are_elsewhere(&world(&["a"; 3], &[LinkKind::Unix]));
}

#[test]
fn over_tcp() {
    some_are_elsewhere(&world(&["a"; 3], &[LinkKind::Tcp]));
}

#[cfg(target_os = "linux")]
#[test]
fn over_shared_memory() {
    some_are_elsewhere(&world(&["a"; 5], &[LinkKind::Shm]));
}

#[cfg(target_os = "linux")]
#[test]
fn over_both() {
    let hosts = ["a", "a", "a", "a", "b", "b", "b", "b"];
    some_are_elsewhere(&world(&hosts, &[LinkKind::Shm, LinkKind::Tcp]));
}

#[test]
fn limits_below_the_time_to_ask_are_no_reason_to_blame_the_wrong_one() {
    let world = Group::local(4).unwrap();
    for _ in 0..5 {
        let groups = each(&world, |g| g.split(Some(0), 0).unwrap().unwrap());
        let over = Barrier::new(4);
        let out = each(&groups, |g| {
            let out = if g.rank() == 2 {
                Ok(())
            } else {
                g.with_timeout(Duration::from_millis(20)).all_reduce(&mut [1f32; 8], ReduceOp::Sum)
            };
            over.wait();
            out
        });
        for r in [0, 1, 3] {
            let e = out[r].as_ref().unwrap_err();
            // One of the waiting ranks can be late itself by so short a limit; whoever is named has not made the call.
            assert!(named(e).is_some_and(|all| all.contains(&2)), "{e}");
        }
    }
}

#[test]
fn a_message_that_does_not_come_names_its_sender_to_all() {
    let world = Group::local(3).unwrap();
    let out = each(&world, |g| match g.rank() {
        0 => g.with_timeout(LIMIT).recv(&mut [0f32; 8], 1, 5),
        2 => g.with_timeout(LONG).barrier(),
        _ => {
            thread::sleep(LIMIT * 3);
            Ok(())
        }
    });
    for r in [0, 2] {
        let e = out[r].as_ref().unwrap_err();
        assert_eq!(named(e), Some(vec![1]), "{e}");
        assert!(e.to_string().contains("it was waiting for rank 1"), "{e}");
    }
}

/// Shortest limit at which answers still come.
const SHORT: Duration = Duration::from_millis(125);

type Wait = fn(&Group) -> Result<()>;

/// Ranks wait for rank 0 that have left the call in which it waits, or wait for its message; it waits for the last rank, by itself or by way of
/// another one.
fn an_innocent_root_is_not_named(world: &[Group]) {
    let calls: [(&str, Wait); 4] = [
        ("gather", |g| {
            let mut all = vec![0f32; if g.rank() == 0 { 8 * g.size() } else { 0 }];
            g.gather(&[1f32; 8], &mut all, 0)
        }),
        ("reduce", |g| g.reduce(&mut [1f32; 8], ReduceOp::Sum, 0)),
        ("recv", |g| if g.rank() == 0 { g.recv(&mut [0f32; 8], g.size() - 1, 5) } else { Ok(()) }),
        ("recv of recv", |g| match g.rank() {
            0 => g.recv(&mut [0f32; 8], 1, 5),
            1 => g.recv(&mut [0f32; 8], g.size() - 1, 5),
            _ => Ok(()),
        }),
    ];
    let last: [(&str, Wait); 2] = [
        ("barrier", Group::barrier),
        ("recv", |g| if g.rank() == 0 { Ok(()) } else { g.recv(&mut [0f32; 8], 0, 6) }),
    ];
    for (first, last) in calls.into_iter().flat_map(|c| last.map(|l| (c, l))) {
        by_some_limit(SHORT, |limit| only_the_guilty_is_named(world, first, last, limit));
    }
}

fn only_the_guilty_is_named(
    world: &[Group],
    (first, call): (&str, Wait),
    (second, wait): (&str, Wait),
    limit: Duration,
) -> Verdict {
    let guilty = world.len() - 1;
    let what = format!("{first}, then {second}, {} ranks, {limit:?}", world.len());
    let groups = each(world, |g| g.split(Some(0), 0).unwrap().unwrap());
    let over = Barrier::new(groups.len());
    let out = each(&groups, |g| {
        let out = match g.rank() {
            r if r == guilty => Ok(()),
            // The limits of the others pass first.
            0 | 1 => call(&g.with_timeout(LONG)).and_then(|()| wait(&g.with_timeout(limit))),
            _ => call(g).and_then(|()| wait(&g.with_timeout(limit))),
        };
        over.wait();
        out
    });
    let chain = format!("it was waiting for rank 0, which waits for rank {guilty}");
    let is_right = |e: &Error| {
        let is_pair = matches!(e.root().kind(), ErrorKind::Timeout { call, .. } if call.seq == 0);
        named(e).is_some_and(|all| all == [guilty]) && (!is_pair || e.to_string().contains(&chain))
    };
    let wrong = out[..guilty].iter().find(|out| !out.as_ref().is_err_and(is_right));
    wrong.map_or(Ok(()), |_| Err(format!("{what}: {out:?}")))
}

#[test]
fn a_root_that_waits_itself_is_not_named() {
    an_innocent_root_is_not_named(&Group::local(4).unwrap());
    an_innocent_root_is_not_named(&world(&["a"; 4], &[LinkKind::Tcp]));
}

/// Rank 0 waits for the last rank in a call of a group of these two; the others wait for both.
fn a_rank_that_waits_in_another_group_is_not_named(world: &[Group]) {
    let elsewhere: [(&str, Wait); 2] =
        [("a barrier", Group::barrier), ("a split", |g| g.split(Some(1), 0).map(drop))];
    for call in elsewhere {
        by_some_limit(SHORT * 2, |limit| who_waits_elsewhere_is_not_named(world, call, limit));
    }
}

fn who_waits_elsewhere_is_not_named(world: &[Group], (what, call): (&str, Wait), limit: Duration) -> Verdict {
    let guilty = world.len() - 1;
    let groups = each(world, |g| {
        let is_in = [0, guilty].contains(&g.rank());
        (g.split(Some(0), 0).unwrap().unwrap(), g.split(is_in.then_some(1), 0).unwrap())
    });
    // Those who wait in vain, and the guilty one, which comes to the other group then.
    let over = Barrier::new(world.len() - 1);
    let out = each(&groups, |(here, other)| {
        let r = here.rank();
        let waits = ![0, guilty].contains(&r);
        let out = if waits { here.with_timeout(limit).barrier() } else { Ok(()) };
        if r != 0 {
            over.wait();
        }
        other.as_ref().map_or(Ok(()), |g| call(&g.with_timeout(LONG))).unwrap();
        out
    });
    let is_right = |e: &Error| named(e).is_some_and(|all| all == [guilty]);
    let wrong = out[1..guilty].iter().find(|out| !out.as_ref().is_err_and(is_right));
    wrong.map_or(Ok(()), |_| Err(format!("{what}, {limit:?}: {out:?}")))
}

#[test]
fn a_rank_that_waits_in_a_call_of_another_group_is_innocent() {
    a_rank_that_waits_in_another_group_is_not_named(&Group::local(4).unwrap());
    a_rank_that_waits_in_another_group_is_not_named(&world(&["a"; 4], &[LinkKind::Tcp]));
}
