//! Facts that a process announces to the others.

use super::{listen::OwnListeners, wire::Facts};
use crate::{
    Error, Protection, Result,
    channel::{Listener, is_own},
    settings::Settings,
    sys::{here, interfaces, process_number},
    transport::{Announced, Card, OwnAddr},
};
use std::thread;

/// All ranks encrypt, or none: every rank sees the same table, and gives the same error.
pub fn agree_on_secrecy(facts: &[Facts]) -> Result<()> {
    let first = |sealed| facts.iter().position(|f| f.sealed == sealed);
    let (Some(with), Some(without)) = (first(true), first(false)) else { return Ok(()) };
    Err(Error::config(format!(
        "rank {with} was started with COMITY_SECURE=data, rank {without} was not; all ranks need the same (comity launch --secure data)"
    )))
}

/// Collects the facts to announce to the others; also opens the socket for those of the same host.
pub fn announce(
    config: &Settings,
    links: Announced,
    OwnListeners { mut listeners, are_named }: OwnListeners,
) -> Result<(Vec<Listener>, Facts)> {
    let addrs = listeners.iter().map(Listener::local_addr).collect::<Result<Vec<_>, _>>();
    let addrs = addrs.map_err(|e| Error::os("listening", e))?;
    let own = interfaces();
    let addrs = addrs.into_iter().map(|at| OwnAddr::new(at, &own)).collect();
    let mut name = [0; 16];
    getrandom::fill(&mut name).map_err(|e| Error::os("naming a socket", e))?;
    let name = format!("comity-{:032x}", u128::from_be_bytes(name));
    let unix = match Listener::unix(&name) {
        Ok(listener) => {
            listeners.push(listener);
            name
        }
        Err(e) if is_own(&e) => return Err(Error::os("opening a socket for this host's processes", e)),
        Err(e) => {
            tracing::debug!(%e, "no socket for this host's processes, using TCP");
            String::new()
        }
    };
    let mut facts = facts(config, links, addrs, unix);
    facts.process = process_number()?;
    facts.card.are_named = are_named;
    Ok((listeners, facts))
}

/// Makes this rank's announcement of facts that are known already.
pub fn facts(config: &Settings, links: Announced, addrs: Vec<OwnAddr>, unix: String) -> Facts {
    let found = || thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX));
    let cores = config.host_cores.unwrap_or_else(found);
    Facts {
        card: Card {
            host_id: here::host_id(config.host.as_deref()),
            cores,
            links,
            unix,
            addrs,
            are_named: false,
            relays: config.relay,
        },
        host: config.host.clone().unwrap_or_else(here::host_name),
        pid: std::process::id(),
        process: 0,
        ring: config.ring,
        sealed: config.secure == Protection::Data,
        silence: config.detection.limit().map_or(0, |l| u32::try_from(l.as_millis()).unwrap_or(u32::MAX)),
    }
}
