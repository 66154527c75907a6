//! Results of the readers. The texts of Macs are written from the documented formats; not run on Apple hardware.
use super::*;
use crate::facts::THUNDERBOLT_4;
use crate::samples::{FOUR, Mac, domain, facts, linux, macs, ring};

#[test]
fn a_mac_tells_ports_speeds_and_devices() {
    let all = facts(&macs(3, &ring(3)));
    let mac = &all[0];
    assert_eq!(
        (mac.cores, mac.memory, mac.root, mac.is_root),
        (Some(16), Some(128 << 30), Some(true), false)
    );
    let ports: Vec<_> = mac.thunderbolt.iter().map(|p| (p.nic.as_str(), p.speed, p.peers.clone())).collect();
    assert_eq!(ports[0], ("en2", Some(80_000_000_000), vec![domain(1, 0)]));
    assert_eq!(mac.rdma_of("en2").map(|d| d.name.as_str()), Some("rdma_en2"));
    assert!(mac.in_use.iter().any(|s| s.to_string() == "192.168.1.0/24"), "{:?}", mac.in_use);
    assert!(!mac.in_use.iter().any(Subnet::is_everything));
    assert_eq!(mac.nic("en0").unwrap().v4().next().unwrap().to_string(), "192.168.1.10/24");
}

#[test]
fn behind_hubs_the_peer_is_found_depth_first() {
    let mut all = macs(2, &[(0, 1)]);
    all[0].ports[0].hubs = 2;
    assert_eq!(facts(&all)[0].thunderbolt[0].peers, [domain(1, 0)]);
}

#[test]
fn thunderbolt_4_is_never_offered_rdma() {
    let mut all = macs(2, &[(0, 1)]);
    all.iter_mut().for_each(|m| m.ports[0].speed = FOUR);
    let facts = facts(&all);
    assert_eq!(facts[0].thunderbolt[0].speed, Some(THUNDERBOLT_4));
    assert!(!facts[0].rdma.devices.is_empty() && facts[0].rdma_of("en2").is_none());
    assert!(facts[0].problems.is_empty(), "no advice that cannot be followed: {:?}", facts[0].problems);
}

#[test]
fn rdma_that_is_off_says_how_it_is_turned_on() {
    let mut mac = Mac::new(0, 1);
    mac.rdma = false;
    let facts = facts_of("m0", &mac.printed(0));
    assert!(facts.rdma_of("en2").is_none());
    assert!(
        facts.problems.iter().any(|p| p.about == "rdma" && p.mend.contains("rdma_ctl enable")),
        "{facts:?}"
    );
}

#[test]
fn what_may_not_be_run_is_told_with_its_mend() {
    let mut mac = Mac::new(0, 1);
    (mac.networksetup, mac.sudo) = (false, false);
    let facts = facts_of("m0", &mac.printed(0));
    let problem = facts.problems.iter().find(|p| p.about == "networksetup").unwrap();
    assert!(
        problem.why.contains("administrator") && problem.mend.contains("let this user run it"),
        "{problem:?}"
    );
    assert_eq!((facts.root, facts.thunderbolt.len()), (Some(false), 0));
    assert_eq!(facts.problems.len(), 1, "no port is blamed: {:?}", facts.problems);
    // No `ip`, nothing at all, and an answer that breaks off.
    let text = linux("a", &[]).replace("@@ addr\n[]", "@@ addr\nsh: 1: ip: not found\n@@! 127");
    let facts = facts_of("a", &text);
    assert!(
        facts.problems[0].why.contains("it has no `ip") && facts.problems[0].mend.contains("iproute2"),
        "{facts:?}"
    );
    let facts = facts_of("a", "@@survey 1\n@@ system\nLinux 6.1 x86_64\n");
    assert!(facts.problems.iter().any(|p| p.about == "survey"), "{facts:?}");
    assert!(facts_of("a", "").problems.iter().any(|p| p.about == "system"));
}

#[test]
fn linux_tells_interfaces_limits_and_routes() {
    let text = linux("a", &[("eth0", "10.0.0.2/24", 10_000), ("docker0", "172.17.0.1/16", 0)]);
    let text =
        text.replace("@@ infiniband\n", "@@ infiniband\nmlx5_0 eth0 ; 4: ACTIVE\nmlx5_1 eth1 ; 1: DOWN\n");
    let facts = facts_of("a", &text);
    let nic = facts.nic("eth0").unwrap();
    assert_eq!((nic.speed, nic.mtu, nic.is_inner, nic.is_up), (Some(10_000_000_000), 1500, false, true));
    assert!(facts.nic("docker0").unwrap().is_inner && facts.is_root);
    assert_eq!(facts.limits.memlock, Some(Some(8192 << 10)));
    assert_eq!(facts.limits.shm, Some((64 << 20, 64 << 20)));
    assert_eq!(facts.rdma_of("eth0").map(|d| d.name.as_str()), Some("mlx5_0"));
    assert_eq!(facts.rdma.devices[1].state.as_deref(), Some("DOWN"));
    assert!(facts.in_use.iter().any(|s| s.to_string() == "172.17.0.0/16"));
}

#[test]
fn hosts_of_ssh_are_those_without_patterns() {
    let text = "Host a b\n  HostName 10.0.0.1\nHost *\n User x\nhost=c\nHost !d e? a\n";
    assert_eq!(hosts_of_ssh_config(text), ["a", "b", "c"]);
}

proptest::proptest! {
    /// Whatever a host prints, reading it ends and nothing panics.
    #[test]
    fn any_text_is_read(noise in ".{0,200}", cut in 0usize..4000) {
        let whole = Mac::new(0, 2).printed(0) + &linux("a", &[("eth0", "10.0.0.2/24", 1)]);
        let cut: String = whole.chars().take(cut).collect();
        facts_of("x", &format!("{cut}{noise}\n@@ end"));
        facts_of("x", &noise);
    }
}
