//! Knowledge of a process about the ways to other hosts: each connection that it makes is a lesson for the next.
//!
//! ```text
//!   a connection won at 10.0.1.2          that address goes first, for every rank of that host, unless another is better
//!   fe80::5%7 said nothing meanwhile      it goes last, for a while
//!   fe80::5%3 took a connection           it is no guess any more
//! ```

use super::{
    Card, InterfaceRules, OwnAddr,
    candidates::{Candidates, from_here},
};
use crate::{sync::lock, sys::in_network};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Relays tried for a pair.
const MAX_RELAYS: usize = 8;
/// Time after which an address that did not answer is tried like others: its cable may be back.
const FORGET: Duration = Duration::from_secs(30);

/// An address of a host, at whatever port: its number, and the interface here where it needs one.
type Spot = (IpAddr, u32);

/// The ways to other ranks as far as this process knows them.
#[derive(Debug, Default)]
pub struct AddressBook {
    rules: InterfaceRules,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By rank, the one through which it was reached.
    relays: BTreeMap<usize, usize>,
    /// By host.
    hosts: HashMap<u64, KnownHost>,
}

#[derive(Debug, Default)]
struct KnownHost {
    /// The address at which a rank of it was reached last.
    last: Option<Spot>,
    /// Addresses that have taken a connection.
    answered: Vec<Spot>,
    /// Addresses that did not, and when.
    silent: HashMap<Spot, Instant>,
}

impl KnownHost {
    fn is_silent(&self, spot: Spot) -> bool {
        self.silent.get(&spot).is_some_and(|since| since.elapsed() < FORGET)
    }

    /// Give each candidate its place.
    fn sort(&self, found: &mut Candidates) {
        for c in &mut found.all {
            let spot = spot(c.at);
            c.preference.is_guess &= !self.answered.contains(&spot);
            c.preference.is_silent = self.is_silent(spot);
        }
        found.sort();
        let quality = |i: usize| found.all.get(i).map(|c| c.preference.quality());
        if let Some(last) = self.last
            && let Some(i) = found.all.iter().position(|c| spot(c.at) == last)
            && quality(i) <= quality(0)
        {
            let known = found.all.remove(i);
            found.all.insert(0, known);
        }
    }
}

fn spot(at: SocketAddr) -> Spot {
    match at {
        SocketAddr::V4(at) => (IpAddr::V4(*at.ip()), 0),
        SocketAddr::V6(at) => (IpAddr::V6(*at.ip()), at.scope_id()),
    }
}

impl AddressBook {
    pub fn new(rules: InterfaceRules) -> Self {
        Self { rules, known: Mutex::default() }
    }

    /// The first of `at` led to a rank of this host, and the others were waited for in vain.
    pub fn learn(&self, theirs: &Card, at: SocketAddr, silent: &[SocketAddr]) {
        self.hear(theirs, &[at], silent);
        lock(&self.known).hosts.entry(theirs.host_id).or_default().last = Some(spot(at));
    }

    /// Records the addresses of this host that took a connection, and those that did not.
    pub fn hear(&self, theirs: &Card, answered: &[SocketAddr], silent: &[SocketAddr]) {
        let mut known = lock(&self.known);
        let host = known.hosts.entry(theirs.host_id).or_default();
        for spot in answered.iter().map(|at| spot(*at)) {
            host.silent.remove(&spot);
            if !host.answered.contains(&spot) {
                host.answered.push(spot);
            }
        }
        host.silent.extend(silent.iter().map(|at| (spot(*at), Instant::now())));
    }

    /// `rank` was reached through this one.
    pub fn learn_relay(&self, rank: usize, relay: usize) {
        lock(&self.known).relays.insert(rank, relay);
    }

    /// The rank through which another was reached last, if it was so.
    pub fn relay_of(&self, rank: usize) -> Option<usize> {
        lock(&self.known).relays.get(&rank).copied()
    }

    /// The addresses to try for a rank that announced these.
    pub fn candidates(&self, theirs: &Card) -> Candidates {
        let mut found = from_here(&self.rules, &theirs.addrs);
        if let Some(host) = lock(&self.known).hosts.get(&theirs.host_id) {
            host.sort(&mut found);
        }
        found
    }

    /// The ranks that may pass on what `me` and `peer` say to each other, the likeliest first.
    pub fn relays(&self, cards: &[Card], me: usize, peer: usize) -> Vec<usize> {
        let (Some(ours), Some(theirs)) = (cards.get(me), cards.get(peer)) else { return Vec::new() };
        // How many of the two share a network with it.
        let beside = |card: &Card, other: &Card| {
            let within = |a: &OwnAddr, b: &OwnAddr| {
                // All link-local addresses look as if they were in one network.
                !a.is_inner && !a.is_link_local() && in_network(a.at.ip(), a.prefix, b.at.ip())
            };
            card.host_id == other.host_id
                || card.addrs.iter().any(|a| other.addrs.iter().any(|b| within(a, b)))
        };
        let both = |card: &Card| u8::from(beside(card, ours)) + u8::from(beside(card, theirs));
        let mut all: Vec<_> = (0..cards.len())
            .filter(|r| *r != me && *r != peer)
            .filter_map(|r| Some((r, cards.get(r)?)))
            .filter(|(_, card)| card.relays && card.host_id != theirs.host_id)
            .map(|(r, card)| (Reverse(both(card)), r))
            .collect();
        all.sort();
        all.into_iter().map(|(_, r)| r).take(MAX_RELAYS).collect()
    }
}

#[cfg(test)]
mod tests;
