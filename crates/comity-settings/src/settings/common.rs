//! The variables that hold under every launcher.

use super::{
    BackendKind, ConnectTiming, Costs, Detection, Insecure, MAX_TIMEOUT, Protection, Settings, bad,
    vars::{Vars, wrong},
};
use crate::{
    Error, ErrorKind, Key, LinkKind, Result,
    address::{self, shown},
    lanes::MOST_LANES,
    root_cause::RootCauseReport,
    transport::{InterfaceRules, Kinds},
};
use comity_plan::Algorithm;
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// More devices than any host has.
const MAX_DEVICE: usize = 1023;

/// Put those that are set into `config`; others stay as they are.
pub(super) fn read(vars: &Vars<'_>, config: &mut Settings) -> Result<()> {
    if let Some(job) = vars.text("COMITY_JOB")? {
        config.job = job;
    }
    if let Some(key) = key(vars)? {
        config.key = Some(key);
    }
    if let Some(insecure) = Insecure::read(vars)? {
        config.insecure = insecure;
    }
    if let Some(secure) = Protection::read(vars)? {
        config.secure = secure;
    }
    if let Some(limit) = call_limit(vars)? {
        config.timeout = limit;
    }
    if let Some(limit) = vars.seconds("COMITY_JOIN_TIMEOUT")? {
        config.join_timeout = limit;
    }
    if let Some(detection) = Detection::read(vars)? {
        config.detection = detection;
    }
    if let Some(text) = vars.text("COMITY_LINKS")? {
        config.links = links(&text).or_else(|why| wrong("COMITY_LINKS", &text, &why))?;
    }
    if let Some(text) = vars.text("COMITY_BACKEND")? {
        config.backend = backend(&text).or_else(|why| wrong("COMITY_BACKEND", &text, &why))?;
    }
    if let Some(when) = ConnectTiming::read(vars)? {
        config.connect_when = when;
    }
    config.transports.read(vars)?;
    // By presence, as MLX has it.
    config.ring |= vars.is_set("JACCL_RING") || vars.is_set("MLX_JACCL_RING");
    if let Some(n) = vars.number("COMITY_TEST_SPARSE_ABOVE", crate::MAX_SIZE)? {
        config.sparse_above = n;
    }
    if let Some(n) = vars.number("COMITY_DEVICE", MAX_DEVICE)? {
        config.device = u32::try_from(n).ok();
    }
    if let Some(costs) = costs(vars)? {
        config.costs = costs;
    }
    if let Some(text) = vars.text("COMITY_ALGORITHM")? {
        config.algorithm = Some(algorithm(&text).or_else(|why| wrong("COMITY_ALGORITHM", &text, &why))?);
    }
    if let Some(n) = vars.number("COMITY_LANES", MOST_LANES)? {
        config.lanes = Some(n.max(1));
    }
    network(vars, config)?;
    // A wrong value is told where ranks meet there.
    if let Some(launched) = vars.host_ports("COMITY_STORE").ok().flatten() {
        config.launched_at = launched.iter().filter_map(|at| at.host().parse().ok()).collect();
    }
    if let Some(host) = vars.text("COMITY_HOST")? {
        config.host = Some(host);
    }
    if let Some(dir) = vars.text("COMITY_LOG_DIR")? {
        config.log_dir = Some(dir.into());
    }
    if let Some(fd) = vars.number("COMITY_ROOT_CAUSE_FD", i32::MAX as usize)? {
        // A wrapper may have closed it: the launcher then has to guess, and the job runs all the same.
        let fd = i32::try_from(fd).unwrap_or(i32::MAX);
        config.root_cause = RootCauseReport::from_fd(fd, config.rank).ok();
    }
    if let Some(fd) = vars.number("COMITY_STATS_FD", i32::MAX as usize)? {
        config.stats_fd = i32::try_from(fd).ok();
    }
    if let Some(cores) = vars.number("COMITY_HOST_CORES", u16::MAX.into())? {
        config.host_cores = u16::try_from(cores).ok().filter(|n| *n > 0);
    }
    Ok(())
}

/// Reads the time limit of a call.
fn call_limit(vars: &Vars<'_>) -> Result<Option<Duration>> {
    const NAME: &str = "COMITY_TIMEOUT";
    let Some(text) = vars.text(NAME)? else { return Ok(None) };
    if text == "none" {
        return Ok(Some(MAX_TIMEOUT));
    }
    vars.seconds(NAME).or_else(|_| {
        wrong(
            NAME,
            &text,
            "is neither a number of seconds such as 300 or 2.5 nor none (as long as all ranks live)",
        )
    })
}

/// The costs by which plans are chosen.
fn costs(vars: &Vars<'_>) -> Result<Option<Costs>> {
    let from = |text: String| if text == "measure" { Costs::Measure } else { Costs::File(text.into()) };
    Ok(vars.text("COMITY_COSTS")?.map(from))
}

/// Reads the addresses to listen on, and the rules for interfaces.
fn network(vars: &Vars<'_>, config: &mut Settings) -> Result<()> {
    if let Some(text) = vars.text("COMITY_ADDRS")? {
        config.addrs = text
            .split(',')
            .map(|part| own_addr(part.trim()))
            .collect::<Result<_, _>>()
            .or_else(|why| wrong("COMITY_ADDRS", &text, &why))?;
    }
    if let Some(text) = vars.text("COMITY_INTERFACES")? {
        config.interfaces =
            InterfaceRules::parse(&text).or_else(|why| wrong("COMITY_INTERFACES", &text, &why))?;
    }
    if let Some(text) = vars.text("COMITY_PORTS")? {
        config.ports = Some(ports(&text).or_else(|why| wrong("COMITY_PORTS", &text, &why))?);
    }
    if vars.is_set("COMITY_RELAY") {
        config.relay = vars.flag("COMITY_RELAY")?;
    }
    if vars.is_set("COMITY_MPTCP") {
        config.mptcp = vars.flag("COMITY_MPTCP")?;
    }
    Ok(())
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
