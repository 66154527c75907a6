//! The same over real links and more ranks: groups that were split off, calls of several rounds, background work.

use crate::{
    arguments,
    call::next,
    case::{Case, How, judge, patient, play},
    common::{each, job},
    messages, orders,
};
use comity::{CrossedWait, Detection, ErrorKind, Group, LinkKind, Op, ReduceOp};
use std::{collections::BTreeSet, time::Duration};

const JOIN: Duration = Duration::from_secs(30);
/// Longest silence of a rank, the default.
const SILENCE: Duration = Duration::from_secs(5);

/// A job of `n` ranks, each with connections of its own; rank r is on host `hosts[r]`.
fn world(hosts: &[&str], kinds: &[LinkKind]) -> Vec<Group> {
    job(hosts.len(), |c| {
        let host = hosts[c.rank()];
        let c = c.host_name(host).links(kinds.iter().copied()).join_timeout(patient(JOIN));
        c.detection(Detection::After(patient(SILENCE)))
    })
}

/// Differences that are tried between threads alone.
const LEFT_OUT: [&str; 8] = [
    "dtype of another size",
    "plan",
    "nothing",
    "another wire",
    "counts",
    "a shorter message",
    "a collective call for a message",
    "a call on a wire for a message",
];

/// Returns the cases, with one odd rank after the other.
fn cases(n: usize) -> Vec<Case> {
    let mut odd = 0;
    let mut turn = || {
        odd = next(odd, n);
        odd
    };
    let mut cases = arguments(n, [131_072, 16_384], &mut turn);
    cases.extend(orders(n, 16_384, [Op::Gather, Op::Scatter], &mut turn));
    cases.extend(messages(n, 16_384, &mut turn));
    cases.retain(|c| !LEFT_OUT.contains(&c.what));
    cases
}

/// Play all cases, each in a group of its own, which is all that fails.
fn check(world: &[Group], kinds: &[LinkKind]) {
    let n = world.len();
    let mut wrong = Vec::new();
    let cases = cases(n);
    // Four worlds: 440, as docs/errors.md says.
    assert_eq!(cases.len(), 110);
    let cases = scope::Scope::from_env().share(cases, 4);
    for (i, case) in cases.iter().enumerate() {
        // In another order than the job's.
        let mut groups = each(0..n, |r| world[r].split(Some(0), -(r as i32)).unwrap().unwrap());
        groups.reverse();
        let how = if i % 2 == 0 { How::Now } else { How::Later };
        if let Err(e) = judge(case, &play(case, &groups, how)) {
            wrong.push(format!("{} ({how:?})\n    {e}", case.name()));
        }
    }
    println!("{} cases on {n} ranks", cases.len());
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    each(0..n, |r| world[r].barrier().unwrap());
    let used: BTreeSet<_> =
        world.iter().flat_map(Group::link_kinds).flatten().map(|k| k.to_string()).collect();
    assert_eq!(used, kinds.iter().map(ToString::to_string).collect());
}

#[cfg(target_os = "linux")]
#[test]
fn shared_memory() {
    check(&world(&["a"; 6], &[LinkKind::Shm]), &[LinkKind::Shm]);
}

#[test]
fn unix_sockets() {
    check(&world(&["a"; 5], &[LinkKind::Unix]), &[LinkKind::Unix]);
}

#[test]
fn tcp() {
    check(&world(&["a"; 5], &[LinkKind::Tcp]), &[LinkKind::Tcp]);
}

#[cfg(target_os = "linux")]
#[test]
fn two_hosts_of_four() {
    let kinds = [LinkKind::Shm, LinkKind::Tcp];
    check(&world(&["a", "a", "a", "a", "b", "b", "b", "b"], &kinds), &kinds);
}

#[cfg(target_os = "linux")]
#[test]
fn hosts_of_different_size() {
    let kinds = [LinkKind::Shm, LinkKind::Tcp];
    check(&world(&["a", "b", "b", "a", "c", "a", "a"], &kinds), &kinds);
}

/// A call that may be legal, because another thread could still make it, fails at the limit, and the error names the calls of the others.
fn told_at_the_limit(groups: &[Group]) {
    // Long enough for every rank to come to its call, beside what else runs.
    let limit = patient(Duration::from_secs(3));
    let a = each(0..2, |r| groups[r].split(Some(0), 0).unwrap().unwrap());
    let b = each(0..2, |r| groups[r].split(Some(0), 0).unwrap().unwrap());
    let errors = each(0..2, |r| {
        let mut x = [1f32; 4];
        let g = [&a, &b][r][r].with_timeout(limit);
        if r == 0 { g.all_reduce(&mut x, ReduceOp::Sum) } else { g.broadcast(&mut x, 0) }.unwrap_err()
    });
    for (r, e) in errors.iter().enumerate() {
        let ErrorKind::Timeout { crossed, .. } = e.kind() else { panic!("{e}") };
        let [CrossedWait { peer, call, elsewhere: true, .. }] = &crossed[..] else { panic!("{e}") };
        assert_eq!((peer.rank, call.op), (1 - r, [Op::Broadcast, Op::AllReduce][r]), "{e}");
        let text = e.to_string();
        assert!(text.contains("waited for this one in ") && text.contains(" of another group"), "{text}");
    }
}

/// A message with a tag that nobody asks for, and then a call that would not have shown it: its sender only takes.
fn told_though_only_takes(groups: &[Group]) {
    let errors = each(0..2, |r| {
        let g = groups[r].with_timeout(patient(Duration::from_secs(20)));
        let mut x = [1f32; 4];
        if r == 1 {
            return g.recv(&mut x, 0, 8).unwrap_err();
        }
        g.send(&x, 1, 7).unwrap();
        g.gather(&x[..2], &mut [0f32; 4], 0).unwrap_err()
    });
    for e in &errors {
        let ErrorKind::Mismatch { rank: 1, peer, ours, theirs, .. } = e.root().kind() else { panic!("{e}") };
        assert_eq!((peer.rank, ours.op, theirs.op, theirs.seq), (0, Op::Recv, Op::Gather, 1), "{e}");
    }
}

#[test]
fn another_tag_over_tcp() {
    told_though_only_takes(&world(&["a"; 2], &[LinkKind::Tcp]));
}

#[test]
fn another_tag_between_threads() {
    told_though_only_takes(&Group::local(2).unwrap());
}

#[test]
fn another_group_over_tcp() {
    told_at_the_limit(&world(&["a"; 2], &[LinkKind::Tcp]));
}

#[test]
fn another_group_between_threads() {
    told_at_the_limit(&Group::local(2).unwrap());
}
