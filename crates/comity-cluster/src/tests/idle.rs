//! Interfaces that carry nothing from one host to another.
use super::triangle;
use crate::addresses::Subnet;
use crate::checks::{CheckVerdict, idle};
use crate::facts::Nic;

#[test]
fn a_cable_that_is_out_is_found_by_the_addresses_of_its_ends() {
    let ips = ["10.1.0.1/30", "10.1.0.2/30", "10.2.0.1/30", "10.2.0.2/30", "10.3.0.1/30", "10.3.0.2/30"];
    let whole = triangle(ips);
    assert_eq!(idle(&whole), []);
    // b's end is set down, and c sees it; then only c's end has an address.
    for (downs, verdict, part) in [
        (vec![(1, "bc"), (2, "cb")], CheckVerdict::Failed, "c cb (10.2.0.2/30) is not reached over it"),
        (vec![(1, "bc")], CheckVerdict::Failed, "c cb (10.2.0.2/30) is not reached over it"),
        (vec![(2, "cb")], CheckVerdict::Failed, "b bc (10.2.0.1/30) is not reached over it"),
        (vec![(1, "-"), (2, "cb")], CheckVerdict::NotTried, "nobody knows where its cable should lead"),
    ] {
        let mut cluster = whole.clone();
        for (host, name) in downs {
            let nic = cluster.hosts[host].nics.iter_mut().find(|n| n.name == name);
            match nic {
                Some(nic) => nic.is_up = false,
                None => cluster.hosts[host].nics.retain(|n| n.name != "bc"),
            }
        }
        let rows = idle(&cluster);
        assert!(rows.len() == 1 && rows[0].verdict == verdict && rows[0].said.contains(part), "{rows:?}");
    }
}

#[test]
fn interfaces_that_lead_nowhere_are_named() {
    let mut cluster = triangle([""; 6]);
    let dead = |name: &str| Nic {
        name: name.into(),
        is_up: true,
        mtu: 1500,
        addresses: vec![Subnet::parse("fe80::1/64").unwrap()],
        ..Nic::default()
    };
    cluster.hosts[1].nics.extend((0..9).map(|i| dead(&format!("veth{i}"))));
    let mut inner = dead("docker0");
    inner.is_inner = true;
    cluster.hosts[1].nics.push(inner);
    let rows = idle(&cluster);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0].at, "b veth0, veth1, veth2, veth3, veth4, veth5 and 3 more");
    assert!(rows[0].said.contains("COMITY_INTERFACES=ba,bc,eth0"), "{rows:?}");
}
