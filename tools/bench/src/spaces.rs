//! Two hosts on one: namespaces of the network with a cable between them. They need root, and go with this value.

use super::contender::Wire;
use std::{
    ffi::OsStr,
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};
use tasks::child::Task;

/// The interface in either namespace, and a port that nobody uses there.
const CABLE: &str = "cable";
const PORT: u16 = 29_500;

/// Namespaces in which the ranks of a launch run.
#[derive(Debug)]
pub(crate) enum Spaces {
    /// All on this host.
    Here,
    /// A rank in each of these namespaces.
    Two([String; 2]),
}

impl Spaces {
    pub(crate) fn new(wire: Wire) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if wire != Wire::Namespaces {
            return Ok(Self::Here);
        }
        let id = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let names = ["a", "b"].map(|side| format!("comity-bench-{id}-{side}"));
        // From here on what was made goes with it, also where the rest cannot be made.
        let two = Self::Two(names.clone());
        let [a, b] = names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add {CABLE} netns {a} type veth peer name {CABLE} netns {b}"))?;
        for (rank, name) in [a, b].iter().enumerate() {
            ip(&format!("-n {name} addr add {}/24 dev {CABLE}", two.address(rank)))?;
            ip(&format!("-n {name} link set {CABLE} up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(two)
    }

    /// A rank's program, where it belongs.
    pub(crate) fn task(&self, rank: usize, program: impl AsRef<OsStr>) -> Task {
        match self {
            Self::Here => Task::new(program),
            Self::Two(names) => Task::new("ip").args(["netns", "exec", &names[rank]]).args([program]),
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

impl Drop for Spaces {
    fn drop(&mut self) {
        let Self::Two(names) = self else { return };
        for name in names {
            // One that could not be made is not there.
            let _ = Task::new("ip").args(["netns", "del", name]).limit(20).regardless_of_signals().run();
        }
    }
}

fn ip(words: &str) -> Result<(), String> {
    Task::new("ip").args(words.split_whitespace()).limit(20).run().map(drop)
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
        let Spaces::Two(names) = &spaces else { panic!("none were made") };
        let ping = format!("import socket; socket.create_server(('{}', 0)).close()", spaces.address(1));
        spaces.task(1, "python3").args(["-c", &ping]).run().unwrap();
        let names = names.clone();
        drop(spaces);
        let there = Task::new("ip").args(["netns", "list"]).run().unwrap();
        assert!(names.iter().all(|n| !there.contains(n)), "{there}");
    }
}
