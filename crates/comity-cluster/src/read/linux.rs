//! Readers for the output of programs and files of Linux.
use super::Sections;
use crate::addresses::Subnet;
use crate::facts::{HostFacts, Multipath, Nic, RdmaDevice};
use serde_json::Value;

const IPROUTE: &str = "install the package iproute2 on it, or let this user run `ip`";

pub(super) fn read(sections: &Sections, facts: &mut HostFacts) {
    let boot = sections.line("boot").unwrap_or_default();
    facts.identity = format!("{boot} {}", sections.line("space").unwrap_or_default());
    facts.memory = sections.ok("memory").and_then(memory);
    facts.limits.shm = sections.ok("shm").and_then(shm);
    facts.limits.yama = sections.number("yama");
    facts.multipath = sections.ok("mptcp").and_then(multipath);
    facts.gpus = sections.ok("gpu").unwrap_or_default().lines().filter_map(gpu).collect();
    if let Some(text) = sections.need("addr", "ip -json addr", IPROUTE, &mut facts.problems) {
        facts.nics = nics(text);
    }
    for line in sections.ok("speed").unwrap_or_default().lines() {
        let Some((name, speed)) = line.split_once(' ') else { continue };
        let speed = speed.trim().parse::<u64>().ok().filter(|s| *s > 0 && *s < 10_000_000);
        if let Some(nic) = facts.nics.iter_mut().find(|n| n.name == name) {
            nic.speed = speed.map(|s| s * 1_000_000);
        }
    }
    facts.in_use = ["route", "route6"].map(|family| routes(sections.ok(family).unwrap_or_default())).concat();
    facts.rdma.devices = sections.ok("infiniband").unwrap_or_default().lines().filter_map(device).collect();
}

/// The list of `ip -details -json addr`, without the loopback.
fn nics(json: &str) -> Vec<Nic> {
    let Ok(Value::Array(list)) = serde_json::from_str(json) else { return Vec::new() };
    let text = |v: &Value, key: &str| v[key].as_str().unwrap_or_default().to_owned();
    let all = list.iter().filter(|v| v["link_type"] != "loopback" && v["ifname"].is_string());
    all.map(|v| {
        let kind = v["linkinfo"]["info_kind"].as_str().unwrap_or_default();
        let flags = v["flags"].as_array().cloned().unwrap_or_default();
        let addresses = v["addr_info"].as_array().into_iter().flatten().filter_map(|a| {
            let prefix = u8::try_from(a["prefixlen"].as_u64()?).ok()?;
            Some(Subnet::new(a["local"].as_str()?.parse().ok()?, prefix))
        });
        let name = text(v, "ifname");
        let inner_name = ["docker", "virbr", "br-", "cni", "flannel", "cali", "tailscale", "wg"];
        let is_inner = ["bridge", "tun", "wireguard", "dummy", "ipip", "sit", "gre", "vxlan", "ip6tnl"].contains(&kind)
            || inner_name.iter().any(|p| name.starts_with(p))
            // The end of a container's cable: its other end is in another namespace of this host, under a bridge.
            || kind == "veth" && name.starts_with("veth");
        Nic {
            mac: text(v, "address"),
            is_inner,
            is_up: flags.iter().any(|f| f == "LOWER_UP"),
            mtu: v["mtu"].as_u64().unwrap_or_default(),
            speed: None,
            addresses: addresses.collect(),
            bridge: v["master"].as_str().map(Into::into),
            name,
        }
    })
    .collect()
}

/// The destinations of `ip -json route`, but the default one.
fn routes(json: &str) -> Vec<Subnet> {
    let Ok(Value::Array(list)) = serde_json::from_str(json) else { return Vec::new() };
    let local = |v: &&Value| v["table"] != "local" && v["type"] != "multicast";
    let all = list.iter().filter(local).filter_map(|v| Subnet::parse(v["dst"].as_str()?));
    all.filter(|s| !s.is_everything()).map(|s| s.network()).collect()
}

/// `mlx5_0 eth2 ; 4: ACTIVE`
fn device(line: &str) -> Option<RdmaDevice> {
    let (names, state) = line.split_once(" ; ")?;
    let mut names = names.split_whitespace();
    let name = names.next()?.into();
    let state = state.rsplit(": ").next().map(|s| s.trim().to_owned());
    Some(RdmaDevice { name, nic: names.next().map(Into::into), state })
}

fn memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The last line of `df -kP`: size and what is free, in KiB.
fn shm(df: &str) -> Option<(u64, u64)> {
    let words: Vec<_> = df.lines().last()?.split_whitespace().collect();
    let at = |i: usize| words.get(i)?.parse::<u64>().ok()?.checked_mul(1024);
    Some((at(1)?, at(3)?))
}

/// A line `1` or `0`, then `add_addr_accepted 0 subflows 2`, then a line for each endpoint: `10.93.0.1 id 1 signal dev eth1`.
fn multipath(said: &str) -> Option<Multipath> {
    let mut lines = said.lines();
    let mut found = Multipath { is_enabled: lines.next()?.trim() == "1", ..Multipath::default() };
    for line in lines {
        let words: Vec<_> = line.split_whitespace().collect();
        let after = |name| words.iter().skip_while(|w| **w != name).nth(1)?.parse::<u64>().ok();
        if let Some(subflows) = after("subflows") {
            found.subflows = subflows;
            found.accepted = after("add_addr_accepted").unwrap_or_default();
        } else if let (Some(ip), Some(id)) = (words.first().and_then(|w| w.parse().ok()), after("id")) {
            found.endpoints.push((id, ip));
        }
    }
    Some(found)
}

/// `GPU 0: NVIDIA H100 (UUID: ...)`
fn gpu(line: &str) -> Option<String> {
    let (_, rest) = line.strip_prefix("GPU ")?.split_once(": ")?;
    Some(rest.split(" (UUID").next()?.to_owned())
}
