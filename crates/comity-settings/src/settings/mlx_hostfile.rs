//! The hostfile of MLX's ring: the addresses that each rank listens on, by rank.
//!
//! `[["10.0.0.1:5000", "10.1.0.1:5000"], ["10.0.0.2:5000"]]`, or flat with one address each. Two things go further than MLX:
//! hosts may be names or IPv6, and ranks may have different numbers of addresses, because a pair of ranks
//! uses what both have. Programs that give every rank a file of its own write `198.51.100.1:0` for ranks
//! they leave out, and `0.0.0.0` for the rank itself; both are understood.

use super::{HostPort, MAX_SIZE, fnv};
use crate::{
    ConfigError, Error, Result,
    address::{self, shown},
};
use rustix::fs::{Mode, OFlags};
use serde_json::Value;
use std::{
    collections::HashMap,
    fs::File,
    io::Read,
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

/// A hostfile of the largest job, with long names, is smaller.
const MOST_BYTES: u64 = 1 << 20;
/// More network ports than a host has.
const MOST_ADDRS: usize = 64;

/// A hostfile that made sense by itself.
#[derive(Debug)]
pub(super) struct Hostfile {
    /// Path as the user wrote it.
    path: String,
    /// By rank; empty where the file leaves the rank out.
    pub(super) ranks: Vec<Vec<HostPort>>,
    hash: u64,
}

impl Hostfile {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let cannot = |e: &dyn std::fmt::Display| -> Error {
            ConfigError::new(format!("hostfile {shown} cannot be read: {e}")).with_file(path).into()
        };
        // Without NONBLOCK a FIFO would be waited for.
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        let file = File::from(file.map_err(|e| cannot(&e))?);
        if !file.metadata().map_err(|e| cannot(&e))?.is_file() {
            return Err(cannot(&"it is not a regular file"));
        }
        let mut text = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|e| cannot(&e))?;
        Self::parse(&shown.to_string(), &text)
    }

    pub(super) fn parse(path: &str, text: &[u8]) -> Result<Self> {
        let about = |why: String| ConfigError::new(format!("hostfile {path}: {why}")).with_file(path);
        let wrong = |why: String| Error::from(about(why));
        if text.len() as u64 > MOST_BYTES {
            return Err(wrong(format!("it is larger than {MOST_BYTES} bytes")));
        }
        // Some editors put a mark before UTF-8.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        if text.trim_ascii().is_empty() {
            return Err(wrong(format!("it is empty; expected {FORM}")));
        }
        let json: Value = serde_json::from_slice(text)
            .map_err(|e| about(format!("not JSON: {e}")).at(e.line(), e.column()))?;
        let Value::Array(entries) = json else {
            return Err(wrong(format!("expected {FORM}, found {}", kind(&json))));
        };
        if entries.is_empty() {
            return Err(wrong(format!("it lists no rank; expected {FORM}")));
        }
        if entries.len() > MAX_SIZE {
            return Err(wrong(format!("it lists {} ranks; allowed are {MAX_SIZE}", entries.len())));
        }
        let mut taken = HashMap::new();
        let mut ranks = Vec::with_capacity(entries.len());
        for (rank, entry) in entries.iter().enumerate() {
            let addrs = addrs(rank, entry).map_err(wrong)?;
            for addr in &addrs {
                // Whether the addresses of two ranks that hold for any address clash is not known here.
                let ip = addr.host().parse::<IpAddr>();
                let host = ip.map_or_else(|_| addr.host().to_ascii_lowercase(), |ip| ip.to_string());
                let key = (host, addr.port());
                if let Some(other) = taken.insert(key, rank).filter(|_| !addr.is_unspecified()) {
                    return Err(wrong(format!(
                        "entry {rank} (rank {rank}): {addr} is also in entry {other}; every address and port can be used once"
                    )));
                }
            }
            ranks.push(addrs);
        }
        // In a file of its own every rank sees the job differently; only the number of ranks is common.
        let own = ranks.iter().any(|r| r.is_empty() || r.iter().any(HostPort::is_unspecified));
        let hash = if own { ranks.len() as u64 } else { fnv(text) };
        Ok(Self { path: path.to_owned(), ranks, hash })
    }

    /// Checks that `rank`, which `rank_is` gave, finds its place in it. Returns the store, if the ranks meet at rank 0's first address.
    pub(super) fn check(
        &self,
        rank_is: &str,
        rank: usize,
        size: Option<usize>,
        meet_here: bool,
    ) -> Result<()> {
        let path = &self.path;
        let n = self.ranks.len();
        let wrong = |why: String| Err(ConfigError::new(why).with_file(path).into());
        if let Some(size) = size.filter(|s| *s != n) {
            return wrong(format!(
                "hostfile {path} lists {n} ranks, but the size is {size}; they must be equal"
            ));
        }
        let Some(own) = self.ranks.get(rank) else {
            return wrong(format!(
                "{rank_is}={rank}, but hostfile {path} lists {n} ranks; allowed is 0 to {}",
                n - 1
            ));
        };
        if own.is_empty() && n > 1 {
            return wrong(format!(
                "hostfile {path}: entry {rank} (this rank's own) is a placeholder; give its address"
            ));
        }
        for (r, addrs) in self.ranks.iter().enumerate().filter(|(r, _)| *r != rank) {
            if let Some(addr) = addrs.iter().find(|a| a.is_unspecified()) {
                return wrong(format!(
                    "hostfile {path}: entry {r} (rank {r}): nobody can connect to {addr}; give an address of that host"
                ));
            }
        }
        if meet_here && self.ranks.first().is_some_and(Vec::is_empty) {
            return wrong(format!(
                "hostfile {path}: entry 0 (rank 0) is a placeholder, but the ranks meet there; give its address, or set COMITY_STORE"
            ));
        }
        Ok(())
    }

    /// The same for all ranks of a job, and unlike that of other jobs as far as the file tells them apart.
    pub(super) fn job(&self) -> String {
        format!("{HOSTFILE}{:x}", self.hash)
    }
}

/// Prefix of the name of a job that is named after its hostfile.
pub const HOSTFILE: &str = "mlx-";

const FORM: &str = "one entry per rank, such as [[\"10.0.0.1:5000\"], [\"10.0.0.2:5000\"]]";

fn addrs(rank: usize, entry: &Value) -> Result<Vec<HostPort>, String> {
    let here = format!("entry {rank} (rank {rank})");
    let list = match entry {
        Value::String(_) => std::slice::from_ref(entry),
        Value::Array(list) if list.is_empty() => {
            return Err(format!("{here} is empty; give at least one \"host:port\""));
        }
        Value::Array(list) if list.len() > MOST_ADDRS => {
            return Err(format!("{here} has {} addresses; allowed are {MOST_ADDRS}", list.len()));
        }
        Value::Array(list) => list,
        other => return Err(format!("{here}: expected a list of \"host:port\", found {}", kind(other))),
    };
    let mut addrs = Vec::with_capacity(list.len());
    for (i, item) in list.iter().enumerate() {
        let Value::String(text) = item else {
            return Err(format!("{here}, address {i}: expected \"host:port\", found {}", kind(item)));
        };
        let addr = address::parse(text, true)
            .map_err(|why| format!("{here}, address {i}: {}: {why}", shown(text)))?;
        if is_placeholder(&addr) {
            continue;
        }
        if addr.port() == 0 {
            return Err(format!(
                "{here}, address {i}: {addr}: port 0 stands for any port, which the others cannot know; allowed is 1 to 65535"
            ));
        }
        addrs.push(addr);
    }
    Ok(addrs)
}

/// An address set aside for documentation (RFC 5737, TEST-NET-2) with no port: "not told".
fn is_placeholder(addr: &HostPort) -> bool {
    addr.port() == 0
        && addr.host().parse::<Ipv4Addr>().is_ok_and(|ip| ip.octets().starts_with(&[198, 51, 100]))
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => shown(s),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}
