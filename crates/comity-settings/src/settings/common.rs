//! The variables that hold under every launcher. Each is read once, noted, and parsed strictly, so that every error names the variable and its
//! value.

use super::{
    BackendKind, ConnectTiming, Costs, Detection, HostPort, Insecure, MAX_SIZE, MAX_TIMEOUT, Protection,
    Settings, bad, bad_value,
};
use crate::{
    Error, ErrorKind, Key, LinkKind, Result,
    address::{self, shown},
    lanes::MOST_LANES,
    root_cause::RootCauseReport,
    transport::{InterfaceRules, Kinds, Variables},
};
use comity_plan::Algorithm;
use std::{
    cell::RefCell,
    ffi::OsString,
    fmt::Display,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// More devices than any host has.
const MAX_DEVICE: usize = 1023;

/// Put those that are set into `config`; others stay as they are.
pub(super) fn read(vars: &Vars<'_>, config: &mut Settings) -> Result<()> {
    put(&mut config.job, vars.text("COMITY_JOB")?);
    put(&mut config.key, key(vars)?.map(Some));
    put(&mut config.insecure, vars.parsed("COMITY_INSECURE", insecure)?);
    let protection = |text: &str| Protection::from_name(text).ok_or("is neither handshake nor data");
    put(&mut config.secure, vars.parsed("COMITY_SECURE", protection)?);
    put(&mut config.timeout, vars.parsed("COMITY_TIMEOUT", call_limit)?);
    put(&mut config.join_timeout, vars.seconds("COMITY_JOIN_TIMEOUT")?);
    put(&mut config.detection, vars.parsed("COMITY_DETECTION", Detection::parse)?);
    put(&mut config.links, vars.parsed("COMITY_LINKS", links)?);
    put(&mut config.backend, vars.parsed("COMITY_BACKEND", backend)?);
    let when = |text: &str| ConnectTiming::from_name(text).ok_or("is neither needed nor all");
    put(&mut config.connect_when, vars.parsed("COMITY_CONNECT", when)?);
    config.transports.read(vars)?;
    // By presence, as MLX has it.
    config.ring |= vars.is_set("JACCL_RING") || vars.is_set("MLX_JACCL_RING");
    put(&mut config.sparse_above, vars.number("COMITY_TEST_SPARSE_ABOVE", MAX_SIZE)?);
    put(&mut config.device, vars.number("COMITY_DEVICE", MAX_DEVICE)?.map(|n| u32::try_from(n).ok()));
    put(&mut config.costs, costs(vars)?);
    put(&mut config.algorithm, vars.parsed("COMITY_ALGORITHM", algorithm)?.map(Some));
    put(&mut config.lanes, vars.number("COMITY_LANES", MOST_LANES)?.map(|n| Some(n.max(1))));
    put(&mut config.addrs, vars.parsed("COMITY_ADDRS", own_addrs)?);
    put(&mut config.interfaces, vars.parsed("COMITY_INTERFACES", InterfaceRules::parse)?);
    put(&mut config.ports, vars.parsed("COMITY_PORTS", ports)?.map(Some));
    if vars.is_set("COMITY_RELAY") {
        config.relay = vars.flag("COMITY_RELAY")?;
    }
    if vars.is_set("COMITY_MPTCP") {
        config.mptcp = vars.flag("COMITY_MPTCP")?;
    }
    // A wrong value is told where ranks meet there.
    if let Some(launched) = vars.host_ports("COMITY_STORE").ok().flatten() {
        config.launched_at = launched.iter().filter_map(|at| at.host().parse().ok()).collect();
    }
    put(&mut config.host, vars.text("COMITY_HOST")?.map(Some));
    put(&mut config.log_dir, vars.text("COMITY_LOG_DIR")?.map(|dir| Some(dir.into())));
    if let Some(fd) = vars.number("COMITY_ROOT_CAUSE_FD", i32::MAX as usize)? {
        // A wrapper may have closed it: the launcher then has to guess, and the job runs all the same.
        let fd = i32::try_from(fd).unwrap_or(i32::MAX);
        config.root_cause = RootCauseReport::from_fd(fd, config.rank).ok();
    }
    put(
        &mut config.stats_fd,
        vars.number("COMITY_STATS_FD", i32::MAX as usize)?.map(|fd| i32::try_from(fd).ok()),
    );
    let cores = vars.number("COMITY_HOST_CORES", u16::MAX.into())?;
    put(&mut config.host_cores, cores.map(|cores| u16::try_from(cores).ok().filter(|n| *n > 0)));
    Ok(())
}

/// Changes a setting to what was said, if something was.
fn put<T>(setting: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *setting = said;
    }
}

fn insecure(text: &str) -> Result<Insecure, &'static str> {
    match text {
        "0" | "false" | "False" => Ok(Insecure::No),
        "1" | "true" | "True" => Ok(Insecure::Private),
        "public" => Ok(Insecure::Public),
        _ => Err("is neither 1 nor 0 (true, false), nor public"),
    }
}

fn call_limit(text: &str) -> Result<Duration, &'static str> {
    let limit = if text == "none" { Some(MAX_TIMEOUT) } else { seconds(text) };
    limit.ok_or("is neither a number of seconds such as 300 or 2.5 nor none (as long as all ranks live)")
}

/// The costs by which plans are chosen.
fn costs(vars: &Vars<'_>) -> Result<Option<Costs>> {
    let from = |text: String| if text == "measure" { Costs::Measure } else { Costs::File(text.into()) };
    Ok(vars.text("COMITY_COSTS")?.map(from))
}

/// The job key, from a descriptor or a file.
fn key(vars: &Vars<'_>) -> Result<Option<Key>> {
    let fd = vars.number("COMITY_KEY_FD", i32::MAX as usize)?;
    Ok(match (fd.and_then(|fd| i32::try_from(fd).ok()), vars.text("COMITY_KEY_FILE")?) {
        (Some(fd), Some(path)) => {
            return bad(format!(
                "COMITY_KEY_FD={fd} and COMITY_KEY_FILE={path} are both set; unset one of them"
            ));
        }
        (Some(fd), None) => Some(Key::from_fd(fd).map_err(|e| name("COMITY_KEY_FD", e))?),
        (None, Some(path)) => Some(Key::from_file(&path).map_err(|e| name("COMITY_KEY_FILE", e))?),
        (None, None) => None,
    })
}

fn backend(text: &str) -> Result<BackendKind, String> {
    BackendKind::from_name(text)
        .ok_or_else(|| format!("is {}; allowed are any, mpi, nccl and jaccl", shown(text)))
}

/// `e`, which names a file or descriptor, with the variable that gave it.
fn name(var: &str, e: Error) -> Error {
    match e.kind() {
        ErrorKind::Config(why) => why.clone().named_by(var).into(),
        _ => e,
    }
}

fn algorithm(text: &str) -> Result<Algorithm, String> {
    Algorithm::from_name(text).ok_or_else(|| {
        let names: Vec<_> = Algorithm::ALL.iter().map(|a| a.name()).collect();
        format!("is {}; allowed are {}", shown(text), names.join(", "))
    })
}

fn links(text: &str) -> Result<Kinds, String> {
    let mut kinds = Vec::new();
    for part in text.split(',').map(str::trim) {
        let Some(kind) = LinkKind::choices().find(|k| k.name() == part) else {
            let all: Vec<_> = LinkKind::choices().map(LinkKind::name).collect();
            let (last, others) = all.split_last().unwrap_or((&"", &[]));
            return Err(format!(
                "names {}; allowed are {} and {last}, with a comma between",
                shown(part),
                others.join(", ")
            ));
        };
        if kinds.contains(&kind) {
            return Err(format!("names {part} twice"));
        }
        kinds.push(kind);
    }
    Ok(kinds.into_iter().collect())
}

/// The first and the last of some ports.
fn ports(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (address::parse_port(first), address::parse_port(last)) {
        (Ok(first), Ok(last)) if first > 0 && first <= last => Ok((first, last)),
        _ => Err("is not a range of ports such as 7000-7031".into()),
    }
}

/// Addresses to listen on.
fn own_addrs(text: &str) -> Result<Vec<SocketAddr>, String> {
    text.split(',').map(|part| own_addr(part.trim())).collect()
}

/// An address to listen on, with or without a port.
fn own_addr(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    text.parse::<SocketAddr>().or_else(|_| bare.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0))).map_err(
        |_| {
            format!(
                "holds {}, which is not an address such as 10.0.0.1, 10.0.0.1:7000 or [fe80::1%4]:7000",
                shown(text)
            )
        },
    )
}

/// The environment, and what was read of it.
pub(super) struct Vars<'a> {
    var: &'a dyn Fn(&str) -> Option<OsString>,
    seen: RefCell<Vec<(&'static str, String)>>,
}

impl<'a> Vars<'a> {
    pub(super) fn new(var: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self { var, seen: RefCell::default() }
    }

    /// Every variable that was read and set, in the order of reading.
    pub(super) fn into_seen(self) -> Vec<(&'static str, String)> {
        self.seen.into_inner()
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        (self.var)(name).is_some()
    }

    /// Reads a value as `parse` does, whose error follows the variable and its value.
    pub(super) fn parsed<T, W: AsRef<str>>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, W>,
    ) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        parse(&text).map(Some).or_else(|why| wrong(name, &text, why.as_ref()))
    }

    pub(super) fn flag(&self, name: &'static str) -> Result<bool> {
        match self.text(name)?.as_deref() {
            None | Some("0" | "false" | "False") => Ok(false),
            Some("1" | "true" | "True") => Ok(true),
            Some(other) => wrong(name, other, "is neither 1 nor 0 (true, false)"),
        }
    }

    pub(super) fn seconds(&self, name: &'static str) -> Result<Option<Duration>> {
        self.parsed(name, |text| seconds(text).ok_or("is not a number of seconds such as 300 or 2.5"))
    }

    /// Reads one `host:port`, or several with a comma between.
    pub(super) fn host_ports(&self, name: &'static str) -> Result<Option<Vec<HostPort>>> {
        self.parsed(name, |text| address::parse_list(text).map_err(|why| format!("is not host:port: {why}")))
    }

    /// Rank and size; `None` when neither is set.
    pub(super) fn rank_and_size(
        &self,
        rank_is: &'static str,
        size_is: &'static str,
    ) -> Result<Option<(usize, usize)>> {
        let rank = self.number(rank_is, MAX_SIZE - 1)?;
        let size = self.number(size_is, MAX_SIZE)?;
        match (rank, size) {
            (None, None) => Ok(None),
            (Some(r), None) => {
                unfit(rank_is, r, format!(" is set, but {size_is} is not; set both, or neither to run alone"))
            }
            (None, Some(s)) => {
                unfit(size_is, s, format!(" is set, but {rank_is} is not; set both, or neither to run alone"))
            }
            (Some(_), Some(0)) => {
                unfit(size_is, 0, format!(": a job has at least one rank; allowed is 1 to {MAX_SIZE}"))
            }
            (Some(r), Some(s)) if r >= s => {
                unfit(rank_is, r, format!(", but {size_is}={s}; allowed is 0 to {}", s - 1))
            }
            (Some(r), Some(s)) => Ok(Some((r, s))),
        }
    }

    /// Rank and size on this host; launchers other than Comity's own may tell only one of them.
    pub(super) fn local(
        &self,
        rank_is: &'static str,
        size_is: &'static str,
        size: usize,
    ) -> Result<Option<(usize, usize)>> {
        let rank = self.number(rank_is, MAX_SIZE - 1)?;
        let local = self.number(size_is, MAX_SIZE)?;
        let (Some(r), Some(l)) = (rank, local) else { return Ok(None) };
        if l == 0 || l > size {
            return unfit(size_is, l, format!(", in a job of {size} ranks; allowed is 1 to {size}"));
        }
        if r >= l {
            return unfit(rank_is, r, format!(", but {size_is}={l}; allowed is 0 to {}", l - 1));
        }
        Ok(Some((r, l)))
    }

    /// `MASTER_ADDR` and `MASTER_PORT`.
    pub(super) fn master(&self) -> Result<Option<Vec<HostPort>>> {
        self.address("MASTER_ADDR", "MASTER_PORT")
    }

    /// An address of rank 0's host, or several with a comma between, and a port of it.
    pub(super) fn address(
        &self,
        addr_is: &'static str,
        port_is: &'static str,
    ) -> Result<Option<Vec<HostPort>>> {
        let addr = self.text(addr_is)?;
        let port = self.text(port_is)?;
        match (addr, port) {
            (None, None) => Ok(None),
            (Some(a), None) => unfit(
                addr_is,
                a,
                format!(" is set, but {port_is} is not; set it to a free port of that host"),
            ),
            (None, Some(p)) => unfit(
                port_is,
                p,
                format!(" is set, but {addr_is} is not; set it to the address of rank 0's host"),
            ),
            (Some(a), Some(p)) => {
                let Some(port) = address::parse_port(&p).ok().filter(|port| *port != 0) else {
                    return wrong(port_is, &p, "is not a number from 1 to 65535");
                };
                match a.split(',').map(|part| HostPort::new(part.trim(), port)).collect() {
                    Ok(all) => Ok(Some(all)),
                    Err(_) => wrong(addr_is, &a, "is neither a host name nor an address"),
                }
            }
        }
    }
}

/// A number of seconds, as variables have it.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| plain).and_then(|s| Duration::try_from_secs_f64(s).ok())
}

/// The error for a variable whose value does not go with others; `why` follows `NAME=value` at once.
pub(super) fn unfit<T>(name: &str, value: impl Display, why: impl Display) -> Result<T> {
    bad_value(name, &value, format!("{name}={value}{why}"))
}

pub(super) fn wrong<T>(name: &str, value: &str, why: &str) -> Result<T> {
    Err(refusal(name, value, why))
}

pub(super) fn refusal(name: &str, value: &str, why: &str) -> Error {
    Error::setting(name, value, format!("{name}={} {why}", shown(value)))
}

impl Variables for Vars<'_> {
    fn text(&self, name: &'static str) -> Result<Option<String>> {
        let Some(value) = (self.var)(name) else { return Ok(None) };
        let value =
            value.into_string().or_else(|v| wrong(name, &v.to_string_lossy(), "is not valid UTF-8"))?;
        if value.is_empty() {
            return bad_value(name, "", format!("{name} is set but empty; give it a value or unset it"));
        }
        let mut seen = self.seen.borrow_mut();
        if !seen.iter().any(|(n, _)| *n == name) {
            seen.push((name, value.clone()));
        }
        Ok(Some(value))
    }

    fn number(&self, name: &'static str, most: usize) -> Result<Option<usize>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        // parse would take "+1".
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(n) if digits && n <= most => Ok(Some(n)),
            _ => wrong(name, &text, &format!("is not a whole number from 0 to {most}")),
        }
    }

    fn refusal(&self, name: &str, value: &str, why: &str) -> Error {
        refusal(name, value, why)
    }
}
