//! Check that connections between two hosts with several cables go on when one of them is cut (MPTCP).
use super::Check;
use crate::graph::Cluster;

/// A row for each Linux host with several cables to one other host.
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
        let nic = |name: &str, at: &str| crate::facts::Nic {
            name: name.into(),
            addresses: crate::subnet::Subnet::parse(at).into_iter().collect(),
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
