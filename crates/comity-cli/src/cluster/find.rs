//! `comity cluster find`: what the hosts are, and how they are cabled.
use super::announce;
use super::team::{HostTeam, ReachArgs};
use crate::cluster::agent::{AgentOrder, BeaconAnswer};
use crate::say::{CommandError, FAULTY, has_colour, say};
use comity_cluster::draw::terminal;
use comity_cluster::facts::{HostFacts, Nic, bits_in_words};
use comity_cluster::graph::{Cluster, HeardBeacon, Plug};
use comity_cluster::read::hosts_of_ssh_config;
use comity_launch::fleet::FleetHost;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without hosts: those that ~/.ssh/config names, else those that announce themselves (comity cluster announce). It changes nothing on them.
Exit code: 0; 1 when a host cannot be reached, 2 for bad arguments.")]
pub(crate) struct FindArgs {
    #[command(flatten)]
    reach: ReachArgs,

    /// Hosts that announce themselves in this host's networks (comity cluster announce)
    #[arg(long, conflicts_with_all = ["hosts", "hostfile"])]
    announced: bool,

    /// Seconds to listen for them
    #[arg(long, value_name = "SECONDS", default_value_t = 3, conflicts_with_all = ["hosts", "hostfile"], value_parser = clap::value_parser!(u32).range(1..=600))]
    listen: u32,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn find(args: FindArgs) -> Result<(), CommandError> {
    let mut hosts = args.reach.named()?;
    let known = configured();
    if hosts.is_empty() && !args.announced {
        hosts = known.iter().filter_map(|name| FleetHost::named(name).ok()).collect();
    }
    if hosts.is_empty() {
        hosts = heard(Duration::from_secs(args.listen.into()), &known)?;
    }
    if hosts.is_empty() {
        return Err(CommandError::usage(
            "no hosts: name them with --hosts a,b or --hostfile FILE or in ~/.ssh/config, or run comity cluster announce on each, in a network of this host",
        ));
    }
    let mut team = HostTeam::gather(&hosts, &args.reach.ssh.options());
    let cluster = picture(&mut team);
    let text = match args.json {
        true => format!("{:#}\n", serde_json::json!({ "cluster": cluster, "unreachable": team.absent() })),
        false => in_words(&cluster),
    };
    say(text, 0)?;
    CommandError::if_any(FAULTY, team.absent())
}

/// Hosts that announce themselves, printed on standard error as they are reached.
fn heard(time: Duration, known: &[String]) -> Result<Vec<FleetHost>, CommandError> {
    let mut hosts = Vec::new();
    for one in announce::listen(time)? {
        // Anybody may announce what another one has.
        let Some(host) = announce::reached(&one, known).filter(|host| !hosts.contains(host)) else {
            continue;
        };
        let at: Vec<_> = one.addresses.iter().map(ToString::to_string).collect();
        eprintln!("heard {} (comity {}) at {}: ssh {}", one.name, one.version, at.join(" "), host.name);
        hosts.push(host);
    }
    Ok(hosts)
}

/// The names in ssh's configuration.
fn configured() -> Vec<String> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let file = std::path::Path::new(&home).join(".ssh/config");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    hosts_of_ssh_config(&text)
}

fn in_words(cluster: &Cluster) -> String {
    let mut t = String::new();
    for host in &cluster.hosts {
        about(&mut t, host);
    }
    let _ = writeln!(t, "\n{}", terminal(cluster, has_colour(false)));
    cluster.notes.iter().for_each(|note| t += &format!("! {note}\n"));
    t
}

// Writing to a string cannot fail.
fn about(t: &mut String, host: &HostFacts) {
    let version = host.version.as_ref().map_or_else(|| "no comity".to_owned(), |v| format!("comity {v}"));
    let _ = writeln!(t, "{} ({}): {}, {version}", host.ssh, host.hostname, host.summary());
    for nic in host.nics.iter().filter(|n| !n.is_inner) {
        let speed = nic.speed.map_or_else(|| "speed not known".into(), bits_in_words);
        let all: Vec<_> = nic.outer().map(ToString::to_string).collect();
        let up = if nic.is_up { "" } else { "down, " };
        let _ = writeln!(t, "  {:<12} {up}{speed}, MTU {}  {}", nic.name, nic.mtu, all.join(" "));
    }
    for device in &host.rdma.devices {
        let state = device.state.as_deref().unwrap_or("state not known");
        let _ =
            writeln!(t, "  {:<12} RDMA, {state}  {}", device.name, device.nic.as_deref().unwrap_or_default());
    }
}

/// Time for which an interface that has an address sends beacons.
const BEACONS: Duration = Duration::from_millis(1500);
/// Interfaces of the hosts with those that they hear. Where one had no address at first all say it once more. Problems are added to the notes.
pub(crate) fn beacons(team: &mut HostTeam, notes: &mut Vec<String>) -> Vec<HeardBeacon> {
    let mut heard = Vec::new();
    let late = said(team, notes, &mut heard);
    if late {
        said(team, notes, &mut heard);
    }
    heard
}

/// Runs one round; returns whether an interface had no address at first.
fn said(team: &mut HostTeam, notes: &mut Vec<String>, heard: &mut Vec<HeardBeacon>) -> bool {
    // Without it strangers could answer, which would only make the picture wrong.
    let token = crate::here::token().unwrap_or_default();
    let port = 20_000 + (std::process::id() % 20_000) as u16;
    let carries = |n: &&Nic| n.is_up && !n.is_inner && n.bridge.is_none();
    let answers = team.ask_all::<BeaconAnswer>(|host, member| {
        let nics = member.facts.nics.iter().filter(carries).map(|n| n.name.clone()).collect();
        let millis = BEACONS.as_millis() as u64;
        AgentOrder::Beacon { token: token.clone(), host, port, nics, millis }
    });
    let mut late = false;
    for (host, answer) in answers.into_iter().enumerate() {
        match answer {
            Some(Ok(answer)) => {
                late |= answer.late;
                heard.extend(answer.heard.into_iter().map(|(own, from, nic)| HeardBeacon {
                    at: Plug { host, nic: own },
                    from: Plug { host: from, nic },
                }));
            }
            Some(Err(e)) if notes.contains(&e) => {}
            Some(Err(e)) => notes.push(e),
            None => {}
        }
    }
    late
}

/// The hosts that answered, as a cluster; the places in it are those among them.
pub(super) fn picture(team: &mut HostTeam) -> Cluster {
    let mut notes = Vec::new();
    let heard = beacons(team, &mut notes);
    let places: Vec<usize> = team.there().map(|(i, _)| i).collect();
    let facts: Vec<HostFacts> = team.there().map(|(_, m)| m.facts.clone()).collect();
    let place = |e: &Plug| Some(Plug { host: places.iter().position(|p| *p == e.host)?, nic: e.nic.clone() });
    let known: Vec<_> =
        heard.iter().filter_map(|h| Some(HeardBeacon { at: place(&h.at)?, from: place(&h.from)? })).collect();
    let mut mute = BTreeMap::<String, Vec<String>>::new();
    for (_, member) in team.there() {
        if let Err(why) = &member.agent {
            mute.entry(why.clone()).or_default().push(member.host.name.clone());
        }
        let problems = &member.facts.problems;
        notes.extend(problems.iter().map(|p| format!("host {}: {}: {}", member.host.name, p.why, p.mend)));
    }
    // Once, for a cluster may have no comity yet.
    notes.extend(mute.into_iter().map(|(why, hosts)| {
        let hosts = hosts.join(", ");
        format!("{hosts}: {why}; so of cables other than Thunderbolt between Macs only the subnets are known")
    }));
    let mut cluster = Cluster::of(facts, &known);
    cluster.notes.extend(notes);
    cluster
}
