//! The devices, their cables, limits and faults: from `SOFTVERBS_...` variables, checked before the first device is shown.

use std::{net::Ipv4Addr, path::PathBuf, str::FromStr};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// Its IPv4-mapped GID, and where its queue pairs listen.
    pub(crate) address: Ipv4Addr,
}

/// Faults of messages of UC, as shares of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Faults {
    /// Share of packets: a message is lost with any of its packets.
    pub(crate) drop: f64,
    pub(crate) duplicate: f64,
    pub(crate) corrupt: f64,
    pub(crate) reorder: f64,
}

/// Behaviours reported of providers that contradict each other: clients should bear any of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Quirks {
    pub(crate) recv_needs_rts: bool,
    pub(crate) mr_needs_remote: bool,
    pub(crate) no_channel: bool,
    /// Every so many receives end with an error.
    pub(crate) wc_err: Option<u64>,
    /// Index of the IPv4-mapped GID.
    pub(crate) gid_index: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    /// Thunderbolt as Apple's TN3205 and reports describe it, in place of RC and UC as the InfiniBand specification has them.
    pub(crate) apple: bool,
    pub(crate) devices: Vec<Device>,
    /// Pairs of addresses. Without any, all devices reach each other, as through a switch.
    pub(crate) cables: Option<Vec<(Ipv4Addr, Ipv4Addr)>>,
    pub(crate) faults: Faults,
    pub(crate) quirks: Quirks,
    pub(crate) seed: u64,
    /// While this file is there, the addresses and devices named in it have no link; all, when it is empty.
    pub(crate) link_down: Option<PathBuf>,
    pub(crate) most_pairs: usize,
    pub(crate) most_regions: usize,
    /// Work requests in `ib` mode, frames of 4 KiB in `apple` mode.
    pub(crate) most_work: u32,
    pub(crate) least_work: u32,
    pub(crate) most_bytes: usize,
}

/// Return whether an address is of this host, or of a network of hosts that are tested: never of strangers.
pub(crate) fn is_near(address: Ipv4Addr) -> bool {
    address.is_loopback() || address.is_private()
}

impl Config {
    pub(crate) fn from_env() -> Result<Self, String> {
        Self::parse(|name| std::env::var(format!("SOFTVERBS_{name}")).ok())
    }

    /// `value` gives a variable by its name without the prefix.
    ///
    /// # Errors
    /// The first variable that does not mean anything, and why.
    pub(crate) fn parse(value: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let apple = match value("MODE").as_deref() {
            None | Some("ib") => false,
            Some("apple") => true,
            Some(other) => return Err(format!("SOFTVERBS_MODE is ib or apple, not {other:?}")),
        };
        let names = value("DEVICES");
        let plain = if apple { "rdma_en2=127.0.0.1" } else { "soft0=127.0.0.1" };
        let faults = Faults {
            drop: share(&value, "DROP")?,
            duplicate: share(&value, "DUPLICATE")?,
            corrupt: share(&value, "CORRUPT")?,
            reorder: share(&value, "REORDER")?,
        };
        Ok(Self {
            apple,
            devices: devices(names.as_deref().unwrap_or(plain))?,
            cables: value("CABLES").map(|text| cables(&text)).transpose()?,
            faults,
            quirks: quirks(&value("QUIRKS").unwrap_or_default())?,
            seed: number(&value, "SEED", 1)?,
            link_down: value("LINK_DOWN_FILE").map(PathBuf::from),
            most_pairs: number(&value, "MAX_QP", if apple { 10 } else { 1024 })?,
            most_regions: number(&value, "MAX_MR", if apple { 100 } else { 65_536 })?,
            most_work: number(&value, "MAX_WR", if apple { 4095 } else { 16_384 })?,
            least_work: number(&value, "MIN_DEPTH", if apple { 1024 } else { 1 })?,
            most_bytes: number(&value, "MAX_MSG", if apple { 4095 * 4096 } else { 1 << 31 })?,
        })
    }

    /// The table of a device's GIDs: one IPv4-mapped, the others link-local.
    pub(crate) fn gids(&self, device: usize) -> Vec<[u8; 16]> {
        let Some(own) = self.devices.get(device) else { return Vec::new() };
        let mapped = self.quirks.gid_index;
        let gid = |index: usize| {
            let mut gid = [0; 16];
            if index == mapped {
                gid[10..12].copy_from_slice(&[0xff, 0xff]);
                gid[12..].copy_from_slice(&own.address.octets());
            } else {
                gid[..2].copy_from_slice(&[0xfe, 0x80]);
                gid[8..].copy_from_slice(&guid(own.address).to_be_bytes());
                gid[8] ^= u8::try_from(index).unwrap_or(0x10) << 2;
            }
            gid
        };
        (0..3.max(mapped + 1)).map(gid).collect()
    }

    pub(crate) fn cabled(&self, from: Ipv4Addr, to: Ipv4Addr) -> bool {
        let joins = |&(a, b): &(Ipv4Addr, Ipv4Addr)| (a, b) == (from, to) || (b, a) == (from, to);
        self.cables.as_ref().is_none_or(|cables| cables.iter().any(joins))
    }

    /// Return whether the link between two addresses is taken away at the moment.
    pub(crate) fn down(&self, ends: &[Ipv4Addr]) -> bool {
        let Some(text) = self.link_down.as_ref().and_then(|file| std::fs::read_to_string(file).ok()) else {
            return false;
        };
        let named = |word: &str| {
            ends.iter().any(|end| {
                word == end.to_string() || self.devices.iter().any(|d| d.address == *end && d.name == word)
            })
        };
        text.trim().is_empty() || text.split_whitespace().any(named)
    }
}

pub(crate) fn guid(address: Ipv4Addr) -> u64 {
    let [a, b, c, d] = address.octets();
    u64::from_be_bytes([0x02, 0x53, 0x56, 0xff, 0xfe, a ^ b, c, d])
}

/// `name=address`, with commas; `name=address*3` is name0, name1, name2 at three addresses in a row.
fn devices(text: &str) -> Result<Vec<Device>, String> {
    let mut found: Vec<Device> = Vec::new();
    for item in text.split(',').filter(|i| !i.is_empty()) {
        let wrong = || format!("SOFTVERBS_DEVICES wants name=address or name=address*count, not {item:?}");
        let (name, rest) = item.split_once('=').ok_or_else(wrong)?;
        let (address, count) = match rest.split_once('*') {
            Some((address, count)) => (address, Some(count.parse::<u32>().map_err(|_| wrong())?)),
            None => (rest, None),
        };
        let first = Ipv4Addr::from_str(address).map_err(|_| wrong())?;
        for i in 0..count.unwrap_or(1) {
            let name = if count.is_some() { format!("{name}{i}") } else { name.to_owned() };
            let address = Ipv4Addr::from(u32::from(first).wrapping_add(i));
            if !is_near(address) {
                return Err(format!(
                    "SOFTVERBS_DEVICES: {address} is neither a loopback nor a private address"
                ));
            }
            if found.iter().any(|d| d.name == name || d.address == address) {
                return Err(format!("SOFTVERBS_DEVICES names {name} or {address} twice"));
            }
            found.push(Device { name, address });
        }
    }
    Ok(found)
}

/// `address-address`, with commas.
fn cables(text: &str) -> Result<Vec<(Ipv4Addr, Ipv4Addr)>, String> {
    let cable = |item: &str| {
        let (a, b) = item.split_once('-')?;
        Some((a.parse().ok()?, b.parse().ok()?))
    };
    let items = text.split(',').filter(|i| !i.is_empty());
    items
        .map(|i| cable(i).ok_or_else(|| format!("SOFTVERBS_CABLES wants address-address, not {i:?}")))
        .collect()
}

fn quirks(text: &str) -> Result<Quirks, String> {
    let mut quirks = Quirks { gid_index: 1, ..Quirks::default() };
    for item in text.split(',').filter(|i| !i.is_empty()) {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let wrong = || format!("SOFTVERBS_QUIRKS: {item:?} is no quirk");
        match (name, value) {
            ("recv_needs_rts", "" | "1") => quirks.recv_needs_rts = true,
            ("mr_needs_remote", "" | "1") => quirks.mr_needs_remote = true,
            ("no_channel", "" | "1") => quirks.no_channel = true,
            ("wc_err", n) => {
                quirks.wc_err = Some(n.parse().ok().filter(|n| *n > 0).ok_or_else(wrong)?);
            }
            ("gid_index", n) => quirks.gid_index = n.parse().ok().filter(|n| *n < 16).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        }
    }
    Ok(quirks)
}

fn number<T: FromStr>(value: &impl Fn(&str) -> Option<String>, name: &str, plain: T) -> Result<T, String> {
    let Some(text) = value(name) else { return Ok(plain) };
    text.parse().map_err(|_| format!("SOFTVERBS_{name} is a number, not {text:?}"))
}

fn share(value: &impl Fn(&str) -> Option<String>, name: &str) -> Result<f64, String> {
    let share = number(value, name, 0.0)?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(format!("SOFTVERBS_{name} is from 0 to 1")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Config, String> {
        Config::parse(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn devices_are_named_one_by_one_or_counted() {
        let config = parse(&[("DEVICES", "a=127.0.0.9,b=127.0.1.1*3")]).unwrap();
        let names: Vec<String> = config.devices.iter().map(|d| format!("{}={}", d.name, d.address)).collect();
        assert_eq!(names, ["a=127.0.0.9", "b0=127.0.1.1", "b1=127.0.1.2", "b2=127.0.1.3"]);
        for bad in ["a", "a=x", "a=203.0.113.1", "a=127.0.0.1,b=127.0.0.1", "a=127.0.0.1*x"] {
            assert!(parse(&[("DEVICES", bad)]).is_err(), "{bad}");
        }
    }

    #[test]
    fn cables_join_both_ways_and_none_is_a_switch() {
        let ip = |n| Ipv4Addr::new(127, 0, 0, n);
        assert!(parse(&[]).unwrap().cabled(ip(1), ip(2)));
        let config = parse(&[("CABLES", "127.0.0.1-127.0.0.2")]).unwrap();
        assert!(config.cabled(ip(2), ip(1)) && !config.cabled(ip(1), ip(3)));
        assert!(parse(&[("CABLES", "127.0.0.1")]).is_err());
    }

    #[test]
    fn the_mapped_gid_stands_where_the_quirk_says() {
        for (quirk, at) in [("", 1), ("gid_index=4", 4)] {
            let gids = parse(&[("QUIRKS", quirk)]).unwrap().gids(0);
            let mapped: Vec<usize> =
                (0..gids.len()).filter(|&i| gids[i][10] == 0xff && gids[i][0] == 0).collect();
            assert_eq!(mapped, [at], "{quirk}");
        }
        for bad in ["what", "wc_err=0", "gid_index=99"] {
            assert!(parse(&[("QUIRKS", bad)]).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_follow_the_mode() {
        let apple = parse(&[("MODE", "apple")]).unwrap();
        assert_eq!((apple.most_pairs, apple.most_regions, apple.most_bytes), (10, 100, 16_773_120));
        assert!(parse(&[("DROP", "1.5")]).is_err() && parse(&[("MODE", "x")]).is_err());
    }
}
