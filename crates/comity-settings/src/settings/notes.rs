//! Reports of `comity info`: what this process would use, and why.

use super::{Insecure, MeetingPoint, Protection, Settings, own_addresses};
use crate::{
    LinkKind,
    lanes::{OwnCores, most_lanes},
    sys::{Interface, has_paths, interfaces},
};
use std::{net::SocketAddr, thread};

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
            let by_default = kind.about().is_some_and(|a| a.by_default);
            let (used, why) = match (self.links.has(kind), by_default) {
                (false, true) => (false, "COMITY_LINKS leaves it out".to_owned()),
                (false, false) => (false, format!("only where COMITY_LINKS names it; {}", note.why)),
                _ if note.works && self.size == 1 => {
                    (false, format!("one rank needs none; else {}", note.why))
                }
                _ => (note.works, note.why),
            };
            Some(LinkNote { kind, used, why, devices: note.devices })
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
}
