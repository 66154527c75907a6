//! Readers for the output of programs of macOS. Written from the documented formats; not run on Apple hardware.
use super::Sections;
use crate::addresses::Subnet;
use crate::facts::{HostFacts, Nic, Problem, RdmaDevice, THUNDERBOLT_4, ThunderboltPort};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

pub(super) fn read(sections: &Sections, facts: &mut HostFacts) {
    facts.identity = sections.line("boot").unwrap_or_default().into();
    facts.memory = sections.number("memory");
    facts.gpus = sections.line("chip").map(|c| format!("GPU of {c}")).into_iter().collect();
    if let Some(text) = sections.need("ifconfig", "ifconfig", "let this user run it", &mut facts.problems) {
        facts.nics = nics(text);
    }
    let mend = "let this user run it (System Settings, Users), or set the addresses by hand";
    let ports = sections.need("ports", "networksetup", mend, &mut facts.problems).map(ports);
    let mend = "is this a login that may run it? Without it no Thunderbolt cable is found";
    if let Some(text) = sections.need("thunderbolt", "system_profiler", mend, &mut facts.problems) {
        facts.thunderbolt = thunderbolt(text, ports.as_ref(), &mut facts.problems);
    }
    for port in &facts.thunderbolt {
        if let Some(nic) = facts.nics.iter_mut().find(|n| n.name == port.nic) {
            nic.speed = port.speed;
        }
    }
    facts.in_use = routes(sections.ok("netstat").unwrap_or_default());
    rdma(sections, facts);
}

fn rdma(sections: &Sections, facts: &mut HostFacts) {
    let words = sections.ok("ibv_devices").unwrap_or_default().split_whitespace();
    let names = words.filter_map(|w| Some((w, w.strip_prefix("rdma_")?)));
    let device =
        |(name, nic): (&str, &str)| RdmaDevice { name: name.into(), nic: Some(nic.into()), state: None };
    facts.rdma.devices = names.map(device).collect();
    facts.rdma.enabled = sections.ok("rdma_ctl").map(|t| t.contains("enabled"));
    let five = facts.thunderbolt.iter().any(|p| p.speed.is_some_and(|s| s > THUNDERBOLT_4));
    if !five {
        return;
    }
    let (why, mend) = match (facts.rdma.enabled, facts.rdma.devices.is_empty()) {
        (Some(false), _) => (
            "RDMA is turned off",
            "start the Mac in recovery (hold the power button), open Terminal there, and run `rdma_ctl enable`",
        ),
        (None, true) => ("it has Thunderbolt 5, but no RDMA", "update it to macOS 26.2 or later"),
        (Some(true), true) => {
            ("RDMA is turned on, but has no device", "start it anew; is a Thunderbolt 5 cable plugged in?")
        }
        _ => return,
    };
    facts.problems.push(Problem { about: "rdma".into(), why: why.into(), mend: mend.into() });
}

/// `Hardware Port: Thunderbolt 1` and `Device: en2` of `networksetup -listallhardwareports`.
fn ports(text: &str) -> BTreeMap<String, String> {
    let mut port = None;
    let mut all = BTreeMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("Hardware Port: ") {
            port = Some(name.trim().to_owned());
        } else if let (Some(device), Some(name)) = (line.strip_prefix("Device: "), port.take()) {
            all.insert(name, device.trim().to_owned());
        }
    }
    all
}

fn thunderbolt(
    json: &str,
    ports: Option<&BTreeMap<String, String>>,
    problems: &mut Vec<Problem>,
) -> Vec<ThunderboltPort> {
    let all: Value = serde_json::from_str(json).unwrap_or_default();
    let Some(buses) = all["SPThunderboltDataType"].as_array() else {
        problems.push(Problem {
            about: "system_profiler".into(),
            why: "its answer is not what is documented: no list SPThunderboltDataType".into(),
            mend: "run `system_profiler SPThunderboltDataType -json` there and report what it prints".into(),
        });
        return Vec::new();
    };
    // Which interface a port is, nobody says: that has been told.
    let Some(ports) = ports else { return Vec::new() };
    let mut found = Vec::new();
    for bus in buses {
        let Some(domain) = bus["domain_uuid_key"].as_str() else { continue };
        let tag = &bus["receptacle_1_tag"];
        let number = tag["receptacle_id_key"].as_str().map(str::to_owned);
        let number = number.or_else(|| tag["receptacle_id_key"].as_u64().map(|n| n.to_string()));
        let Some(receptacle) = number else { continue };
        let Some(nic) = ports.get(&format!("Thunderbolt {receptacle}")) else {
            problems.push(Problem {
                about: "thunderbolt".into(),
                why: format!("its Thunderbolt port {receptacle} has no network interface"),
                mend: format!(
                    "add a service for it: System Settings, Network, Add Service, Thunderbolt {receptacle}"
                ),
            });
            continue;
        };
        let mut peers = Vec::new();
        behind(&bus["_items"], &mut peers, 0);
        let speed = tag["current_speed_key"].as_str().and_then(speed);
        found.push(ThunderboltPort { nic: nic.clone(), receptacle, domain: domain.into(), peers, speed });
    }
    found.sort_by(|a, b| a.nic.cmp(&b.nic));
    found
}

/// The domains of what is attached, also behind hubs and docks: depth first.
fn behind(items: &Value, found: &mut Vec<String>, depth: usize) {
    if depth > 16 {
        return;
    }
    for item in items.as_array().into_iter().flatten() {
        if let Some(domain) = item["domain_uuid_key"].as_str() {
            found.push(domain.into());
        }
        behind(&item["_items"], found, depth + 1);
    }
}

/// "Up to 40 Gb/s", "80 Gb/s".
fn speed(words: &str) -> Option<u64> {
    let mut before = None;
    for word in words.split_whitespace() {
        let unit = match word {
            "Gb/s" => 1e9,
            "Mb/s" => 1e6,
            _ => {
                before = word.parse::<f64>().ok();
                continue;
            }
        };
        return before.filter(|n| *n > 0.0 && *n < 1e6).map(|n| (n * unit) as u64);
    }
    None
}

/// Blocks of `ifconfig -a`.
fn nics(text: &str) -> Vec<Nic> {
    let mut all: Vec<Nic> = Vec::new();
    let mut members = Vec::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let after = |key: &str| words.iter().position(|w| *w == key).and_then(|i| words.get(i + 1)).copied();
        if !line.starts_with([' ', '\t'])
            && let Some((name, rest)) = line.split_once(": ")
        {
            let inner = ["bridge", "utun", "awdl", "llw", "anpi", "ap", "gif", "stf", "vmenet"];
            all.push(Nic {
                name: name.into(),
                is_inner: inner.iter().any(|p| name.starts_with(p)),
                is_up: rest.contains("UP,") || rest.contains("UP>"),
                mtu: after("mtu").and_then(|m| m.parse().ok()).unwrap_or_default(),
                ..Nic::default()
            });
            continue;
        }
        let Some(nic) = all.last_mut() else { continue };
        match words.first() {
            Some(&"ether") => nic.mac = words.get(1).copied().unwrap_or_default().into(),
            Some(&"status:") => nic.is_up &= words.get(1) == Some(&"active"),
            Some(&"inet") => nic.addresses.extend(inet(&words)),
            Some(&"inet6") => nic.addresses.extend(inet6(&words)),
            Some(&"member:") => {
                members.push((words.get(1).copied().unwrap_or_default().to_owned(), nic.name.clone()));
            }
            _ => {}
        }
    }
    for (member, bridge) in members {
        if let Some(nic) = all.iter_mut().find(|n| n.name == member) {
            nic.bridge = Some(bridge);
        }
    }
    all.retain(|n| !n.name.starts_with("lo"));
    all
}

/// `inet 10.0.0.2 netmask 0xffffff00 broadcast 10.0.0.255`
fn inet(words: &[&str]) -> Option<Subnet> {
    let ip: Ipv4Addr = words.get(1)?.parse().ok()?;
    let at = words.iter().position(|w| *w == "netmask")?;
    let mask = u32::from_str_radix(words.get(at + 1)?.strip_prefix("0x")?, 16).ok()?;
    Some(Subnet::new(IpAddr::V4(ip), mask.count_ones() as u8))
}

/// `inet6 fe80::1%en0 prefixlen 64 secured scopeid 0x4`
fn inet6(words: &[&str]) -> Option<Subnet> {
    let ip = words.get(1)?.split('%').next()?.parse().ok()?;
    let at = words.iter().position(|w| *w == "prefixlen")?;
    Some(Subnet::new(ip, words.get(at + 1)?.parse().ok()?))
}

/// Destinations of `netstat -rn`: `192.168.1`, `10.0.0/30`, `172.16/12`, whole addresses.
fn routes(text: &str) -> Vec<Subnet> {
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    text.lines().filter_map(first).filter_map(|d| destination(&d)).filter(|s| !s.is_everything()).collect()
}

fn destination(text: &str) -> Option<Subnet> {
    if text.contains(':') {
        return Subnet::parse(text.split('%').next()?).map(|s| s.network());
    }
    let (numbers, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
    let parts: Option<Vec<u8>> = numbers.split('.').map(|n| n.parse().ok()).collect();
    let mut parts = parts.filter(|p| (1..=4).contains(&p.len()))?;
    // What is left out is of hosts.
    let prefix = prefix.map_or(Some(8 * parts.len() as u8), |p| p.parse().ok()).filter(|p| *p <= 32)?;
    parts.resize(4, 0);
    let ip = Ipv4Addr::new(parts[0], parts[1], parts[2], parts[3]);
    let net = Subnet::new(ip.into(), prefix).network();
    (!ip.is_loopback() && !ip.is_multicast() && ip != Ipv4Addr::BROADCAST).then_some(net)
}
