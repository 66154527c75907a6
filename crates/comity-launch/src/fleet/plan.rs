//! Plan of a job on several hosts, checked as far as this machine can know it.
use super::hosts::{self, FleetHost};
use super::request::HostsRequest;
use super::stage::OwnProgram;
use super::{all_or_wrong, ssh};
use crate::fleet::stage;
use crate::host::job::{self, OURS};
use crate::host::terminal::RankTerminal;
use crate::machine::ElasticTerms;
use crate::protocol::{HostPart, StagedFile};
use crate::request::{JobRequest, Setting};
use std::ffi::OsString;
use std::fs::File;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct FleetPlan {
    /// Wishes of the user. The backend is the hostfile's where the flag names none.
    pub(super) job: JobRequest,
    pub(super) fleet: HostsRequest,
    pub(super) hosts: Vec<PlannedHost>,
    /// Ranks in all.
    pub(super) world: usize,
    /// Terms on which the job goes on without ranks, and the most processes that join beside these.
    pub(super) elastic: Option<(ElasticTerms, usize)>,
    pub(super) restart: u32,
    pub(super) join: Duration,
    pub(super) events: Option<Arc<File>>,
    pub(super) stage: Vec<StagedFile>,
    /// Copied to hosts that have none of its version.
    pub(super) program: Option<OwnProgram>,
    pub(super) ssh_options: ssh::SshOptions,
    /// The port at which the ranks meet is one of these; 0 stands for any.
    pub(super) ports: RangeInclusive<u16>,
}

#[derive(Clone, Debug)]
pub(super) struct PlannedHost {
    pub(super) host: FleetHost,
    pub(super) part: HostPart,
}

impl PlannedHost {
    pub(super) fn name(&self) -> &str {
        self.host.name.rsplit('@').next().unwrap_or_default()
    }
}

impl FleetPlan {
    /// Checks a request as far as this machine can.
    pub(super) fn check(mut job: JobRequest, fleet: HostsRequest) -> Result<Self, Vec<String>> {
        let file = named(&fleet)?;
        let mut wrong = Vec::new();
        job.backend = job.backend.or(file.backend);
        if job.is_mpi() {
            wrong
                .push("--backend mpi over several hosts is for MPI's own launcher: mpirun --hostfile".into());
        }
        fleet.say_unheeded(job.backend_name());
        let join = crate::host::meet::join_limit(&job.env);
        let env = settings((&job.env, &fleet.env_file), file.env, &file.hosts, &mut wrong);
        let command = words(&job.command).map_err(|e| wrong.push(e)).unwrap_or_default();
        let counts = spread(&file.hosts, job.size(), fleet.total.map(|n| n as usize));
        let counts = counts.map_err(|e| wrong.push(e)).unwrap_or_default();
        wrong.extend(too_many_ports(&fleet, &file.hosts, &counts));
        let ports = meeting_ports(&fleet, &env).map_err(|e| wrong.push(e)).unwrap_or_default();
        let stage = stage::files(&fleet.stage).map_err(|all| wrong.extend(all)).unwrap_or_default();
        let world: usize = counts.iter().sum();
        let elastic = job.elastic().filter(|_| world > 0);
        let elastic = elastic.map(|(e, restarts)| e.terms(world, restarts)).transpose();
        let elastic = elastic.map_err(|e| wrong.push(e)).unwrap_or_default();
        if let Some(input) = job.input().filter(|input| input.rank() >= world && world > 0) {
            wrong.push(format!("{} {}: there are {world} ranks, from 0", input.flag(), input.rank()));
        }
        let events = job.json_events.as_deref();
        let events = events.and_then(|to| job::events(to).map_err(|e| wrong.push(e.why)).ok());
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let asked = job.cwd.as_ref().and_then(|dir| dir.to_str().map(Into::into));
        let of_all = HostPart {
            world,
            request: job.clone(),
            tty: job.tty.map(RankTerminal::of),
            command,
            env,
            cwd_asked: asked.is_some(),
            cwd: asked,
            elastic: elastic.is_some(),
            stage: stage.clone(),
            // The rest is each host's own, and known when its connection stands.
            ..HostPart::default()
        };
        let part = |host: &FleetHost| part_of(host, of_all.clone(), fleet.python.as_deref());
        let hosts = numbered(file.hosts.into_iter().zip(counts), part);
        let program = OwnProgram::here().filter(|_| !fleet.no_stage_comity);
        let ssh_options = ssh::SshOptions {
            ssh: fleet.ssh.clone(),
            args: fleet.ssh_arg.clone(),
            python: fleet.python.clone(),
            copies: program.as_ref().map(|p| p.folder.clone()),
            any_version: false,
        };
        let ports = ports.unwrap_or(0..=0);
        Ok(Self {
            job,
            fleet,
            hosts,
            world,
            elastic,
            restart: 0,
            join,
            events,
            stage,
            program,
            ssh_options,
            ports,
        })
    }

    /// Address of this machine at which the ranks are to meet.
    pub(super) fn meet_at(&self) -> Option<IpAddr> {
        self.fleet.meet_at.and_then(|place| place.ip)
    }

    /// Description of the commands of this host, for `--dry-run`.
    pub(super) fn shown(&self, host: &PlannedHost) -> String {
        let part = &host.part;
        let last = part.first + part.size - 1;
        let ranks =
            if part.size == 1 { format!("rank {last}") } else { format!("ranks {} to {last}", part.first) };
        let command: Vec<_> = part.command.iter().map(|w| format!("{w:?}")).collect();
        let names: Vec<_> = part.env.iter().map(|(name, value)| format!(" {name}={value:?}")).collect();
        let dir = part.cwd.as_deref().map(|d| format!(" in {d:?}")).unwrap_or_default();
        let by = ssh::command(&self.ssh_options, &host.host, &ssh::HOST_LAUNCHER);
        let mut by: Vec<_> =
            std::iter::once(by.get_program()).chain(by.get_args()).map(|w| format!("{w:?}")).collect();
        // Half a screen, and the same for all.
        if let (false, false, Some(script)) = (self.job.verbose, host.host.is_here(), by.last_mut()) {
            *script =
                "(a script that finds comity there and starts `comity guard`; --verbose shows it)".into();
        }
        let with = if names.is_empty() { String::new() } else { format!(" with{}", names.concat()) };
        format!("{}: {ranks}: {}{dir}{with}\n    by {}", host.name(), command.join(" "), by.join(" "))
    }
}

/// The ports of which the store of the ranks takes one: that of `--meet-at`, or those of COMITY_PORTS, of which ranks take others.
fn meeting_ports(
    fleet: &HostsRequest,
    env: &[(String, String)],
) -> Result<Option<RangeInclusive<u16>>, String> {
    const NAME: &str = "COMITY_PORTS";
    if let Some(port) = fleet.meet_at.and_then(|place| place.port) {
        return Ok(Some(port..=port));
    }
    let set = env.iter().rev().find(|(name, _)| name == NAME).map(|(_, value)| value.clone());
    match set.or_else(|| std::env::var(NAME).ok()).filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => {
            let (first, last) =
                crate::address::ports(&text).map_err(|why| format!("{NAME}={text}: {why}"))?;
            Ok(Some(first..=last))
        }
    }
}

/// Sentence for the case that the ports from --starting-port on go beyond the last there is.
fn too_many_ports(fleet: &HostsRequest, hosts: &[FleetHost], counts: &[usize]) -> Option<String> {
    let first = fleet.starting_port?;
    let each = |(host, ranks): (&FleetHost, &usize)| ranks * host.ips.len().max(1);
    let all = hosts.iter().zip(counts).map(each).sum::<usize>() * fleet.connections_per_ip as usize;
    let left = usize::from(u16::MAX - first) + 1;
    (all > left).then(|| {
        format!("--starting-port {first}: the ranks need {all} ports, and there are {left} from {first} on")
    })
}

/// The hosts of `--hostfile` or `--hosts`; this one where there is neither.
fn named(fleet: &HostsRequest) -> Result<hosts::FleetFile, Vec<String>> {
    if let Some(path) = &fleet.hostfile {
        return hosts::read(path);
    }
    let hosts = hosts::list(fleet.hosts.as_deref().unwrap_or("localhost"))?;
    Ok(hosts::FleetFile { hosts, ..hosts::FleetFile::default() })
}

/// Each host that has ranks, with its part; one that is named again further on has its ranks numbered on.
fn numbered(
    counts: impl Iterator<Item = (FleetHost, usize)>,
    part: impl Fn(&FleetHost) -> HostPart,
) -> Vec<PlannedHost> {
    let mut hosts: Vec<PlannedHost> = Vec::new();
    let mut first = 0;
    for (host, size) in counts.filter(|(_, n)| *n > 0) {
        let mut part = part(&host);
        part.first = first;
        part.size = size;
        first += size;
        hosts.push(PlannedHost { host, part });
    }
    for at in 0..hosts.len() {
        let name = hosts[at].host.name.clone();
        let same = |h: &&PlannedHost| h.host.name == name;
        let before = hosts[..at].iter().filter(same).map(|h| h.part.size).sum();
        let all = hosts.iter().filter(same).map(|h| h.part.size).sum();
        hosts[at].part.local_first = before;
        hosts[at].part.local_size = all;
    }
    hosts
}

/// The part of a host, from what all parts have.
fn part_of(host: &FleetHost, of_all: HostPart, python: Option<&str>) -> HostPart {
    let python = host.python.as_deref().or(python);
    let mut env: Vec<_> = of_all.env.into_iter().chain(host.env.iter().cloned()).collect();
    let chosen = |(name, _): &(String, String)| name == "COMITY_ADDRS" || name == "COMITY_INTERFACES";
    if !host.ips.is_empty() && !env.iter().any(chosen) {
        let list: Vec<_> = host.ips.iter().map(ToString::to_string).collect();
        env.push(("COMITY_ADDRS".into(), list.join(",")));
    }
    // ssh without a terminal of its own does not carry it.
    if let (Some(_), Ok(term)) = (of_all.tty, std::env::var("TERM"))
        && !env.iter().any(|(name, _)| name == "TERM")
    {
        env.push(("TERM".into(), term));
    }
    // As mlx.launch has it.
    if of_all.request.verbose {
        let (name, value) = if of_all.request.backend_name() == "nccl" {
            ("NCCL_DEBUG", "INFO")
        } else {
            ("MLX_RING_VERBOSE", "1")
        };
        if !env.iter().any(|(given, _)| given == name) {
            env.push((name.into(), value.into()));
        }
    }
    let asked = host.cwd.clone().or(of_all.cwd);
    let here = || std::env::current_dir().ok()?.to_str().map(Into::into);
    HostPart {
        command: python.map(Into::into).into_iter().chain(of_all.command).collect(),
        env,
        cwd_asked: asked.is_some(),
        cwd: asked.or_else(here),
        ..of_all
    }
}

/// Deals the ranks; returns the number for each host.
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

fn words(command: &[OsString]) -> Result<Vec<String>, String> {
    let text = |w: &OsString| w.to_str().map(str::to_owned);
    let all: Option<Vec<String>> = command.iter().map(text).collect();
    all.ok_or_else(|| "a word of the command is not UTF-8, which other hosts may not read as this one".into())
}

/// The variables of every rank: of the hostfile, then of files, then of `--env`.
pub(super) fn settings(
    (given, files): (&[Setting], &[PathBuf]),
    file: Vec<(String, String)>,
    hosts: &[FleetHost],
    wrong: &mut Vec<String>,
) -> Vec<(String, String)> {
    let mut env = file;
    for path in files {
        match env_file(path) {
            Ok(more) => env.extend(more),
            Err(more) => wrong.extend(more),
        }
    }
    let given = texts(given).map_err(|e| wrong.push(e)).unwrap_or_default();
    env.extend(given);
    let all = env.iter().chain(hosts.iter().flat_map(|h| &h.env));
    wrong.extend(all.filter_map(|var| ours(var).or_else(|| impossible(var))));
    env
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

/// Reason for which a system takes no such variable.
fn impossible((name, value): &(String, String)) -> Option<String> {
    let why = match (name.as_str(), value) {
        ("", _) => "it has no name",
        (name, _) if name.contains(['=', '\0']) => "a name holds neither '=' nor a NUL byte",
        (_, value) if value.contains('\0') => "its value holds a NUL byte",
        _ => return None,
    };
    Some(format!("variable {name:?}: {why}"))
}

/// `NAME=VALUE` lines, with comments and empty lines between them.
fn env_file(path: &Path) -> Result<Vec<(String, String)>, Vec<String>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| vec![format!("--env-file {shown}: {e}")])?;
    // Some editors put a mark before UTF-8.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().map(str::trim).enumerate();
    let one = |(at, line): (usize, &str)| match line.trim_start_matches("export ").split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            let value = value.trim();
            let bare = ['"', '\''].iter().find_map(|q| value.strip_prefix(*q)?.strip_suffix(*q));
            Ok((name.trim().to_owned(), bare.unwrap_or(value).to_owned()))
        }
        _ => Err(format!("--env-file {shown}: line {}: is not NAME=VALUE", at + 1)),
    };
    all_or_wrong(lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(one))
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
        std::fs::write(file.path(), "\u{feff}A=1\n# x\nexport B=\"two words\"\n\nC=\n").unwrap();
        let all = env_file(file.path()).unwrap();
        assert_eq!(all, [("A", "1"), ("B", "two words"), ("C", "")].map(|(n, v)| (n.into(), v.into())));
        std::fs::write(file.path(), "A\n=b\n").unwrap();
        let wrong = env_file(file.path()).unwrap_err();
        assert!(wrong[0].contains("line 1") && wrong[1].contains("line 2"), "{wrong:?}");
    }

    #[test]
    fn what_no_system_takes_is_refused() {
        let why = |name: &str, value: &str| impossible(&(name.into(), value.into()));
        assert!(why("", "y").is_some() && why("A=B", "x").is_some() && why("A", "z\0y").is_some());
        assert_eq!(why("A", "b=c"), None);
    }
}
