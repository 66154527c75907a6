//! The group that this process belongs to, and how it is told in a line.

use comity::{
    Algorithm, BackendKind, Config, ConfigError, ConnectTiming, Group, LinkKind, Protection, Result,
    tools::{self, VARIABLES, cuda::Cuda},
};
use comity_plan::Kind;
use std::collections::BTreeSet;
use strsim::levenshtein;

pub(crate) use comity_launch::VERSION;

/// By what a rank knows the others, where no launcher of Comity's decides it.
#[derive(Debug, clap::Args)]
pub(crate) struct JobTrust {
    /// Join without a job key: whoever can connect can join
    #[arg(long)]
    insecure: bool,

    /// Use of the key: handshake (who may join), or data over TCP too
    #[arg(long, value_name = "WHAT", value_parser = comity_launch::secure_parser(), hide_possible_values = true)]
    secure: Option<Protection>,
}

/// Up to so many ranks all links are made at the start: what is printed first is their kinds. In larger jobs they would cost more than all
/// else, and the kinds that are likely are printed.
const ALL_LINKS: usize = 16;

/// Memory of the buffers of a check or a benchmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeviceKind {
    #[default]
    Host,
    Cuda,
}

/// The group of the job that the environment tells of; of one where it tells of none. A small one has all its links, unless a user has said
/// when they are made. With a stream of this rank's device where buffers are to be there.
pub(crate) fn join(
    backend: Option<BackendKind>,
    device: DeviceKind,
    trust: &JobTrust,
) -> Result<(Group, Option<Cuda>)> {
    let is_cuda = device == DeviceKind::Cuda;
    if is_cuda && backend.is_some_and(|b| b != BackendKind::Nccl) {
        return refused("--device cuda goes with --backend nccl");
    }
    let mut config = Config::from_env()?;
    if std::env::var_os("COMITY_CONNECT").is_none() && config.size() <= ALL_LINKS {
        config = config.connect_when(ConnectTiming::All);
    }
    if trust.insecure {
        config = config.insecure();
    }
    if let Some(secure) = trust.secure {
        config = config.secure(secure);
    }
    let backend = if is_cuda { Some(BackendKind::Nccl) } else { backend };
    if let Some(backend) = backend {
        config = config.backend(backend);
    }
    let group = config.connect()?;
    match group.device() {
        _ if !is_cuda => Ok((group, None)),
        None => refused("--device cuda needs two ranks or more: comity launch -n 2 -- ..."),
        Some(device) => Ok((group, Some(Cuda::open(device)?))),
    }
}

/// Fails for what the user wrote.
pub(crate) fn refused<T>(words: impl Into<String>) -> Result<T> {
    Err(ConfigError::new(words).into())
}

pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

pub(crate) fn system() -> String {
    let name = rustix::system::uname();
    let [system, release] = [name.sysname(), name.release()].map(|s| s.to_string_lossy());
    format!("{system} {release} {}", name.machine().to_string_lossy())
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// Text that strangers cannot know.
pub(crate) fn token() -> std::io::Result<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(random.iter().map(|b| format!("{b:02x}")).collect())
}

/// The operations that an algorithm can carry out, in words.
pub(crate) fn served_by(algorithm: Algorithm) -> String {
    let kinds = Kind::ALL.into_iter().filter(|k| algorithm.serves(*k));
    kinds.map(Kind::name).collect::<Vec<_>>().join(", ")
}

/// Have `group` carry out what it can by `algorithm`.
pub(crate) fn prefer(group: &Group, algorithm: Algorithm) -> Result<()> {
    if group.size() > 1 && !tools::prefer_algorithm(group, Some(algorithm)) {
        return refused("--algorithm goes with Comity's own links: MPI and NCCL choose their own");
    }
    Ok(())
}

/// "4 ranks on 2 hosts (a, b), links shm and tcp over 15 connections".
pub(crate) fn world(group: &Group) -> String {
    let n = group.size();
    if n == 1 {
        return "1 rank".into();
    }
    let hosts = hosts(group);
    let names = match hosts.as_slice() {
        [] => String::new(),
        [first, second, _, _, .., last] => format!(" ({first}, {second}, .. {last})"),
        few => format!(" ({})", few.join(", ")),
    };
    let many = hosts.len().max(1);
    let s = if hosts.len() > 1 { "s" } else { "" };
    let most = tools::connections(group).into_iter().flatten().max();
    // Two are one for each direction, which is the usual number where threads send.
    let over = most.filter(|n| *n > 2).map_or_else(String::new, |n| format!(" over {n} connections"));
    let tcp = LinkKind::Tcp.name();
    let links = links(group).into_iter().map(|kind| if kind == tcp { format!("{kind}{over}") } else { kind });
    format!("{n} ranks on {many} host{s}{names}, links {}", links.collect::<Vec<_>>().join(" and "))
}

/// The names of the hosts, in order of first rank; none where all ranks are threads of this process.
pub(crate) fn hosts(group: &Group) -> Vec<String> {
    let names = group.members().iter().filter_map(|m| m.host.as_deref());
    distinct(names, tools::hosts(group))
}

/// The names of the hosts of ranks, in order of first rank. Hosts that have a number of their own are told apart, whatever their names.
fn distinct<'a>(names: impl Iterator<Item = &'a str>, numbers: Option<Vec<usize>>) -> Vec<String> {
    let numbers = numbers.unwrap_or_default().into_iter().map(Some).chain(std::iter::repeat(None));
    let mut seen = BTreeSet::new();
    names.zip(numbers).filter(|host| seen.insert(*host)).map(|(name, _)| name.to_owned()).collect()
}

/// The kinds of link that this rank uses.
pub(crate) fn links(group: &Group) -> Vec<String> {
    let kinds: BTreeSet<_> = group.link_kinds().iter().flatten().map(|k| k.to_string()).collect();
    Vec::from_iter(kinds)
}

/// The most letters that differ in a misspelt name.
const SLIPS: usize = 2;

/// Sentences about variables of this process that are nearly a setting's name. A variable that is like none is somebody else's.
pub(crate) fn misspelt() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter_map(|name| doubt(&name)).collect()
}

/// A sentence about this variable, if it is nearly a setting's name.
fn doubt(name: &str) -> Option<String> {
    if !name.starts_with("COMITY_") || VARIABLES.iter().any(|v| v.name == name) {
        return None;
    }
    let (slips, meant) = VARIABLES.iter().map(|v| (levenshtein(name, v.name), v.name)).min()?;
    (slips <= SLIPS).then(|| format!("nothing reads {name}; do you mean {meant}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_of_one_name_are_two() {
        let names = || ["a", "a", "a", "b"].into_iter();
        assert_eq!(distinct(names(), Some(vec![0, 0, 1, 2])), ["a", "a", "b"]);
        assert_eq!(distinct(names(), None), ["a", "b"]);
    }

    #[test]
    fn a_slip_is_told_and_a_variable_of_ones_own_is_not() {
        let of_comity = |rest: &str| doubt(&format!("COMITY_{rest}"));
        let told = of_comity("TIMOUT").unwrap();
        assert!(told.ends_with("TIMOUT; do you mean COMITY_TIMEOUT?"), "{told}");
        for rest in ["TIMEOUT", "TEST_DEEP", "RUN_NAME"] {
            assert_eq!(of_comity(rest), None);
        }
        assert_eq!(doubt("TIMEOUT"), None);
    }
}
