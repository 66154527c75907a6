//! Addresses at which the launchers meet, and by which the nodes know node 0.
//!
//! ```text
//! a triangle of cables: node 1 knows node 0 as 10.1.1.1, node 2 knows it as 10.1.3.1
//! ```
//! So each node says by which addresses it knows node 0, those that answer first. The ranks' store listens at all of them.
use crate::address::distinct;
use crate::host::meet::local_toward;
use crate::host::sys::host;
use comity::{Config, HostPort, MeetingPoint};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Default port, the same as torchrun's.
const PORT: u16 = 29400;
/// More addresses of node 0 than there are ways to it.
const MOST: usize = 16;
/// Time that an address of node 0 has to answer, where there are several.
const ANSWER: Duration = Duration::from_millis(700);

/// `--rendezvous`, with a port at each address: the one that another has, else [`PORT`].
pub(super) fn places(text: &str) -> Result<String, String> {
    let bad = |why: &str| {
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        format!(
            "--rendezvous {text:?} is not HOST or HOST:PORT, such as 10.0.0.1 or node0:{PORT}, nor several with a comma between{why}"
        )
    };
    let all: Vec<_> =
        text.split(',').map(|one| split(one.trim())).collect::<Option<_>>().ok_or_else(|| bad(""))?;
    let first = all.iter().find_map(|(_, port)| *port).unwrap_or(PORT);
    let unclear = text
        .split(',')
        .filter(|one| !one.contains('['))
        .find_map(|one| crate::address::end_of_address(one.trim()));
    if let Some((address, port)) = unclear {
        return Err(bad(&format!(
            "{address}:{port} may be an address or the port {port} of {address}: write [{address}:{port}] or [{address}]:{port}"
        )));
    }
    let place = |(host, port): &(&str, Option<u16>)| {
        HostPort::new(host, port.unwrap_or(first)).map(|at| at.to_string()).map_err(|e| bad(&e.to_string()))
    };
    Ok(all.iter().map(place).collect::<Result<Vec<_>, _>>()?.join(","))
}

/// The host without brackets, and the port where one is given. An IPv6 address alone needs no brackets.
fn split(one: &str) -> Option<(&str, Option<u16>)> {
    let port = |text: &str| text.parse().ok().filter(|p| *p > 0 && !text.starts_with('+'));
    if let Some(rest) = one.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        return match after.strip_prefix(':') {
            Some(text) => Some((host, Some(port(text)?))),
            None => after.is_empty().then_some((host, None)),
        };
    }
    if HostPort::new(one, PORT).is_ok() {
        return Some((one, None));
    }
    let (host, text) = one.rsplit_once(':')?;
    (!host.is_empty() && !host.contains(':')).then_some((host, Some(port(text)?)))
}

/// Ways of this host to node 0.
#[derive(Debug)]
pub(super) struct NodeAddresses {
    /// Addresses of node 0, the best first.
    pub(super) known: Vec<SocketAddr>,
    /// Address at which the others reach this node.
    pub(super) own: SocketAddr,
}

impl NodeAddresses {
    /// Looks up `at`. Node 0 must have one of the addresses, another node a way to one.
    pub(super) fn look_up(node: usize, at: &str) -> Result<Self, String> {
        let fail = |e: String| format!("--rendezvous {at}: {e}");
        let known = resolve(at).map_err(fail)?;
        if node == 0 {
            let own = known.iter().find(|a| is_own(**a)).copied();
            let own = own.ok_or_else(|| {
                fail(format!(
                    "this is node 0, but {known:?} is no address of this host ({}); name one of its own",
                    host()
                ))
            })?;
            return Ok(Self { known, own });
        }
        let mut last = "it has no address".to_owned();
        for to in &known {
            match local_toward(*to) {
                Ok(own) => return Ok(Self { known, own }),
                Err(e) => last = e.to_string(),
            }
        }
        Err(fail(format!(
            "host {} has no way to node 0 ({last}); name an address of node 0 that this host reaches, or of a host between, whose launcher is told it too",
            host()
        )))
    }

    /// Another node has met node 0: the address that led there becomes the first.
    pub(super) fn try_all(&mut self) {
        // Who has only one knows nothing better.
        if self.known.len() < 2 {
            return;
        }
        let reached = self.known.iter().position(|to| match TcpStream::connect_timeout(to, ANSWER) {
            Ok(_) => true,
            Err(e) => e.kind() == ErrorKind::ConnectionRefused,
        });
        if let Some(at) = reached {
            let to = self.known.remove(at);
            self.known.insert(0, to);
            self.own = local_toward(to).unwrap_or(self.own);
        }
    }

    /// Addresses of node 0 for the other nodes.
    pub(super) fn ips(&self) -> Vec<IpAddr> {
        self.known.iter().map(SocketAddr::ip).take(MOST).collect()
    }

    /// Addresses at which the ranks of this other node find the store, of those that node 0 sent: first those that this node knows.
    pub(super) fn to_store(&self, told: &[SocketAddr]) -> Vec<SocketAddr> {
        let port = told.first().map_or(0, SocketAddr::port);
        let with_port = |at: &SocketAddr| {
            let mut at = *at;
            at.set_port(port);
            at
        };
        let known = self.known.iter().map(with_port).filter(|at| told.contains(at) || !at.ip().is_loopback());
        // A link-local address means something else on each host.
        let others = told.iter().copied().filter(|at| !is_link_local(at.ip()));
        distinct(known.chain(others))
    }
}

/// Sorts all addresses by which nodes know node 0, in the order of the nodes: those that this host, node 0, has, and the others.
pub(super) fn sort_out(said: &[Vec<IpAddr>], own: SocketAddr) -> (Vec<SocketAddr>, Vec<IpAddr>) {
    // What the others reach comes before what this host calls itself: that may be 127.0.1.1.
    let mut seen = distinct(said.iter().skip(1).chain(said.first()).flatten().copied());
    seen.truncate(MOST);
    let mut homes = Vec::new();
    let mut elsewhere = Vec::new();
    for ip in seen {
        match scoped(ip).filter(|at| is_own(*at)) {
            Some(at) => homes.push(at),
            None if ip.is_loopback() || is_link_local(ip) => {}
            None => elsewhere.push(ip),
        }
    }
    if homes.iter().any(|at| !at.ip().is_loopback()) {
        homes.retain(|at| !at.ip().is_loopback());
    }
    if homes.is_empty() {
        homes.push(own);
    }
    (homes, elsewhere)
}

fn resolve(at: &str) -> Result<Vec<SocketAddr>, String> {
    let config = Config::new(0, 2).rendezvous(at).map_err(|e| e.to_string())?;
    let MeetingPoint::Host(places) = config.meeting_point() else { return Err("it has no address".into()) };
    let mut all: Vec<SocketAddr> = Vec::new();
    let mut failed = None;
    for place in places {
        // Of several names one may mean nothing here.
        match (place.host(), place.port()).to_socket_addrs() {
            Ok(found) => {
                for at in found {
                    match at {
                        // Packets to it go nowhere.
                        SocketAddr::V6(six) if is_link_local(at.ip()) && six.scope_id() == 0 => {
                            let why = format!(
                                "{0} is a link-local address, which needs the interface of this host that leads there: write {0}%eth0, say",
                                six.ip()
                            );
                            failed = failed.or(Some(why));
                        }
                        _ if !all.contains(&at) => all.push(at),
                        _ => {}
                    }
                }
            }
            Err(e) => failed = failed.or_else(|| Some(format!("{}: {e}", place.host()))),
        }
    }
    match failed {
        Some(e) if all.is_empty() => Err(e),
        _ => Ok(all),
    }
}

fn is_own(mut at: SocketAddr) -> bool {
    at.set_port(0);
    TcpListener::bind(at).is_ok()
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The address with this host's interface, where it takes one to say which it is.
fn scoped(ip: IpAddr) -> Option<SocketAddr> {
    if !is_link_local(ip) {
        return Some(SocketAddr::new(ip, 0));
    }
    let notes = comity::tools::settings(&Config::new(0, 2)).address_notes();
    let is_it =
        |text: &str| text.split('/').next().and_then(|t| t.parse::<IpAddr>().ok()).is_some_and(|t| t == ip);
    let note = notes.into_iter().find(|n| is_it(&n.address))?;
    (format!("{ip}%{}", note.interface).as_str(), 0).to_socket_addrs().ok()?.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_meet_has_a_port() {
        for (text, at) in [
            ("node0", "node0:29400"),
            ("node0:7", "node0:7"),
            ("10.0.0.1", "10.0.0.1:29400"),
            ("fd00::1", "[fd00::1]:29400"),
            ("[fd00::1]", "[fd00::1]:29400"),
            ("[fd00::1]:7", "[fd00::1]:7"),
            ("fe80::1%ab", "[fe80::1%ab]:29400"),
            ("[fe80::1%ab]:7", "[fe80::1%ab]:7"),
            ("10.1.1.1,10.1.3.1", "10.1.1.1:29400,10.1.3.1:29400"),
            ("10.1.1.1:7, node0", "10.1.1.1:7,node0:7"),
        ] {
            assert_eq!(places(text).as_deref(), Ok(at));
        }
        let why = places("fd00::3:7100").unwrap_err();
        assert!(why.contains("write [fd00::3:7100] or [fd00::3]:7100"), "{why}");
        for text in ["", ":7", "a:0", "a:x", "a:b:7", "a:70000", "a,", "[::1", "[::1]7", "10.0.0.256"] {
            assert!(places(text).unwrap_err().contains("--rendezvous"), "{text}");
        }
    }

    #[test]
    fn ranks_are_told_what_others_reach_not_what_node_0_calls_itself() {
        let ips = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let own: SocketAddr = "127.0.0.1:0".parse().unwrap();
        // No host has an address of TEST-NET-1.
        let said = [ips(&["127.0.1.1"]), ips(&["127.0.0.1", "192.0.2.1"]), ips(&["192.0.2.1"])];
        let (homes, elsewhere) = sort_out(&said, own);
        assert_eq!(homes.first(), Some(&own));
        assert_eq!(elsewhere, ips(&["192.0.2.1"]));
        let addrs = |all: &[&str]| all.iter().map(|a| a.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let known = addrs(&["10.1.3.1:29400", "[fe80::1%9]:29400", "127.0.1.1:29400"]);
        let addresses = NodeAddresses { known, own };
        let told = addrs(&["10.1.1.1:29401", "[fe80::1%4]:29401", "10.1.3.1:29401"]);
        assert_eq!(
            addresses.to_store(&told),
            addrs(&["10.1.3.1:29401", "[fe80::1%9]:29401", "10.1.1.1:29401"])
        );
    }
}
