//! Two hosts on one: namespaces of the network with a cable between them. They need root, and go with this value.

use super::contender::Wire;
use std::{ffi::OsStr, net::TcpListener};
use tasks::{child::Task, netns::Hosts};

/// The interface in either namespace, and a port that nobody uses there.
const CABLE: &str = "cable";
const PORT: u16 = 29_500;
const HOSTS: [&str; 2] = ["a", "b"];

/// Namespaces in which the ranks of a launch run.
#[derive(Debug)]
pub(crate) enum Spaces {
    /// All on this host.
    Here,
    /// A rank in each of two.
    Two(Hosts),
}

impl Spaces {
    pub(crate) fn new(wire: Wire) -> Result<Self, String> {
        match wire {
            Wire::Namespaces => Hosts::pair("bench", HOSTS, "10.79.0").map(Self::Two),
            _ => Ok(Self::Here),
        }
    }

    /// A rank's program, where it belongs.
    pub(crate) fn task(&self, rank: usize, program: impl AsRef<OsStr>) -> Task {
        match self {
            Self::Here => Task::new(program),
            Self::Two(hosts) => hosts.within(HOSTS[rank]).arg(program),
        }
    }

    pub(crate) fn address(&self, rank: usize) -> String {
        match self {
            Self::Here => "127.0.0.1".into(),
            Self::Two(_) => format!("10.79.0.{}", rank + 1),
        }
    }

    pub(crate) fn interface(&self) -> &'static str {
        match self {
            Self::Here => "lo",
            Self::Two(_) => CABLE,
        }
    }

    /// Ports that nobody uses now, all different.
    pub(crate) fn ports(&self, count: usize) -> Result<Vec<u16>, String> {
        if let Self::Two(_) = self {
            return Ok((PORT..).take(count).collect());
        }
        let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>();
        let ports = listeners.and_then(|all| all.iter().map(|l| l.local_addr().map(|a| a.port())).collect());
        ports.map_err(|e| format!("no free port: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ() {
        let mut ports = Spaces::Here.ports(8).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
        assert_eq!(Spaces::Here.task(0, "a").to_string(), "a");
    }

    #[test]
    fn namespaces_go_with_the_value() {
        if !rustix::process::geteuid().is_root() {
            return assert!(Spaces::new(Wire::Namespaces).is_err());
        }
        let spaces = Spaces::new(Wire::Namespaces).unwrap();
        let Spaces::Two(hosts) = &spaces else { panic!("none were made") };
        let ping = format!("import socket; socket.create_server(('{}', 0)).close()", spaces.address(1));
        spaces.task(1, "python3").args(["-c", &ping]).run().unwrap();
        let names = HOSTS.map(|host| hosts.name(host));
        drop(spaces);
        let there = Task::new("ip").args(["netns", "list"]).run().unwrap();
        assert!(names.iter().all(|n| !there.contains(n)), "{there}");
    }
}
