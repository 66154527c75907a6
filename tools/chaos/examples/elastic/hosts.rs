//! Two hosts as network namespaces: joiners come from the other one, and the cable is cut while both sides live. One side goes on, never both.
//!
//! ```text
//!   host a: the store, two ranks   10.77.0.1 --- cable --- 10.77.0.2   joiners: host b
//!   2 + 2 ranks, packets vanish: the half with the store goes on      2 + 3 ranks, the cable is out: the three go on
//! ```

use super::{Choice, job::Job, rank::Work};
use std::{fs::File, net::Ipv4Addr, os::fd::AsFd, time::Instant};
use tasks::netns;

/// Address of the first host.
pub(super) const STORE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Ranks of host a.
const FIRST: usize = 2;

/// Both hosts; dropping removes them.
pub(super) struct Hosts(netns::Hosts);

impl Hosts {
    pub(super) fn new() -> Result<Self, String> {
        netns::Hosts::pair("elastic", ["a", "b"], "10.77.0").map(Self)
    }

    /// The name of host b.
    pub(super) fn second(&self) -> String {
        self.0.name("b")
    }

    /// Packets vanish both ways: they go to an adapter that is not there.
    fn lose(&self, is_lost: bool) -> Result<(), String> {
        for (host, other) in [("a", 2), ("b", 1)] {
            let what = if is_lost { "replace" } else { "del" };
            let nobody = if is_lost { "lladdr 02:00:00:00:66:66 nud permanent" } else { "" };
            self.0.ip(host, &format!("neigh {what} 10.77.0.{other} {nobody} dev cable"))?;
        }
        Ok(())
    }

    /// From here on this thread, and what it starts, is on host a.
    pub(super) fn enter(&self) -> Result<(), String> {
        let path = format!("/run/netns/{}", self.0.name("a"));
        let namespace = File::open(&path).map_err(|e| format!("{path}: {e}"))?;
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))
            .map_err(|e| format!("{path} cannot be entered: {e}"))
    }
}

pub(super) fn run(choice: &Choice) -> Result<(), String> {
    let hosts = Hosts::new()?;
    hosts.enter()?;
    let choice = Choice { ranks: FIRST, ..choice.clone() };
    let mut job = Job::start(STORE, &choice, Work::Sums, None)?;
    let first = job.pids();
    job.sums(&first, FIRST)?;
    let b = &hosts.second();
    let mut joiners = Vec::new();
    for size in [3, 4] {
        joiners.push(job.join(Some(b))?);
        job.sums(&job.pids(), size)?;
    }
    let cut = Instant::now();
    hosts.lose(true)?;
    job.parts(&first, &joiners, FIRST)?;
    println!(
        "2 + 2 ranks, packets vanish: the half with the store goes on, {:.1} s",
        cut.elapsed().as_secs_f64()
    );
    hosts.lose(false)?;
    let joiners = (0..3).map(|_| job.join(Some(b))).collect::<Result<Vec<_>, _>>()?;
    job.sums(&job.pids(), 5)?;
    let cut = Instant::now();
    hosts.0.ip("a", "link set cable down")?;
    job.parts(&joiners, &first, 3)?;
    println!("2 + 3 ranks, the cable is out: the three go on, {:.1} s", cut.elapsed().as_secs_f64());
    job.end().map(drop)
}
