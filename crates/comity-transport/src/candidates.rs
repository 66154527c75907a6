//! Addresses that lead from this process to another rank, the best first.
//!
//! ```text
//!   rank 2 announced                this host has                    tried
//!   10.0.1.2/30    25000 Mbit/s     cable  10.0.1.1/30   25000  -->  1  a network of both, the faster first
//!   192.168.1.8/24  1000 Mbit/s     en0  192.168.1.5/24   1000  -->  2  then the one with the default route
//!   100.90.1.1/32                   by the default route        -->  3  networks of others
//!   172.18.0.1/16  (a bridge)       docker1                     -->  4  addresses that may lead inside a host, or through a tunnel
//!   fe80::5 (its scope is its own)  each interface with such one -->  5  guesses: one of them leads there, or none
//!   172.17.0.1/16                   docker0, on every host      -->  6  addresses that did not answer a moment ago, then its own
//! ```
//! A guess that has answered goes where its speed puts it ([`AddressBook`](super::AddressBook)).
//!
//! Rules for the network interfaces that may be used: `COMITY_INTERFACES`.
//!
//! Entries with a comma between: the begin of a name (`en`), a whole name (`=en0`), an address, a network (`10.0.0.0/8`), each with `!`
//! before it to leave that out. `^` and `=` before the first one hold for all, as in `NCCL_SOCKET_IFNAME`.

use super::OwnAddr;
use crate::{
    channel::is_own,
    sys::{Interface, here, in_network, interfaces},
};
use std::{
    cmp::Reverse,
    io,
    net::{IpAddr, SocketAddr, SocketAddrV6},
};

/// In Mbit/s, where the system does not tell: between an ordinary network and a fast cable.
const UNKNOWN_SPEED: u32 = 5_000;

/// Order of the addresses to try; the least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Preference {
    /// This host has the address, too.
    is_own: bool,
    /// It did not answer a moment ago.
    pub(super) is_silent: bool,
    /// A link-local address on an interface here that may lead elsewhere.
    pub(super) is_guess: bool,
    is_inner: bool,
    /// No network of this host holds it.
    is_routed: bool,
    speed: Reverse<u32>,
    is_default: bool,
    bits: Reverse<u8>,
    is_link_local: bool,
}

impl Preference {
    /// The parts of it that count for the bytes of a job.
    pub(super) fn quality(&self) -> (bool, bool, bool, bool, Reverse<u32>, bool) {
        (self.is_own, self.is_silent, self.is_inner, self.is_routed, self.speed, self.is_default)
    }
}

/// An address to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub at: SocketAddr,
    /// The interface here, if it is in a network of it.
    interface: Option<u32>,
    pub(super) preference: Preference,
    /// Both ends tell the speed.
    speed_is_known: bool,
}

impl Candidate {
    /// Returns true if this host has the address, too.
    pub fn is_own(&self) -> bool {
        self.preference.is_own
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.interface.is_some()
    }
}

/// The networks of this process, at the moment.
pub(super) struct Here<'a> {
    /// All but those that the user leaves out.
    pub(super) own: Vec<Interface>,
    /// Interfaces that the user leaves out.
    pub(super) left_out: Vec<Interface>,
    /// The interfaces that lead everywhere.
    pub(super) default: Vec<u32>,
    /// The address here on the way to another.
    pub(super) source: &'a dyn Fn(SocketAddr) -> io::Result<IpAddr>,
}

impl Here<'_> {
    /// Returns the candidates for an address that a rank announced, or the reason that there are none.
    fn candidates(&self, theirs: &OwnAddr) -> Result<Vec<Candidate>, String> {
        if let SocketAddr::V6(at) = theirs.at
            && at.ip().is_unicast_link_local()
        {
            let on = self.own.iter().filter(|i| i.is_link_local());
            let with = |i: &Interface| SocketAddrV6::new(*at.ip(), at.port(), 0, i.index).into();
            let mut all: Vec<_> = on.map(|i| self.candidate(theirs, with(i), Some(i))).collect();
            all.iter_mut().for_each(|c| c.preference.is_guess = true);
            return if all.is_empty() {
                Err("no interface here has such an address".into())
            } else {
                Ok(all)
            };
        }
        let source = match (self.source)(theirs.at) {
            Ok(ip) => ip,
            // What this process lacks says nothing of the network: who connects meets it again, and says so.
            Err(e) if is_own(&e) => return Ok(vec![self.candidate(theirs, theirs.at, None)]),
            Err(_) => return Err("this host has no route to it".into()),
        };
        if let Some(i) = self.left_out.iter().find(|i| i.ip == source && !i.is_loopback) {
            return Err(format!("it leads over {}, which COMITY_INTERFACES leaves out", i.name));
        }
        let from = self.own.iter().chain(&self.left_out).find(|i| i.ip == source);
        Ok(vec![self.candidate(theirs, theirs.at, from)])
    }

    fn candidate(&self, theirs: &OwnAddr, at: SocketAddr, from: Option<&Interface>) -> Candidate {
        let ours = self.own.iter().chain(&self.left_out).any(|i| i.ip == at.ip());
        let shared = from.filter(|i| i.holds(at.ip()));
        let told = |speed| if speed == 0 { UNKNOWN_SPEED } else { speed };
        let here = from.map_or(0, |i| i.speed);
        let is_default = from.is_some_and(|i| self.default.contains(&i.index));
        let is_inner = theirs.is_inner || from.is_some_and(Interface::is_inner);
        let prefix =
            shared.map_or(0, |i| i.prefix.min(if theirs.prefix == 0 { i.prefix } else { theirs.prefix }));
        let bits = if at.is_ipv6() { prefix / 4 } else { prefix };
        let is_link_local = matches!(at.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
        Candidate {
            at,
            interface: shared.map(|i| i.index),
            preference: Preference {
                is_own: ours || at.ip().is_loopback(),
                is_silent: false,
                is_guess: false,
                is_inner,
                is_routed: shared.is_none(),
                speed: Reverse(told(here).min(told(theirs.speed))),
                is_default,
                bits: Reverse(bits),
                is_link_local,
            },
            speed_is_known: here > 0 && theirs.speed > 0,
        }
    }
}

/// Addresses that may be tried to reach a rank, and those that cannot.
#[derive(Debug, Default)]
pub struct Candidates {
    /// The best first.
    pub all: Vec<Candidate>,
    /// The others, each with the reason, in words.
    pub vain: Vec<String>,
}

impl Candidates {
    /// Returns the number of first candidates that a link is to use at the same time, where all of them work.
    pub(crate) fn side_by_side(&self, are_named: bool) -> usize {
        let Some(first) = self.all.first() else { return 0 };
        let mut seen = Vec::new();
        let alike = |c: &&Candidate| {
            if are_named {
                return c.is_own() == first.is_own() && c.is_direct() == first.is_direct();
            }
            let is_another = !seen.contains(&c.interface);
            seen.push(c.interface);
            c.preference.quality() == first.preference.quality()
                && is_another
                && c.is_direct()
                && !c.preference.is_default
                && !c.preference.is_guess
                && c.speed_is_known
                && c.at.is_ipv4() == first.at.is_ipv4()
        };
        self.all.iter().take_while(alike).count().max(1)
    }

    /// The guesses that did not fail a moment ago.
    pub fn guesses(&self) -> Vec<SocketAddr> {
        self.guesses_if(|_| true)
    }

    /// Returns the guesses that would go before all others if they were known to answer.
    pub fn good_guesses(&self) -> Vec<SocketAddr> {
        let best = self.all.iter().map(|c| &c.preference).find(|p| !p.is_guess);
        self.guesses_if(|c| best.is_none_or(|best| c.preference.quality() < best.quality()))
    }

    fn guesses_if(&self, is_wanted: impl Fn(&Candidate) -> bool) -> Vec<SocketAddr> {
        let guesses = self.all.iter().filter(|c| c.preference.is_guess && !c.preference.is_silent);
        guesses.filter(|c| is_wanted(c)).map(|c| c.at).collect()
    }

    /// Returns true if no network of both hosts is known that leads there.
    pub fn is_guesswork(&self) -> bool {
        let is_known =
            |p: &Preference| !p.is_guess && !p.is_own && !p.is_silent && !p.is_inner && !p.is_routed;
        !self.all.iter().any(|c| is_known(&c.preference))
    }

    pub(super) fn sort(&mut self) {
        // Equal ones stay as they were announced.
        self.all.sort_by_key(|c| c.preference);
    }
}

/// The ways from here to the addresses that a rank announced.
pub(super) fn from_here(rules: &InterfaceRules, theirs: &[OwnAddr]) -> Candidates {
    let all = interfaces();
    let out: Vec<_> = here::ANYWHERE.into_iter().filter_map(|to| here::source(to).ok()).collect();
    let default = all.iter().filter(|i| out.contains(&i.ip)).map(|i| i.index).collect();
    let (own, left_out) = all.into_iter().partition(|i| rules.allow(i));
    sorted(&Here { own, left_out, default, source: &here::source }, theirs)
}

pub(super) fn sorted(here: &Here<'_>, theirs: &[OwnAddr]) -> Candidates {
    let mut found = Candidates::default();
    for addr in theirs {
        match here.candidates(addr) {
            Ok(new) => found.all.extend(new),
            Err(why) => found.vain.push(format!("{}: {why}", addr.at)),
        }
    }
    found.sort();
    found
}

/// The entries of `COMITY_INTERFACES`, in their order. Without entries every interface may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceRules {
    /// Text as the user wrote it.
    text: String,
    with: Vec<InterfaceRule>,
    without: Vec<InterfaceRule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum InterfaceRule {
    Begins(String),
    Named(String),
    /// Addresses with so many leading bits in common with this one.
    Within(IpAddr, u8),
}

impl InterfaceRule {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("has an empty entry".into());
        }
        let (ip, prefix) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
        match (ip.parse::<IpAddr>(), prefix) {
            (Ok(ip), None) => Ok(Self::Within(ip, if ip.is_ipv4() { 32 } else { 128 })),
            (Ok(ip), Some(bits)) => {
                let most = if ip.is_ipv4() { 32 } else { 128 };
                match bits.parse().ok().filter(|b| (1..=most).contains(b)) {
                    Some(bits) => Ok(Self::Within(ip, bits)),
                    None => Err(format!("holds {text:?}: the network's bits are not 1 to {most}")),
                }
            }
            (Err(_), Some(_)) => Err(format!("holds {text:?}, which is not a network such as 10.0.0.0/8")),
            (Err(_), None) if text.contains([' ', '^', '=', '!']) => Err(format!(
                "holds {text:?}, which is neither an interface's name nor a network such as 10.0.0.0/8"
            )),
            (Err(_), None) => Ok(Self::Begins(text.into())),
        }
    }

    fn fits(&self, i: &Interface) -> bool {
        match self {
            Self::Begins(begin) => i.name.starts_with(begin),
            Self::Named(name) => i.name == *name,
            Self::Within(ip, prefix) => in_network(*ip, *prefix, i.ip),
        }
    }
}

impl InterfaceRules {
    /// Parses `text`; the fault is the rest of a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Self { text: text.into(), ..Self::default() };
        let (text, all_without) = text.strip_prefix('^').map_or((text, false), |t| (t, true));
        let (text, all_named) = text.strip_prefix('=').map_or((text, false), |t| (t, true));
        for part in text.split(',').map(str::trim) {
            let (part, without) = part.strip_prefix('!').map_or((part, all_without), |p| (p, true));
            let (part, named) = part.strip_prefix('=').map_or((part, all_named), |p| (p, true));
            let rule = match InterfaceRule::parse(part)? {
                InterfaceRule::Begins(name) if named => InterfaceRule::Named(name),
                rule => rule,
            };
            if without { rules.without.push(rule) } else { rules.with.push(rule) }
        }
        Ok(rules)
    }

    /// Returns the text as the user wrote it; none where there are no rules.
    pub fn text(&self) -> Option<&str> {
        (!self.text.is_empty()).then_some(&self.text)
    }

    /// Returns true if an interface's address may be used. Loopback only where an entry names it.
    pub fn allow(&self, i: &Interface) -> bool {
        let fits = |rules: &[InterfaceRule]| rules.iter().any(|r| r.fits(i));
        let wanted = if self.with.is_empty() { !i.is_loopback } else { fits(&self.with) };
        wanted && !fits(&self.without)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, index: u32, ip: &str, prefix: u8, speed: u32) -> Interface {
        Interface { name: name.into(), index, ip: ip.parse().unwrap(), prefix, speed, is_loopback: false }
    }

    fn told(ip: &str, prefix: u8, speed: u32) -> OwnAddr {
        let is_inner = ip.starts_with("172.17.");
        OwnAddr { at: SocketAddr::new(ip.parse().unwrap(), 7000), prefix, speed, is_inner }
    }

    /// A host with these interfaces, of which the first has the default route.
    fn tried(own: &[Interface], theirs: &[OwnAddr]) -> (Vec<String>, usize, Vec<String>) {
        let source = |to: SocketAddr| {
            let near = own.iter().find(|i| i.holds(to.ip()));
            let near = near.or_else(|| own.first().filter(|i| i.ip.is_ipv4() == to.is_ipv4()));
            near.map(|i| i.ip).ok_or_else(|| io::ErrorKind::NetworkUnreachable.into())
        };
        let default = own.iter().take(1).map(|i| i.index).collect();
        let here = Here { own: own.to_vec(), left_out: Vec::new(), default, source: &source };
        let found = sorted(&here, theirs);
        let at = found.all.iter().map(|c| HostOnly(c.at).to_string()).collect();
        (at, found.side_by_side(false), found.vain)
    }

    struct HostOnly(SocketAddr);

    impl std::fmt::Display for HostOnly {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            match self.0 {
                SocketAddr::V6(a) if a.scope_id() > 0 => write!(f, "{}%{}", a.ip(), a.scope_id()),
                a => a.ip().fmt(f),
            }
        }
    }

    #[test]
    fn what_this_process_lacks_is_no_missing_route() {
        let own = [interface("e0", 2, "10.9.0.1", 16, 10_000)];
        let with = |e: rustix::io::Errno| {
            let source = move |_| Err(e.into());
            let here = Here { own: own.to_vec(), left_out: Vec::new(), default: vec![2], source: &source };
            let found = sorted(&here, &[told("10.9.0.2", 16, 10_000)]);
            (found.all.len(), found.vain)
        };
        assert_eq!(with(rustix::io::Errno::MFILE), (1, Vec::new()));
        let (all, vain) = with(rustix::io::Errno::NETUNREACH);
        assert!(all == 0 && vain[0].contains("no route"), "{vain:?}");
    }

    #[test]
    fn a_fast_cable_goes_before_the_network_with_the_default_route() {
        let own = [interface("wlan0", 2, "192.168.1.5", 24, 300), interface("en7", 3, "10.0.1.1", 30, 0)];
        let theirs = [told("172.17.0.1", 16, 10_000), told("192.168.1.8", 24, 1000), told("10.0.1.2", 30, 0)];
        let (at, side_by_side, _) = tried(&own, &theirs);
        assert_eq!(at, ["10.0.1.2", "192.168.1.8", "172.17.0.1"]);
        assert_eq!(side_by_side, 1);
        // Of equal speed as far as is known.
        let own = [interface("e0", 2, "10.9.0.1", 16, 10_000), interface("e1", 3, "10.0.1.1", 24, 10_000)];
        let (at, ..) = tried(&own, &[told("10.9.0.2", 16, 10_000), told("10.0.1.2", 24, 10_000)]);
        assert_eq!(at, ["10.0.1.2", "10.9.0.2"]);
        // A network that is known to be slower does not.
        let own = [interface("e0", 2, "10.9.0.1", 16, 100_000), interface("e1", 3, "10.0.1.1", 24, 1000)];
        let (at, ..) = tried(&own, &[told("10.0.1.2", 24, 1000), told("10.9.0.2", 16, 100_000)]);
        assert_eq!(at, ["10.9.0.2", "10.0.1.2"]);
    }

    #[test]
    fn two_equal_cables_are_used_together() {
        let own = [
            interface("lan", 2, "192.168.1.5", 24, 1000),
            interface("c0", 3, "10.0.1.1", 30, 25_000),
            interface("c1", 4, "10.0.2.1", 30, 25_000),
        ];
        let theirs =
            [told("10.0.2.2", 30, 25_000), told("192.168.1.6", 24, 1000), told("10.0.1.2", 30, 25_000)];
        let (at, side_by_side, _) = tried(&own, &theirs);
        assert_eq!(
            (at, side_by_side),
            (["10.0.2.2", "10.0.1.2", "192.168.1.6"].map(String::from).to_vec(), 2)
        );
        let slow = [theirs[0], told("10.0.1.2", 30, 10_000)];
        assert_eq!(tried(&own, &slow).1, 1);
        assert_eq!(tried(&own, &[told("10.0.2.2", 30, 0), told("10.0.1.2", 30, 0)]).1, 1);
    }

    #[test]
    fn link_local_addresses_are_tried_on_each_interface_here() {
        let lan = || interface("lan", 2, "192.168.1.5", 24, 1000);
        let own =
            [lan(), interface("c0", 3, "fe80::a", 64, 10_000), interface("c1", 4, "fe80::b", 64, 10_000)];
        let (at, ..) = tried(&own, &[told("fe80::5", 64, 10_000)]);
        assert_eq!(at, ["fe80::5%3", "fe80::5%4"]);
        let (at, _, vain) = tried(&[interface("c0", 3, "10.0.0.1", 24, 0)], &[told("fe80::5", 64, 0)]);
        assert!(at.is_empty() && vain[0].contains("no interface here"), "{vain:?}");
        let own =
            [lan(), interface("c0", 3, "fd00::1", 64, 10_000), interface("c0", 3, "fe80::a", 64, 10_000)];
        let (at, ..) = tried(&own, &[told("fe80::5", 64, 10_000), told("fd00::5", 64, 10_000)]);
        assert_eq!(at, ["fd00::5", "fe80::5%3"]);
    }

    #[test]
    fn an_address_of_this_host_too_comes_last_and_one_without_a_route_not_at_all() {
        let own = [interface("br7", 2, "10.5.0.1", 16, 0), interface("c0", 3, "10.0.1.1", 30, 0)];
        let (at, ..) =
            tried(&own, &[told("10.5.0.1", 16, 0), told("10.0.1.2", 30, 0), told("10.7.0.1", 24, 0)]);
        assert_eq!(at, ["10.0.1.2", "10.7.0.1", "10.5.0.1"]);
        let (at, _, vain) = tried(&[interface("c0", 3, "fd00::1", 64, 0)], &[told("10.0.1.2", 30, 0)]);
        assert!(at.is_empty() && vain[0].contains("10.0.1.2:7000: this host has no route"), "{vain:?}");
    }
}

#[cfg(test)]
mod interface_rules_tests {
    use super::*;

    fn interface(name: &str, ip: &str) -> Interface {
        let is_loopback = name == "lo";
        Interface { name: name.into(), index: 1, ip: ip.parse().unwrap(), prefix: 24, speed: 0, is_loopback }
    }

    #[test]
    fn entries_choose_and_leave_out() {
        let all = [
            interface("lo", "127.0.0.1"),
            interface("en0", "192.168.1.5"),
            interface("en01", "10.0.1.1"),
            interface("wlan0", "192.168.1.6"),
            interface("docker0", "172.17.0.1"),
            interface("en0", "fd00::1"),
        ];
        let chosen = |text: &str| {
            let rules = InterfaceRules::parse(text).unwrap();
            all.iter().map(|i| u8::from(rules.allow(i))).collect::<Vec<_>>()
        };
        for (text, expected) in [
            ("en", [0, 1, 1, 0, 0, 1]),
            ("=en0", [0, 1, 0, 0, 0, 1]),
            ("=en0,wlan0", [0, 1, 0, 1, 0, 1]),
            ("en,=wlan0", [0, 1, 1, 1, 0, 1]),
            ("^docker,wlan", [0, 1, 1, 0, 0, 1]),
            ("^=en0", [0, 0, 1, 1, 1, 0]),
            ("!docker0,!wlan0", [0, 1, 1, 0, 0, 1]),
            ("en,!=en01", [0, 1, 0, 0, 0, 1]),
            ("10.0.0.0/8, fd00::/8", [0, 0, 1, 0, 0, 1]),
            ("192.168.1.5", [0, 1, 0, 0, 0, 0]),
            ("!192.168.0.0/16", [0, 0, 1, 0, 1, 1]),
            ("lo", [1, 0, 0, 0, 0, 0]),
            ("eth", [0; 6]),
        ] {
            assert_eq!(chosen(text), expected, "{text}");
        }
        assert_eq!(
            all.iter().map(|i| u8::from(InterfaceRules::default().allow(i))).collect::<Vec<_>>(),
            [0, 1, 1, 1, 1, 1]
        );
    }

    #[test]
    fn nonsense_is_named() {
        for text in
            ["", "en,", "en,,wlan", "^", "=", "!", "10.0.0.0/33", "fd00::/0", "10.0.0/8", "a b", "en^"]
        {
            let e = InterfaceRules::parse(text).unwrap_err();
            assert!(!e.is_empty(), "{text}");
        }
    }
}
