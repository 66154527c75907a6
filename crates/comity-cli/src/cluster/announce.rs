//! Hosts that say in their networks that they are there, and how they are found: multicast DNS, as printers do it.
//!
//! Nothing of it is believed: an announcement brings an address to try, and ssh says who is there.
use crate::say::{CommandError, say};
use comity_launch::fleet::FleetHost;
use mdns_sd::{ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The kind of service.
const KIND: &str = "_comity._tcp.local.";
/// Most hosts taken of those that announce themselves: anybody in the network can.
const MOST: usize = 256;
/// Until the network has heard that this host is no longer there.
const GOODBYE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It runs until Ctrl-C, and needs no other right than to send to the networks of this host. Who finds the host still needs ssh to enter it.
Exit code: 0; 1 when there is no network to announce it in, 2 for bad arguments.")]
pub(crate) struct AnnounceArgs {
    /// The name under which this host is shown; default: its host name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The port at which sshd listens here
    #[arg(long, value_name = "PORT", default_value_t = 22)]
    port: u16,

    /// Only on these interfaces (repeatable)
    #[arg(long, value_name = "NAME")]
    interface: Vec<String>,

    /// End after so many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeardHost {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) port: u16,
    pub(super) addresses: Vec<IpAddr>,
}

fn daemon(interfaces: &[String]) -> Result<ServiceDaemon, CommandError> {
    let fail =
        |e: mdns_sd::Error| CommandError::faulty(format!("cannot speak to the networks of this host: {e}"));
    let daemon = ServiceDaemon::new().map_err(fail)?;
    if !interfaces.is_empty() {
        daemon.disable_interface(mdns_sd::IfKind::All).map_err(fail)?;
        for name in interfaces {
            daemon.enable_interface(name.as_str()).map_err(fail)?;
        }
    }
    Ok(daemon)
}

/// `comity cluster announce`: until a signal, or the end of its time.
pub(super) fn announce(args: &AnnounceArgs) -> Result<(), CommandError> {
    let own = crate::here::host();
    let name = args.name.clone().unwrap_or_else(|| own.split('.').next().unwrap_or_default().to_owned());
    if name.is_empty() || name.len() > 63 || name.chars().any(char::is_control) {
        return Err(CommandError::usage(format!(
            "--name {name:?}: a name has 1 to 63 bytes and no control characters"
        )));
    }
    if let Some(none) = args.interface.iter().find(|n| nix::net::if_::if_nametoindex(n.as_str()).is_err()) {
        return Err(CommandError::usage(format!(
            "--interface {none:?}: this host has no interface of this name; `comity cluster find --hosts localhost` lists them"
        )));
    }
    let signals = ended().map_err(|e| CommandError::faulty(format!("cannot wait for signals: {e}")))?;
    let label: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let system = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
    let about = [("version", crate::here::VERSION), ("system", system.as_str())];
    let info = ServiceInfo::new(KIND, &name, &format!("{label}.local."), "", args.port, &about[..]);
    let info = info.map_err(|e| CommandError::usage(format!("--name {name:?}: {e}")))?.enable_addr_auto();
    let daemon = daemon(&args.interface)?;
    let full = info.get_fullname().to_owned();
    let fail = |e: mdns_sd::Error| CommandError::faulty(format!("cannot announce this host: {e}"));
    daemon.register(info).map_err(fail)?;
    say(
        format!("announces {name} (ssh at port {}) to this host's networks; Ctrl-C ends it\n", args.port),
        0,
    )?;
    let limit = args.limit.map(|s| Duration::from_secs(s.into()));
    // The pipe is read until a signal comes, or the time is over.
    let _ = signals.set_read_timeout(limit);
    let _ = (&signals).read(&mut [0]);
    if let Ok(done) = daemon.unregister(&full) {
        let _ = done.recv_timeout(GOODBYE);
    }
    if let Ok(done) = daemon.shutdown() {
        let _ = done.recv_timeout(GOODBYE);
    }
    Ok(())
}

/// Readable when this process is to end.
fn ended() -> std::io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
}

/// The hosts that are heard within this time, by name.
pub(super) fn listen(time: Duration) -> Result<Vec<HeardHost>, CommandError> {
    let fail =
        |e: mdns_sd::Error| CommandError::faulty(format!("cannot listen in the networks of this host: {e}"));
    let daemon = daemon(&[])?;
    let heard = daemon.browse(KIND).map_err(fail)?;
    let until = Instant::now() + time;
    let mut all = BTreeMap::new();
    // Who says something all the time must not make it longer.
    while let Some(left) = until.checked_duration_since(Instant::now())
        && let Ok(event) = heard.recv_timeout(left)
    {
        match event {
            ServiceEvent::ServiceResolved(one) if all.len() < MOST => {
                all.insert(one.fullname.clone(), announced(&one));
            }
            ServiceEvent::ServiceRemoved(_, name) => drop(all.remove(&name)),
            _ => {}
        }
    }
    if let Ok(done) = daemon.shutdown() {
        let _ = done.recv_timeout(GOODBYE);
    }
    Ok(all.into_values().filter(|a| !a.addresses.is_empty()).collect())
}

fn announced(one: &ResolvedService) -> HeardHost {
    let plain = |text: &str| comity_cluster::printable(text, 64);
    let name = one.fullname.strip_suffix(KIND).unwrap_or(&one.fullname).trim_end_matches('.');
    let version = one.get_property_val_str("version").unwrap_or("an unknown version");
    let mut addresses: Vec<IpAddr> = one.addresses.iter().map(mdns_sd::ScopedIp::to_ip_addr).collect();
    addresses.retain(|ip| !ip.is_loopback() && !is_of_the_link(ip));
    addresses.sort_by_key(|ip| (ip.is_ipv6(), *ip));
    HeardHost { name: plain(name), version: plain(version), port: one.port, addresses }
}

/// Such an address says nothing without the interface of the host that uses it.
fn is_of_the_link(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() || *ip == Ipv4Addr::UNSPECIFIED,
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_unspecified(),
    }
}

/// Host by which `ssh` reaches it: by its name, where the user's configuration knows that, else by its first address.
pub(super) fn reached(one: &HeardHost, known: &[String]) -> Option<FleetHost> {
    let is_known = known.contains(&one.name);
    let name = if is_known { one.name.clone() } else { one.addresses.first()?.to_string() };
    let mut host = FleetHost::named(&name).ok()?;
    host.port = Some(one.port).filter(|p| *p != 22 && !is_known);
    Some(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::say::USAGE;

    #[test]
    fn an_interface_that_is_not_there_is_bad_input() {
        let args = AnnounceArgs { name: None, port: 22, interface: vec!["nope".into()], limit: Some(1) };
        let error = announce(&args).unwrap_err();
        let is_told = error.problems[0].contains("--interface \"nope\": this host has no interface");
        assert!(error.code == USAGE && is_told, "{error:?}");
    }

    #[test]
    fn an_announcement_is_an_address_to_try() {
        let one = |name: &str, port| HeardHost {
            name: name.into(),
            version: "0.1.0".into(),
            port,
            addresses: vec!["10.0.0.7".parse().unwrap()],
        };
        let known = ["mac1".to_owned()];
        let host = reached(&one("mac1", 2222), &known).unwrap();
        assert_eq!((host.name.as_str(), host.port), ("mac1", None));
        let host = reached(&one("-oProxyCommand=x", 2222), &known).unwrap();
        assert_eq!((host.name.as_str(), host.port), ("10.0.0.7", Some(2222)));
        assert_eq!(reached(&HeardHost { addresses: vec![], ..one("b", 22) }, &known), None);
    }
}
