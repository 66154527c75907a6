//! `comity cluster config`: cables, addresses, a hostfile.
use super::find;
use super::setup::apply;
use super::team::{HostTeam, ReachArgs};
use crate::save;
use crate::say::{CommandError, FAULTY, USAGE, has_colour, say};
use comity_cluster::addresses::AddressPlan;
use comity_cluster::commands::{HostSetup, in_words, setup};
use comity_cluster::draw;
use comity_cluster::facts::HostFacts;
use comity_cluster::graph::{CableKind, Cluster};
use comity_cluster::graph::{CableLayout, LayoutKind, layout};
use comity_cluster::hostfile::{ClusterFile, Over};
use comity_launch::fleet::FleetHost;
use serde_json::Value;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It prints the commands that give cables addresses; with --auto-setup it runs them, as root or by sudo without a
password, on all hosts or on none, and writes what undoes them. Nothing lasts over a restart of a host.
Exit code: 0; 1 when a host cannot be reached or set up, 2 for bad arguments or cables that are not enough.")]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    reach: ReachArgs,

    /// Network to carry the data
    #[arg(long, value_enum, default_value = "auto")]
    over: OverChoice,

    /// The same in MLX's words: ring is TCP, jaccl and jaccl-ring are RDMA
    #[arg(long, value_enum)]
    backend: Option<BackendChoice>,

    /// Say what is done, on standard error
    #[arg(long)]
    verbose: bool,

    /// Run the commands, on all hosts or on none
    #[arg(long, overrides_with = "no_auto_setup")]
    auto_setup: bool,

    /// Print the commands (the default)
    #[arg(long)]
    no_auto_setup: bool,

    /// File to which --auto-setup writes the undo commands
    #[arg(long, value_name = "FILE", default_value = "comity-undo.json", requires = "auto_setup")]
    undo: PathBuf,

    /// Write the hostfile there, not to standard output
    #[arg(long, alias = "output-hostfile", value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write a drawing there
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print the cables for Graphviz, and make no hostfile
    #[arg(long, conflicts_with_all = ["output", "over", "backend", "auto_setup", "env"])]
    dot: bool,

    /// Go on without hosts that do not answer
    #[arg(long)]
    ignore_unreachable: bool,

    /// A variable for every rank: K=V (repeatable)
    #[arg(long, value_name = "K=V")]
    env: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OverChoice {
    /// RDMA where all hosts have it, else Thunderbolt, else Ethernet
    Auto,
    Thunderbolt,
    Ethernet,
    Rdma,
}

/// The backends of `mlx.distributed_config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BackendChoice {
    /// TCP, over what --over says
    Ring,
    /// RDMA between each two hosts
    Jaccl,
    /// RDMA between neighbours in a ring
    JacclRing,
}

/// Result of the choice: the cluster, its cables, addresses and file.
struct ClusterChoice {
    cluster: Cluster,
    layout: CableLayout,
    plan: AddressPlan,
    file: ClusterFile,
}

pub(super) fn config(args: ConfigArgs) -> Result<(), CommandError> {
    let hosts = args.reach.named()?;
    if hosts.is_empty() {
        return Err(CommandError::usage("no hosts: name them with --hosts a,b or --hostfile FILE"));
    }
    if let Some(bad) = args.env.iter().find(|e| !e.contains('=') || e.starts_with('=')) {
        return Err(CommandError::usage(format!("--env {bad:?} is not K=V")));
    }
    can_write(&args)?;
    if args.backend == Some(BackendChoice::Ring) && args.over == OverChoice::Rdma {
        return Err(CommandError::usage(
            "--backend ring goes over TCP, and --over rdma does not: leave one of them out",
        ));
    }
    if args.verbose {
        let names = hosts.iter().map(|h| h.name.as_str()).collect::<Vec<_>>().join(", ");
        eprintln!("comity cluster: asking {names} over ssh, and listening which interfaces hear each other");
    }
    let way = args.reach.ssh.options();
    let mut team = HostTeam::gather(&hosts, &way);
    let absent = team.absent();
    if !args.ignore_unreachable {
        CommandError::if_any(FAULTY, absent.clone())?;
    }
    absent.iter().for_each(|a| eprintln!("comity cluster: left out: {a}"));
    let cluster = find::picture(&mut team);
    if cluster.hosts.is_empty() {
        return Err(CommandError::faulty("no host is left"));
    }
    if let Some(path) = &args.svg {
        write(path, &draw::svg(&cluster))?;
    }
    if args.dot {
        return say(draw::dot(&cluster), 0).map(drop);
    }
    // Where the hostfile goes to standard output, nothing else does.
    let picture = draw::terminal(&cluster, has_colour(false));
    match args.output {
        Some(_) => drop(say(format!("{picture}\n"), 0)?),
        None => eprintln!("{picture}"),
    }
    cluster.notes.iter().for_each(|note| eprintln!("! {note}"));
    CommandError::if_any(USAGE, cluster.named_twice())?;
    tells_its_cables(&cluster, args.over)?;
    let mut chosen = choose(cluster, args.over, args.backend).map_err(CommandError::usage)?;
    if args.verbose {
        eprintln!("comity cluster: chosen: {}", summary(&chosen));
    }
    chosen.file.json["envs"] = args.env.clone().into();
    keep(&mut chosen.file.json, &hosts);
    let steps = setup(&chosen.cluster, &chosen.plan);
    prepare(&args, &mut team, &chosen, &steps)?;
    put(args.output.as_deref(), &chosen)
}

/// Writes the hostfile, and says what it is of.
fn put(output: Option<&Path>, chosen: &ClusterChoice) -> Result<(), CommandError> {
    let Some(path) = output else {
        say(chosen.file.text(), 0)?;
        eprintln!("{}", summary(chosen));
        return Ok(());
    };
    write(path, &chosen.file.text())?;
    say(format!("{}: {}; try it: comity doctor {0}\n", path.display(), summary(chosen)), 0).map(drop)
}

/// Checks that every file that is to be written can be: before anything is changed on any host.
fn can_write(args: &ConfigArgs) -> Result<(), CommandError> {
    let undo = Some(&args.undo).filter(|_| args.auto_setup);
    let files = [("--output", args.output.as_ref()), ("--svg", args.svg.as_ref()), ("--undo", undo)];
    let wrong = files.into_iter().filter_map(|(flag, path)| {
        let path = path?;
        let e = save::can_be_put(path).err()?;
        Some(format!("{flag} {}: {e}; nothing was done", path.display()))
    });
    CommandError::if_any(USAGE, wrong.collect())
}

/// Macs that do not tell their Thunderbolt cables: a choice without these would be a slow one, and nobody would know.
fn tells_its_cables(cluster: &Cluster, over: OverChoice) -> Result<(), CommandError> {
    if over == OverChoice::Ethernet {
        return Ok(());
    }
    let of = |host: &HostFacts| {
        let problem =
            host.problems.iter().find(|p| ["networksetup", "system_profiler"].contains(&&*p.about))?;
        Some(format!(
            "host {}: {}, so its Thunderbolt cables are not known: {}, or use --over ethernet",
            host.ssh, problem.why, problem.mend
        ))
    };
    CommandError::if_any(USAGE, cluster.hosts.iter().filter_map(of).collect())
}

/// Keeps in `file` the settings of hosts in the user's own hostfile, beside their addresses.
fn keep(file: &mut Value, hosts: &[FleetHost]) {
    for entry in file["hosts"].as_array_mut().into_iter().flatten() {
        let Some(host) = hosts.iter().find(|h| entry["ssh"] == h.name.as_str()) else { continue };
        let settings = [
            ("slots", host.slots.map(Value::from)),
            ("port", host.port.map(Value::from)),
            ("identity", host.identity.clone().map(Value::from)),
            ("cwd", host.cwd.clone().map(Value::from)),
            ("python", host.python.clone().map(Value::from)),
        ];
        for (key, value) in settings.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            entry[key] = value;
        }
        for (name, value) in host.env.iter().filter(|(name, _)| name != "COMITY_INTERFACES") {
            entry["env"][name] = value.clone().into();
        }
    }
}

/// Addresses that are missing: the commands are told, or run.
fn prepare(
    args: &ConfigArgs,
    team: &mut HostTeam,
    chosen: &ClusterChoice,
    steps: &[HostSetup],
) -> Result<(), CommandError> {
    if steps.is_empty() {
        if args.auto_setup {
            eprintln!("every cable has its addresses already: no command was run");
        }
        return Ok(());
    }
    if args.auto_setup {
        let done = apply(team, steps, &args.undo, &args.reach)?;
        eprintln!("{done} commands were run; to undo them: comity cluster undo {}", args.undo.display());
        return Ok(());
    }
    eprintln!(
        "{} of {} cables have no addresses. Run on each host, or use --auto-setup:\n{}",
        chosen.plan.new_ones(),
        chosen.cluster.cables.len(),
        in_words(steps)
    );
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), CommandError> {
    let fail = |e: std::io::Error| CommandError::faulty(format!("{}: {e}; it is as it was", path.display()));
    save::replace(path, text.as_bytes(), save::FOR_ALL).map_err(fail)
}

fn summary(chosen: &ClusterChoice) -> String {
    let what = match chosen.layout.kind {
        LayoutKind::Switch => "one network",
        LayoutKind::Mesh => "a mesh",
        LayoutKind::Ring => "a ring",
        LayoutKind::Sparse => "cables between some, others through these",
    };
    let lanes = match chosen.layout.lanes {
        0 | 1 => String::new(),
        n => format!(" with {n} cables each"),
    };
    format!("{} hosts, {what}{lanes}, backend {}", chosen.layout.order.len(), chosen.file.backend)
}

fn choose(
    cluster: Cluster,
    over: OverChoice,
    backend: Option<BackendChoice>,
) -> Result<ClusterChoice, String> {
    match backend {
        None => by_over(cluster, over, true),
        Some(BackendChoice::Ring) => by_over(cluster, over, false),
        Some(named) => {
            let mut chosen =
                with(cluster, Over::Rdma).map_err(|e| format!("--backend {}", named.after(&e)))?;
            match (named, chosen.file.backend) {
                (BackendChoice::Jaccl, "jaccl-ring") => Err(
                    "--backend jaccl needs a cable with RDMA between each two hosts, and there is a ring: use --backend jaccl-ring".into(),
                ),
                (BackendChoice::JacclRing, "jaccl") => {
                    neighbours_alone(&mut chosen.file);
                    Ok(chosen)
                }
                _ => Ok(chosen),
            }
        }
    }
}

impl BackendChoice {
    /// "jaccl: ...", with what is wrong, in which `--over rdma` was not written by the user.
    fn after(self, why: &str) -> String {
        let name = if self == Self::Jaccl { "jaccl" } else { "jaccl-ring" };
        format!("{name}: {}", why.strip_prefix("--over rdma: ").unwrap_or(why))
    }
}

/// A mesh as a ring: of a host's devices those to the hosts before and after it stay.
fn neighbours_alone(file: &mut ClusterFile) {
    file.backend = "jaccl-ring";
    file.json["backend"] = file.backend.into();
    let hosts = file.json["hosts"].as_array_mut().into_iter().flatten();
    for (place, host) in hosts.enumerate() {
        let cells = host["rdma"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
        let n = cells.len();
        for (other, cell) in cells.iter_mut().enumerate() {
            if (place + 1) % n != other && (other + 1) % n != place {
                *cell = Value::Null;
            }
        }
    }
}

/// By what is to carry the data; RDMA unasked only where that is `allowed`.
fn by_over(cluster: Cluster, over: OverChoice, allowed: bool) -> Result<ClusterChoice, String> {
    match over {
        OverChoice::Thunderbolt => with(cluster, Over::Thunderbolt),
        OverChoice::Ethernet => with(cluster, Over::Ethernet),
        OverChoice::Rdma => with(cluster, Over::Rdma),
        OverChoice::Auto => {
            let any_rdma = allowed && cluster.hosts.iter().all(|h| !h.rdma.devices.is_empty());
            let any_thunderbolt = cluster.cables.iter().any(|c| c.kind == CableKind::Thunderbolt);
            let faster = [(any_rdma, Over::Rdma), (any_thunderbolt, Over::Thunderbolt)];
            let mut faster = faster.into_iter().filter(|(is_there, _)| *is_there);
            let found = faster.find_map(|(_, over)| with(cluster.clone(), over).ok());
            found.map_or_else(|| with(cluster, Over::Ethernet), Ok)
        }
    }
}

/// With the cables that carry this kind of data.
fn with(mut cluster: Cluster, over: Over) -> Result<ClusterChoice, String> {
    if over == Over::Thunderbolt {
        cluster.cables.retain(|c| c.kind == CableKind::Thunderbolt);
    }
    if over == Over::Rdma && cluster.common_network().is_none() {
        cluster.cables.retain(|c| c.rdma);
    }
    let cabled = layout(&cluster, false);
    let whole = |l: &CableLayout| matches!(l.kind, LayoutKind::Mesh | LayoutKind::Ring);
    let layout = match (cabled, over) {
        (Ok(cabled), _) if whole(&cabled) || over == Over::Thunderbolt => cabled,
        (Err(e), Over::Thunderbolt) => return Err(format!("--over thunderbolt: {e}")),
        _ => layout(&cluster, true).map_err(|e| match over {
            Over::Rdma => format!("--over rdma: with the cables that can carry RDMA {e}"),
            _ => e,
        })?,
    };
    if layout.kind == LayoutKind::Switch {
        // Cables beside the network of all stay as they are.
        cluster.cables.clear();
    }
    let plan = AddressPlan::of(&cluster)?;
    let file = ClusterFile::of(&cluster, &plan, &layout, over)?;
    Ok(ClusterChoice { cluster, layout, plan, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hostfile_says_beside_addresses_is_kept() {
        let mut host = FleetHost::named("me@a").unwrap();
        (host.port, host.slots) = (Some(2222), Some(4));
        host.env = vec![("A".into(), "1".into()), ("COMITY_INTERFACES".into(), "old".into())];
        let mut file = serde_json::json!({ "hosts": [
            { "ssh": "me@a", "ips": [], "env": { "COMITY_INTERFACES": "=en2" } }, { "ssh": "b" }] });
        keep(&mut file, &[host]);
        let kept = serde_json::json!({ "hosts": [
            { "ssh": "me@a", "ips": [], "env": { "COMITY_INTERFACES": "=en2", "A": "1" }, "port": 2222, "slots": 4 },
            { "ssh": "b" }] });
        assert_eq!(file, kept);
    }
}
