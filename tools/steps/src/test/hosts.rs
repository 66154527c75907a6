//! "Hosts" on one kernel: network namespaces with cables between them. First clusters as people cable them ([`shapes`]), then two hosts with two
//! ranks in each.
//!
//! ```text
//! namespace a: ranks 0, 1  10.77.0.1  fd77::1 --- veth --- fd77::2  10.77.0.2  ranks 2, 3 :namespace b
//! ```
//!
//! Counters of the kernel show which link a pair took: what two ranks of one host say to each other in shared memory is
//! not on its loopback, and what ranks of two hosts say is on the cable.

mod cut;
mod dead;
mod master;
mod shapes;

use super::{
    Done, Outcome,
    launchers::{job_key, together},
    missing,
    processes::{QUICK, comity},
    scope::Scope,
};
use std::time::Instant;
use tasks::{child::Task, place::program};

pub(super) fn check(scope: &Scope) -> Outcome {
    if !cfg!(target_os = "linux") {
        return Ok(Done::NotRun("network namespaces are Linux's".into()));
    }
    if program("ip").is_none() || !rustix::process::geteuid().is_root() {
        return missing("network namespaces need root and the program ip (package iproute2)".into());
    }
    let hosts = match Hosts::new() {
        Ok(hosts) => hosts,
        Err(e) => return missing(format!("network namespaces cannot be made here: {e}")),
    };
    let comity = comity()?;
    let (_scratch, key) = job_key()?;
    let mut shapes = shapes::check(scope, &comity, &key)?;
    shapes.extend(cut::check(scope, &key)?);
    shapes.push(dead::check(&comity, &key)?);
    let masters = master::check(&comity)?;
    let mut notes = Vec::new();
    for (family, addrs, port) in
        [("IPv4", ["10.77.0.1", "10.77.0.2"], "7400"), ("IPv6", ["fd77::1", "fd77::2"], "7401")]
    {
        let start = Instant::now();
        let before = hosts.carried()?;
        let said = together((0..4usize).map(|rank| {
            let host = rank / 2;
            let task = hosts.within(host).args([&comity]).args(["check", "--quick"]).limit(QUICK);
            task.env("RANK", rank.to_string())
                .env("WORLD_SIZE", "4")
                .env("LOCAL_RANK", (rank % 2).to_string())
                .env("LOCAL_WORLD_SIZE", "2")
                .env("MASTER_ADDR", addrs[0])
                .env("MASTER_PORT", port)
                .env("COMITY_ADDRS", addrs[host])
                .env("COMITY_KEY_FILE", &key)
        }))?;
        let after = hosts.carried()?;
        if !said.iter().any(|out| out.contains("links shm and tcp")) {
            return Err(format!("{family}: rank 0 did not say `links shm and tcp`:\n{}", said.concat()));
        }
        let inside = after.loopback - before.loopback;
        let between = after.cable - before.cable;
        println!(
            "2 + 2 ranks over {family}: right, {:.1} s; {inside} bytes on the loopbacks, {between} on the cable",
            start.elapsed().as_secs_f64()
        );
        judge(inside, between).map_err(|e| format!("{family}: {e}"))?;
        notes.push(family);
    }
    let masters = masters.join(", ");
    Ok(Done::Passed(format!(
        "2 + 2 ranks over {}; {}; MASTER_ADDR in {masters}",
        notes.join(" and "),
        shapes.join(", ")
    )))
}

/// Meeting and control connections may use a loopback; tensors may not.
fn judge(loopback: u64, cable: u64) -> Result<(), String> {
    if cable < 1 << 20 {
        return Err(format!(
            "only {cable} bytes went over the cable: the ranks of the two hosts did not use it"
        ));
    }
    if loopback > cable / 10 {
        return Err(format!(
            "{loopback} bytes went over loopback, {cable} over the cable: ranks of one host did not share memory"
        ));
    }
    Ok(())
}

/// The namespaces; dropping them removes them, and the cable with them.
struct Hosts {
    names: [String; 2],
}

/// Bytes received so far.
struct Carried {
    loopback: u64,
    cable: u64,
}

impl Hosts {
    fn new() -> Result<Self, String> {
        // Made first, so that what exists is removed when a later line fails.
        let hosts = Self { names: ["a", "b"].map(|h| format!("comity-{}-{h}", std::process::id())) };
        let [a, b] = &hosts.names;
        let ip = |line: &str| Task::new("ip").args(line.split_whitespace()).limit(20).run().map(drop);
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add cable netns {a} type veth peer name cable netns {b}"))?;
        for (i, name) in hosts.names.iter().enumerate() {
            let last = i + 1;
            ip(&format!("-n {name} addr add 10.77.0.{last}/24 dev cable"))?;
            // Without the wait for duplicates the address is there at once.
            ip(&format!("-n {name} addr add fd77::{last}/64 dev cable nodad"))?;
            ip(&format!("-n {name} link set cable up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(hosts)
    }

    /// A command that runs on this host.
    fn within(&self, host: usize) -> Task {
        Task::new("ip").args(["netns", "exec", &self.names[host]])
    }

    fn carried(&self) -> Result<Carried, String> {
        let mut sum = Carried { loopback: 0, cable: 0 };
        for host in 0..2 {
            let table = self.within(host).args(["cat", "/proc/net/dev"]).run()?;
            let bytes = |device| {
                received(&table, device).ok_or_else(|| format!("/proc/net/dev has no {device}:\n{table}"))
            };
            sum.loopback += bytes("lo")?;
            sum.cable += bytes("cable")?;
        }
        Ok(sum)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // The one that was never made cannot be removed.
            if std::path::Path::new("/run/netns").join(name).exists()
                && let Err(e) =
                    Task::new("ip").args(["netns", "del", name]).limit(20).regardless_of_signals().run()
            {
                eprintln!("xtask: the network namespace {name} is left: {e}");
            }
        }
    }
}

/// The first column after a device's name: bytes received.
fn received(table: &str, device: &str) -> Option<u64> {
    table.lines().find_map(|l| {
        let (name, counts) = l.split_once(':')?;
        (name.trim() == device).then(|| counts.split_whitespace().next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_read() {
        let table = "Inter-|   Receive\n face |bytes    packets\n    lo: 1200       4 0\n cable:77 1 0\n";
        assert_eq!((received(table, "lo"), received(table, "cable")), (Some(1200), Some(77)));
        assert_eq!(received(table, "eth0"), None);
    }

    #[test]
    fn counters_tell_the_links() {
        assert!(judge(40_000, 30 << 20).is_ok());
        assert!(judge(20 << 20, 30 << 20).unwrap_err().contains("did not share memory"));
        assert!(judge(0, 1000).unwrap_err().contains("did not use it"));
    }
}
