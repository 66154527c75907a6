//! The store's sentences: who is missing, who is twice there.

use super::server::{Round, Who};
use crate::{JoinCause, JoinError, error::seconds};
use std::{net::SocketAddr, time::Instant};

/// Ranks named one by one.
const MAX_NAMED: usize = 16;

/// "host a, pid 12, from 10.0.0.1".
pub(super) fn whereabouts(who: &Who) -> String {
    let from = who.from.map_or_else(String::new, |ip| format!(", from {ip}"));
    format!("host {}, pid {}{from}", who.facts.host, who.facts.pid)
}

/// Two processes for one rank.
pub(super) fn claimed(rank: u32, first: &Who, second: &Who) -> String {
    let first = whereabouts(first);
    let mut second = whereabouts(second);
    if first == second {
        second += " in another container";
    }
    format!(
        "two processes claim rank {rank}: one is {first}, the other {second}; give every process a rank of its own (COMITY_RANK), and each job a key and an address of its own"
    )
}

/// Error of a round of ranks that meet at `place`, which the join limit ended.
pub(super) fn missing(
    round: &Round,
    size: u32,
    foreign: (u64, Option<SocketAddr>),
    place: &[SocketAddr],
) -> JoinError {
    let absent = absent(round, size);
    let how = if foreign.0 == 0 { "never connected" } else { "never let in" };
    let words = format!(
        "only {} of {size} ranks joined within {}: missing {} ({how}){}; the ranks meet at {}{}; {}",
        round.members.len(),
        seconds(round.limit),
        ranks(&absent),
        refused(foreign),
        shown(place),
        firewall(place),
        next_step(&absent, foreign.0)
    );
    JoinError::new(words).of(absent.iter().map(|r| *r as usize)).because(JoinCause::Missing)
}

/// Sentence while ranks are missing.
pub(super) fn waiting(
    round: &Round,
    size: u32,
    foreign: (u64, Option<SocketAddr>),
    place: &[SocketAddr],
) -> String {
    format!(
        "{} of {size} ranks are here, at {}, after {} s; waiting for {}{}",
        round.members.len(),
        shown(place),
        Instant::now().saturating_duration_since(round.begun).as_secs(),
        ranks(&absent(round, size)),
        refused(foreign)
    )
}

fn shown(place: &[SocketAddr]) -> String {
    place.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// A likely reason why a process of another host does not come to `place`, and what to do; nothing where all are on one host.
pub(crate) fn firewall(place: &[SocketAddr]) -> &'static str {
    match place.iter().all(|at| at.ip().is_loopback()) {
        true => "",
        false => "; if a firewall guards a host, let it pass that port",
    }
}

/// A mend for ranks that are missing, where so many processes were refused.
fn next_step(absent: &[u32], refused: u64) -> String {
    match (refused, absent) {
        (0, [rank]) => format!("start rank {rank}, or look at its own output"),
        (0, _) => "start these ranks, or look at their own output".into(),
        _ => "give every rank the same key and job name (COMITY_KEY_FILE, COMITY_JOB)".into(),
    }
}

fn absent(round: &Round, size: u32) -> Vec<u32> {
    (0..size).filter(|r| !round.members.contains_key(r)).collect()
}

fn refused((count, last): (u64, Option<SocketAddr>)) -> String {
    let at = last.map_or_else(String::new, |a| format!(", the last from {a}"));
    match count {
        0 => String::new(),
        1 => format!("; 1 process was refused for another key or job name{at}"),
        n => format!("; {n} processes were refused for another key or job name{at}"),
    }
}

/// "rank 3", "ranks 1, 3", "ranks 1, 2, ... and 40 more".
fn ranks(list: &[u32]) -> String {
    let named: Vec<String> = list.iter().take(MAX_NAMED).map(u32::to_string).collect();
    let more = match list.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("rank{} {}{more}", if list.len() == 1 { "" } else { "s" }, named.join(", "))
}
