//! Hosts as network namespaces of this kernel, with cables between them.

use crate::{child::Task, family::signal};
use rustix::process::Signal;
use std::path::Path;

/// `ip`, with the words of this line.
///
/// # Errors
/// It failed: its words.
pub fn ip(line: &str) -> Result<(), String> {
    Task::new("ip").args(line.split_whitespace()).limit(20).run().map(drop)
}

/// Network namespaces with a loopback each. Dropping them ends what runs in them, and removes them with their cables.
#[derive(Debug)]
pub struct Hosts {
    prefix: String,
    hosts: Vec<String>,
}

impl Hosts {
    /// New namespaces for hosts of these names, for this purpose of this process.
    ///
    /// # Errors
    /// They cannot be made here.
    pub fn new(purpose: &str, hosts: &[&str]) -> Result<Self, String> {
        let prefix = format!("comity-{purpose}-{}", std::process::id());
        let mut all = Self { prefix, hosts: Vec::new() };
        for host in hosts {
            all.hosts.push((*host).into());
            ip(&format!("netns add {}", all.name(host)))?;
            all.ip(host, "link set lo up")?;
        }
        Ok(all)
    }

    /// Two hosts with a cable of that name, whose ends are 1 and 2 in a network of 24 bits.
    ///
    /// # Errors
    /// They cannot be made here.
    pub fn pair(purpose: &str, hosts: [&str; 2], network: &str) -> Result<Self, String> {
        let pair = Self::new(purpose, &hosts)?;
        pair.cable(hosts.map(|host| (host, "cable")))?;
        for (host, end) in hosts.into_iter().zip(1..) {
            pair.ip(host, &format!("addr add {network}.{end}/24 dev cable"))?;
            pair.ip(host, "link set cable up")?;
        }
        Ok(pair)
    }

    /// The name of a host's namespace.
    pub fn name(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// `ip` within a host.
    ///
    /// # Errors
    /// It failed: its words.
    pub fn ip(&self, host: &str, line: &str) -> Result<(), String> {
        ip(&format!("-n {} {line}", self.name(host)))
    }

    /// Cable between the adapters of two hosts, which are down and have no address yet.
    ///
    /// # Errors
    /// A host has such an adapter already.
    pub fn cable(&self, [(one, at), (other, there)]: [(&str, &str); 2]) -> Result<(), String> {
        let other = self.name(other);
        ip(&format!("link add {at} netns {} type veth peer name {there} netns {other}", self.name(one)))
    }

    /// A command within a host, whose words are still to come.
    pub fn within(&self, host: &str) -> Task {
        Task::new("ip").args(["netns", "exec", &self.name(host)])
    }

    /// Numbers of the processes of a host but this one.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn pids(&self, host: &str) -> Result<Vec<u32>, String> {
        let said = Task::new("ip").args(["netns", "pids", &self.name(host)]).regardless_of_signals().run()?;
        Ok(said
            .split_whitespace()
            .filter_map(|w| w.parse().ok())
            .filter(|pid| *pid != std::process::id())
            .collect())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.hosts {
            let name = self.name(host);
            // The one that was never made cannot be removed.
            if !Path::new("/run/netns").join(&name).exists() {
                continue;
            }
            self.pids(host).unwrap_or_default().into_iter().for_each(|pid| signal(pid, Signal::KILL));
            let removed = Task::new("ip").args(["netns", "del", &name]).limit(20).regardless_of_signals();
            if let Err(e) = removed.run() {
                eprintln!("xtask: the network namespace {name} is left: {e}");
            }
        }
    }
}
