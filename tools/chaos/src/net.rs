//! A lane's network: its loopback, and four hosts as network namespaces with a cable each to one switch.
//!
//! ```text
//! host h0 10.66.0.1 --- c0 |        | c2 --- 10.66.0.3 h2
//!                          | switch |
//! host h1 10.66.0.2 --- c1 |        | c3 --- 10.66.0.4 h3
//! ```

use rustix::process::Pid;
use scope::Rng;
use std::{
    fs,
    io::Write,
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};
use tasks::child::Task;
pub(super) use tasks::netns::ip;

pub(super) const HOSTS: usize = 4;

/// Direction in which packets of a host vanish, or wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Both,
    Outward,
    Inward,
}

/// A token bucket: packets that come faster wait up to the latency, in a queue of a megabyte.
const BUCKET: &str = "tbf rate 20mbit burst 32kb latency 400ms";

pub(super) fn address(host: usize) -> String {
    format!("10.66.0.{}", host + 1)
}

/// The hosts of this lane. They go with its namespaces.
pub(super) fn hosts() -> Result<(), String> {
    ip("link add switch type bridge")?;
    ip("link set switch up")?;
    for host in 0..HOSTS {
        ip(&format!("netns add h{host}"))?;
        ip(&format!("-n h{host} link set lo up"))?;
        ip(&format!("link add c{host} type veth peer name cable netns h{host}"))?;
        ip(&format!("link set c{host} master switch up"))?;
        ip(&format!("-n h{host} addr add {}/24 dev cable", address(host)))?;
        ip(&format!("-n h{host} link set cable up"))?;
    }
    Ok(())
}

/// Packets of a host vanish: no cable is seen to be out, nothing is refused.
pub(super) fn cut(host: usize, how: Way) -> Result<(), String> {
    pass(host, how, "nomaster", "add blackhole")
}

pub(super) fn mend(host: usize, how: Way) -> Result<(), String> {
    pass(host, how, "master switch", "del blackhole")
}

fn pass(host: usize, how: Way, cable: &str, route: &str) -> Result<(), String> {
    match how {
        Way::Both => ip(&format!("link set c{host} {cable}")),
        Way::Outward => halves(|half| ip(&format!("-n h{host} route {route} {half}"))),
        Way::Inward => (0..HOSTS)
            .filter(|h| *h != host)
            .try_for_each(|other| ip(&format!("-n h{other} route {route} {}/32", address(host)))),
    }
}

/// Packets of one host to one other vanish on their way: they go to an adapter that is not there.
pub(super) fn lose(from: usize, to: usize) -> Result<(), String> {
    const NOBODY: &str = "02:00:00:00:66:66";
    ip(&format!("-n h{from} neigh replace {} lladdr {NOBODY} dev cable nud permanent", address(to)))
}

pub(super) fn find(from: usize, to: usize) -> Result<(), String> {
    ip(&format!("-n h{from} neigh del {} dev cable", address(to)))
}

/// Packets of a host wait.
pub(super) fn slow(host: usize, how: Way) -> Result<(), String> {
    queues(host, how, "add", BUCKET)
}

pub(super) fn hasten(host: usize, how: Way) -> Result<(), String> {
    queues(host, how, "del", "")
}

/// At the end of its cable that sends.
fn queues(host: usize, how: Way, what: &str, queue: &str) -> Result<(), String> {
    if how != Way::Inward {
        tc(&format!("-n h{host} qdisc {what} dev cable root {queue}"))?;
    }
    if how != Way::Outward {
        tc(&format!("qdisc {what} dev c{host} root {queue}"))?;
    }
    Ok(())
}

fn tc(line: &str) -> Result<(), String> {
    Task::new("tc").args(line.split_whitespace()).limit(20).run().map(drop)
}

/// Both are narrower than the network of the cable, so they win.
fn halves(mut each: impl FnMut(&str) -> Result<(), String>) -> Result<(), String> {
    each("10.66.0.0/25")?;
    each("10.66.0.128/25")
}

/// Listeners in the network of a process.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Listeners {
    pub(super) ports: Vec<u16>,
    /// Abstract names.
    pub(super) names: Vec<String>,
}

impl Listeners {
    pub(super) fn of(pid: Pid) -> Self {
        let read = |what: &str| {
            fs::read_to_string(format!("/proc/{}/net/{what}", pid.as_raw_pid())).unwrap_or_default()
        };
        let mut ports = ports(&read("tcp"));
        ports.extend(self::ports(&read("tcp6")));
        Self { ports, names: names(&read("unix")) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.names.is_empty()
    }
}

fn ports(table: &str) -> Vec<u16> {
    const LISTEN: &str = "0A";
    let port = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next()?;
        let state = fields.nth(1)?;
        (state == LISTEN).then(|| u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok())?
    };
    table.lines().skip(1).filter_map(port).collect()
}

fn names(table: &str) -> Vec<String> {
    const ACCEPTS: u32 = 0x10000;
    let name = |line: &str| {
        let mut fields = line.split_whitespace().skip(3);
        let flags = u32::from_str_radix(fields.next()?, 16).ok()?;
        let name = fields.nth(3)?.strip_prefix('@')?;
        (flags & ACCEPTS > 0).then(|| name.to_owned())
    };
    table.lines().skip(1).filter_map(name).collect()
}

/// Connections of those who do not belong to a job: they say nothing, nonsense, or half of something. Dropping it ends all.
#[derive(Debug)]
pub(super) struct Strangers {
    random: Rng,
    connected: Vec<TcpStream>,
}

impl Strangers {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Rng::new(seed), connected: Vec::new() }
    }

    /// So many connect to what listens, by TCP and by name.
    pub(super) fn visit(&mut self, listeners: &Listeners, count: usize) {
        for _ in 0..count {
            if let Some(port) = some(&mut self.random, &listeners.ports) {
                let at = SocketAddr::from(([127, 0, 0, 1], *port));
                if let Ok(stream) = TcpStream::connect_timeout(&at, Duration::from_millis(200)) {
                    self.bother(&stream, |s, how| s.shutdown(how));
                    self.connected.push(stream);
                }
            }
            #[cfg(target_os = "linux")]
            if let Some(name) = some(&mut self.random, &listeners.names) {
                use std::os::{
                    linux::net::SocketAddrExt,
                    unix::net::{SocketAddr, UnixStream},
                };
                let stream = SocketAddr::from_abstract_name(name).and_then(|a| UnixStream::connect_addr(&a));
                if let Ok(stream) = stream {
                    self.bother(&stream, |s, how| s.shutdown(how));
                }
            }
        }
    }

    fn bother<S>(&mut self, mut stream: &S, end: impl Fn(&S, Shutdown) -> std::io::Result<()>)
    where
        for<'a> &'a S: Write,
    {
        let length = self.random.below(300);
        let noise: Vec<u8> = (0..length).map(|_| self.random.below(256) as u8).collect();
        let words: &[u8] = match self.random.below(4) {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            _ => &noise,
        };
        // Whoever hangs up on us is right.
        let _ = stream.write_all(words);
        if self.random.below(3) == 0 {
            let _ = end(stream, Shutdown::Write);
        }
    }
}

/// Random element, if there is any.
fn some<'a, T>(random: &mut Rng, all: &'a [T]) -> Option<&'a T> {
    (!all.is_empty()).then(|| random.pick(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_from_the_kernels_tables() {
        let tcp = "  sl  local_address rem_address   st tx_queue rx_queue\n\
                   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
                   1: 0100007F:1F91 0100007F:9999 01 00000000:00000000\n";
        assert_eq!(ports(tcp), [8080]);
        let unix = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000: 00000002 00000000 00010000 0001 01 7 @comity-5\n\
                    0000: 00000003 00000000 00000000 0001 03 8 @comity-5\n\
                    0000: 00000002 00000000 00010000 0001 01 9 /run/x\n";
        assert_eq!(names(unix), ["comity-5"]);
    }
}
