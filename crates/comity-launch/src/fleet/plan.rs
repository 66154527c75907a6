//! Plan of a job on several hosts, checked as far as this machine can know it.
use super::hosts::FleetHost;
use super::program::OwnProgram;
use super::request::HostsRequest;
use super::vars::settings;
use super::{hostfile, hosts, ssh};
use crate::backend::AskedBackend;
use crate::fleet::stage;
use crate::host::job;
use crate::host::terminal::RankTerminal;
use crate::machine::{ElasticTerms, PATIENCE};
use crate::protocol::{HostPart, Restarts, StagedFile};
use crate::request::{InputRank, JobRequest};
use std::ffi::OsString;
use std::fs::File;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Time for a host to start again, with a good deal to spare.
const WAIT_FOR_HOSTS: Duration = Duration::from_secs(600);

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
    /// Time that ranks have to end after SIGTERM.
    pub(super) grace: Duration,
    pub(super) max_restarts: u32,
    /// Terms on which the job goes on without ranks, and the most processes that join beside these.
    pub(super) elastic: Option<(ElasticTerms, usize)>,
    /// Time that a restart waits for hosts that are away.
    pub(super) wait_for_hosts: Duration,
    /// Number of earlier starts.
    pub(super) restart: u32,
    pub(super) join: Duration,
    pub(super) log_dir: Option<PathBuf>,
    pub(super) events: Option<Arc<File>>,
    pub(super) stdin_rank: Option<usize>,
    pub(super) tty: Option<RankTerminal>,
    pub(super) stage: Vec<StagedFile>,
    pub(super) mixed_programs: bool,
    /// Copied to hosts that have none of its version.
    pub(super) program: Option<OwnProgram>,
    pub(super) ssh_options: ssh::SshOptions,
    pub(super) meet_at: Option<IpAddr>,
    /// The port at which the ranks meet is one of these; 0 stands for any.
    pub(super) ports: RangeInclusive<u16>,
    pub(super) connections_per_ip: usize,
    pub(super) starting_port: Option<u16>,
    pub(super) nccl_port: Option<u16>,
    /// Backend as the hostfile or the flag names it, by MLX's names where these differ.
    pub(super) backend: &'static str,
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
    /// Checks a request as far as this machine can. Both requests are taken apart by name: a field that nobody heeds does not compile.
    #[expect(clippy::too_many_lines, reason = "a line for each field of the requests and of the plan")]
    pub(super) fn check(request: JobRequest, fleet: HostsRequest) -> Result<Self, Vec<String>> {
        let file = named(&fleet)?;
        let ranks = request.size();
        let input = request.input();
        let elastic = request.elastic();
        let max_restarts = request.restarts_of_job();
        let JobRequest {
            ranks: _,
            env,
            cwd,
            backend,
            terms,
            // With `elastic`, and with `input`.
            elastic: _,
            max_restarts: _,
            stdin_rank: _,
            tty,
            timeout,
            grace,
            log_dir,
            tag_output,
            verbose,
            json_events,
            // Refused by the command.
            metrics: _,
            command,
        } = request;
        let tty = tty.map(RankTerminal::of);
        let insecure = terms.insecure;
        let mut wrong = Vec::new();
        let backend = named_backend(backend, file.backend).map_err(|e| wrong.push(e)).ok();
        fleet.say_unheeded(backend.unwrap_or_default());
        let join = crate::host::meet::join_limit(&env);
        let env = settings((&env, &fleet.env_file), file.env, &file.hosts, &mut wrong);
        let command = words(&command).map_err(|e| wrong.push(e)).unwrap_or_default();
        let counts = spread(&file.hosts, ranks, fleet.total.map(|n| n as usize));
        let counts = counts.map_err(|e| wrong.push(e)).unwrap_or_default();
        wrong.extend(too_many_ports(&fleet, &file.hosts, &counts));
        let ports = meeting_ports(&fleet, &env).map_err(|e| wrong.push(e)).unwrap_or_default();
        let stage = stage::files(&fleet.stage).map_err(|all| wrong.extend(all)).unwrap_or_default();
        let world: usize = counts.iter().sum();
        let elastic = elastic.filter(|_| world > 0).map(|(e, restarts)| e.terms(world, restarts)).transpose();
        let elastic = elastic.map_err(|e| wrong.push(e)).unwrap_or_default();
        let stdin_rank = talked_to(input, world, &mut wrong);
        let events =
            json_events.as_deref().and_then(|to| job::events(to).map_err(|e| wrong.push(e.why)).ok());
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let backend = backend.unwrap_or_default();
        let asked = cwd.as_ref().and_then(|dir| dir.to_str().map(Into::into));
        let ours = if backend.starts_with("jaccl") { "jaccl" } else { backend };
        let of_all = HostPart {
            world,
            stdin_rank,
            tty,
            command,
            env,
            cwd_asked: asked.is_some(),
            cwd: asked,
            terms,
            backend: Some(ours.to_owned()).filter(|b| b != "any" && b != "ring"),
            elastic: elastic.is_some(),
            stage: stage.clone(),
            // Each host's own, and known when its connection stands.
            first: 0,
            size: 0,
            local_first: 0,
            local_size: 0,
            at: None,
            ports: 0,
            restarts: Restarts::default(),
        };
        let part =
            |host: &FleetHost| part_of(host, of_all.clone(), fleet.python.as_deref(), backend, verbose);
        let hosts = numbered(file.hosts.into_iter().zip(counts), part);
        let program = OwnProgram::here().filter(|_| !fleet.no_stage_comity);
        let HostsRequest {
            hosts: _,
            hostfile: _,
            total: _,
            env_file: _,
            python,
            ssh_arg: args,
            wait_for_hosts,
            // Of other placements.
            mpi_arg: _,
            print_python: _,
            ssh,
            meet_at,
            stage: _,
            no_stage_comity: _,
            mixed_programs,
            dry_run,
            connections_per_ip,
            starting_port,
            nccl_port,
        } = fleet;
        let copies = program.as_ref().map(|p| p.folder.clone());
        Ok(Self {
            hosts,
            world,
            insecure,
            verbose,
            tag: tag_output.applies(world),
            dry_run,
            timeout,
            grace: grace.unwrap_or(PATIENCE),
            max_restarts,
            elastic,
            wait_for_hosts: wait_for_hosts.unwrap_or(WAIT_FOR_HOSTS),
            restart: 0,
            join,
            log_dir,
            events,
            stdin_rank,
            tty,
            stage,
            mixed_programs,
            ssh_options: ssh::SshOptions { ssh, args, python, copies, any_version: false },
            program,
            meet_at: meet_at.and_then(|place| place.ip),
            ports: ports.unwrap_or(0..=0),
            connections_per_ip: connections_per_ip as usize,
            starting_port,
            nccl_port,
            backend,
        })
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
        if let (false, false, Some(script)) = (self.verbose, host.host.is_here(), by.last_mut()) {
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

/// The rank that alone gets standard input.
fn talked_to(input: Option<InputRank>, all: usize, wrong: &mut Vec<String>) -> Option<usize> {
    let input = input?;
    if input.rank() >= all && all > 0 {
        wrong.push(format!("{} {}: there are {all} ranks, from 0", input.flag(), input.rank()));
    }
    Some(input.rank())
}

/// The hosts of `--hostfile` or `--hosts`; this one where there is neither.
fn named(fleet: &HostsRequest) -> Result<hostfile::FleetFile, Vec<String>> {
    if let Some(path) = &fleet.hostfile {
        return hostfile::read(path);
    }
    let hosts = hosts::list(fleet.hosts.as_deref().unwrap_or("localhost"))?;
    Ok(hostfile::FleetFile { hosts, ..hostfile::FleetFile::default() })
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
fn part_of(
    host: &FleetHost,
    of_all: HostPart,
    python: Option<&str>,
    backend: &str,
    verbose: bool,
) -> HostPart {
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
    env.extend(AskedBackend::variable(backend).map(|(name, value)| (name.into(), value.into())));
    // As mlx.launch has it.
    if verbose {
        let (name, value) =
            if backend == "nccl" { ("NCCL_DEBUG", "INFO") } else { ("MLX_RING_VERBOSE", "1") };
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

/// The name of what carries the calls; the flag's before the hostfile's, which has read its own.
fn named_backend(given: Option<AskedBackend>, file: Option<AskedBackend>) -> Result<&'static str, String> {
    match given.or(file).map_or("any", |backend| backend.name) {
        "mpi" => Err("--backend mpi over several hosts is for MPI's own launcher: mpirun --hostfile".into()),
        name => Ok(name),
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
}
