//! Addresses and ports as users write them, and this host's own.
use std::collections::HashSet;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of IPv6 without brackets whose end may be a number of its own, as `fd00::3:2`: the address before it, and the number.
pub fn end_of_address(text: &str) -> Option<(&str, &str)> {
    let (start, end) = text.rsplit_once(':')?;
    let address = start.rsplit('@').next()?;
    let is_number = !end.is_empty() && end.bytes().all(|b| b.is_ascii_digit()) && !end.starts_with('0');
    let is_address = |text: &str| text.parse::<Ipv6Addr>().is_ok();
    let whole = text.rsplit('@').next().is_some_and(is_address);
    (is_number && whole && is_address(address)).then_some((start, end))
}

/// The first and the last port of a range, as COMITY_PORTS has it.
pub fn ports(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let both = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
    both.filter(|(a, b)| *a > 0 && a <= b).ok_or_else(|| "no range of ports; write 7100-7107".into())
}

/// Each once, in the order in which they come first.
pub(crate) fn distinct<T: Copy + Eq + Hash>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = HashSet::new();
    all.filter(|one| seen.insert(*one)).collect()
}

/// This host's own address: of IPv6 only where there is none of IPv4, since not every library that is given one knows both.
pub(crate) fn loopback() -> IpAddr {
    let has = |ip: IpAddr| std::net::TcpListener::bind((ip, 0)).is_ok();
    let four = IpAddr::from(Ipv4Addr::LOCALHOST);
    let six = IpAddr::from(Ipv6Addr::LOCALHOST);
    if !has(four) && has(six) { six } else { four }
}
