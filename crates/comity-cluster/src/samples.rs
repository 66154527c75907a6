//! Clusters that nobody here owns, as the texts that their hosts would print: written from the documented formats; not run on Apple
//! hardware.
use crate::facts::HostFacts;
use crate::graph::Cluster;
use crate::read::facts_of;
use serde_json::json;

/// A Thunderbolt port of a Mac: what is plugged in, and how fast it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Port {
    /// The domain at the other end.
    pub(crate) peer: Option<String>,
    /// Number of hubs before it.
    pub(crate) hubs: usize,
    pub(crate) speed: &'static str,
}

/// A Mac with some ports.
#[derive(Clone, Debug)]
pub(crate) struct Mac {
    pub(crate) name: String,
    pub(crate) hostname: String,
    pub(crate) ports: Vec<Port>,
    /// True if its Thunderbolt ports are members of `bridge0`.
    pub(crate) bridge: bool,
    pub(crate) sudo: bool,
    pub(crate) rdma: bool,
    /// More lines of `ifconfig` for en0.
    pub(crate) en0: &'static str,
    /// True if `networksetup` may be run.
    pub(crate) networksetup: bool,
}

pub(crate) const FIVE: &str = "Up to 80 Gb/s";
pub(crate) const FOUR: &str = "Up to 40 Gb/s";

/// The identity of a port's domain.
pub(crate) fn domain(mac: usize, port: usize) -> String {
    format!("{mac:08X}-0000-4000-8000-{port:012X}")
}

impl Mac {
    pub(crate) fn new(number: usize, ports: usize) -> Self {
        let port = Port { speed: FIVE, ..Port::default() };
        Self {
            name: format!("m{number}"),
            hostname: format!("m{number}.local"),
            ports: vec![port; ports],
            bridge: false,
            sudo: true,
            rdma: true,
            en0: "",
            networksetup: true,
        }
    }

    /// Output of the survey's script there.
    pub(crate) fn printed(&self, number: usize) -> String {
        let mut t = String::from("@@survey 1\n");
        let mut section = |name: &str, text: &str, code: i32| {
            t += &format!("\n@@ {name}\n{}\n", text.trim_end());
            if code != 0 {
                t += &format!("@@! {code}\n");
            }
        };
        section("system", "Darwin 25.2.0 arm64", 0);
        section("hostname", &self.hostname, 0);
        section("user", "501", 0);
        section("files", "unlimited", 0);
        section("memlock", "unlimited", 0);
        let refused = "sudo: a password is required";
        section("sudo", if self.sudo { "" } else { refused }, i32::from(!self.sudo));
        section("cores", "16", 0);
        section("memory", "137438953472", 0);
        section("boot", &format!("BOOT-{}", self.name), 0);
        section("chip", "Apple M4 Max", 0);
        section("thunderbolt", &self.thunderbolt(number), 0);
        let denied = "networksetup: you must run this as an administrator";
        let list = if self.networksetup { self.ports_listed() } else { denied.into() };
        section("ports", &list, if self.networksetup { 0 } else { 14 });
        section("ifconfig", &self.ifconfig(number), 0);
        section(
            "netstat",
            "Routing tables\n\nInternet:\nDestination Gateway Flags Netif\ndefault 192.168.1.1 UGScg en0\n192.168.1 link#4 UCS en0\n127 127.0.0.1 UCS lo0\n",
            0,
        );
        section("rdma_ctl", if self.rdma { "enabled" } else { "disabled" }, 0);
        // A Mac with Thunderbolt 4 lists devices, too, that never work.
        let devices: Vec<_> =
            (0..self.ports.len()).map(|p| format!("    rdma_en{}    {:016x}", p + 2, p)).collect();
        let devices = if self.rdma { devices.join("\n") } else { String::new() };
        section(
            "ibv_devices",
            &format!("    device          node GUID\n    ------          ----------------\n{devices}"),
            0,
        );
        t + "\n@@ end\n"
    }

    fn thunderbolt(&self, number: usize) -> String {
        let bus = |(p, port): (usize, &Port)| {
            let mut items =
                port.peer.iter().map(|d| json!({ "_name": "Mac", "domain_uuid_key": d })).collect::<Vec<_>>();
            for _ in 0..port.hubs {
                // A hub has no domain of its own in this list; the peer is one level deeper.
                items = vec![json!({ "_name": "Thunderbolt Hub", "_items": items })];
            }
            if items.is_empty() {
                items = vec![json!({ "_name": "Display" })];
            }
            json!({
                "_name": format!("thunderboltusb4_bus_{p}"), "device_name_key": "Mac Studio", "domain_uuid_key": domain(number, p),
                "receptacle_1_tag": { "receptacle_id_key": (p + 1).to_string(), "current_speed_key": port.speed },
                "_items": items,
            })
        };
        let all: Vec<_> = self.ports.iter().enumerate().map(bus).collect();
        json!({ "SPThunderboltDataType": all }).to_string()
    }

    fn ports_listed(&self) -> String {
        let ports = (0..self.ports.len()).map(|p| {
            format!(
                "\nHardware Port: Thunderbolt {}\nDevice: en{}\nEthernet Address: 36:00:00:00:00:0{p}\n",
                p + 1,
                p + 2
            )
        });
        let bridge =
            "\nHardware Port: Thunderbolt Bridge\nDevice: bridge0\nEthernet Address: 36:00:00:00:00:ff\n";
        format!(
            "\nHardware Port: Ethernet\nDevice: en0\nEthernet Address: 36:00:00:00:01:00\n{}{bridge}",
            ports.collect::<String>()
        )
    }

    fn ifconfig(&self, number: usize) -> String {
        let mut t = format!(
            "lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384\n\tinet 127.0.0.1 netmask 0xff000000\nen0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500\n\tether 36:00:00:00:01:00\n\tinet6 fe80::1%en0 prefixlen 64 secured scopeid 0x4\n\tinet 192.168.1.{} netmask 0xffffff00 broadcast 192.168.1.255\n{}\tstatus: active\n",
            10 + number,
            self.en0
        );
        for (p, port) in self.ports.iter().enumerate() {
            let status = if port.peer.is_some() { "active" } else { "inactive" };
            t += &format!(
                "en{}: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500\n\tether 36:00:00:00:00:0{p}\n\tstatus: {status}\n",
                p + 2
            );
        }
        if self.bridge {
            t += "bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500\n\tether 36:00:00:00:00:ff\n\tConfiguration:\n";
            (0..self.ports.len())
                .for_each(|p| t += &format!("\tmember: en{} flags=3<LEARNING,DISCOVER>\n", p + 2));
            t += "\tstatus: active\n";
        }
        t
    }
}

/// Macs with a cable for each pair; the ports are taken in their order.
pub(crate) fn macs(n: usize, pairs: &[(usize, usize)]) -> Vec<Mac> {
    let degree = |i: usize| pairs.iter().filter(|(a, b)| *a == i || *b == i).count();
    let mut all: Vec<_> = (0..n).map(|i| Mac::new(i, degree(i).max(1))).collect();
    let mut next = vec![0; n];
    for &(a, b) in pairs {
        let p = next[a];
        let q = next[b];
        all[a].ports[p].peer = Some(domain(b, q));
        all[b].ports[q].peer = Some(domain(a, p));
        next[a] += 1;
        next[b] += 1;
    }
    all
}

/// A cable between each two.
pub(crate) fn mesh(n: usize) -> Vec<(usize, usize)> {
    (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j))).collect()
}

/// A cable from each to the next.
pub(crate) fn ring(n: usize) -> Vec<(usize, usize)> {
    (0..n).map(|i| (i, (i + 1) % n)).collect()
}

/// Facts that the readers find in the output of each.
pub(crate) fn facts(macs: &[Mac]) -> Vec<HostFacts> {
    macs.iter().enumerate().map(|(i, m)| facts_of(&m.name, &m.printed(i))).collect()
}

/// The whole picture.
pub(crate) fn cluster(macs: &[Mac]) -> Cluster {
    Cluster::of(facts(macs), &[])
}

/// A host with Linux, whose interfaces are a name, an address or none, and a speed in Mbit/s.
pub(crate) fn linux(name: &str, nics: &[(&str, &str, u64)]) -> String {
    let nic = |(n, a, _): &(&str, &str, u64)| {
        let (ip, prefix) = a.split_once('/').unwrap_or(("", "0"));
        let addresses = if ip.is_empty() {
            json!([])
        } else {
            json!([{ "local": ip, "prefixlen": prefix.parse::<u8>().unwrap() }])
        };
        json!({ "ifname": n, "flags": ["UP", "LOWER_UP"], "mtu": 1500, "link_type": "ether", "address": "aa", "addr_info": addresses })
    };
    let addr: Vec<_> = nics.iter().map(nic).collect();
    let speeds: Vec<_> = nics.iter().map(|(n, _, s)| format!("{n} {s}")).collect();
    format!(
        "@@survey 1\n\n@@ system\nLinux 6.1.0 x86_64\n\n@@ hostname\n{name}\n\n@@ user\n0\n\n@@ files\n1048576\n\n@@ memlock\n8192\n\n@@ cores\n8\n\n@@ memory\nMemTotal:       32768000 kB\n\n@@ boot\n{name}\n\n@@ space\nnet:[1]\n\n@@ addr\n{}\n\n@@ route\n[{{\"dst\":\"default\"}},{{\"dst\":\"172.17.0.0/16\"}}]\n\n@@ speed\n{}\n\n@@ infiniband\n\n@@ shm\nFilesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 65536 0 65536 0% /dev/shm\n\n@@ yama\n\n@@ end\n",
        json!(addr),
        speeds.join("\n")
    )
}
