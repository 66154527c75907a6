//! `host:port` as people write it, kept as text until it is needed: a name may only resolve on the host that uses it.

use crate::{
    ConfigError, Error, JoinError, Result,
    sys::{give_up, interfaces, nap},
};
use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs},
    str::FromStr,
    sync::mpsc,
    time::Instant,
};

/// A host by name or address, and a port: `node7:5000`, `10.0.0.1:5000`, `[::1]:5000`.
///
/// Reading one looks up no name: that happens when it is connected to.
///
/// ```
/// use comity::HostPort;
///
/// let at: HostPort = "[fd00::1]:7000".parse()?;
/// assert_eq!((at.host(), at.port()), ("fd00::1", 7000));
/// assert_eq!(HostPort::new("node7", 7000)?.to_string(), "node7:7000");
/// assert!("node7".parse::<HostPort>().is_err()); // the port is missing
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// A name, or an address without brackets.
    host: String,
    /// May be 0 only where "any port" makes sense.
    port: u16,
}

impl HostPort {
    /// Put together a host, which is a name or an address without brackets, and a port.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) with the value, when `host` is neither a name nor an address.
    pub fn new(host: &str, port: u16) -> Result<Self> {
        check_host(host)
            .map_err(|why| ConfigError::new(format!("{host:?} is not a host: {why}")).with_value(host))?;
        Ok(Self { host: host.to_owned(), port })
    }

    /// Parses one address, or several with a comma between.
    #[doc(hidden)]
    pub fn list(text: &str) -> Result<Vec<Self>> {
        let wrong = |why| ConfigError::new(format!("{}: {why}", shown(text))).with_value(text).into();
        parse_list(text).map_err(wrong)
    }

    /// Returns true if the host stands for this one, on every host.
    #[doc(hidden)]
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// The host's name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; 0 only where any port will do.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns true if the host is `0.0.0.0` or `::`.
    #[doc(hidden)]
    pub fn is_unspecified(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
    }

    /// Returns the fault of a link-local address that names no interface of this host: a system does not know where to send.
    #[doc(hidden)]
    pub fn lacks_interface(&self) -> Option<String> {
        let Some(SocketAddr::V6(at)) = self.literal() else { return None };
        if !at.ip().is_unicast_link_local() || at.scope_id() > 0 {
            return None;
        }
        let all = interfaces();
        let mut names: Vec<&str> = all.iter().filter(|i| !i.is_loopback).map(|i| &*i.name).collect();
        names.sort_unstable();
        names.dedup();
        let have = if names.is_empty() { "none".into() } else { names.join(", ") };
        let example = format!("{}%{}", at.ip(), names.first().unwrap_or(&"eth0"));
        Some(match self.host.split_once('%') {
            Some((_, name)) => format!(
                "{} is of this host's interface {}, and there is none of that name; its interfaces are {have}",
                self.host,
                shown(name)
            ),
            None => format!(
                "{} is a link-local address, which needs the interface of this host that leads there: write {example}; this host's interfaces are {have}",
                self.host
            ),
        })
    }

    /// Its addresses, asked of the system's resolver, which may take its time: not longer than `until`.
    #[doc(hidden)]
    pub fn resolve(&self, until: Instant) -> Result<Vec<SocketAddr>> {
        if let Some(addr) = self.literal() {
            return Ok(vec![addr]);
        }
        let (tell, told) = mpsc::sync_channel(1);
        let host = self.host.clone();
        let port = self.port;
        // getaddrinfo has no deadline; a thread that stays in it harms nobody.
        std::thread::Builder::new()
            .name("comity-resolve".into())
            .spawn(move || {
                let answer = (host.as_str(), port).to_socket_addrs().map(Vec::from_iter);
                let _ = tell.send(answer);
            })
            .map_err(|e| Error::os("starting a thread to look up a host", e))?;
        let answer = loop {
            let left = until.saturating_duration_since(Instant::now());
            // WAIT(until): the system's resolver: to the join deadline
            match told.recv_timeout(nap(left)) {
                Err(mpsc::RecvTimeoutError::Timeout) if !left.is_zero() => give_up()?,
                answer => break answer,
            }
        };
        match answer {
            Ok(Ok(addrs)) if !addrs.is_empty() => Ok(addrs),
            Ok(Ok(_)) => Err(ConfigError::new(format!("host {} has no address", self.host))
                .with_value(&*self.host)
                .into()),
            Ok(Err(e)) => Err(ConfigError::new(format!(
                "host {} cannot be looked up: {e}; check the name, or write the address instead",
                self.host
            ))
            .with_value(&*self.host)
            .into()),
            Err(_) => Err(JoinError::new(format!(
                "looking up host {} took too long; write the address instead",
                self.host
            ))
            .at(&self.host)
            .into()),
        }
    }

    fn literal(&self) -> Option<SocketAddr> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Some(SocketAddr::new(ip, self.port));
        }
        scoped(&self.host).map(|(ip, scope)| SocketAddrV6::new(ip, self.port, 0, scope).into())
    }
}

impl From<SocketAddr> for HostPort {
    fn from(addr: SocketAddr) -> Self {
        let host = match addr {
            SocketAddr::V6(a) if a.scope_id() != 0 => format!("{}%{}", a.ip(), a.scope_id()),
            a => a.ip().to_string(),
        };
        Self { host, port: addr.port() }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for HostPort {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text, false)
            .map_err(|why| ConfigError::new(format!("{}: {why}", shown(text))).with_value(text).into())
    }
}

/// `text` as one or several of them with a comma between, or why not, as a sentence about it.
pub fn parse_list(text: &str) -> Result<Vec<HostPort>, String> {
    text.split(',').map(|part| parse(part.trim(), false)).collect()
}

/// `text` as host and port, or why not, as a sentence about it.
pub fn parse(text: &str, port_zero: bool) -> Result<HostPort, String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let Some((host, port)) = rest.split_once("]:") else {
            return Err("after '[address' must come ']:port'".into());
        };
        if scoped(host).is_none() && host.parse::<Ipv6Addr>().is_err() {
            return Err(format!("{} between the brackets is not an IPv6 address", shown(host)));
        }
        (host, port)
    } else {
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err("the port is missing; write host:port".into());
        };
        if host.contains(':') {
            return Err("an IPv6 address goes between brackets: [::1]:5000".into());
        }
        check_host(host)?;
        (host, port)
    };
    let port = parse_port(port)?;
    if port == 0 && !port_zero {
        return Err("port 0 stands for any port, which the others cannot know; allowed is 1 to 65535".into());
    }
    Ok(HostPort { host: host.to_owned(), port })
}

pub fn parse_port(text: &str) -> Result<u16, String> {
    // parse::<u16> would take "+5000".
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| format!("port {} is not a number from 1 to 65535", shown(text)))
}

/// A name or an address without brackets.
fn check_host(host: &str) -> Result<(), String> {
    if host.parse::<IpAddr>().is_ok() || scoped(host).is_some() {
        return Ok(());
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if host.is_empty() {
        return Err("the host is missing; write host:port".into());
    }
    if host.len() > 253 || !host.bytes().all(allowed) || host.starts_with(['-', '.']) {
        return Err(format!("{} is neither a host name nor an address", shown(host)));
    }
    // "10.0.0.256" and "10.0.1" are addresses with a slip of the pen, not names.
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("{} is not an IPv4 address", shown(host)));
    }
    Ok(())
}

/// `fe80::1%4`, `fe80::1%en5`: an address that only means something on one interface, by its number or name; 0 where this host has none of
/// that name.
fn scoped(host: &str) -> Option<(Ipv6Addr, u32)> {
    let (ip, scope) = host.split_once('%')?;
    let is_name =
        !scope.is_empty() && scope.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.@".contains(&b));
    let number = || interfaces().iter().find(|i| i.name == scope).map_or(0, |i| i.index);
    let scope = scope.parse().ok().or_else(|| is_name.then(number))?;
    Some((ip.parse().ok()?, scope))
}

/// A value as an error shows it: quoted, and not longer than a line.
pub fn shown(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((cut, _)) => format!("{:?}...", text.get(..cut).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}
