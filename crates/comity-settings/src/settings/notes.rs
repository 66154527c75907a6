//! Reports of `comity info`: what this process would use, and why; addresses of this host that others may use.

use super::{Insecure, MeetingPoint, Protection, Settings};
use crate::{
    LinkKind,
    lanes::{OwnCores, most_lanes},
    sys::{Interface, has_paths, interfaces},
    transport::{InterfaceRules, MAX_ADDRS},
};
use std::{
    net::{IpAddr, SocketAddr, SocketAddrV6},
    thread,
};

/// Decision for a kind of link, and the reason.
///
/// ```
/// for note in comity::tools::settings(&comity::Config::from_env()?).link_notes() {
///     println!("{}: {} ({})", note.kind, if note.used { "used" } else { "not used" }, note.why);
/// }
/// # Ok::<(), comity::Error>(())
/// ```
#[derive(Debug)]
pub struct LinkNote {
    /// The kind.
    pub kind: LinkKind,
    /// True if it would be used.
    pub used: bool,
    /// True if this process could use it, were it asked for.
    pub works: bool,
    /// With whom, or why not.
    pub why: String,
    /// Its devices, each with its address or why it cannot be used.
    pub devices: Vec<(String, Result<String, String>)>,
}

/// An address of this host, as `comity info` tells it.
///
/// ```
/// for note in comity::tools::settings(&comity::Config::from_env()?).address_notes() {
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
    /// Lists the use that this process would make of each kind of link, the preferred ones first, and the reasons.
    pub fn link_notes(&self) -> Vec<LinkNote> {
        let value = |name: &str| self.evidence.seen.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone());
        let note = |kind: LinkKind| {
            let note = self.transports.note(kind, &value)?;
            let works = note.works;
            let by_default = kind.about().is_some_and(|a| a.by_default);
            let (used, why) = match (self.links.has(kind), by_default) {
                (false, true) => (false, "COMITY_LINKS leaves it out".to_owned()),
                (false, false) => (false, format!("only where COMITY_LINKS names it; {}", note.why)),
                _ if note.works && self.size == 1 => {
                    (false, format!("one rank needs none; else {}", note.why))
                }
                _ => (note.works, note.why),
            };
            Some(LinkNote { kind, used, works, why, devices: note.devices })
        };
        LinkKind::choices().filter_map(note).collect()
    }

    /// This host's addresses, and whether a job of several hosts would use them. For `comity info`.
    pub fn address_notes(&self) -> Vec<AddressNote> {
        let all = interfaces();
        let own: Vec<_> = match self.addrs.is_empty() {
            true => own_addresses(&self.interfaces, &all).iter().map(SocketAddr::ip).collect(),
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

    /// With how many threads, in words. For `comity info`.
    pub fn lanes_in_words(&self) -> String {
        let threads = |n: usize| if n == 1 { "one thread".to_owned() } else { format!("up to {n} threads") };
        if let Some(n) = self.lanes {
            return format!("{} of each rank for a large message (COMITY_LANES)", threads(n));
        }
        let own = thread::available_parallelism().map_or(1, |n| n.get());
        let shared = self.host_cores.map_or(own, usize::from);
        let ranks = self.local.map_or(1, |(_, n)| n.max(1));
        let n = most_lanes(&vec![OwnCores { host: 0, shared, own }; ranks]);
        let ranks = if ranks == 1 { "one rank".to_owned() } else { format!("{ranks} ranks") };
        format!("{} of each rank for a large message, with {ranks} on this host", threads(n))
    }

    /// A few words on the job's key, by which this rank would know the others. The key itself is not in them.
    pub fn trust_in_words(&self) -> &'static str {
        let sealed = self.secure == Protection::Data;
        match (&self.key, self.insecure, &self.meeting_point) {
            _ if self.size == 1 => "none is needed",
            (Some(_), ..) if sealed => "held; TCP is encrypted",
            (Some(_), ..) => "held",
            (None, Insecure::No, MeetingPoint::Exchange(_)) if sealed => {
                "rank 0 shares one, unless it holds one; TCP is encrypted"
            }
            (None, Insecure::No, MeetingPoint::Exchange(_)) => "rank 0 shares one, unless it holds one",
            (None, Insecure::No, _) => "missing: joining would be refused (COMITY_KEY_FILE, COMITY_INSECURE)",
            (None, ..) => "none is wanted (COMITY_INSECURE): whoever can connect can join",
        }
    }
}

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

    #[test]
    fn the_words_say_how_many_threads_and_why() {
        let words = Settings { lanes: Some(3), ..Settings::new(0, 2) }.lanes_in_words();
        assert_eq!(words, "up to 3 threads of each rank for a large message (COMITY_LANES)");
        let config = Settings { host_cores: Some(1), ..Settings::new(0, 2) };
        assert_eq!(
            config.lanes_in_words(),
            "one thread of each rank for a large message, with one rank on this host"
        );
    }

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
