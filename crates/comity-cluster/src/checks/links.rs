//! Checks between two hosts: cables, ways, ports, sizes of packets, speed.
use super::{Check, CheckVerdict};
use crate::addresses::Subnet;
use crate::facts::{HostFacts, HostSystem, Nic, bits_in_words};
use crate::graph::{Cable, Cluster, Plug};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Least part of its speed that a cable carries over TCP.
const LEAST_PART: f64 = 0.1;
/// And of what the median of cables of its speed carries.
const LEAST_OF_MEDIAN: f64 = 0.1;
/// A message there and back within a network takes less.
const SLOW_ROUND_US: f64 = 20_000.0;

/// Result of connecting from one address to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DialResult {
    /// Reason for which there is no connection: refused, timeout, no route, or the system's words.
    pub failed: Option<String>,
    /// Microseconds there and back, the shortest of some.
    pub round_us: Option<f64>,
    /// Bits a second that came from there.
    pub bits: Option<f64>,
    /// Sizes of the datagrams that were answered.
    pub echoed: Vec<usize>,
    /// Reason for which datagrams could not be sent.
    pub datagrams: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub end: Plug,
    /// The address, with its network.
    pub address: Subnet,
}

/// Measurements from one address to another.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkMeasure {
    pub from: Place,
    pub to: Place,
    pub port: u16,
    /// The sizes of datagrams that were sent, smallest first.
    pub sizes: Vec<usize>,
    pub arrived: Vec<usize>,
    pub result: DialResult,
}

impl LinkMeasure {
    fn shares_network(&self) -> bool {
        let from = self.from.address;
        let to = self.to.address;
        from.network() == to.network() && from.ip != to.ip
    }

    /// Returns whether its speed is so far from the expected one that it is worth measuring again.
    pub fn is_doubtful(&self, cluster: &Cluster, all: &[Self]) -> bool {
        let Some(way) = Way::of(cluster, self) else { return false };
        self.result.bits.is_some()
            && way.speed(median(cluster, all, way.nominal())).verdict == CheckVerdict::Failed
    }
}

/// A measure with its ends' names.
struct Way<'a> {
    m: &'a LinkMeasure,
    from: &'a HostFacts,
    to: &'a HostFacts,
    from_nic: &'a str,
    to_nic: &'a str,
    at: String,
}

impl<'a> Way<'a> {
    fn of(cluster: &'a Cluster, m: &'a LinkMeasure) -> Option<Self> {
        let f = &m.from.end;
        let t = &m.to.end;
        let from = cluster.hosts.get(f.host)?;
        let to = cluster.hosts.get(t.host)?;
        let at = format!("{} {} -> {} {}", from.ssh, f.nic, to.ssh, t.nic);
        Some(Self { m, from, to, from_nic: &f.nic, to_nic: &t.nic, at })
    }

    fn ips(&self) -> (IpAddr, IpAddr) {
        (self.m.from.address.ip, self.m.to.address.ip)
    }

    fn echoed_small(&self) -> bool {
        self.m.sizes.first().is_some_and(|s| self.m.result.echoed.contains(s))
    }

    /// Bits a second of the slower end.
    fn nominal(&self) -> Option<u64> {
        let speed = |h: &HostFacts, nic: &str| h.nic(nic).and_then(|n| n.speed);
        [speed(self.from, self.from_nic), speed(self.to, self.to_nic)].into_iter().flatten().min()
    }

    fn route(&self) -> Check {
        let (own, far) = self.ips();
        let to = &self.to.ssh;
        let has_no_route = [&self.m.result.failed, &self.m.result.datagrams]
            .map(Option::as_deref)
            .contains(&Some("no route"));
        let has_arrived = self.m.sizes.first().is_some_and(|s| self.m.arrived.contains(s));
        let problem = if has_no_route {
            Some(format!(
                "{} has no way to {far} from {own}: look at `ip route get {far}` there; remove a route that says unreachable, or give it one (sudo ip route add {far} dev {})",
                self.from.ssh, self.from_nic
            ))
        } else if has_arrived && !self.echoed_small() {
            Some(format!(
                "one way only: packets from {own} arrive at {to}, its answers do not come back: look at `ip route get {own}` on {to}"
            ))
        } else if self.echoed_small() || self.m.result.failed.is_none() {
            None
        } else {
            Some(format!(
                "nothing from {own} arrives at {far}: is the cable plugged in there, and does no firewall on {to} drop it?"
            ))
        };
        Check::unless("route", &self.at, problem)
    }

    fn port(&self) -> Check {
        let (own, far) = self.ips();
        let port = self.m.port;
        let to = &self.to.ssh;
        let problem = match self.m.result.failed.as_deref() {
            None => None,
            Some("timeout") if self.echoed_small() => Some(format!(
                "port {port} of {far} does not answer {own}, though the way is there: a firewall on {to} or between drops it; open the ports of the job (sudo ufw allow from {own}; docs/security.md has which)"
            )),
            Some("refused") => Some(format!(
                "port {port} of {far} refuses {own}: a firewall on {to} rejects it; open the ports of the job"
            )),
            Some("timeout" | "no route") => {
                return Check::not_tried("port", &self.at, "there is no way, see route");
            }
            Some(why) => Some(format!("connecting from {own} to {far} port {port}: {why}")),
        };
        Check::unless("port", &self.at, problem)
    }

    fn mtu(&self) -> Check {
        let mtu = |h: &HostFacts, nic: &str| h.nic(nic).map_or(0, |n| n.mtu);
        let own = mtu(self.from, self.from_nic);
        let far = mtu(self.to, self.to_nic);
        if self.m.shares_network() && own != far && own > 0 && far > 0 {
            let (small, nic) = if own < far { (self.from, self.from_nic) } else { (self.to, self.to_nic) };
            let large = own.max(far);
            let mend = match small.system {
                HostSystem::Macos => format!("sudo networksetup -setMTU {nic} {large}"),
                _ => format!("sudo ip link set dev {nic} mtu {large}"),
            };
            let said = format!(
                "packets of {own} bytes at one end, of {far} at the other: large ones are lost; on {} run: {mend}",
                small.ssh
            );
            return Check::failed("mtu", &self.at, said);
        }
        if !self.echoed_small() {
            return Check::not_tried("mtu", &self.at, "datagrams do not pass");
        }
        let lost = self.m.sizes.iter().find(|s| !self.m.result.echoed.contains(s));
        let problem = lost.map(|size| {
            format!(
                "datagrams of {size} bytes are lost, small ones pass, and both ends say MTU {own}: something between takes smaller packets only; set that switch's MTU, or both ends' (sudo ip link set dev {} mtu 1400)",
                self.from_nic
            )
        });
        Check::unless("mtu", &self.at, problem)
    }

    fn speed(&self, median: Option<f64>) -> Check {
        let (Some(bits), Some(round)) = (self.m.result.bits, self.m.result.round_us) else {
            return Check::not_tried("speed", &self.at, "there is no connection, see port");
        };
        let carried = bits_in_words(bits as u64);
        let of = self.nominal().map_or_else(|| "speed not known".into(), bits_in_words);
        let to = &self.to.ssh;
        let mend = "plug the cable in anew or replace it, and see whether something else uses it";
        let problem = if self.nominal().is_some_and(|n| bits < n as f64 * LEAST_PART) {
            let far = self.to.nic_in_words(self.to_nic);
            format!(
                "{carried} come from {to} ({far}), less than a tenth of the {of} that it negotiated: {mend}"
            )
        } else if let Some(median) = median.filter(|m| bits < m * LEAST_OF_MEDIAN) {
            format!("{carried} come from {to}, over others like it {}: {mend}", bits_in_words(median as u64))
        } else if self.m.shares_network() && round > SLOW_ROUND_US {
            let ms = round / 1e3;
            format!("a message takes {ms:.0} ms there and back: is the host busy, or the cable Wi-Fi?")
        } else {
            let said = format!("{round:.0} us there and back, {carried} back, of {of}");
            return Check::passed("speed", &self.at, said);
        };
        Check::failed("speed", &self.at, problem)
    }
}

/// The median of what cables of one speed carry, where there are three measures or more.
fn median(cluster: &Cluster, all: &[LinkMeasure], nominal: Option<u64>) -> Option<f64> {
    let same =
        |m: &&LinkMeasure| Way::of(cluster, m).is_some_and(|w| w.nominal() == nominal && m.shares_network());
    let mut bits: Vec<f64> = all.iter().filter(same).filter_map(|m| m.result.bits).collect();
    bits.sort_by(f64::total_cmp);
    (bits.len() >= 3).then(|| bits[bits.len() / 2])
}

/// The rows for every measure.
pub fn links(cluster: &Cluster, all: &[LinkMeasure]) -> Vec<Check> {
    let mut rows = Vec::new();
    for way in all.iter().filter_map(|m| Way::of(cluster, m)) {
        if !way.m.shares_network() && way.m.result.failed.is_some() && has_between(all, way.m) {
            let said = "they share no network; ranks between them pass on what they say; if a cable is to join them, it is out";
            rows.push(Check::not_tried("route", &way.at, said));
            continue;
        }
        if let Some(cable) = elsewhere(cluster, way.m) {
            let said = format!("no cable joins these two: a cable is {cable}, see cable");
            rows.push(Check::not_tried("route", &way.at, said));
            continue;
        }
        let median = median(cluster, all, way.nominal()).filter(|_| way.m.shares_network());
        rows.extend([way.route(), way.port(), way.mtu(), way.speed(median)]);
    }
    rows
}

/// Cable of an end, in words, if it does not lead to the other end.
fn elsewhere(cluster: &Cluster, m: &LinkMeasure) -> Option<String> {
    let has = |c: &&Cable, e: &Plug| c.a == *e || c.b == *e;
    let of = |own: &Plug, far: &Plug| cluster.cables.iter().find(|c| has(c, own)).filter(|c| !has(c, far));
    let cable = of(&m.from.end, &m.to.end).or_else(|| of(&m.to.end, &m.from.end))?;
    Some(cluster.cable_in_words(cable))
}

/// Returns whether some third host reaches both.
fn has_between(all: &[LinkMeasure], m: &LinkMeasure) -> bool {
    let reaches = |host: usize, far: usize| {
        let made = |o: &LinkMeasure| o.result.failed.is_none() && o.shares_network();
        all.iter().any(|o| o.from.end.host == host && o.to.end.host == far && made(o))
    };
    let thirds = all.iter().map(|o| o.to.end.host);
    { thirds }.any(|third| reaches(m.from.end.host, third) && reaches(m.to.end.host, third))
}

/// Checks that each cable joins the two ends whose addresses belong together.
pub fn cables(cluster: &Cluster) -> Vec<Check> {
    let of = |end: &Plug| cluster.nic(end).into_iter().flat_map(Nic::outer).copied().collect::<Vec<_>>();
    let mut rows = Vec::new();
    for cable in &cluster.cables {
        let a = of(&cable.a);
        let b = of(&cable.b);
        let at = cluster.cable_in_words(cable);
        if a.is_empty() || b.is_empty() {
            let bare = if a.is_empty() { &cable.a } else { &cable.b };
            let host = cluster.name(bare.host);
            let said =
                format!("{host} {} has no address: give it one with `comity cluster config`", bare.nic);
            rows.push(Check::not_tried("cable", at, said));
            continue;
        }
        let fits = a.iter().any(|x| b.iter().any(|y| x.network() == y.network()));
        let problem = (!fits).then(|| crossed(cluster, &cable.a, &cable.b, &a[0], &b[0]));
        rows.push(Check::unless("cable", at, problem));
    }
    rows.extend(cluster.slow().into_iter().map(|n| Check::failed("cable", "negotiated speed", n)));
    rows
}

fn crossed(cluster: &Cluster, a: &Plug, b: &Plug, own: &Subnet, far: &Subnet) -> String {
    let mut nics = cluster.hosts.iter().flat_map(|host| host.nics.iter().map(move |nic| (host, nic)));
    let partner = nics.find_map(|(host, nic)| {
        let at = nic.addresses.iter().find(|x| x.network() == own.network() && x.ip != own.ip)?;
        Some(format!("{at} is {} {}", host.ssh, nic.name))
    });
    let partner = partner.unwrap_or_else(|| format!("nothing else is in {}", own.network()));
    format!(
        "the cable of {} {} ({own}) ends in {} {} ({far}), but {partner}: the cables are crossed; plug them as the addresses say, or run `comity cluster config` again",
        cluster.name(a.host),
        a.nic,
        cluster.name(b.host),
        b.nic
    )
}

/// A row for each Linux host with several cables to one other host: whether connections go on when one of them is cut (MPTCP).
pub fn paths(cluster: &Cluster) -> Vec<Check> {
    let all = (0..cluster.hosts.len()).filter(|host| !cluster.doubled(*host).is_empty());
    all.filter_map(|host| {
        let now = cluster.hosts[host].multipath.as_ref()?;
        let name = cluster.name(host);
        let nics = cluster.doubled(host);
        let is_offered = |nic: &&str| {
            let at = cluster.hosts[host].nic(nic).into_iter().flat_map(|n| &n.addresses);
            { at }.any(|a| now.endpoints.iter().any(|(_, ip)| *ip == a.ip))
        };
        let lacking: Vec<_> = nics.iter().filter(|nic| !is_offered(nic)).copied().collect();
        Some(if !now.is_enabled {
            Check::not_tried("paths", name, "its kernel's MPTCP is off, so a cable that is cut ends the job: `sudo sysctl net.mptcp.enabled=1`")
        } else if !lacking.is_empty() || now.subflows == 0 || now.accepted == 0 {
            let why = "MPTCP is not set up for all cables, so one that is cut ends the job: `comity cluster config --auto-setup` does it, and COMITY_MPTCP=1 uses it";
            Check::not_tried("paths", name, why)
        } else {
            Check::passed("paths", name, format!("goes on over {} when one is cut, with COMITY_MPTCP=1", nics.join(" or ")))
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::CheckVerdict;
    use crate::facts::{HostFacts, Multipath};
    use crate::graph::{Cable, CableKind, Plug};

    #[test]
    fn a_second_cable_without_mptcp_is_told() {
        let plug = |host, nic: &str| Plug { host, nic: nic.into() };
        let cable = |nic: &str| Cable {
            a: plug(0, nic),
            b: plug(1, nic),
            kind: CableKind::Ethernet,
            speed: None,
            rdma: false,
        };
        let nic = |name: &str, at: &str| Nic {
            name: name.into(),
            addresses: Subnet::parse(at).into_iter().collect(),
            ..Default::default()
        };
        let set_up = Multipath {
            is_enabled: true,
            subflows: 2,
            accepted: 2,
            endpoints: vec![(1, "10.93.0.1".parse().unwrap()), (2, "10.93.0.5".parse().unwrap())],
        };
        let host = |multipath| HostFacts {
            nics: vec![nic("ab", "10.93.0.1/30"), nic("cd", "10.93.0.5/30")],
            multipath,
            ..HostFacts::default()
        };
        let verdicts = |multipath: Option<Multipath>, cables: &[&str]| {
            let hosts = vec![host(multipath.clone()), host(multipath)];
            let cluster =
                Cluster { hosts, cables: cables.iter().map(|c| cable(c)).collect(), ..Cluster::default() };
            paths(&cluster).into_iter().map(|c| c.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(Some(set_up.clone()), &["ab", "cd"]), [CheckVerdict::Passed; 2]);
        assert_eq!(verdicts(Some(set_up.clone()), &["ab"]), []);
        assert_eq!(verdicts(None, &["ab", "cd"]), []);
        for lacking in [
            Multipath { is_enabled: false, ..set_up.clone() },
            Multipath { subflows: 0, ..set_up.clone() },
            Multipath { endpoints: vec![set_up.endpoints[0]], ..set_up },
        ] {
            assert_eq!(verdicts(Some(lacking), &["ab", "cd"]), [CheckVerdict::NotTried; 2]);
        }
    }
}
