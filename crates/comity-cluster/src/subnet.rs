//! Networks of IPv4 and IPv6, as `10.0.0.0/30`.
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address and how many of its first bits are its network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Subnet {
    /// An address in it.
    pub ip: IpAddr,
    /// The length of the prefix.
    pub prefix: u8,
}

impl Subnet {
    /// With an address and a prefix; longer prefixes than an address has bits are cut.
    pub fn new(ip: IpAddr, prefix: u8) -> Self {
        Self { ip, prefix: prefix.min(if ip.is_ipv4() { 32 } else { 128 }) }
    }

    /// `10.0.0.1/30`, or an address alone.
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, prefix) = text.split_once('/').map_or((text, None), |(ip, p)| (ip, Some(p)));
        let ip: IpAddr = ip.parse().ok()?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(most), |p| p.parse().ok()).filter(|p| *p <= most)?;
        Some(Self { ip, prefix })
    }

    /// The address's bits, at the upper end of 128.
    fn bits(ip: IpAddr) -> u128 {
        match ip {
            IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
            IpAddr::V6(ip) => ip.to_bits(),
        }
    }

    fn mask(prefix: u8) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
    }

    /// Returns whether the address is in this network.
    pub fn holds(&self, ip: IpAddr) -> bool {
        self.ip.is_ipv4() == ip.is_ipv4()
            && (Self::bits(self.ip) ^ Self::bits(ip)) & Self::mask(self.prefix) == 0
    }

    /// Returns whether an address is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let shorter = if self.prefix <= other.prefix { self } else { other };
        self.ip.is_ipv4() == other.ip.is_ipv4()
            && (Self::bits(self.ip) ^ Self::bits(other.ip)) & Self::mask(shorter.prefix) == 0
    }

    /// The network itself, without the bits of a host.
    pub fn network(&self) -> Self {
        let bits = Self::bits(self.ip) & Self::mask(self.prefix);
        let ip = match self.ip {
            IpAddr::V4(_) => Ipv4Addr::from_bits((bits >> 96) as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
        };
        Self { ip, prefix: self.prefix }
    }

    /// The address in this network whose host has this number.
    pub fn host(&self, number: u16) -> Self {
        let ip = match self.network().ip {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | u32::from(number)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() | u128::from(number)).into(),
        };
        Self { ip, prefix: self.prefix }
    }

    /// Returns whether every address is in it: the default route.
    pub fn is_everything(&self) -> bool {
        self.prefix == 0
    }

    /// An address of the link alone (169.254/16, fe80::/10).
    pub fn is_link_local(&self) -> bool {
        match self.ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
        }
    }

    /// 255.255.255.252 for a prefix of 30.
    pub fn netmask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Subnet {
        Subnet::parse(text).unwrap()
    }

    #[test]
    fn networks_hold_and_overlap() {
        assert!(net("10.0.0.0/30").holds("10.0.0.3".parse().unwrap()));
        assert!(!net("10.0.0.0/30").holds("10.0.0.4".parse().unwrap()));
        assert!(
            net("10.0.0.1/8").overlaps(&net("10.9.0.0/30")) && net("0.0.0.0/0").overlaps(&net("1.2.3.4"))
        );
        assert!(
            !net("10.0.0.0/30").overlaps(&net("10.0.0.4/30")) && !net("::/0").overlaps(&net("0.0.0.0/0"))
        );
        assert_eq!(net("10.0.0.7/30").network().to_string(), "10.0.0.4/30");
        assert_eq!(net("fe80::7/64").network().to_string(), "fe80::/64");
        assert_eq!(net("10.0.0.7/30").netmask().to_string(), "255.255.255.252");
        assert!(net("fe80::7/64").is_link_local() && net("169.254.1.1/16").is_link_local());
        assert!(Subnet::parse("10.0.0.0/33").is_none() && Subnet::parse("x").is_none());
    }
}
