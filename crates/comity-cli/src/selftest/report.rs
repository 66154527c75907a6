//! The report: what ran where, the whole output of what failed, and the machine; without secrets, and without names: of hosts
//! and of the user, the home directory, and addresses.
use super::{Outcome, Verdict};
use crate::{here, report::Secrets, save};
use comity::{Config, tools};
use comity_cluster::facts::{HostFacts, bits_in_words};
use regex_lite::{Captures, Regex};
use std::{
    fmt::Write,
    io,
    net::{IpAddr, Ipv6Addr},
    path::Path,
    time::SystemTime,
};

/// Writes the report.
///
/// # Errors
/// The errors of the system.
pub(super) fn write(
    file: &Path,
    machine: &HostFacts,
    all: &[Outcome],
    sum: &str,
    hosts: Option<&str>,
) -> io::Result<()> {
    let names = Names::new(&OwnNames::of_this_process(), hosts).map_err(io::Error::other)?;
    let text = without(&names, &text(machine, all, sum))?;
    save::replace(file, text.as_bytes(), save::FOR_ALL)
}

/// The text without secrets, then without names: a secret may hold one.
fn without(names: &Names, text: &str) -> io::Result<String> {
    let secrets = Secrets::of_this_process().map_err(io::Error::other)?;
    let text = secrets.removed(text.as_bytes().to_vec());
    Ok(names.removed(&String::from_utf8_lossy(&text)))
}

fn text(machine: &HostFacts, all: &[Outcome], sum: &str) -> String {
    let mut t = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        t,
        "comity {} selftest, {} {}, {}\nmachine: {}, pages of {} bytes\n",
        here::VERSION,
        std::env::consts::OS,
        std::env::consts::ARCH,
        humantime::format_rfc3339_seconds(SystemTime::now()),
        machine.summary(),
        rustix::param::page_size(),
    );
    let _ = writeln!(t, "{:<32}  {:<9}  {:>7}", "row", "result", "seconds");
    all.iter().for_each(|outcome| t += &format!("{}\n", outcome.line()));
    let _ = writeln!(t, "{sum}");
    for failed in all.iter().filter(|o| matches!(o.verdict, Verdict::Failed(_))) {
        let _ = writeln!(t, "\n== {}\n$ {}\n{}", failed.name, failed.command, failed.output);
    }
    t += "\n== machine\n";
    facts(&mut t, machine);
    t += "\n== links\n";
    if let Ok(config) = Config::from_env() {
        for note in tools::settings(&config).link_notes() {
            let _ = writeln!(t, "{}: {}", note.kind, note.why);
            for (name, at) in &note.devices {
                let _ = writeln!(
                    t,
                    "  {name}: {}",
                    at.as_ref().map_or_else(|why| why.as_str(), |_| "has an address")
                );
            }
        }
    }
    t += "\n== variables\n";
    t += &crate::report::variables();
    t
}

/// Cables, devices and limits; no addresses.
fn facts(t: &mut String, machine: &HostFacts) {
    let speed = |bits: Option<u64>| bits.map_or_else(|| "speed not known".into(), bits_in_words);
    for nic in machine.nics.iter().filter(|nic| !nic.is_inner) {
        let state = if nic.is_up { "up" } else { "down" };
        let _ = writeln!(t, "interface {}: {state}, {}, MTU {}", nic.name, speed(nic.speed), nic.mtu);
    }
    for port in &machine.thunderbolt {
        let cabled = if port.peers.is_empty() { "no peer" } else { "a peer" };
        let _ =
            writeln!(t, "Thunderbolt {} ({}): {}, {cabled}", port.receptacle, port.nic, speed(port.speed));
    }
    if let Some(enabled) = machine.rdma.enabled {
        let _ = writeln!(t, "RDMA: {}", if enabled { "enabled" } else { "disabled" });
    }
    for device in &machine.rdma.devices {
        let state = device.state.as_deref().unwrap_or("state not known");
        let _ = writeln!(t, "RDMA device {}: {state}", device.name);
    }
    let limits = &machine.limits;
    let number = |limit: Option<Option<u64>>| match limit {
        None => "not known".to_owned(),
        Some(None) => "unlimited".to_owned(),
        Some(Some(n)) => n.to_string(),
    };
    let _ =
        writeln!(t, "limits: {} open files, {} bytes locked", number(limits.files), number(limits.memlock));
    for problem in &machine.problems {
        let _ = writeln!(t, "{}: {}", problem.about, problem.why);
    }
}

/// A shorter name could stand for anything.
const SHORTEST: usize = 2;

/// Names with what stands for each in the report, and the patterns of addresses.
#[derive(Debug)]
pub(super) struct Names {
    words: Vec<(Regex, String)>,
    v4: Regex,
    v6: Regex,
    mac: Regex,
}

/// Names of this process's host, user and home, as its environment and the system say.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnNames {
    pub(super) host: String,
    pub(super) user: String,
    pub(super) home: String,
}

impl OwnNames {
    pub(super) fn of_this_process() -> Self {
        let var = |name: &str| std::env::var(name).unwrap_or_default();
        let user = [var("USER"), var("LOGNAME")].into_iter().find(|name| !name.is_empty());
        Self { host: here::host(), user: user.unwrap_or_default(), home: var("HOME") }
    }
}

impl Names {
    /// Those of this process, and of the hosts of `--hosts`.
    pub(super) fn new(own: &OwnNames, hosts: Option<&str>) -> Result<Self, regex_lite::Error> {
        let mut words = Vec::new();
        let mut add = |name: &str, stands: String| {
            if name.len() >= SHORTEST {
                words.push((name.to_owned(), stands));
            }
        };
        // With its path first: a part of it may be the user's name.
        if own.home.trim_end_matches('/').len() > 1 {
            add(own.home.trim_end_matches('/'), "~".into());
        }
        for (i, host) in hosts.unwrap_or_default().split(',').enumerate() {
            let (user, host) = host.trim().rsplit_once('@').unwrap_or_else(|| ("", host.trim()));
            let host =
                host.rsplit_once(':').filter(|(_, n)| n.parse::<u32>().is_ok()).map_or(host, |(h, _)| h);
            add(user, "[user]".into());
            both(host, &format!("[host {}]", i + 1), &mut add);
        }
        both(&own.host, "[this host]", &mut add);
        // Every system has one.
        if own.user != "root" {
            add(&own.user, "[user]".into());
        }
        let word = |(name, stands): (String, String)| {
            let ignore_case = if name.is_ascii() { "(?i:" } else { "(?:" };
            // A name is a whole word: not behind or before a letter, a digit or a dash.
            let name = regex_lite::escape(&name);
            Ok((Regex::new(&format!("(^|[^A-Za-z0-9_-]){ignore_case}{name})($|[^A-Za-z0-9_-])"))?, stands))
        };
        Ok(Self {
            words: words.into_iter().map(word).collect::<Result<_, regex_lite::Error>>()?,
            v4: Regex::new(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")?,
            // A path in Rust has two colons, too.
            v6: Regex::new(
                r"(^|[^A-Za-z0-9_:])([0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)($|[^A-Za-z0-9_])",
            )?,
            mac: Regex::new(r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}")?,
        })
    }

    /// The text without them.
    pub(super) fn removed(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, stands) in &self.words {
            // Two names may share the character between them.
            for _ in 0..2 {
                let put = |c: &Captures<'_>| format!("{}{stands}{}", &c[1], &c[2]);
                text = name.replace_all(&text, put).into_owned();
            }
        }
        let text = self.mac.replace_all(&text, "[address]").into_owned();
        let address = |c: &Captures<'_>| match c[0].parse::<IpAddr>() {
            Ok(ip) if !ip.is_loopback() && !ip.is_unspecified() => "[address]".to_owned(),
            _ => c[0].to_owned(),
        };
        let text = self.v4.replace_all(&text, address).into_owned();
        let v6 = |c: &Captures<'_>| {
            let whole = c[2].trim_end_matches('.');
            let whole = if whole.ends_with("::") { whole } else { whole.trim_end_matches(':') };
            match whole.parse::<Ipv6Addr>() {
                Ok(ip) if !ip.is_loopback() && !ip.is_unspecified() => {
                    format!("{}[address]{}{}", &c[1], &c[2][whole.len()..], &c[3])
                }
                _ => c[0].to_owned(),
            }
        };
        let text = self.v6.replace_all(&text, v6).into_owned();
        self.v6.replace_all(&text, v6).into_owned()
    }
}

/// A host's whole name, and its first part.
fn both(host: &str, stands: &str, add: &mut impl FnMut(&str, String)) {
    if host.parse::<IpAddr>().is_ok() || host == "localhost" {
        return;
    }
    add(host, stands.into());
    if let Some((first, _)) = host.split_once('.') {
        add(first, stands.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_left_out_and_nothing_else() {
        let own =
            OwnNames { host: "lena.example.org".into(), user: "lena".into(), home: "/home/lena/".into() };
        let names = Names::new(&own, Some("bob@m1:2,m2.local,10.0.0.9")).unwrap();
        for (before, after) in [
            ("host lena.example.org, Lena lena lena-2", "host [this host], [this host] [this host] lena-2"),
            ("/home/lena/bin/comity", "~/bin/comity"),
            ("rank 1 (host m1, pid 4) m12", "rank 1 (host [host 1], pid 4) m12"),
            ("m2 and m2.local; bob@m1", "[host 2] and [host 2]; [user]@[host 1]"),
            ("10.0.0.9:7000 on 192.168.1.10", "[address]:7000 on [address]"),
            ("127.0.0.1:80 0.0.0.0 ::1 0.1.0", "127.0.0.1:80 0.0.0.0 ::1 0.1.0"),
            ("[fd00::3]:22, fe80::1c2a:3: lost", "[[address]]:22, [address]: lost"),
            ("ether 36:00:00:00:01:00 at 12:34:56", "ether [address] at 12:34:56"),
            ("Group::alloc std::mem comity: f32[1024]", "Group::alloc std::mem comity: f32[1024]"),
            ("fd00::1 fd00::2,fe80::3%en0", "[address] [address],[address]%en0"),
        ] {
            assert_eq!(names.removed(before), after);
            assert_eq!(names.removed(after), after, "twice");
        }
        let root = OwnNames { host: "h1".into(), user: "root".into(), home: "/srv/admin".into() };
        let names = Names::new(&root, None).unwrap();
        assert_eq!(
            names.removed("broadcast root 2 on h1 in /srv/admin/x"),
            "broadcast root 2 on [this host] in ~/x"
        );
    }
}
