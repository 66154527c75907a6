//! The addresses of this host's network interfaces, and what is known of the networks that they lead to.

use std::{
    ffi::CStr,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr::NonNull,
};

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// The system's number of it, which is the scope of a link-local address.
    pub index: u32,
    pub ip: IpAddr,
    /// Leading bits that all addresses of its network have in common.
    pub prefix: u8,
    /// In Mbit/s; 0 where the system does not tell.
    pub speed: u32,
    pub is_loopback: bool,
}

impl Interface {
    /// Returns true if it leads to other processes of this host (containers, virtual machines) or through a tunnel. Its addresses are often
    /// the same on every host.
    pub fn is_inner(&self) -> bool {
        const INNER: [&str; 16] = [
            "anpi",
            "awdl",
            "llw",
            "docker",
            "br-",
            "virbr",
            "vmnet",
            "cni",
            "podman",
            "lxcbr",
            "lxdbr",
            "tun",
            "utun",
            "tap",
            "wg",
            "tailscale",
        ];
        INNER.iter().any(|begin| self.name.starts_with(begin))
    }

    /// Returns true if `ip` is in its network.
    pub fn holds(&self, ip: IpAddr) -> bool {
        in_network(self.ip, self.prefix, ip)
    }

    /// Returns true if its address is valid on this interface only.
    pub fn is_link_local(&self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }
}

/// Returns true if two addresses have so many leading bits in common. None would hold for all: no such prefix was told.
pub fn in_network(net: IpAddr, prefix: u8, ip: IpAddr) -> bool {
    let common = match (net, ip) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => return false,
    };
    prefix > 0 && common >= u32::from(prefix)
}

/// The addresses of the interfaces that are up, in the system's order, but for link-local ones that lead nowhere for sure; none where it does
/// not tell.
pub fn interfaces() -> Vec<Interface> {
    let mut first = std::ptr::null_mut();
    // SAFETY: it writes a pointer to a list, which is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = NonNull::new(first);
    while let Some(at) = next {
        // SAFETY: an entry of the list, which lives until it is freed below.
        let entry = unsafe { at.as_ref() };
        if entry.ifa_flags as libc::c_int & libc::IFF_UP != 0 {
            // SAFETY: an entry that lives.
            found.extend(unsafe { interface(entry) });
        }
        next = NonNull::new(entry.ifa_next);
    }
    // SAFETY: from `getifaddrs`, freed once; `found` holds copies.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// `entry` is one of a list of `getifaddrs` that lives.
unsafe fn interface(entry: &libc::ifaddrs) -> Option<Interface> {
    // SAFETY: null, or an address of the family that it names, which lives as long as its entry.
    let (ip, family) = unsafe { address(entry.ifa_addr, None) }?;
    // SAFETY: the same. Some systems leave the family of a mask open: it is that of its address.
    let mask = unsafe { address(entry.ifa_netmask, Some(family)) };
    let bits = |mask: IpAddr| match mask {
        IpAddr::V4(m) => m.to_bits().leading_ones(),
        IpAddr::V6(m) => m.to_bits().leading_ones(),
    };
    // SAFETY: the name of an interface ends with a zero.
    let name = unsafe { CStr::from_ptr(entry.ifa_name) };
    // SAFETY: the same.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let name = name.to_string_lossy().into_owned();
    let is_loopback = entry.ifa_flags as libc::c_int & libc::IFF_LOOPBACK != 0;
    let prefix = mask.map_or(0, |(m, _)| bits(m) as u8);
    let found = Interface { speed: speed(&name), name, index, ip, prefix, is_loopback };
    // An interface gives itself such an address, whether it leads anywhere or not.
    let is_vain = found.is_link_local() && is_port(&found.name);
    (!is_vain).then_some(found)
}

/// # Safety
/// `at` is null or points to an address of the family that it names, or of the one given.
unsafe fn address(at: *const libc::sockaddr, family: Option<i32>) -> Option<(IpAddr, i32)> {
    if at.is_null() {
        return None;
    }
    // SAFETY: every address begins with its family.
    let family = family.unwrap_or_else(|| i32::from(unsafe { (*at).sa_family }));
    let ip = match family {
        libc::AF_INET => {
            // SAFETY: an address of this family is a `sockaddr_in`; nothing is said of its alignment.
            let v4 = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into()
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a `sockaddr_in6`; nothing is said of its alignment.
            let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Ipv6Addr::from(v6.sin6_addr.s6_addr).into()
        }
        _ => return None,
    };
    Some((ip, family))
}

/// Returns true for a part of a bridge or a bond, such as a container's end of a virtual cable: its packets are the bridge's.
#[cfg(target_os = "linux")]
fn is_port(name: &str) -> bool {
    let about = std::path::Path::new("/sys/class/net").join(name);
    ["brport", "bonding_slave"].iter().any(|part| about.join(part).exists())
}

#[cfg(not(target_os = "linux"))]
fn is_port(_: &str) -> bool {
    false
}

/// Returns the interface's speed in Mbit/s, as the system gives it; 0 if unknown. Radio and Thunderbolt, of which it may give none, have a usual value.
#[cfg(target_os = "linux")]
fn speed(name: &str) -> u32 {
    /// Speed of radio on a good day, in Mbit/s.
    const RADIO: u32 = 300;
    const THUNDERBOLT: u32 = 20_000;
    let about = std::path::Path::new("/sys/class/net").join(name);
    let told = std::fs::read_to_string(about.join("speed")).ok();
    if let Some(speed) = told.and_then(|t| t.trim().parse().ok()).filter(|s| *s > 0) {
        return speed;
    }
    if about.join("wireless").exists() || about.join("phy80211").exists() {
        return RADIO;
    }
    let driver = std::fs::read_link(about.join("device/driver")).unwrap_or_default();
    if driver.to_string_lossy().contains("thunderbolt") { THUNDERBOLT } else { 0 }
}

#[cfg(not(target_os = "linux"))]
fn speed(_: &str) -> u32 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_and_says_what_it_is() {
        let all = interfaces();
        let loopback: Vec<_> = all.iter().filter(|i| i.ip.is_loopback()).collect();
        assert!(loopback.iter().all(|i| i.is_loopback && i.index > 0 && !i.name.is_empty()), "{all:?}");
        let four = loopback.iter().find(|i| i.ip.is_ipv4());
        assert!(four.is_none_or(|i| i.prefix == 8 && i.holds(Ipv4Addr::new(127, 9, 9, 9).into())), "{all:?}");
    }

    #[test]
    fn networks_hold_what_is_theirs() {
        let at = |ip: &str, prefix| Interface {
            name: "eth0".into(),
            index: 2,
            ip: ip.parse().unwrap(),
            prefix,
            speed: 0,
            is_loopback: false,
        };
        for (ip, prefix, other, holds) in [
            ("10.0.1.1", 24, "10.0.1.77", true),
            ("10.0.1.1", 24, "10.0.2.1", false),
            ("10.0.1.1", 30, "10.0.1.2", true),
            ("10.0.1.1", 30, "10.0.1.4", false),
            ("10.0.1.1", 32, "10.0.1.1", true),
            ("10.0.1.1", 0, "10.0.1.2", false),
            ("fd00::1", 64, "fd00::2", true),
            ("fd00::1", 64, "fd00:0:0:1::2", false),
            ("fd00::1", 64, "10.0.0.1", false),
        ] {
            assert_eq!(at(ip, prefix).holds(other.parse().unwrap()), holds, "{ip}/{prefix} {other}");
        }
        assert!(at("fe80::1", 64).is_link_local() && !at("fd00::1", 64).is_link_local());
        let named = |name: &str| Interface { name: name.into(), ..at("10.0.1.1", 24) };
        assert!(named("docker0").is_inner() && !named("en7").is_inner() && !named("bridge0").is_inner());
    }
}
