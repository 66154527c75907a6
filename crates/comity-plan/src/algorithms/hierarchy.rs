//! Each rank of a host answers for one part of the traffic between hosts.
//!
//! ```text
//!   all_reduce, host A holds 0 1, host B holds 2 3:
//!     0 <──> 1   2 <──> 3        within: 0, 2 sum the left half, 1, 3 the right
//!     0 <─────> 2  1 <─────> 3   between: each half on its own
//!     0 <──> 1   2 <──> 3        within: share the halves
//! ```
//!
//! Cost, H hosts, B bytes in all: in an all_reduce every host sends 2(H-1)/H B to the others (the least possible), B for two hosts in
//! one round. Hosts of unequal rank counts have a leader each, which collects and shares in two phases. In all_gather and
//! reduce_scatter each part crosses once to each host.

use super::{Cuts, Definition, Extent, Order, PartLengths, Service, direct, leader, of_all, two_phase};
use crate::{
    Slice,
    draft::{Draft, Hosts, Parts, Team, even},
    model::{
        Model,
        Traffic::{self, BothWays, Same},
    },
    shape::Kind,
};

pub(super) const DEFINITION: Definition = Definition {
    name: "hierarchy",
    order: Order::ByRank,
    parts: PartLengths::Listed,
    adds_at_once: false,
    serves: &[
        Service {
            kind: Kind::AllReduce,
            steps: |d, s| all_reduce(d, s.hosts, s.src, s.dst, s.small),
            seconds: all_reduce_seconds,
            cuts: Cuts::Gains { steps: of_all, messages: |m| if m.even { m.n } else { m.local } },
            sends: most_sent,
        },
        Service {
            kind: Kind::AllGather,
            steps: |d, s| all_gather(d, s.hosts, s.own_src, s.dst, &s.parts),
            seconds: |m| parts_seconds(m, Same),
            cuts: Cuts::Asked { steps: of_all },
            sends: |e| 2 * e.n * e.count,
        },
        Service {
            kind: Kind::ReduceScatter,
            steps: |d, s| reduce_scatter(d, s.hosts, s.src, &s.parts, s.own_dst),
            seconds: |m| parts_seconds(m, BothWays) + m.add(m.n * m.bytes),
            cuts: Cuts::Asked { steps: of_all },
            sends: |e| 2 * e.n * e.count,
        },
    ],
};

fn all_reduce_seconds(m: &Model<'_>) -> f64 {
    let far = m.hosts - 1.0;
    let between = 2.0 * m.cross(far, far / m.hosts * m.bytes, BothWays);
    let each = m.bytes / m.local;
    if m.even {
        return 2.0 * m.exchange_within(each, BothWays)
            + m.add((m.local - 1.0) * each)
            + between
            + m.add(each);
    }
    4.0 * m.exchange_within(each, BothWays) + m.add(m.bytes) + between + m.add(m.bytes)
}

fn parts_seconds(m: &Model<'_>, traffic: Traffic) -> f64 {
    let far = m.hosts - 1.0;
    // What comes from other hosts is passed on to each neighbour.
    let passed = (m.n - m.local) / m.local * (m.local - 1.0);
    let crossing = m.cross(far, m.local * far * m.bytes, traffic);
    m.exchange_within(m.bytes, traffic) + crossing + m.within(passed, passed * m.bytes)
}

fn most_sent(e: Extent) -> usize {
    let levels = e.hosts.ilog2() as usize + 1;
    if e.n.is_multiple_of(e.local) {
        2 * (e.count + e.n) + levels * (e.count / e.local + 1)
    } else {
        (e.local - 1 + levels) * e.count
    }
}

fn all_reduce(d: &mut Draft, hosts: &Hosts, src: Slice, dst: Slice, small: bool) {
    if !hosts.is_even() {
        return leader::all_reduce(d, hosts, src, dst, small);
    }
    let local = &hosts.ranks[hosts.mine];
    let at = local.iter().position(|&r| r == hosts.me).unwrap_or(0);
    let team = Team::at(local.clone(), at);
    let peers = Team::at(hosts.peers(at), hosts.mine);
    if peers.len() == 1 {
        return two_phase::all_reduce(d, &team, src, dst, true);
    }
    if team.len() == 1 {
        return leader::across(d, &peers, src, dst, small);
    }
    let parts = even(src.len, team.len());
    let own = dst.part(parts[at]);
    direct::reduce_scatter(d, &team, src, &parts, own, false);
    leader::across(d, &peers, own, own, small);
    direct::all_gather(d, &team, own, dst, &parts);
}

/// Each part goes to one rank of every other host, which passes it on.
fn all_gather(d: &mut Draft, hosts: &Hosts, own: Slice, out: Slice, parts: &Parts) {
    let (all, local) = hosts.all();
    for h in (0..hosts.ranks.len()).filter(|&h| h != hosts.mine) {
        d.send(&all, hosts.ranks[h][hosts.handler(h, local.me)], own);
    }
    local.others().for_each(|p| d.send(&local, p, own));
    let handled = |l: usize| hosts.handler(hosts.mine, l);
    for (_, _, r) in hosts.foreign().filter(|&(_, l, _)| handled(l) == local.me) {
        d.recv(&all, r, out.part(parts[r]));
    }
    for p in local.others() {
        d.recv(&local, p, out.part(parts[local.rank(p)]));
    }
    d.copy(own, out.part(parts[hosts.me]));
    d.round += 1;
    for (_, l, r) in hosts.foreign() {
        if handled(l) == local.me {
            local.others().for_each(|p| d.send(&local, p, out.part(parts[r])));
        } else {
            d.recv(&local, handled(l), out.part(parts[r]));
        }
    }
    d.round += 1;
}

/// Sums a host's contributions to a rank elsewhere on the host first; the sum then crosses once.
fn reduce_scatter(d: &mut Draft, hosts: &Hosts, src: Slice, parts: &Parts, dst: Slice) {
    let (all, local) = hosts.all();
    let alone = hosts.ranks.len() == 1;
    let handled = |l: usize| hosts.handler(hosts.mine, l);
    let targets = hosts.foreign().map(|(_, l, r)| (handled(l), r));
    let neighbours = (0..local.len()).map(|p| (p, local.rank(p)));
    let mut mine = Vec::new();
    for (p, r) in targets.chain(neighbours) {
        let part = src.part(parts[r]);
        if p != local.me {
            d.send(&local, p, part);
        } else if local.len() == 1 {
            mine.push((r, part));
        } else {
            let sum = if alone { dst } else { d.reserve(part.len) };
            d.n_way_reduce(&local, part, sum, alone);
            mine.push((r, sum));
        }
    }
    d.round += 1;
    let Some((_, own)) = mine.pop() else { return };
    mine.into_iter().for_each(|(r, sum)| d.send(&all, r, sum));
    // One handler on each other host, and this rank.
    let mut from: Vec<_> = (0..hosts.ranks.len()).filter(|&h| h != hosts.mine).collect();
    from.iter_mut().for_each(|h| *h = hosts.ranks[*h][hosts.handler(*h, local.me)]);
    from.push(hosts.me);
    let at = from.len() - 1;
    d.n_way_reduce(&Team::at(from, at), own, dst, true);
    d.round += 1;
}
