//! What is to run on which host, checked as far as this machine can know it.
use super::hosts::FleetHost;
use super::{hostfile, hosts, ssh};
use crate::launch::job::OURS;
use crate::launch::wire::HostPart;
use crate::launch::{LaunchArgs, Setting};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A job on several hosts.
#[derive(Clone, Debug)]
pub(super) struct FleetPlan {
    pub(super) hosts: Vec<PlannedHost>,
    /// Ranks in all.
    pub(super) world: usize,
    pub(super) insecure: bool,
    pub(super) verbose: bool,
    pub(super) tag: bool,
    pub(super) dry_run: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) max_restarts: u32,
    pub(super) join: Duration,
    pub(super) log_dir: Option<PathBuf>,
    pub(super) way: ssh::SshWay,
    pub(super) bind: Option<IpAddr>,
    pub(super) connections_per_ip: usize,
    pub(super) starting_port: Option<u16>,
    pub(super) nccl_port: Option<u16>,
    /// As the hostfile or the flag says, in MLX's words where these differ.
    pub(super) backend: String,
}

/// A host and its part.
#[derive(Clone, Debug)]
pub(super) struct PlannedHost {
    pub(super) host: FleetHost,
    pub(super) part: HostPart,
}

impl PlannedHost {
    /// The host's name for people.
    pub(super) fn name(&self) -> &str {
        self.host.name.rsplit('@').next().unwrap_or_default()
    }
}

impl FleetPlan {
    pub(super) fn check(args: LaunchArgs) -> Result<Self, Vec<String>> {
        let file = match (&args.fleet.hostfile, &args.fleet.hosts) {
            (Some(path), _) => hostfile::read(path)?,
            (None, given) => hostfile::FleetFile {
                hosts: hosts::list(given.as_deref().unwrap_or("localhost"))?,
                ..hostfile::FleetFile::default()
            },
        };
        let mut wrong = Vec::new();
        let backend = backend(&args, file.backend.as_deref()).map_err(|e| wrong.push(e)).ok();
        for (given, flag) in [(args.metrics.is_some(), "--metrics")] {
            if given {
                wrong.push(format!("{flag} is for one host: start the ranks of each host with it there"));
            }
        }
        let env = settings(&args, file.env, &file.hosts, &mut wrong);
        let command = words(&args).map_err(|e| wrong.push(e)).unwrap_or_default();
        let counts = spread(
            &file.hosts,
            args.fleet.repeat_hosts.unwrap_or(args.n) as usize,
            args.fleet.total.map(|n| n as usize),
        );
        let counts = counts.map_err(|e| wrong.push(e)).unwrap_or_default();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let world = counts.iter().sum();
        let backend = backend.unwrap_or_default();
        let mut hosts = Vec::new();
        let mut first = 0;
        for (host, size) in file.hosts.into_iter().zip(counts).filter(|(_, n)| *n > 0) {
            let mut part = part(&args, &host, (&command, &env, &backend));
            (part.first, part.size, part.world) = (first, size, world);
            first += size;
            hosts.push(PlannedHost { host, part });
        }
        let join = crate::launch::meet::join_limit(&args.env);
        let fleet = args.fleet;
        Ok(Self {
            hosts,
            world,
            insecure: args.insecure,
            verbose: args.verbose,
            tag: args.tag_output || (world > 1 && !args.no_tag_output),
            dry_run: fleet.dry_run,
            timeout: args.timeout,
            max_restarts: fleet.max_restarts,
            join,
            log_dir: args.log_dir,
            way: ssh::SshWay { ssh: fleet.ssh, args: fleet.ssh_arg, python: fleet.python },
            bind: fleet.bind,
            connections_per_ip: fleet.connections_per_ip as usize,
            starting_port: fleet.starting_port,
            nccl_port: fleet.nccl_port,
            backend,
        })
    }

    /// What this host would run, for `--dry-run`.
    pub(super) fn shown(&self, host: &PlannedHost) -> String {
        let part = &host.part;
        let last = part.first + part.size - 1;
        let ranks =
            if part.size == 1 { format!("rank {last}") } else { format!("ranks {} to {last}", part.first) };
        let command: Vec<_> = part.command.iter().map(|w| format!("{w:?}")).collect();
        let names: Vec<_> = part.env.iter().map(|(name, value)| format!(" {name}={value:?}")).collect();
        let dir = part.cwd.as_deref().map(|d| format!(" in {d:?}")).unwrap_or_default();
        let by: Vec<_> =
            ssh::words(&self.way, &host.host, &ssh::GUARD).iter().map(|w| format!("{w:?}")).collect();
        let with = if names.is_empty() { String::new() } else { format!(" with{}", names.concat()) };
        format!("{}: {ranks}: {}{dir}{with}\n    by {}", host.name(), command.join(" "), by.join(" "))
    }
}

fn part(args: &LaunchArgs, host: &FleetHost, job: (&[String], &[(String, String)], &str)) -> HostPart {
    let (command, env, backend) = job;
    let python = host.python.as_deref().or(args.fleet.python.as_deref());
    let mut env: Vec<_> = env.iter().chain(&host.env).cloned().collect();
    let chosen = |(name, _): &(String, String)| name == "COMITY_ADDRS" || name == "COMITY_INTERFACES";
    if !host.ips.is_empty() && !env.iter().any(chosen) {
        let list: Vec<_> = host.ips.iter().map(ToString::to_string).collect();
        env.push(("COMITY_ADDRS".into(), list.join(",")));
    }
    if backend == "jaccl-ring" {
        env.push(("MLX_JACCL_RING".into(), "1".into()));
    }
    let asked = host.cwd.clone().or_else(|| args.cwd.as_ref()?.to_str().map(Into::into));
    let here = || std::env::current_dir().ok()?.to_str().map(Into::into);
    let ours = if backend.starts_with("jaccl") { "jaccl" } else { backend };
    HostPart {
        command: python.map(Into::into).into_iter().chain(command.iter().cloned()).collect(),
        env,
        cwd_asked: asked.is_some(),
        cwd: asked.or_else(here),
        insecure: args.insecure,
        secure: args.secure.map(|s| if s == comity::Secure::Data { "data" } else { "handshake" }.into()),
        backend: Some(ours.to_owned()).filter(|b| b != "any" && b != "ring"),
        ..HostPart::default()
    }
}

/// The variables of every rank: of the hostfile, then of files, then of `--env`.
fn settings(
    args: &LaunchArgs,
    file: Vec<(String, String)>,
    hosts: &[FleetHost],
    wrong: &mut Vec<String>,
) -> Vec<(String, String)> {
    let mut env = file;
    for path in &args.fleet.env_file {
        match env_file(path) {
            Ok(more) => env.extend(more),
            Err(more) => wrong.extend(more),
        }
    }
    let given = texts(&args.env).map_err(|e| wrong.push(e)).unwrap_or_default();
    env.extend(given);
    wrong.extend(env.iter().chain(hosts.iter().flat_map(|h| &h.env)).filter_map(ours));
    env
}

/// The name of what carries the calls.
fn backend(args: &LaunchArgs, file: Option<&str>) -> Result<String, String> {
    let name = match (args.backend, file) {
        (comity::BackendKind::Any, Some(file)) => file,
        (given, _) => given.name(),
    };
    let known = matches!(name, "ring" | "jaccl-ring") || comity::BackendKind::from_name(name).is_some();
    match name {
        "mpi" => Err("--backend mpi over several hosts is for MPI's own launcher: mpirun --hostfile".into()),
        _ if known => Ok(name.into()),
        _ => Err(format!(
            "backend {name:?} in the hostfile is not known; known are any, ring, jaccl, jaccl-ring, nccl"
        )),
    }
}

/// How many ranks each host has.
fn spread(hosts: &[FleetHost], each: usize, total: Option<usize>) -> Result<Vec<usize>, String> {
    let slots: Vec<usize> = hosts.iter().map(|h| h.slots.unwrap_or(each)).collect();
    let all: usize = slots.iter().sum();
    let mut left = total.unwrap_or(all);
    if left > all || left > 4096 {
        return Err(format!(
            "{left} ranks are more than the hosts have ({all}; allowed are 4096): give more with a:4 in --hosts, slots in the hostfile, or -n for each host"
        ));
    }
    let mut counts = Vec::new();
    for n in slots {
        counts.push(n.min(left));
        left -= n.min(left);
    }
    Ok(counts)
}

fn words(args: &LaunchArgs) -> Result<Vec<String>, String> {
    let text = |w: &OsString| w.to_str().map(str::to_owned);
    let all: Option<Vec<String>> = args.command.iter().map(text).collect();
    all.ok_or_else(|| "a word of the command is not UTF-8, which other hosts may not read as this one".into())
}

fn texts(env: &[Setting]) -> Result<Vec<(String, String)>, String> {
    let text = |s: &Setting| Some((s.name.to_str()?.to_owned(), s.value.to_str()?.to_owned()));
    let all: Option<Vec<_>> = env.iter().map(text).collect();
    all.ok_or_else(|| "a value of --env is not UTF-8, which other hosts may not read as this one".into())
}

fn ours((name, _): &(String, String)) -> Option<String> {
    OURS.contains(&name.as_str())
        .then(|| format!("variable {name}: comity launch sets it itself for each rank; leave it out"))
}

/// `NAME=VALUE` lines, with comments and empty lines between them.
fn env_file(path: &Path) -> Result<Vec<(String, String)>, Vec<String>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| vec![format!("--env-file {shown}: {e}")])?;
    let (mut all, mut wrong) = (Vec::new(), Vec::new());
    for (at, line) in text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.trim_start_matches("export ").split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                let value = value.trim();
                let bare = ['"', '\''].iter().find_map(|q| value.strip_prefix(*q)?.strip_suffix(*q));
                all.push((name.trim().to_owned(), bare.unwrap_or(value).to_owned()));
            }
            _ => wrong.push(format!("--env-file {shown}: line {at}: is not NAME=VALUE")),
        }
    }
    if wrong.is_empty() { Ok(all) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_spread_in_the_hosts_order() {
        let hosts = hosts::list("a,b:4,c").unwrap();
        assert_eq!(spread(&hosts, 1, None), Ok(vec![1, 4, 1]));
        assert_eq!(spread(&hosts, 2, None), Ok(vec![2, 4, 2]));
        assert_eq!(spread(&hosts, 1, Some(3)), Ok(vec![1, 2, 0]));
        assert!(spread(&hosts, 1, Some(7)).unwrap_err().contains("7 ranks are more than the hosts have (6"));
    }

    #[test]
    fn files_of_variables_are_read_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# x\nA=1\nexport B=\"two words\"\n\nC=\n").unwrap();
        let all = env_file(file.path()).unwrap();
        assert_eq!(all, [("A", "1"), ("B", "two words"), ("C", "")].map(|(n, v)| (n.into(), v.into())));
        std::fs::write(file.path(), "A\n=b\n").unwrap();
        let wrong = env_file(file.path()).unwrap_err();
        assert!(wrong[0].contains("line 1") && wrong[1].contains("line 2"), "{wrong:?}");
    }
}
