//! Use of the host's networks: setters, and the report of `comity info`.

use super::Settings;
use crate::{
    sys::{Interface, has_paths, interfaces},
    transport::MAX_ADDRS,
};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Addresses of one kind (IPv4, IPv6, of the link) that an interface listens at. Systems give one a new IPv6 address each day.
const MAX_OF_A_KIND: usize = 2;

/// An address of this host, as `comity info` tells it.
///
/// ```
/// for note in comity::tools::address_notes(&comity::Config::from_env()?) {
///     println!("{} {}{}", note.interface, note.address, if note.used { "" } else { " (not used)" });
/// }
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AddressNote {
    /// The name of its interface.
    pub interface: String,
    /// The address, with the bits of its network where they are known.
    pub address: String,
    /// In Mbit/s, where the system tells.
    pub speed: Option<u32>,
    /// True if a job of several hosts would use it.
    pub used: bool,
}

impl Settings {
    /// The addresses of the interfaces that may be used, the likeliest first, with port 0.
    pub fn own_addresses(&self, all: &[Interface]) -> Vec<SocketAddr> {
        // Apple's radio between neighbours: it is not there all the time.
        let is_fleeting = |i: &Interface| i.name.starts_with("awdl") || i.name.starts_with("llw");
        let mut usable: Vec<_> = all.iter().filter(|i| self.interfaces.allow(i) && !is_fleeting(i)).collect();
        let kind = |i: &Interface| (i.is_inner(), i.is_link_local(), i.ip.is_ipv6());
        usable.sort_by_key(|i| kind(i));
        let mut addrs: Vec<(u32, SocketAddr)> = Vec::new();
        for i in usable {
            let alike =
                |(index, at): &&(u32, SocketAddr)| *index == i.index && at.is_ipv6() == i.ip.is_ipv6();
            if addrs.iter().filter(alike).count() >= MAX_OF_A_KIND && !i.is_link_local() {
                continue;
            }
            addrs.push((
                i.index,
                match i.ip {
                    IpAddr::V6(ip) if i.is_link_local() => SocketAddrV6::new(ip, 0, 0, i.index).into(),
                    ip => SocketAddr::new(ip, 0),
                },
            ));
        }
        addrs.into_iter().map(|(_, at)| at).take(MAX_ADDRS).collect()
    }

    /// This host's addresses, and whether a job of several hosts would use them. For `comity info`.
    pub fn address_notes(&self) -> Vec<AddressNote> {
        let all = interfaces();
        let own: Vec<_> = match self.addrs.is_empty() {
            true => self.own_addresses(&all).iter().map(SocketAddr::ip).collect(),
            false => self.addrs.iter().map(SocketAddr::ip).collect(),
        };
        let note = |i: &Interface| AddressNote {
            interface: i.name.clone(),
            address: if i.prefix > 0 { format!("{}/{}", i.ip, i.prefix) } else { i.ip.to_string() },
            speed: (i.speed > 0).then_some(i.speed),
            used: own.contains(&i.ip),
        };
        all.iter().map(note).collect()
    }

    /// Describes this rank's listening ports and its relaying, in words. For `comity info`.
    pub fn network_in_words(&self) -> String {
        let ports = match self.ports {
            Some((first, last)) => format!("ports {first} to {last}"),
            None => "any port".into(),
        };
        let relay = if self.relay {
            "passes on between ranks without a way"
        } else {
            "passes nothing on (COMITY_RELAY)"
        };
        let paths = match (self.mptcp, has_paths()) {
            (true, Ok(())) => "; several paths (MPTCP)".into(),
            (true, Err(why)) => format!("; one path, though COMITY_MPTCP=1: {why}"),
            (false, _) => String::new(),
        };
        format!("{ports}; {relay}{paths}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::InterfaceRules;

    fn interface(name: &str, index: u32, ip: &str) -> Interface {
        let is_loopback = name == "lo";
        Interface { name: name.into(), index, ip: ip.parse().unwrap(), prefix: 24, speed: 0, is_loopback }
    }

    #[test]
    fn all_interfaces_are_listened_at_the_likeliest_first() {
        let mut all = vec![
            interface("lo", 1, "127.0.0.1"),
            interface("docker0", 2, "172.17.0.1"),
            interface("awdl0", 9, "fe80::9"),
            interface("en5", 3, "fe80::5"),
            interface("en5", 3, "10.0.1.1"),
            interface("en0", 4, "fd00::4"),
            interface("en0", 4, "192.168.1.4"),
        ];
        let config = Settings::new(0, 2);
        let own = |config: &Settings, all: &[Interface]| {
            config.own_addresses(all).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            own(&config, &all),
            ["10.0.1.1:0", "192.168.1.4:0", "[fd00::4]:0", "[fe80::5%3]:0", "172.17.0.1:0"]
        );
        let wired = Settings { interfaces: InterfaceRules::parse("en5").unwrap(), ..config.clone() };
        assert_eq!(own(&wired, &all), ["10.0.1.1:0", "[fe80::5%3]:0"]);
        all.extend((1..40).map(|i| interface("en0", 4, &format!("fd00::{i}:1"))));
        assert_eq!(own(&config, &all).len(), 6);
        all.extend((5..60).map(|i| interface(&format!("v{i}"), i, &format!("10.1.{i}.1"))));
        assert_eq!(own(&config, &all).len(), MAX_ADDRS);
    }
}
