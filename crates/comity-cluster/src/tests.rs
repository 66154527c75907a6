//! Whole clusters, from what their hosts print to the hostfile. Those of Macs are written from the documented formats; not run on
//! Apple hardware.
use crate::addresses::AddressPlan;
use crate::addresses::Subnet;
use crate::commands::UndoFile;
use crate::commands::{in_words, setup};
use crate::graph::{Cluster, HeardBeacon, Plug};
use crate::graph::{LayoutKind, layout};
use crate::hostfile::{ClusterFile, Over};
use crate::read::facts_of;
use crate::samples::{FOUR, cluster, domain, facts, linux, macs, mesh, ring};
use std::collections::BTreeSet;

mod idle;

fn hostfile(cluster: &Cluster, over: Over) -> Result<ClusterFile, String> {
    let layout = layout(cluster, over == Over::Ethernet)?;
    ClusterFile::of(cluster, &AddressPlan::of(cluster).unwrap(), &layout, over)
}

#[test]
fn meshes_of_two_three_four_and_eight_macs() {
    for n in [2, 3, 4, 8] {
        let cluster = cluster(&macs(n, &mesh(n)));
        assert_eq!(cluster.cables.len(), n * (n - 1) / 2, "{n}");
        assert!(cluster.cables.iter().all(|c| c.rdma) && cluster.notes.is_empty(), "{:?}", cluster.notes);
        let found = layout(&cluster, false).unwrap();
        assert_eq!((found.kind, found.lanes, found.order.len()), (LayoutKind::Mesh, 1, n));
        let file = hostfile(&cluster, Over::Rdma).unwrap();
        assert_eq!(file.backend, "jaccl");
        let hosts = file.json["hosts"].as_array().unwrap();
        for (i, host) in hosts.iter().enumerate() {
            let row = host["rdma"].as_array().unwrap();
            assert!(row[i].is_null() && row.iter().filter(|c| c.is_string()).count() == n - 1, "{host}");
            assert!(host["ips"][0].as_str().unwrap().starts_with("192.168.1."), "{host}");
        }
    }
}

#[test]
fn rings_of_macs_name_the_cables_to_the_host_before() {
    for n in [3, 4, 8] {
        // The hosts are named in another order than they are cabled.
        let step = if n == 8 { 3 } else { n - 1 };
        let order: Vec<usize> = (0..n).map(|i| i * step % n).collect();
        let pairs: Vec<_> = ring(n).iter().map(|(a, b)| (order[*a], order[*b])).collect();
        let cluster = cluster(&macs(n, &pairs));
        let kind = if n == 3 { LayoutKind::Mesh } else { LayoutKind::Ring };
        assert_eq!(layout(&cluster, false).unwrap().kind, kind);
        let plan = AddressPlan::of(&cluster).unwrap();
        let file = hostfile(&cluster, Over::Thunderbolt).unwrap();
        assert_eq!(file.backend, "ring");
        let hosts = file.json["hosts"].as_array().unwrap();
        for i in 0..n {
            let before = hosts[(i + n - 1) % n]["ssh"].as_str().unwrap();
            let own: std::net::IpAddr = hosts[i]["ips"][0].as_str().unwrap().parse().unwrap();
            let at = plan.cables.iter().position(|c| c.a.ip == own || c.b.ip == own).unwrap();
            let cable = &cluster.cables[at];
            assert!([cable.a.host, cable.b.host].iter().any(|h| cluster.name(*h) == before), "{i} of {n}");
        }
    }
}

#[test]
fn two_cables_between_two_macs_are_two_lanes() {
    let cluster = cluster(&macs(2, &[(0, 1), (0, 1)]));
    let found = layout(&cluster, false).unwrap();
    assert_eq!((found.kind, found.lanes), (LayoutKind::Mesh, 2));
    let file = hostfile(&cluster, Over::Rdma).unwrap();
    assert_eq!(file.json["hosts"][0]["rdma"].to_string(), r#"[null,["rdma_en2","rdma_en3"]]"#);
    assert_eq!(
        hostfile(&cluster, Over::Thunderbolt).unwrap().json["hosts"][0]["ips"].as_array().unwrap().len(),
        2
    );
}

#[test]
fn a_broken_mesh_is_a_ring_and_a_broken_ring_is_sparse() {
    let mut pairs = mesh(4);
    pairs.retain(|p| *p != (0, 2));
    let whole = cluster(&macs(4, &pairs));
    let found = layout(&whole, false).unwrap();
    assert_eq!((found.kind, found.missing.as_slice()), (LayoutKind::Ring, [(0, 2)].as_slice()));
    assert_eq!(hostfile(&whole, Over::Rdma).unwrap().backend, "jaccl-ring");
    let chain = cluster(&macs(4, &[(0, 1), (1, 2), (2, 3)]));
    assert_eq!(layout(&chain, false).unwrap().kind, LayoutKind::Sparse);
    assert!(hostfile(&chain, Over::Thunderbolt).is_ok());
    let why = hostfile(&chain, Over::Rdma).unwrap_err();
    assert!(why.contains("there is none between m0 and m2") && why.contains("--over thunderbolt"), "{why}");
    let apart = cluster(&macs(4, &[(0, 1), (2, 3)]));
    assert_eq!(
        layout(&apart, false).unwrap_err(),
        "no cable joins m2, m3 to m0, m1: plug one in, or leave hosts out of --hosts"
    );
}

#[test]
fn hubs_are_seen_through() {
    let mut all = macs(3, &mesh(3));
    all.iter_mut().flat_map(|m| &mut m.ports).for_each(|p| p.hubs = 1);
    assert_eq!(cluster(&all).cables.len(), 3);
}

#[test]
fn thunderbolt_4_among_5_carries_tcp_and_never_rdma() {
    let mut all = macs(3, &mesh(3));
    // The cable between 0 and 1.
    (all[0].ports[0].speed, all[1].ports[0].speed) = (FOUR, FOUR);
    let cluster = cluster(&all);
    assert_eq!(cluster.cables.iter().filter(|c| c.rdma).count(), 2);
    assert!(
        cluster.notes.iter().any(|n| n.contains("m0 en2 - m1 en2") && n.contains("RDMA never")),
        "{:?}",
        cluster.notes
    );
    let why = hostfile(&cluster, Over::Rdma).unwrap_err();
    assert!(why.contains("RDMA cannot go from m0 to m1"), "{why}");
    assert_eq!(hostfile(&cluster, Over::Thunderbolt).unwrap().backend, "ring");
}

#[test]
fn a_cable_at_a_tenth_of_its_speed_stands_out() {
    let mut all = macs(3, &mesh(3));
    (all[0].ports[0].speed, all[1].ports[0].speed) = ("8 Gb/s", "8 Gb/s");
    let cluster = cluster(&all);
    let note = cluster.notes.iter().find(|n| n.contains("negotiated")).unwrap();
    assert!(note.contains("m0 en2 - m1 en2 negotiated 8 Gb/s, others 80 Gb/s: plug it in anew"), "{note}");
    assert!(crate::checks::cables(&cluster).iter().any(|c| c.verdict == crate::checks::CheckVerdict::Failed));
}

#[test]
fn a_bridge_over_thunderbolt_gives_up_its_members_and_gets_them_back() {
    let mut all = macs(2, &[(0, 1)]);
    all[0].bridge = true;
    let cluster = cluster(&all);
    let steps = setup(&cluster, &AddressPlan::of(&cluster).unwrap());
    let text = in_words(&steps);
    assert_eq!(
        text,
        "m0:\n  sudo ifconfig bridge0 deletem en2\n  sudo ifconfig en2 inet 10.93.0.1 netmask 255.255.255.252 alias\n  sudo route -n add -host 10.93.0.2 -interface en2\nm1:\n  sudo ifconfig en2 inet 10.93.0.2 netmask 255.255.255.252 alias\n  sudo route -n add -host 10.93.0.1 -interface en2\n"
    );
    assert_eq!(steps[0].steps[0].undo, ["ifconfig", "bridge0", "addm", "en2"]);
}

#[test]
fn two_hosts_with_one_name_and_one_host_with_two() {
    let mut all = macs(2, &[(0, 1)]);
    all[1].hostname = all[0].hostname.clone();
    let notes = cluster(&all).notes;
    assert!(
        notes[0].contains("m0 and m1 both call themselves \"m0.local\"") && notes[0].contains("scutil"),
        "{notes:?}"
    );
    let one = linux("a", &[("eth0", "10.0.0.2/24", 1000)]);
    let cluster = Cluster::of(vec![facts_of("a", &one), facts_of("b", &one)], &[]);
    assert!(cluster.notes.iter().any(|n| n == "a and b are one host: name it once"), "{:?}", cluster.notes);
}

#[test]
fn addresses_avoid_every_network_in_use() {
    let mut all = macs(3, &mesh(3));
    // The first free networks are in use by one of the hosts, also behind a wide route.
    all[1].en0 = "\tinet 10.93.0.9 netmask 0xfffffff0\n";
    let whole = cluster(&all);
    let plan = AddressPlan::of(&whole).unwrap();
    let used: Vec<_> = whole.hosts.iter().flat_map(|h| &h.in_use).collect();
    let nets: BTreeSet<_> = plan.cables.iter().map(|c| c.a.network()).collect();
    assert_eq!(nets.len(), 3);
    assert!(plan.cables.iter().all(|c| c.a.network() == c.b.network() && c.a.ip != c.b.ip && !c.kept));
    assert!(nets.iter().all(|n| used.iter().all(|u| !u.overlaps(n))), "{nets:?}");
    assert_eq!(plan.cables[0].a.to_string(), "10.93.0.17/30");
    let mut full = whole;
    for net in ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"] {
        full.hosts[0].in_use.push(Subnet::parse(net).unwrap());
    }
    assert!(AddressPlan::of(&full).unwrap_err().contains("is in use"));
}

/// Three hosts on a switch, with a triangle of cables; who hears whom.
fn triangle(addresses: [&str; 6]) -> Cluster {
    let [ab, ba, bc, cb, ca, ac] = addresses;
    let host = |n: &str, at: &str, x: (&str, &str), y: (&str, &str)| {
        facts_of(n, &linux(n, &[("eth0", at, 1000), (x.0, x.1, 10_000), (y.0, y.1, 10_000)]))
    };
    let hosts = vec![
        host("a", "10.78.0.2/24", ("ab", ab), ("ac", ac)),
        host("b", "10.78.0.3/24", ("ba", ba), ("bc", bc)),
        host("c", "10.78.0.4/24", ("cb", cb), ("ca", ca)),
    ];
    let end = |host: usize, nic: &str| Plug { host, nic: nic.into() };
    let mut heard = Vec::new();
    let pairs = [
        (end(0, "ab"), end(1, "ba")),
        (end(1, "bc"), end(2, "cb")),
        (end(2, "ca"), end(0, "ac")),
        (end(0, "eth0"), end(1, "eth0")),
        (end(0, "eth0"), end(2, "eth0")),
    ];
    for (x, y) in pairs {
        heard.extend([HeardBeacon { at: x.clone(), from: y.clone() }, HeardBeacon { at: y, from: x }]);
    }
    Cluster::of(hosts, &heard)
}

#[test]
fn a_triangle_of_linux_hosts_beside_a_switch() {
    let cluster = triangle([""; 6]);
    assert_eq!((cluster.cables.len(), cluster.networks.len()), (3, 1));
    assert_eq!(cluster.common_network().unwrap().subnet.unwrap().to_string(), "10.78.0.0/24");
    let plan = AddressPlan::of(&cluster).unwrap();
    assert_eq!(plan.new_ones(), 3);
    let steps = setup(&cluster, &plan);
    assert!(
        in_words(&steps).starts_with("a:\n  sudo ip addr add 10.93.0.1/30 dev ab\n"),
        "{}",
        in_words(&steps)
    );
    let file = UndoFile::new(steps);
    let text = serde_json::to_string(&file).unwrap();
    assert_eq!(UndoFile::parse(&text), Ok(file));
    let kept =
        triangle(["10.1.0.1/30", "10.1.0.2/30", "10.2.0.1/30", "10.2.0.2/30", "10.3.0.1/30", "10.3.0.2/30"]);
    let plan = AddressPlan::of(&kept).unwrap();
    assert_eq!((plan.new_ones(), setup(&kept, &plan).len()), (0, 0));
    let found = layout(&kept, false).unwrap();
    let file = ClusterFile::of(&kept, &plan, &found, Over::Ethernet).unwrap();
    assert_eq!(file.json["hosts"][0]["env"]["COMITY_INTERFACES"], "=ab,ac");
    assert_eq!(layout(&kept, true).unwrap().kind, LayoutKind::Switch);
}

/// The third has no comity: nobody hears it, and it is in the subnet of the two that hear each other.
#[test]
fn a_host_that_says_nothing_is_in_the_network_of_its_subnet() {
    let host = |n: &str, at: &str| facts_of(n, &linux(n, &[("eth0", at, 1000)]));
    let hosts = |third: &str| vec![host("a", "10.0.0.1/24"), host("b", "10.0.0.2/24"), host("c", third)];
    let end = |host| Plug { host, nic: "eth0".into() };
    let hear = |x, y| [(end(x), end(y)), (end(y), end(x))].map(|(at, from)| HeardBeacon { at, from });
    let cluster = Cluster::of(hosts("10.0.0.3/24"), &hear(0, 1));
    assert_eq!((cluster.cables.len(), cluster.networks.len()), (0, 1), "{cluster:?}");
    assert_eq!(cluster.common_network().map(|n| n.ends.len()), Some(3));
    assert_eq!(layout(&cluster, true).unwrap().kind, LayoutKind::Switch);
    // In another subnet it is elsewhere, and the two have a cable.
    let cluster = Cluster::of(hosts("10.0.7.3/24"), &hear(0, 1));
    assert_eq!((cluster.cables.len(), cluster.networks.len()), (1, 0), "{cluster:?}");
    // One that could be heard, and was not by these, is at another switch.
    let mut four = hosts("10.0.0.3/24");
    four.push(host("d", "10.0.0.4/24"));
    let cluster = Cluster::of(four.clone(), &[hear(0, 1), hear(2, 3)].concat());
    assert_eq!((cluster.cables.len(), cluster.networks.len()), (2, 0), "{cluster:?}");
    // A network of three that heard each other takes in the fourth.
    let cluster = Cluster::of(four, &[hear(0, 1), hear(1, 2)].concat());
    assert_eq!(cluster.common_network().map(|n| n.ends.len()), Some(4), "{cluster:?}");
}

/// Two Linux hosts and a cable, with IPv6 alone.
#[test]
fn hosts_of_ipv6_alone_get_addresses_of_it() {
    let host = |n: &str, at: &str, on_cable: &str| {
        facts_of(n, &linux(n, &[("eth0", at, 1000), ("cable", on_cable, 10_000)]))
    };
    let pair = |a: &str, b: &str| {
        let end = |host| Plug { host, nic: "cable".into() };
        let heard = [(end(0), end(1)), (end(1), end(0))].map(|(at, from)| HeardBeacon { at, from });
        Cluster::of(vec![host("a", "2001:db8::1/64", a), host("b", "2001:db8::2/64", b)], &heard)
    };
    let mut cluster = pair("", "");
    cluster.hosts[1].in_use.push(Subnet::parse("fd5c:93a0:c1e7::/64").unwrap());
    let plan = AddressPlan::of(&cluster).unwrap();
    let steps = setup(&cluster, &plan);
    assert_eq!(
        in_words(&steps),
        "a:\n  sudo ip addr add fd5c:93a0:c1e7:1::1/64 dev cable nodad\nb:\n  sudo ip addr add fd5c:93a0:c1e7:1::2/64 dev cable nodad\n"
    );
    assert_eq!(steps[0].steps[0].undo[2], "del");
    let file = UndoFile::new(steps);
    assert_eq!(UndoFile::parse(&serde_json::to_string(&file).unwrap()), Ok(file));
    let file = hostfile(&cluster, Over::Ethernet).unwrap();
    assert_eq!(file.json["hosts"][0]["ips"][0], "2001:db8::1", "{file:?}");
    let found = layout(&cluster, false).unwrap();
    let file = ClusterFile::of(&cluster, &plan, &found, Over::Ethernet).unwrap();
    assert_eq!(file.json["hosts"][1]["ips"][0], "fd5c:93a0:c1e7:1::2", "{file:?}");
    let kept = pair("fd00:7::1/64", "fd00:7::2/64");
    let plan = AddressPlan::of(&kept).unwrap();
    assert_eq!((plan.new_ones(), plan.cables[0].b.to_string().as_str()), (0, "fd00:7::2/64"));
    // A host that has IPv4 as well gets that.
    let cluster = triangle([""; 6]);
    assert!(AddressPlan::of(&cluster).unwrap().cables.iter().all(|c| c.a.ip.is_ipv4()));
    let mac = Subnet::parse("fd5c:93a0:c1e7:1::1/64").unwrap();
    let mut steps = Vec::new();
    crate::commands::macos(&cluster.hosts[0], "en2", mac, mac.host(2), &mut steps);
    let run = "ifconfig en2 inet6 fd5c:93a0:c1e7:1::1 prefixlen 64 alias";
    assert_eq!(steps[0].run.join(" "), run);
    assert!(crate::commands::is_step(&steps[0].run) && crate::commands::is_step(&steps[0].undo));
}

#[test]
fn crossed_cables_are_told_with_the_address_that_is_missed() {
    // The ends on b are swapped: ab's other address is on bc.
    let cluster =
        triangle(["10.1.0.1/30", "10.2.0.1/30", "10.1.0.2/30", "10.2.0.2/30", "10.3.0.1/30", "10.3.0.2/30"]);
    let rows = crate::checks::cables(&cluster);
    let failed: Vec<_> = rows.iter().filter(|c| c.verdict == crate::checks::CheckVerdict::Failed).collect();
    assert_eq!(failed.len(), 2, "{rows:?}");
    let said = &failed[0].said;
    assert!(
        said.contains("a ab (10.1.0.1/30) ends in b ba (10.2.0.1/30), but 10.1.0.2/30 is b bc"),
        "{said}"
    );
}

#[test]
fn an_undo_file_of_somebody_else_is_refused() {
    let cluster = triangle([""; 6]);
    let steps = setup(&cluster, &AddressPlan::of(&cluster).unwrap());
    let text = serde_json::to_string(&UndoFile::new(steps)).unwrap();
    for (bad, part) in [
        (text.replacen("\"ip\"", "\"rm\"", 1), "does not write"),
        (text.replacen("\"addr\",\"add\"", "\"netns\",\"exec\"", 1), "does not write"),
        (text.replace("\"comity_undo\":1", "\"comity_undo\":9"), "form 9"),
        ("{}".into(), "no undo file"),
    ] {
        assert!(UndoFile::parse(&bad).unwrap_err().contains(part), "{bad}");
    }
}

#[test]
fn an_unknown_peer_is_no_cable() {
    let mut all = macs(2, &[(0, 1)]);
    // One of the hosts did not answer: its domain is nobody's.
    all[0].ports[0].peer = Some(domain(7, 7));
    all[1].ports[0].peer = None;
    assert!(Cluster::of(facts(&all), &[]).cables.is_empty());
}

#[test]
fn a_host_cannot_move_the_cursor() {
    let mut all = macs(2, &[(0, 1)]);
    all[1].hostname = "evil\u{1b}[2J".into();
    assert_eq!(facts(&all)[1].hostname, "evil[2J");
    assert_eq!(crate::checks::Check::failed("port", "a", "x\u{1b}[2J\ny").said, "x[2Jy");
}

#[test]
fn every_step_of_a_setup_is_one_that_is_run() {
    let mut all = macs(2, &[(0, 1)]);
    all[0].bridge = true;
    for cluster in [cluster(&all), triangle([""; 6])] {
        for setup in setup(&cluster, &AddressPlan::of(&cluster).unwrap()) {
            let words = setup.steps.iter().flat_map(|s| [&s.run, &s.undo]);
            words.for_each(|w| assert!(crate::commands::is_step(w), "{w:?}"));
        }
    }
}

/// Output of three Macs, for tests of the whole command. `WRITE_MACS=1 cargo test -p comity-cluster recorded` writes it anew.
#[test]
fn recorded_macs_print_what_the_samples_do() {
    let mut all = macs(3, &mesh(3));
    all[1].ports.iter_mut().for_each(|p| p.hubs = 1);
    all[2].sudo = false;
    for (number, mac) in all.iter().enumerate() {
        let path = format!("{}/macs/{}.txt", env!("CARGO_MANIFEST_DIR"), mac.name);
        if std::env::var_os("WRITE_MACS").is_some() {
            std::fs::write(&path, mac.printed(number)).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), mac.printed(number), "{path}");
    }
}
