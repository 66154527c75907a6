//! Addresses at which a rank listens: those that its user names, else those of its network interfaces. Before the ranks have met, those whose
//! addresses others know pass on what these say to the store.
//!
//! ```text
//!   rank 2 has no way to rank 0's store, but knows from the hostfile where rank 1 listens:
//!   rank 2  -->  rank 1, which waits for the others itself  -->  rank 0's store
//! ```
//! An address in `MASTER_ADDR` or `COMITY_STORE` that belongs to a rank's own host does the same.

use super::{store::cannot_listen, store_client::StoreClient, wire::Facts};
use crate::{
    Error, HostPort, MeetingPoint, Protection, Result,
    channel::{Acceptor, Channel, Hello, HelloVerdict, Listener, Relay, STORE, Secret, is_own},
    settings::{Settings, own_addresses},
    sys::{
        Interface, Waker,
        here::{self, host_name},
        interfaces, poll_until, process_number,
    },
    transport::{Announced, Card, MAX_ADDRS, OwnAddr},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

/// A rank's listeners, and whether the user named their addresses.
#[derive(Debug)]
pub struct OwnListeners {
    pub listeners: Vec<Listener>,
    pub are_named: bool,
}

impl StoreClient {
    /// Listen where the configuration says, else at the addresses of all interfaces; of this host alone where the whole job is on it.
    pub fn listen(&self, config: &Settings) -> Result<OwnListeners> {
        let named = self.named(config)?;
        if named.len() > MAX_ADDRS {
            return Err(Error::config(format!(
                "rank {} has {} addresses to listen on (COMITY_ADDRS or the hostfile); allowed are {MAX_ADDRS}",
                self.rank,
                named.len()
            )));
        }
        if !named.is_empty() {
            let mut listeners = Vec::new();
            for at in named {
                listeners.push(self.listen_at(config, at, listeners.first())?);
            }
            return Ok(OwnListeners { listeners, are_named: true });
        }
        let all = interfaces();
        let rules = config.interfaces.text();
        let own = match rules {
            None if self.is_within_host(config) => Vec::new(),
            _ => own_addresses(&config.interfaces, &all),
        };
        if let (Some(rules), true) = (rules, own.is_empty()) {
            return Err(Error::setting("COMITY_INTERFACES", rules, no_interface(config, rules, &all)));
        }
        let mut listeners = Vec::new();
        let mut failed = None;
        for at in own {
            match self.listen_at(config, at, listeners.first()) {
                Ok(listener) => listeners.push(listener),
                Err(e) => {
                    tracing::debug!(%at, %e, "not listening there");
                    failed = failed.or(Some(e));
                }
            }
        }
        if let Some(e) = failed.filter(|_| listeners.is_empty()) {
            return Err(e);
        }
        if listeners.is_empty() {
            listeners.push(self.listen_at(config, SocketAddr::new(self.local, 0), None)?);
        }
        Ok(OwnListeners { listeners, are_named: false })
    }

    /// The addresses that the user has named.
    fn named(&self, config: &Settings) -> Result<Vec<SocketAddr>> {
        let mut addrs = config.addrs.clone();
        let MeetingPoint::Hostfile(ranks) = &config.meeting_point else { return Ok(addrs) };
        if !addrs.is_empty() {
            return Ok(addrs);
        }
        for (i, at) in ranks.get(self.rank).into_iter().flatten().enumerate() {
            if at.is_unspecified() {
                continue;
            }
            let mut at = at.resolve(self.until)?.into_iter().take(1);
            // The store has rank 0's first port.
            let port_is_taken = self.rank == 0 && i == 0;
            addrs.extend(at.next().map(|a| if port_is_taken { SocketAddr::new(a.ip(), 0) } else { a }));
        }
        Ok(addrs)
    }

    /// Returns true if no rank can be on another host.
    fn is_within_host(&self, config: &Settings) -> bool {
        let all_here = config.local.is_some_and(|(_, n)| n == config.size);
        match &config.meeting_point {
            MeetingPoint::Store(at) | MeetingPoint::Host(at) => {
                all_here || at.iter().all(HostPort::is_loopback)
            }
            _ => all_here || self.addrs.iter().all(|at| at.ip().is_loopback()),
        }
    }

    /// Listen there; at a free port of those allowed where it names none, with MPTCP at that of the first listener if it is free.
    fn listen_at(&self, config: &Settings, at: SocketAddr, first: Option<&Listener>) -> Result<Listener> {
        let who = format!("rank {}", self.rank);
        config.insecure.check_listen(&who, at)?;
        // The kernel adds a path to a connection at another address, and at the same port.
        if config.mptcp
            && at.port() == 0
            && let Some(Ok(port)) = first.map(|l| l.local_addr().map(|at| at.port()))
        {
            let mut alike = at;
            alike.set_port(port);
            if let Ok(listener) = listening(alike) {
                return Ok(listener);
            }
        }
        let Some((first, last)) = config.ports.filter(|_| at.port() == 0) else {
            return Listener::tcp(at).map_err(|e| cannot_listen(&who, at, e));
        };
        for port in first..=last {
            let mut at = at;
            at.set_port(port);
            // Two that only hold a port may hold the same one.
            match listening(at) {
                Ok(listener) => return Ok(listener),
                Err(e) if e.kind() == ErrorKind::AddrInUse => {}
                Err(e) => return Err(cannot_listen(&who, at, e)),
            }
        }
        let words = format!(
            "{who} cannot listen at {}: each port of COMITY_PORTS={first}-{last} is taken there; give a wider range (each rank of a host needs one, rank 0 another for the store), or end what listens there",
            at.ip()
        );
        Err(Error::setting("COMITY_PORTS", format_args!("{first}-{last}"), words))
    }
}

fn listening(at: SocketAddr) -> io::Result<Listener> {
    Listener::tcp(at).and_then(|l| l.listen().map(|()| l))
}

/// Describes the fault of rules that leave no interface.
fn no_interface(config: &Settings, rules: &str, all: &[Interface]) -> String {
    let have: Vec<_> = all.iter().map(|i| format!("{} {}/{}", i.name, i.ip, i.prefix)).collect();
    let have = if have.is_empty() { "none that is up".into() } else { have.join(", ") };
    let rank = config.rank;
    let host = config.host.clone().unwrap_or_else(host_name);
    format!(
        "rank {rank}: COMITY_INTERFACES={rules} leaves host {host} no address to listen at: its interfaces are {have}; name one of these, or the begin of a name, or a network"
    )
}

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
        host: config.host.clone().unwrap_or_else(host_name),
        pid: std::process::id(),
        process: 0,
        ring: config.ring,
        sealed: config.secure == Protection::Data,
        silence: config.detection.limit().map_or(0, |l| u32::try_from(l.as_millis()).unwrap_or(u32::MAX)),
    }
}

/// Listens for those who look for the store, on a thread of its own, until it is ended.
#[derive(Debug)]
pub struct PassingOn {
    ended: Arc<(AtomicBool, Waker)>,
    thread: Option<JoinHandle<Acceptor>>,
    relay: Arc<Relay>,
    /// Number of its listeners that are the rank's.
    own: usize,
}

impl StoreClient {
    /// Pass on what comes to `listeners` for the store, or say that this rank may not, where another rank may know their addresses; else they
    /// are given back.
    pub fn pass_on(
        &self,
        config: &Settings,
        secret: &Secret,
        mut listeners: Vec<Listener>,
    ) -> Result<Result<PassingOn, Vec<Listener>>> {
        let known = matches!(&config.meeting_point, MeetingPoint::Hostfile(ranks) if ranks.len() > 2);
        let own = listeners.len();
        listeners.extend(self.doors(config));
        if self.store.is_some() || (!known && own == listeners.len()) {
            listeners.truncate(own);
            return Ok(Err(listeners));
        }
        let os_error = |e| Error::os("listening for those who look for the store", e);
        let store = self.addrs.clone();
        let passes = config.relay;
        let relay = Relay::new(move |hello| (passes && looks_for_store(hello)).then(|| store.clone()));
        let host = config.host.clone().unwrap_or_else(host_name);
        let rank = format!("rank {} on host {host}", config.rank);
        let relay = Arc::new(relay);
        for listener in &listeners {
            listener.listen().map_err(os_error)?;
        }
        let ended = Arc::new((AtomicBool::new(false), Waker::new().map_err(os_error)?));
        let acceptor = Acceptor::new(listeners, secret.clone()).with_relay(Some(Arc::clone(&relay)));
        let told = Arc::clone(&ended);
        let thread = thread::Builder::new()
            .name("comity-pass-on".into())
            .spawn(move || listen(acceptor, &told, &rank))
            .map_err(os_error)?;
        Ok(Ok(PassingOn { ended, thread: Some(thread), relay, own }))
    }

    /// Listeners at the addresses of the store that are this host's, of several that are named.
    fn doors(&self, config: &Settings) -> Vec<Listener> {
        let addrs: Vec<SocketAddr> = match &config.meeting_point {
            MeetingPoint::Store(named) | MeetingPoint::Host(named)
                if named.len() > 1 && !named.iter().all(HostPort::is_loopback) =>
            {
                named.iter().flat_map(|at| at.resolve(self.until).unwrap_or_default()).collect()
            }
            MeetingPoint::Exchange(_) => self.addrs.clone(),
            _ => Vec::new(),
        };
        if addrs.len() < 2 {
            return Vec::new();
        }
        let own = interfaces();
        // Where somebody listens it is the store, or another rank of this host.
        let ours = addrs.into_iter().filter(|at| own.iter().any(|i| i.ip == at.ip()));
        ours.filter_map(|at| Listener::tcp(at).and_then(|l| l.listen().map(|()| l)).ok()).collect()
    }
}

impl PassingOn {
    /// All have met, or it is over: the rank's listeners, and what goes on passing on.
    pub fn end(mut self) -> (Vec<Listener>, Arc<Relay>) {
        let mut listeners = self.stop().map(Acceptor::into_listeners).unwrap_or_default();
        listeners.truncate(self.own);
        (listeners, Arc::clone(&self.relay))
    }

    fn stop(&mut self) -> Option<Acceptor> {
        self.ended.0.store(true, Ordering::Release);
        self.ended.1.wake();
        // WAIT(stop): the thread that listens, which is told to stop
        self.thread.take()?.join().ok()
    }
}

impl Drop for PassingOn {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn looks_for_store(hello: &Hello) -> bool {
    hello.to == STORE && hello.channel == Channel::Join
}

// WAIT(stop): the thread that passes on: woken for each event, and when it is to stop
fn listen(mut acceptor: Acceptor, (stop, waker): &(AtomicBool, Waker), rank: &str) -> Acceptor {
    while !stop.load(Ordering::Acquire) {
        let mut fds = vec![PollFd::from_borrowed_fd(waker.fd(), PollFlags::IN)];
        let until = acceptor.interest(&mut fds);
        // The descriptors are ours and open; if the system still refuses, do not spin.
        if poll_until(&mut fds, until).is_err() {
            thread::sleep(std::time::Duration::from_millis(10));
        }
        waker.drain();
        drop(acceptor.step(&mut |hello: &Hello, _| match looks_for_store(hello) {
            // What is passed on does not come here.
            true => HelloVerdict::RelayOff(rank.into()),
            // Whoever looks for this rank comes again: it has not met the others yet.
            false => HelloVerdict::Busy,
        }));
    }
    acceptor
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, index: u32, ip: &str) -> Interface {
        let is_loopback = name == "lo";
        Interface { name: name.into(), index, ip: ip.parse().unwrap(), prefix: 24, speed: 0, is_loopback }
    }

    #[test]
    fn rules_that_leave_nothing_are_shown_with_what_is_there() {
        let all = [interface("lo", 1, "127.0.0.1"), interface("en5", 3, "10.0.1.1")];
        let e = no_interface(&Settings { host: Some("b".into()), ..Settings::new(3, 4) }, "eth9", &all);
        for part in ["rank 3", "host b", "COMITY_INTERFACES=eth9", "en5 10.0.1.1/24", "name one of these"] {
            assert!(e.contains(part), "{part}: {e}");
        }
    }
}
