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
use shapes::{Lan, PLAIN, Shape};
use std::{path::Path, time::Instant};
use tasks::place::program;

const IPV4: Shape = Shape {
    name: "IPv4",
    hosts: 2,
    cables: &[(0, 1, "cable", "10.77.0.1/24", "10.77.0.2/24")],
    master: &["10.77.0.1", "10.77.0.2"],
    ..PLAIN
};

const IPV6: Shape = Shape {
    name: "IPv6",
    cables: &[(0, 1, "cable", "fd77::1/64", "fd77::2/64")],
    master: &["fd77::1", "fd77::2"],
    ..IPV4
};

pub(super) fn check(scope: &Scope) -> Outcome {
    if !cfg!(target_os = "linux") {
        return Ok(Done::NotRun("network namespaces are Linux's".into()));
    }
    if program("ip").is_none() || !rustix::process::geteuid().is_root() {
        return missing("network namespaces need root and the program ip (package iproute2)".into());
    }
    if let Err(e) = Lan::new(&IPV4) {
        return missing(format!("network namespaces cannot be made here: {e}"));
    }
    let comity = comity()?;
    let (_scratch, key) = job_key()?;
    let mut shapes = shapes::check(scope, &comity, &key)?;
    shapes.extend(cut::check(scope, &key)?);
    shapes.push(dead::check(&comity, &key)?);
    let masters = master::check(&comity)?;
    let mut notes = Vec::new();
    for shape in [IPV4, IPV6] {
        two_and_two(&shape, &comity, &key).map_err(|e| format!("{}: {e}", shape.name))?;
        notes.push(shape.name);
    }
    let masters = masters.join(", ");
    Ok(Done::Passed(format!(
        "2 + 2 ranks over {}; {}; MASTER_ADDR in {masters}",
        notes.join(" and "),
        shapes.join(", ")
    )))
}

/// Two hosts with two ranks in each: which links their pairs take.
fn two_and_two(shape: &Shape, comity: &Path, key: &Path) -> Result<(), String> {
    let start = Instant::now();
    let lan = Lan::new(shape)?;
    let at = shape.master;
    let said = together((0..4usize).map(|rank| {
        let host = rank / 2;
        let task = lan.within(host).args([comity]).args(["check", "--quick"]).limit(QUICK);
        task.env("RANK", rank.to_string())
            .env("WORLD_SIZE", "4")
            .env("LOCAL_RANK", (rank % 2).to_string())
            .env("LOCAL_WORLD_SIZE", "2")
            .env("MASTER_ADDR", at[0])
            .env("MASTER_PORT", "7400")
            .env("COMITY_ADDRS", at[host])
            .env("COMITY_KEY_FILE", key)
    }))?;
    let inside = lan.received(0, "lo")? + lan.received(1, "lo")?;
    let between = lan.carried()?.iter().sum();
    if !said.iter().any(|out| out.contains("links shm and tcp")) {
        return Err(format!("rank 0 did not say `links shm and tcp`:\n{}", said.concat()));
    }
    println!(
        "2 + 2 ranks over {}: right, {:.1} s; {inside} bytes on the loopbacks, {between} on the cable",
        shape.name,
        start.elapsed().as_secs_f64()
    );
    judge(inside, between)
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
