//! Facts about this process's machine that it announces to the others.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

/// The system's name of this host.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".into() } else { name }
}

/// Equal for processes that can share memory, as far as can be known without trying: the same boot of the same machine and
/// the same network namespace, or the same name where the user gave one.
pub fn host_id(given: Option<&str>) -> u64 {
    if let Some(name) = given {
        return fnv(&[b"name ", name.as_bytes()].concat());
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = if boot.is_empty() { host_name() } else { boot };
    let namespace = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    fnv(&[b"boot ", boot.as_bytes(), namespace.as_os_str().as_encoded_bytes()].concat())
}

/// Numbers hosts from 0 in order of first appearance.
pub fn number_hosts(ids: impl Iterator<Item = u64>) -> Vec<usize> {
    let mut seen = BTreeMap::new();
    ids.map(|id| {
        let next = seen.len();
        *seen.entry(id).or_insert(next)
    })
    .collect()
}

/// Addresses elsewhere, one of each family: for documentation, and routed like any other.
pub const ANYWHERE: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 9),
];

/// The address under which other hosts find this one: of the interface that leads to the first of `toward` that is
/// elsewhere, else out of this host, else of any interface. Loopback only where there is nothing else.
pub fn outward(toward: &[SocketAddr]) -> IpAddr {
    let all = || super::interfaces().into_iter().filter(|i| !i.is_loopback).map(|i| i.ip).collect();
    choose(toward, |to| source(to).ok(), all)
}

/// `source` tells this host's address on the way to another.
fn choose(
    toward: &[SocketAddr],
    source: impl Fn(SocketAddr) -> Option<IpAddr>,
    interfaces: impl FnOnce() -> Vec<IpAddr>,
) -> IpAddr {
    toward
        .iter()
        .copied()
        .chain(ANYWHERE)
        .filter_map(&source)
        .find(is_outside)
        .or_else(|| {
            let all = interfaces();
            let v4 = all.iter().find(|ip| ip.is_ipv4() && is_outside(ip));
            v4.or_else(|| all.iter().find(|ip| is_outside(ip))).copied()
        })
        .or_else(|| toward.iter().copied().find_map(source))
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// Returns true if another host could connect to it as it stands: a link-local IPv6 address lacks its interface.
fn is_outside(ip: &IpAddr) -> bool {
    let lacks_scope = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    !ip.is_loopback() && !ip.is_unspecified() && !lacks_scope
}

/// This host's address on the way to another; an error without a way, or where this process lacks what asking takes. Connecting UDP
/// sends nothing.
pub fn source(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// A small hash (FNV-1a) that is the same on every host and in every version.
pub fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_stable_and_names_decide() {
        assert_eq!(host_id(None), host_id(None));
        assert_eq!(host_id(Some("a")), host_id(Some("a")));
        assert_ne!(host_id(Some("a")), host_id(Some("b")));
        assert_ne!(host_id(Some("a")), host_id(None));
    }

    #[test]
    fn hosts_are_numbered_as_they_appear() {
        assert_eq!(number_hosts([9, 4, 9, 1, 4].into_iter()), [0, 1, 0, 2, 1]);
    }

    #[test]
    fn outward_is_an_address_to_listen_on() {
        std::net::TcpListener::bind((outward(&[]), 0)).unwrap();
    }

    fn chosen(toward: &[&str], routes: &[(&str, &str)], interfaces: &[&str]) -> String {
        let toward: Vec<SocketAddr> = toward.iter().map(|at| at.parse().unwrap()).collect();
        let source = |to: SocketAddr| {
            let way = routes.iter().find(|(net, _)| to.ip().to_string().starts_with(net));
            way.map(|(_, from)| from.parse().unwrap())
        };
        choose(&toward, source, || interfaces.iter().map(|ip| ip.parse().unwrap()).collect()).to_string()
    }

    #[test]
    fn the_way_to_the_master_decides() {
        let lan = ("10.7.", "10.7.0.1");
        let local = ("127.", "127.0.0.1");
        let out = ("192.0.2.", "192.168.1.5");
        // No default route.
        assert_eq!(chosen(&["10.7.0.1:29500"], &[lan, local], &["172.17.0.1", "10.7.0.1"]), "10.7.0.1");
        assert_eq!(chosen(&["10.7.0.9:29500"], &[lan, out], &[]), "10.7.0.1");
        // Rank 0's host may give its own name a loopback address.
        assert_eq!(chosen(&["127.0.1.1:29500"], &[local, out], &[]), "192.168.1.5");
        assert_eq!(chosen(&["127.0.1.1:1", "10.7.0.9:1"], &[local, lan], &[]), "10.7.0.1");
        assert_eq!(chosen(&["127.0.1.1:29500"], &[local], &["fe80::1", "fd00::2", "10.7.0.1"]), "10.7.0.1");
        assert_eq!(chosen(&[], &[local], &["fe80::1", "fd00::2"]), "fd00::2");
        // Nobody elsewhere can reach this host.
        assert_eq!(chosen(&["[::1]:1"], &[("::1", "::1")], &["fe80::1"]), "::1");
        assert_eq!(chosen(&[], &[local], &[]), "127.0.0.1");
    }

    /// In a network namespace with one network and no default route. Needs root, or user namespaces.
    #[cfg(target_os = "linux")]
    #[test]
    fn without_a_default_route_other_hosts_are_not_told_loopback() {
        const INSIDE: &str = "COMITY_TEST_NO_DEFAULT_ROUTE";
        if std::env::var_os(INSIDE).is_some() {
            let expected: IpAddr = Ipv4Addr::new(10, 7, 0, 1).into();
            for toward in [&[][..], &[SocketAddr::from(([10, 7, 0, 2], 1))], &[SocketAddr::new(expected, 1)]]
            {
                assert_eq!(outward(toward), expected, "{toward:?}");
            }
            return;
        }
        let network = "ip link set lo up && ip link add name eth7 type veth peer name eth8 && ip addr add 10.7.0.1/24 dev eth7 \
                       && ip link set eth7 up && ip link set eth8 up";
        let inside = |script: &str| {
            let mut command = std::process::Command::new("unshare");
            command.args(["-rn", "sh", "-c", script, "sh"]);
            command
        };
        if !inside(network).output().is_ok_and(|out| out.status.success()) {
            assert!(std::env::var_os("CI").is_none(), "no network namespace can be made, or `ip` is missing");
            println!("NOT RUN: this user can make no network namespace, or `ip` is missing");
            return;
        }
        let here = "sys::here::tests::without_a_default_route_other_hosts_are_not_told_loopback";
        let mut command = inside(&format!("{network} && exec \"$@\""));
        command.arg(std::env::current_exe().unwrap()).args(["--exact", here]).env(INSIDE, "1");
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }
}
