//! Addresses of this host that others may use.

use crate::{
    sys::Interface,
    transport::{InterfaceRules, MAX_ADDRS},
};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Addresses of one kind (IPv4, IPv6, of the link) that an interface listens at. Systems give one a new IPv6 address each day.
const MAX_OF_A_KIND: usize = 2;

/// The addresses of the interfaces that `rules` allow, the likeliest first, with port 0.
pub fn own_addresses(rules: &InterfaceRules, all: &[Interface]) -> Vec<SocketAddr> {
    // Apple's radio between neighbours: it is not there all the time.
    let is_fleeting = |i: &Interface| i.name.starts_with("awdl") || i.name.starts_with("llw");
    let mut usable: Vec<_> = all.iter().filter(|i| rules.allow(i) && !is_fleeting(i)).collect();
    let kind = |i: &Interface| (i.is_inner(), i.is_link_local(), i.ip.is_ipv6());
    usable.sort_by_key(|i| kind(i));
    let mut addrs: Vec<(u32, SocketAddr)> = Vec::new();
    for i in usable {
        let alike = |(index, at): &&(u32, SocketAddr)| *index == i.index && at.is_ipv6() == i.ip.is_ipv6();
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let any = InterfaceRules::default();
        let own = |rules: &InterfaceRules, all: &[Interface]| {
            own_addresses(rules, all).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            own(&any, &all),
            ["10.0.1.1:0", "192.168.1.4:0", "[fd00::4]:0", "[fe80::5%3]:0", "172.17.0.1:0"]
        );
        let wired = InterfaceRules::parse("en5").unwrap();
        assert_eq!(own(&wired, &all), ["10.0.1.1:0", "[fe80::5%3]:0"]);
        all.extend((1..40).map(|i| interface("en0", 4, &format!("fd00::{i}:1"))));
        assert_eq!(own(&any, &all).len(), 6);
        all.extend((5..60).map(|i| interface(&format!("v{i}"), i, &format!("10.1.{i}.1"))));
        assert_eq!(own(&any, &all).len(), MAX_ADDRS);
    }
}
