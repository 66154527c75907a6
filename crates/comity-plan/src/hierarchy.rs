//! Hosts with several ranks: within a host over shared memory, between hosts as little as possible.
//!
//! ```text
//!   leader (small)                               hierarchy (large): host A holds 0 1, host B holds 2 3
//!     1 ──> 0 <──────> 2 <── 3                     0 <──> 1   2 <──> 3     within: 0, 2 sum the left half, 1, 3 the right
//!     1 <── 0          2 ──> 3                     0 <─────> 2  1 <─────> 3   between: each half on its own
//!                                                  0 <──> 1   2 <──> 3     within: share the halves
//! ```
//!
//! Cost, H hosts of L ranks, n = HL, B bytes in all:
//! - leader: all_reduce log2 H rounds between hosts of B per host, and 2 within; reduce, broadcast and barrier alike.
//! - hierarchy all_reduce: every host sends 2(H-1)/H B to the others (the least possible), B for two hosts in one round.
//!   Hosts of unequal rank counts: a leader per host, collecting and sharing in two phases.
//! - hierarchy all_gather, reduce_scatter: each part crosses once to each host.

use crate::draft::{Draft, Parts, Team, even};
use crate::{Slice, direct, doubling, ring, tree};

/// The ranks of each host, hosts in the order of their first rank, and where this rank is.
#[derive(Debug)]
pub(super) struct Hosts {
    ranks: Vec<Vec<usize>>,
    /// This rank's host.
    mine: usize,
    me: usize,
}

impl Hosts {
    /// `hosts` names the host of each rank; where it ends (it may be empty) all are on one more.
    pub(super) fn new(hosts: &[usize], rank: usize, size: usize) -> Self {
        let mut names: Vec<Option<usize>> = Vec::new();
        let mut ranks: Vec<Vec<usize>> = Vec::new();
        let mut mine = 0;
        for r in 0..size {
            let name = hosts.get(r).copied();
            let h = names.iter().rposition(|&n| n == name).unwrap_or(names.len());
            if h == names.len() {
                names.push(name);
                ranks.push(Vec::new());
            }
            ranks[h].push(r);
            if r == rank {
                mine = h;
            }
        }
        Self { ranks, mine, me: rank }
    }

    /// All ranks, those of a host side by side.
    pub(super) fn by_host(&self) -> Vec<usize> {
        self.ranks.concat()
    }

    fn is_even(&self) -> bool {
        self.ranks.iter().all(|r| r.len() == self.ranks[0].len())
    }

    /// This rank's host, led by `root` if it is there, and the leaders of all hosts if this rank is one, with the root's
    /// position among them.
    fn led_by(&self, root: usize) -> (Team, Option<Team>, usize) {
        let mut local = self.ranks[self.mine].clone();
        if let Some(at) = local.iter().position(|&r| r == root) {
            local.swap(0, at);
        }
        let leader = |r: &Vec<usize>| if r.contains(&root) { root } else { r[0] };
        let leaders: Vec<_> = self.ranks.iter().map(leader).collect();
        let at = leaders.iter().position(|&r| r == root).unwrap_or(0);
        let me = local.iter().position(|&r| r == self.me).unwrap_or(0);
        (Team::at(local, me), Team::of(leaders, self.me), at)
    }
}

/// Between one rank of each host; `small` messages want few rounds.
fn across(d: &mut Draft, team: &Team, src: Slice, dst: Slice, small: bool) {
    match team.len() {
        0..=2 => doubling::all_reduce(d, team, src, dst),
        _ if small => doubling::all_reduce(d, team, src, dst),
        3..=16 => direct::two_phase_all_reduce(d, team, src, dst, true),
        _ => ring::all_reduce(d, team, src, dst),
    }
}

/// How many rounds [`across`] takes between `n` hosts.
fn across_rounds(n: usize, small: bool) -> u32 {
    match n {
        0..=2 => doubling::rounds(n),
        _ if small => doubling::rounds(n),
        3..=16 => 2,
        _ => 2 * (n as u32 - 1),
    }
}

pub(super) fn all_reduce(d: &mut Draft, hosts: &Hosts, src: Slice, dst: Slice, small: bool) {
    if !hosts.is_even() {
        return leader_all_reduce(d, hosts, src, dst, small);
    }
    let local = &hosts.ranks[hosts.mine];
    let at = local.iter().position(|&r| r == hosts.me).unwrap_or(0);
    let team = Team::at(local.clone(), at);
    let peers = Team::at(hosts.ranks.iter().map(|r| r[at]).collect(), hosts.mine);
    if peers.len() == 1 {
        return direct::two_phase_all_reduce(d, &team, src, dst, true);
    }
    if team.len() == 1 {
        return across(d, &peers, src, dst, small);
    }
    let parts = even(src.len, team.len());
    let own = dst.part(parts[at]);
    direct::reduce_scatter(d, &team, src, &parts, own, false);
    across(d, &peers, own, own, small);
    direct::all_gather(d, &team, own, dst, &parts);
}

pub(super) fn leader_all_reduce(d: &mut Draft, hosts: &Hosts, src: Slice, dst: Slice, small: bool) {
    let (local, leaders, _) = hosts.led_by(0);
    let alone = hosts.ranks.len() == 1;
    let mut held = src;
    let rounds = if small { 1 } else { 2 };
    match (local.len(), small) {
        (1, _) => d.round += rounds,
        (_, true) => direct::reduce(d, &local, 0, src, dst, alone),
        (_, false) => direct::two_phase_reduce(d, &local, 0, src, dst, alone),
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
        false => direct::two_phase_broadcast(d, &local, 0, dst),
    }
}

pub(super) fn leader_reduce(d: &mut Draft, hosts: &Hosts, root: usize, src: Slice, dst: Slice) {
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

pub(super) fn leader_broadcast(d: &mut Draft, hosts: &Hosts, root: usize, buf: Slice) {
    let (local, leaders, at) = hosts.led_by(root);
    match leaders {
        Some(leaders) => tree::broadcast(d, &leaders, at, buf),
        None => d.round += tree::rounds(hosts.ranks.len()),
    }
    direct::broadcast(d, &local, 0, buf);
}

pub(super) fn leader_barrier(d: &mut Draft, hosts: &Hosts, nothing: Slice) {
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

impl Hosts {
    /// The position, on host `h`, of the rank that handles what goes between `h` and rank `l` of another host.
    fn handler(&self, h: usize, l: usize) -> usize {
        l % self.ranks[h].len()
    }

    /// Ranks of other hosts as (host, position there, rank).
    fn foreign(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let hosts = self.ranks.iter().enumerate().filter(|&(h, _)| h != self.mine);
        hosts.flat_map(|(h, ranks)| ranks.iter().enumerate().map(move |(l, &r)| (h, l, r)))
    }

    fn all(&self) -> (Team, Team) {
        let local = self.ranks[self.mine].clone();
        let at = local.iter().position(|&r| r == self.me).unwrap_or(0);
        let size = self.ranks.iter().map(Vec::len).sum();
        (Team::all(self.me, size), Team::at(local, at))
    }
}

/// Each part goes to one rank of every other host, which passes it on.
pub(super) fn all_gather(d: &mut Draft, hosts: &Hosts, own: Slice, out: Slice, parts: &Parts) {
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

/// What a host adds to a rank elsewhere is summed on the host first, then crosses once.
pub(super) fn reduce_scatter(d: &mut Draft, hosts: &Hosts, src: Slice, parts: &Parts, dst: Slice) {
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
            d.fold(&local, part, sum, alone);
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
    d.fold(&Team::at(from, at), own, dst, true);
    d.round += 1;
}
