//! Whether a configuration makes sense as a whole, asked before anything is opened.

use super::{
    BackendKind, Config, Links, MAX_CONNECTIONS, MAX_SEND_THREADS, MAX_SIZE, MAX_TIMEOUT, Matrix, Meet,
    Secure, bad,
};
use crate::{Error, Result};
use std::net::IpAddr;

impl Config {
    /// Whether the whole makes sense; asked before anything is opened.
    pub(crate) fn check(&self) -> Result<()> {
        check_place("size", self.size, "rank", self.rank)?;
        if let Some((rank, size)) = self.local {
            check_place("local size", size, "local rank", rank)?;
            if size > self.size {
                return bad(format!("local size {size} is larger than the whole size {}", self.size));
            }
        }
        match &self.meet {
            Meet::Hostfile(ranks) if ranks.len() != self.size => {
                return bad(format!(
                    "the hostfile lists {} ranks, but the size is {}",
                    ranks.len(),
                    self.size
                ));
            }
            Meet::Alone if self.size > 1 => {
                return bad(format!(
                    "{} ranks need a place to meet: call store, host, hostfile or board, or set COMITY_STORE=host:port",
                    self.size
                ));
            }
            Meet::Store(at) | Meet::Host(at) if at.port == 0 => {
                return bad(format!(
                    "ranks cannot meet at {at}: port 0 stands for any port; give a real one"
                ));
            }
            Meet::Store(at) | Meet::Host(at) if at.is_unspecified() => {
                return bad(format!(
                    "ranks cannot meet at {at}: nobody can connect to it; give an address of that host"
                ));
            }
            _ => {}
        }
        if self.job.is_empty() || self.job.len() > 255 || self.job.chars().any(char::is_control) {
            return bad(format!("job (COMITY_JOB) {:?} is not a name of 1 to 255 printable bytes", self.job));
        }
        self.check_trust()?;
        for (what, limit) in [
            ("timeout (COMITY_TIMEOUT)", self.timeout),
            ("join_timeout (COMITY_JOIN_TIMEOUT)", self.join_timeout),
        ] {
            if limit.is_zero() || limit > MAX_TIMEOUT {
                return bad(format!("{what} is {limit:?}; allowed is more than 0 and at most ten years"));
            }
        }
        self.detection.check()?;
        self.check_links()?;
        if let Some(n) = self.connections.filter(|n| !(1..=MAX_CONNECTIONS).contains(n)) {
            return bad(format!(
                "connections (COMITY_CONNECTIONS) is {n}; allowed is 1 to {MAX_CONNECTIONS}"
            ));
        }
        if let Some(n) = self.send_threads.filter(|n| *n > MAX_SEND_THREADS) {
            return bad(format!(
                "send_threads (COMITY_SEND_THREADS) is {n}; allowed is 0 to {MAX_SEND_THREADS}"
            ));
        }
        for (i, addr) in self.addrs.iter().enumerate() {
            check_own(addr.ip())
                .map_err(|why| Error::Config(format!("addrs (COMITY_ADDRS) holds {addr}: {why}")))?;
            if self.addrs[..i].contains(addr) {
                return bad(format!("addrs (COMITY_ADDRS) holds {addr} twice"));
            }
        }
        if let Some(host) = &self.host
            && (host.is_empty() || host.len() > 255 || host.chars().any(char::is_control))
        {
            return bad(format!(
                "host name (COMITY_HOST) {host:?} is not a name of 1 to 255 printable bytes"
            ));
        }
        Ok(())
    }
}

/// What is said of links and devices must fit the rest.
impl Config {
    fn check_links(&self) -> Result<()> {
        let jaccl = self.backend == BackendKind::Jaccl;
        if !self.links.shm && !self.links.tcp && !self.links.rdma {
            return bad("links names no kind of link; name shm, tcp, rdma or several");
        }
        if let Some(Matrix { rows }) =
            self.devices.as_ref().filter(|m| self.size > 1 && m.rows.len() != self.size)
        {
            return bad(format!(
                "the device matrix has {} rows, but the size is {}; they must be equal",
                rows.len(),
                self.size
            ));
        }
        if jaccl && !self.links.rdma {
            return bad(
                "the backend jaccl and links (COMITY_LINKS) without rdma do not go together; drop one of them",
            );
        }
        if self.secure == Secure::Data
            && (jaccl || self.links == Links { shm: false, tcp: false, rdma: true })
        {
            return bad(
                "secure data (COMITY_SECURE=data) and RDMA do not go together: what a device sends is not encrypted; drop one of them",
            );
        }
        Ok(())
    }
}

fn check_place(size_is: &str, size: usize, rank_is: &str, rank: usize) -> Result<()> {
    if size == 0 || size > MAX_SIZE {
        return bad(format!("{size_is} is {size}; allowed is 1 to {MAX_SIZE}"));
    }
    if rank >= size {
        return bad(format!("{rank_is} is {rank}, but {size_is} is {size}; allowed is 0 to {}", size - 1));
    }
    Ok(())
}

/// Whether one can listen on `ip` and say so to a peer.
fn check_own(ip: IpAddr) -> Result<(), &'static str> {
    if ip.is_unspecified() {
        return Err(
            "it stands for every address, and Comity listens only where it is told; name the address",
        );
    }
    if ip.is_multicast() || ip == IpAddr::V4(std::net::Ipv4Addr::BROADCAST) {
        return Err("it belongs to many hosts; name an address of this host");
    }
    Ok(())
}
