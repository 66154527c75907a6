//! Algorithms in which one rank of each host speaks for it.
//!
//! ```text
//!   all_reduce, host A holds 0 1, host B holds 2 3:
//!     1 ──> 0 <──────> 2 <── 3     the leaders sum their hosts, then each other
//!     1 <── 0          2 ──> 3     and tell their hosts
//! ```
//!
//! Cost, H hosts, B bytes: all_reduce log2 H rounds between hosts of B per host, and 2 within; reduce, broadcast and barrier alike. Few
//! messages between hosts: for small buffers.

use super::{
    Cuts, Definition, Extent, Order, PartLengths, Service, direct, doubling, of_all, ring, tree, two_phase,
};
use crate::{
    Slice,
    draft::{Draft, Hosts, Team},
    shape::Kind,
};

const ASKED: Cuts = Cuts::Asked { steps: of_all };

pub(super) const DEFINITION: Definition = Definition {
    name: "leader",
    order: Order::ByRank,
    parts: PartLengths::Listed,
    adds_at_once: false,
    serves: &[
        Service {
            kind: Kind::AllReduce,
            steps: |d, s| all_reduce(d, s.hosts, s.src, s.dst, true),
            seconds: |m| {
                let local = 2.0 * m.to_leader(m.bytes) + m.add((m.local - 1.0) * m.bytes);
                local + doubling::seconds_of(m, m.hosts, |_| m.lead(m.bytes), m.bytes)
            },
            cuts: ASKED,
            sends: |e| (e.local - 1 + e.hosts.ilog2() as usize + 1) * e.count,
        },
        Service {
            kind: Kind::Reduce,
            steps: |d, s| reduce(d, s.hosts, s.root, s.src, s.dst),
            seconds: |m| {
                let local = m.to_leader(m.bytes) + m.add((m.local - 1.0) * m.bytes);
                local + m.levels(m.hosts, |_| m.lead(m.bytes) + m.add(m.bytes))
            },
            cuts: ASKED,
            sends: |e| e.count,
        },
        Service {
            kind: Kind::Broadcast,
            steps: |d, s| broadcast(d, s.hosts, s.root, s.dst),
            seconds: |m| m.levels(m.hosts, |_| m.lead(m.bytes)) + m.to_leader(m.bytes),
            cuts: ASKED,
            sends: |e: Extent| (e.local - 1 + tree::rounds(e.hosts) as usize) * e.count,
        },
        Service {
            kind: Kind::Barrier,
            steps: |d, s| barrier(d, s.hosts, s.src),
            seconds: |m| 2.0 * m.to_leader(0.0) + m.levels(m.hosts, |_| m.lead(0.0)),
            cuts: ASKED,
            sends: |_| 0,
        },
    ],
};

/// Between one rank of each host; `small` messages want few rounds.
pub(crate) fn across(d: &mut Draft, team: &Team, src: Slice, dst: Slice, small: bool) {
    match team.len() {
        0..=2 => doubling::all_reduce(d, team, src, dst),
        _ if small => doubling::all_reduce(d, team, src, dst),
        3..=16 => two_phase::all_reduce(d, team, src, dst, true),
        _ => ring::all_reduce(d, team, src, dst),
    }
}

fn across_rounds(n: usize, small: bool) -> u32 {
    match n {
        0..=2 => doubling::rounds(n),
        _ if small => doubling::rounds(n),
        3..=16 => 2,
        _ => 2 * (n as u32 - 1),
    }
}

pub(super) fn all_reduce(d: &mut Draft, hosts: &Hosts, src: Slice, dst: Slice, small: bool) {
    let (local, leaders, _) = hosts.led_by(0);
    let alone = hosts.ranks.len() == 1;
    let mut held = src;
    let rounds = if small { 1 } else { 2 };
    match (local.len(), small) {
        (1, _) => d.round += rounds,
        (_, true) => direct::reduce(d, &local, 0, src, dst, alone),
        (_, false) => two_phase::reduce(d, &local, 0, src, dst, alone),
    }
    if local.len() > 1 {
        held = dst;
    }
    match leaders {
        Some(leaders) => across(d, &leaders, held, dst, small),
        None => d.round += across_rounds(hosts.ranks.len(), small),
    }
    match small {
        true => direct::broadcast(d, &local, 0, dst),
        false => two_phase::broadcast(d, &local, 0, dst),
    }
}

fn reduce(d: &mut Draft, hosts: &Hosts, root: usize, src: Slice, dst: Slice) {
    let (local, leaders, at) = hosts.led_by(root);
    let Some(leaders) = leaders else { return direct::reduce(d, &local, 0, src, dst, false) };
    let leaf = local.len() == 1 && tree::is_leaf(&leaders, at);
    let sum = if hosts.me == root || leaf { dst } else { d.reserve(src.len) };
    let held = if local.len() > 1 {
        direct::reduce(d, &local, 0, src, sum, leaders.len() == 1);
        sum
    } else {
        d.round += 1;
        src
    };
    tree::reduce(d, &leaders, at, held, sum);
}

fn broadcast(d: &mut Draft, hosts: &Hosts, root: usize, buf: Slice) {
    let (local, leaders, at) = hosts.led_by(root);
    match leaders {
        Some(leaders) => tree::broadcast(d, &leaders, at, buf),
        None => d.round += tree::rounds(hosts.ranks.len()),
    }
    direct::broadcast(d, &local, 0, buf);
}

fn barrier(d: &mut Draft, hosts: &Hosts, nothing: Slice) {
    let (local, leaders, _) = hosts.led_by(0);
    if local.me == 0 {
        local.others().for_each(|p| d.recv(&local, p, nothing));
    } else {
        d.send(&local, 0, nothing);
    }
    d.round += 1;
    match leaders {
        Some(leaders) => doubling::barrier(d, &leaders, nothing),
        None => d.round += tree::rounds(hosts.ranks.len()),
    }
    direct::broadcast(d, &local, 0, nothing);
}
