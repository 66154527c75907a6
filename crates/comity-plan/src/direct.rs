//! Straight from whoever has it to whoever needs it; and two such rounds in a row.
//!
//! ```text
//!   direct all_reduce: 1 round         two-phase all_reduce: 2 rounds, part i belongs to rank i
//!      0 ──all──> 1                      0: [a0|b0|c0]  ──b0──> 1: folds b0 b1 b2  ──b──> 0, 2
//!      0 ──all──> 2                                     ──c0──> 2: folds c0 c1 c2  ──c──> 0, 1
//! ```
//!
//! Cost per rank, n ranks, B bytes (all of the buffer):
//! - all_reduce direct: n-1 messages, (n-1)B. Two-phase: 2(n-1) messages, 2(n-1)/n B, the least possible.
//! - reduce direct: B from all but the root. Two-phase: n messages, B (a part fewer at the root).
//! - broadcast direct: (n-1)B at the root. Two-phase: B at the root, (n-2)/(n-1) B elsewhere.
//! - all_gather, reduce_scatter, gather, scatter direct: every part goes once to each that needs it.
//!
//! Each element is folded by one rank, all operands together and in rank order: f16 rounds once.

use crate::Slice;
use crate::draft::{Draft, Parts, Team, even};

/// All send all to all; every rank folds everything in rank order.
pub(super) fn all_reduce(d: &mut Draft, team: &Team, src: Slice, dst: Slice, last: bool) {
    team.others().for_each(|p| d.send(team, p, src));
    d.fold(team, src, dst, last);
    d.round += 1;
}

pub(super) fn reduce(d: &mut Draft, team: &Team, root: usize, src: Slice, dst: Slice, last: bool) {
    if team.me == root {
        d.fold(team, src, dst, last);
    } else {
        d.send(team, root, src);
    }
    d.round += 1;
}

pub(super) fn broadcast(d: &mut Draft, team: &Team, root: usize, buf: Slice) {
    if team.me == root {
        team.others().for_each(|p| d.send(team, p, buf));
    } else {
        d.recv(team, root, buf);
    }
    d.round += 1;
}

/// `own` is sent and copied to its part of `out`.
pub(super) fn all_gather(d: &mut Draft, team: &Team, own: Slice, out: Slice, parts: &Parts) {
    team.others().for_each(|p| d.send(team, p, own));
    team.others().for_each(|p| d.recv(team, p, out.part(parts[p])));
    d.copy(own, out.part(parts[team.me]));
    d.round += 1;
}

/// Everyone's part of `src` is folded by its position, to `dst`.
pub(super) fn reduce_scatter(d: &mut Draft, team: &Team, src: Slice, parts: &Parts, dst: Slice, last: bool) {
    team.others().for_each(|p| d.send(team, p, src.part(parts[p])));
    d.fold(team, src.part(parts[team.me]), dst, last);
    d.round += 1;
}

pub(super) fn gather(d: &mut Draft, team: &Team, root: usize, own: Slice, out: Slice, parts: &Parts) {
    if team.me == root {
        team.others().for_each(|p| d.recv(team, p, out.part(parts[p])));
        d.copy(own, out.part(parts[root]));
    } else {
        d.send(team, root, own);
    }
    d.round += 1;
}

pub(super) fn scatter(d: &mut Draft, team: &Team, root: usize, src: Slice, parts: &Parts, own: Slice) {
    if team.me == root {
        team.others().for_each(|p| d.send(team, p, src.part(parts[p])));
        d.copy(src.part(parts[root]), own);
    } else {
        d.recv(team, root, own);
    }
    d.round += 1;
}

/// Everyone tells everyone.
pub(super) fn barrier(d: &mut Draft, team: &Team, nothing: Slice) {
    team.others().for_each(|p| d.send(team, p, nothing));
    team.others().for_each(|p| d.recv(team, p, nothing));
    d.round += 1;
}

pub(super) fn two_phase_all_reduce(d: &mut Draft, team: &Team, src: Slice, dst: Slice, last: bool) {
    let parts = even(src.len, team.len());
    let own = dst.part(parts[team.me]);
    reduce_scatter(d, team, src, &parts, own, last);
    all_gather(d, team, own, dst, &parts);
}

pub(super) fn two_phase_reduce(d: &mut Draft, team: &Team, root: usize, src: Slice, dst: Slice, last: bool) {
    let parts = even(src.len, team.len());
    let own = match team.me == root {
        true => dst.part(parts[root]),
        false => d.reserve(parts[team.me].1),
    };
    reduce_scatter(d, team, src, &parts, own, last);
    gather(d, team, root, own, dst, &parts);
}

/// The root deals the buffer out among the others, who exchange what they got.
pub(super) fn two_phase_broadcast(d: &mut Draft, team: &Team, root: usize, buf: Slice) {
    let n = team.len();
    if n == 1 {
        return;
    }
    let parts = even(buf.len, n - 1);
    let part = |p: usize| buf.part(parts[(p + n - root) % n - 1]);
    if team.me == root {
        team.others().for_each(|p| d.send(team, p, part(p)));
        d.round += 2;
        return;
    }
    d.recv(team, root, part(team.me));
    d.round += 1;
    team.others().filter(|&p| p != root).for_each(|p| d.send(team, p, part(team.me)));
    team.others().filter(|&p| p != root).for_each(|p| d.recv(team, p, part(p)));
    d.round += 1;
}
