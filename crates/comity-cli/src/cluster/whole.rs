//! The picture of all hosts together.
use super::team::HostTeam;
use crate::cluster::agent::{AgentOrder, BeaconAnswer};
use comity_cluster::facts::{HostFacts, Nic};
use comity_cluster::graph::{Cluster, HeardBeacon, Plug};
use std::collections::BTreeMap;
use std::time::Duration;

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
pub(super) fn cluster(team: &mut HostTeam) -> Cluster {
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
