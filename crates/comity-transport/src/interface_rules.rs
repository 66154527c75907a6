//! Rules for the network interfaces that may be used: `COMITY_INTERFACES`.
//!
//! Entries with a comma between: the begin of a name (`en`), a whole name (`=en0`), an address, a network (`10.0.0.0/8`), each with `!`
//! before it to leave that out. `^` and `=` before the first one hold for all, as in `NCCL_SOCKET_IFNAME`.

use crate::sys::{Interface, in_network};
use std::net::IpAddr;

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
