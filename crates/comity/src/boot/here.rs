//! What this process tells the others about the machine it runs on.

use std::hash::{BuildHasherDefault, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The system's name of this host.
pub(super) fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".into() } else { name }
}

/// Equal for processes that can share memory, as far as can be known without trying: the same boot of the same machine and
/// the same network namespace, or the same name where the user gave one.
pub(super) fn host_id(given: Option<&str>) -> u64 {
    let mut hash = Fnv::default();
    if let Some(name) = given {
        hash.write(b"name ");
        hash.write(name.as_bytes());
        return hash.finish();
    }
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let boot = read("/proc/sys/kernel/random/boot_id");
    hash.write(b"boot ");
    hash.write(if boot.is_empty() { host_name() } else { boot }.as_bytes());
    if let Ok(namespace) = std::fs::read_link("/proc/self/ns/net") {
        hash.write(namespace.as_os_str().as_encoded_bytes());
    }
    hash.finish()
}

/// Numbers hosts from 0 in order of first appearance.
pub(super) fn number_hosts(ids: impl Iterator<Item = u64>) -> Vec<usize> {
    let mut seen = std::collections::HashMap::<u64, usize, BuildHasherDefault<Fnv>>::default();
    ids.map(|id| {
        let next = seen.len();
        *seen.entry(id).or_insert(next)
    })
    .collect()
}

/// The address of the interface that leads out of this host; loopback if none does.
pub(super) fn outward() -> IpAddr {
    // Addresses for documentation: routed like any other, and connecting UDP sends nothing.
    let probes: [(IpAddr, IpAddr); 2] = [
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
    ];
    let route = |(any, out): (IpAddr, IpAddr)| {
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        socket.connect(SocketAddr::new(out, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    probes.into_iter().find_map(route).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// FNV-1a: the same in every build, which the standard library's hasher does not promise.
#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = (self.0 ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
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
        std::net::TcpListener::bind((outward(), 0)).unwrap();
    }
}
